"""Bad input in every store: huge values, endless runs, names with every trick, two workers on one run; kept as given, or refused whole."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import secrets
import signal
import threading
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests.owner import working
from holdfast.errors import HoldfastError, LeaseLost, StoreError
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.store import Append, Head, Live, Query, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.opening import open_store
from holdfast.testing.sample import create, head, onward, row
from object_server import BUCKET
from test_ownership import Owner, charged, held

HUGE = 64 * 1024 * 1024
RECORDS, BULK = 100_000, 10_000
PART = 20_000
FEWER = {"files": PART}
"""Where each record is a file that people can read, a fifth of them will do here: the rest takes half a minute more of the same."""
LIMIT_S = 20.0
"""Of this process's own time, for each look at such a run, on a slow machine: on a common one it takes a second or two."""
LIMIT_BYTES = 1500
"""Memory for each of its records while it is loaded: what a record holds, and as much again."""

TRICKS = {
    "nul": "a\0b", "nul alone": "\0", "the escape of a nul": "\x01\x01", "one and nul": "\x01\0\x01", "two": "\x01\x02",
    "controls": "\x07\x1b[31m\x7f\x80", "lines": "a\r\nb\n", "line separators": "\u2028\u2029\x85",
    "combining": "e\u0301\u0323\u0345", "rtl": "\u202egnol\u202c \u05d0\u0627", "emoji": "\U0001f469\u200d\U0001f4bb\U0001f3f3\ufe0f",
    "nothing to see": "\u200b\u200d\ufeff\u2060", "no characters": "\ufffe\uffff\U0010ffff", "replaced": "\ufffd",
    "dot": ".", "dots": "..", "slash": "/", "escaping": "../../etc/passwd", "absolute": "/etc/passwd", "backslash": "a\\b\\",
    "plain": "run", "upper": "RUN", "mixed": "Run", "trailing dot": "run.", "trailing space": "run ", "leading space": " run", "tilde": "~",
    "dotless": "\u0131", "kelvin": "\u212a", "sharp": "stra\u00dfe", "double": "strasse", "device": "CON", "hidden": ".run",
    "composed": "caf\u00e9", "decomposed": "cafe\u0301", "ligature": "\ufb01", "letters": "fi", "wide": "\uff52\uff55\uff4e",
    "quotes": "a'b\"c`d", "statement": "'; DROP TABLE runs; --", "percent": "%00%2F%", "braces": '{a,NULL,"b"}', "null": "NULL",
    "like": "_%", "json": '{"a": [1]}', "long": "x" * 10_000, "long and various": "".join(chr(0x4E00 + n) for n in range(10_000)),
}  # fmt: skip
SURROGATE = "a\ud800b"


SERVED = {"postgres": "postgres_url", "objects": "object_endpoint"}
"""The fixtures that give the address of a server, for the stores that need one."""


class Home:
    """A kind of store at a place of its own, opened as often as a test likes."""

    def __init__(self, kind: str, folder: Path, server_url: str) -> None:
        self.kind, self.folder = kind, folder
        schema = f"t_{secrets.token_hex(6)}"
        urls = {
            "sqlite": f"{folder}/runs.db", "files": f"{folder}/runs/", "postgres": f"{server_url}?schema={schema}",
            "objects": f"s3://{BUCKET}/{schema}?endpoint={server_url}",
        }  # fmt: skip
        self.url = urls.get(kind, "memory:")
        self._memory = MemoryStore()

    def open(self) -> Store:
        return self._memory if self.kind == "memory" else open_store(self.url)


@pytest.fixture(params=["memory", "sqlite", "files", "postgres", "objects"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """Every store; another one is a word more here, and its URL above."""
    served = SERVED.get(request.param)
    return Home(request.param, tmp_path, request.getfixturevalue(served) if served else "")


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    with closing(home.open()) as store:
        yield store


# --- huge values ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_huge_values_are_kept_and_given_back(home: Home) -> None:
    """A step is called with 8 MB and returns as much, 64 in SQLite; the run breaks off behind it, and goes on later."""
    size = HUGE if home.kind == "sqlite" else HUGE // 8  # most of the time goes into pressing them, which is the same in every store
    returned = secrets.token_urlsafe(size)[:size]
    given = returned[: HUGE // 8 - 1] + "!"
    executed: list[int] = []
    broken = [True]

    @hf.step
    def turn(text: str) -> str:
        executed.append(len(text))
        return returned

    @hf.agent
    def churn() -> str:
        text = turn(given)
        if broken:
            raise RuntimeError(broken.pop())
        return hashlib.sha256(text.encode()).hexdigest()

    with hf.Holdfast(home.open()) as app, pytest.raises(RuntimeError):
        app.run(churn, run_id="huge")
    with hf.Holdfast(home.open()) as app:
        assert app.run(churn, run_id="huge") == hashlib.sha256(returned.encode()).hexdigest()
    assert executed == [HUGE // 8]


def test_a_value_of_64_megabytes_comes_back(store: Store) -> None:
    large = create("run")._replace(rows=[row(1, value=b'"' + b"x" * HUGE + b'"')])
    assert store.append([large]) == [None]
    found = store.load("run")
    assert found is not None
    assert found[1] == large.rows


# --- endless runs --------------------------------------------------------------------------------------------------


@cache
def endless(run_id: str, count: int) -> list[Append]:
    """A run of so many records, as an engine would have written it, to be put in by the thousands."""
    journal, appends = Journal(run_id), []
    records: list[rec.Record] = [rec.RunStarted(agent="endless", fingerprint="f", origin=run_id, owner="me")]
    records += [rec.StepDone(step_id=str(n), name="look", fingerprint="f", value=b'"%d"' % n) for n in range(1, count - 1)]
    records += [rec.RunDone(value=b"0")]
    for first in range(0, count, BULK):
        bulk = records[first : first + BULK]
        appends.append(journal.seal(bulk, at_us=first))
        journal.stored(appends[-1], bulk)
    return appends


def timed(work: Callable[[], Any]) -> Any:
    began = process_time()
    found = work()
    assert process_time() - began < LIMIT_S
    return found


@pytest.mark.long
@pytest.mark.xdist_group("endless")  # it is made once
def test_a_run_of_a_hundred_thousand_records_is_loaded_checked_and_told(home: Home) -> None:
    count = FEWER.get(home.kind, RECORDS)
    appends = endless("endless", count)
    last = appends[-1].head
    with hf.Holdfast(home.open()) as app:
        assert timed(lambda: [app.store.append([one]) for one in appends]) == [[None]] * len(appends)
        assert app.store.head("endless") == last
        found = timed(lambda: app.store.load("endless"))
        assert (found[0], len(found[1]), found[1][-1].seq) == (last, count, count)
        del found
        assert [(verdict.good, verdict.records) for verdict in timed(lambda: app.check("endless"))] == [(True, count)]
        lines = timed(lambda: app.history("endless"))
        assert [line.step_id for line in lines if line.state == "done"] == [str(number) for number in range(1, count - 1)]
        del lines
        store = app.store
        assert isinstance(store, Live)
        behind = timed(lambda: store.rows_after("endless", count - 1))
        assert [one.seq for one in behind[1]] == [count]


@pytest.mark.long
@pytest.mark.xdist_group("endless")
def test_what_the_records_of_an_endless_run_hold_is_in_memory_twice_at_the_most_while_they_are_loaded(store: Store) -> None:
    assert [store.append([one]) for one in endless("endless", PART)] == [[None]] * (PART // BULK)
    gc.collect()
    tracemalloc.start()
    try:
        found = store.load("endless")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found is not None
    assert len(found[1]) == PART
    assert peak < PART * LIMIT_BYTES


# --- names ---------------------------------------------------------------------------------------------------------


def named(name: str) -> Append:
    """A run in which everything that can have a name has this one."""
    kept = Head(name, name, "waiting", name, 1, 1, b"digest", None, 1, 1, json.dumps({name: name}), 0.0, name)
    return Append(name, 0, 0, [row(1)._replace(kind=name, step_id=name, body=name.encode("utf-8", "surrogatepass"))], kept)


def put(store: Store, append: Append) -> bool:
    """Whether it went in; one that is refused leaves nothing behind."""
    try:
        assert store.append([append]) == [None]
    except (StoreError, UnicodeEncodeError):
        assert append.run_id not in [found.run_id for found in store.heads(Query(after="", limit=1000))]
        return False
    return True


def test_names_with_every_trick_are_given_back_as_they_were_or_refused_whole(store: Store) -> None:
    """All at the same time: those that look alike stay apart."""
    kept = [name for name in TRICKS.values() if put(store, named(name))]
    refused = {trick for trick, name in TRICKS.items() if name not in kept}
    assert refused <= {"long", "long and various"}
    for name in kept:
        append = named(name)
        assert store.head(name) == append.head, ascii(name)
        assert store.load(name) == (append.head, list(append.rows)), ascii(name)
        assert [found.run_id for found in store.heads(Query(agent=name))] == [name], ascii(name)
        assert [found.run_id for found in store.heads(Query(tags=[(name, name)]))] == [name], ascii(name)
    assert [found.run_id for found in store.heads(Query(after="", limit=1000))] == sorted(kept, key=lambda name: name.encode())
    assert [problem for problem in store.check() if "not enrolled" not in problem] == []


def test_letters_and_lines_reach_the_run_of_exactly_that_name(store: Store) -> None:
    assert isinstance(store, Live)
    short = [name for name in TRICKS.values() if len(name) < 100]
    for number, name in enumerate(short):
        store.post(name, name, name.encode(), number)
        store.publish(name, b"line %d" % number)
    for number, name in enumerate(short):
        assert [(letter.kind, letter.at_us) for letter in store.letters([name])] == [(name, number)], ascii(name)
        assert [line for _, line in store.published(name, 0)] == [b"line %d" % number], ascii(name)


def test_owners_of_every_name_are_told_apart(store: Store) -> None:
    enrolled = []
    for name in TRICKS.values():
        with suppress(StoreError):  # a name that is longer than a file's can be
            store.enroll(name)
            enrolled.append(name)
    assert {trick for trick, name in TRICKS.items() if name not in enrolled} <= {"long", "long and various"}
    for beats, name in enumerate(enrolled):
        for _ in range(beats % 3):
            store.renew(name)
    found = {name: store.pulse(name) for name in enrolled}
    assert [pulse.beat for pulse in found.values() if pulse and not pulse.dead] == [1 + beats % 3 for beats in range(len(enrolled))]
    for name in enrolled:
        store.retire(name)
        assert store.pulse(name) is None


def test_text_that_is_none_is_refused_with_nothing_written(home: Home, store: Store) -> None:
    """A lone surrogate: some stores can keep it, and the engine lets none through."""
    append = named(SURROGATE)
    if put(store, append):
        assert store.load(SURROGATE) == (append.head, list(append.rows))
    assert store.append([create("after")]) == [None]
    with hf.Holdfast(home.open()) as app:
        before = app.store.heads(Query(after="", limit=1000))
        for order in orders(SURROGATE):
            with pytest.raises(HoldfastError, match=r"surrogate|letters, digits"):
                order(app)
        assert app.store.heads(Query(after="", limit=1000)) == before


def orders(name: str) -> list[Callable[[hf.Holdfast], object]]:
    """Whatever an engine can be told that has this name."""

    def plain() -> int:
        return 1

    agent = hf.agent(plain)
    return [
        lambda app: app.run(agent, run_id=name),
        lambda app: app.run(hf.agent(name=name)(plain), run_id="agent"),
        lambda app: app.run(hf.agent(version=name)(plain), run_id="version"),
        lambda app: app.run(agent, run_id="tags", tags={name: "x"}),
        lambda app: app.run(agent, run_id="tag", tags={"x": name}),
        lambda app: app.run(stepping(name), run_id="step"),
    ]


def stepping(name: str) -> Any:
    @hf.step(name=name)
    def look() -> int:
        return 7

    @hf.agent(name=name)
    def looking() -> int:
        return look()

    return looking


def test_agents_steps_and_tags_of_every_name_go_through_the_engine(home: Home) -> None:
    with hf.Holdfast(home.open()) as app:
        for number, (trick, name) in enumerate(TRICKS.items()):
            tags = {name: name, "n": str(number)}
            assert app.run(stepping(name), run_id=f"r{number}", tags=tags) == 7, trick
            [found] = app.runs(tags=tags)
            assert (found.run_id, found.agent, found.tags) == (f"r{number}", name, tags), trick
            kept = app.store.load(f"r{number}")
            assert kept is not None
            assert name in [json.loads(one.body).get("name") for one in kept[1]], trick
        assert all(verdict.good for verdict in app.check())


def test_ids_that_differ_only_in_case_or_at_their_end_are_different_runs(home: Home) -> None:
    ids = ["order-1", "Order-1", "ORDER-1", "order-1.", "order-1..", "order-1:", "order_1", "nul", "aux.txt", "con"]

    @hf.agent
    def same(name: str) -> str:
        return name

    with hf.Holdfast(home.open()) as app:
        assert [app.run(same, run_id, run_id=run_id) for run_id in ids] == ids
        assert [app.run(same, run_id, run_id=run_id) for run_id in ids] == ids
        assert sorted(run.run_id for run in app.runs()) == sorted(ids)


def test_the_pairs_are_what_they_are_said_to_be() -> None:
    """The negative control: names that a careless store would take for one another."""
    assert unicodedata.normalize("NFC", TRICKS["decomposed"]) == TRICKS["composed"] != TRICKS["decomposed"]
    assert unicodedata.normalize("NFKC", TRICKS["ligature"]) == TRICKS["letters"]
    assert TRICKS["upper"].lower() == TRICKS["plain"]
    assert len(set(TRICKS.values())) == len(TRICKS)

    class Careless(MemoryStore):
        def append(self, batch: Any, *, wait: bool = True) -> Any:
            return super().append([one._replace(run_id=unicodedata.normalize("NFC", one.run_id)) for one in batch], wait=wait)

    with pytest.raises(AssertionError):
        test_names_with_every_trick_are_given_back_as_they_were_or_refused_whole(Careless())


# --- two workers on one run ----------------------------------------------------------------------------------------


def test_of_two_who_claim_a_run_one_is_refused_and_so_is_the_late_write_of_the_other(home: Home) -> None:
    with closing(home.open()) as one, closing(home.open()) as two:
        assert one.append([create("run")]) == [None]
        claim = Append("run", 1, 1, [row(2, epoch=2)], head("run", 2, epoch=2, owner="two"))
        answers = {"two": two.append([claim])[0], "one": one.append([claim])[0]}
        assert answers["two"] is None
        assert answers["one"] is not None
        late = one.append([onward("run", 1)])[0]
        assert late is not None
        assert late.head == claim.head
        assert one.load("run") == (claim.head, [row(1), row(2, epoch=2)])


def test_a_worker_that_was_stopped_past_its_lease_cannot_write_when_it_wakes(home: Home, tmp_path: Path) -> None:
    """SIGSTOP past the lease, another takes over, SIGCONT: what the first wants to write then is refused."""
    if home.kind == "memory":
        pytest.skip("this store lives in one process, which cannot be stopped alone")
    ledger = tmp_path / "ledger"
    other = Owner(tmp_path, "hold=between", lease_s=0.5, store=home.url)
    try:
        held(other, "r").signal(signal.SIGSTOP)
        with hf.Holdfast(home.open(), lease=0.5) as app:
            assert app.run(working(ledger), "r", run_id="r")[1:] == [os.getpid()] * 2
            rows = app.store.load("r")
            other.signal(signal.SIGCONT)
            other.say("go on")
            assert other.hear() == "LeaseLost"
            assert app.store.load("r") == rows
            assert [verdict.good for verdict in app.check()] == [True]
    finally:
        other.end()
    assert charged(ledger) == ["r"]


class Unbeating(MemoryStore):
    """As a process sees it whose threads stand still: no owner beats again."""

    def renew(self, owner: str) -> None:
        """Nothing."""


def test_in_memory_the_owner_that_has_fallen_silent_cannot_write_either() -> None:
    began, go_on, ended = threading.Event(), threading.Event(), []
    store, hold = Unbeating(), [True]

    @hf.step
    def first() -> int:
        if hold and hold.pop():
            began.set()
            go_on.wait(20)
        return 1

    @hf.agent
    def both() -> int:
        return first()

    def zombie() -> None:
        try:
            hf.Holdfast(store, lease=0.3).run(both, run_id="r")
        except BaseException as error:  # noqa: BLE001 (whatever it is, the test wants to know)
            ended.append(type(error))

    thread = threading.Thread(target=zombie)
    thread.start()
    assert began.wait(10)
    app = hf.Holdfast(store, lease=0.3)
    assert app.run(both, run_id="r") == 1
    rows = store.load("r")
    go_on.set()
    thread.join(20)
    assert ended == [LeaseLost]
    assert store.load("r") == rows
