"""A run that was made lighter goes on exactly as it would have: what replay, undo, doubts and checks need stays."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S, Crash, loaded, play, records
from holdfast.operating import pruning
from holdfast.operating.pruning import Pruning
from holdfast.records import kinds as rec
from holdfast.records import shedding
from holdfast.records.bodies import from_parts
from holdfast.records.journal import Journal
from holdfast.store import Row
from holdfast.stores.memory import MemoryStore

LONG = "x" * 2_000
did: list[str] = []
mood: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def afresh() -> None:
    did.clear()
    mood.clear()


@hf.step
async def look(what: str, more: str = "") -> str:
    did.append(what)
    return f"seen {what}"


@hf.step(retry=hf.Retry(base=0.001))
async def shaky(what: str) -> str:
    did.append(what)
    if did.count(what) < 3:
        raise ConnectionResetError(LONG)
    return what


@hf.step
async def wrong(what: str) -> str:
    did.append(what)
    if what == LONG and "fail" not in mood:
        return "mended"
    raise ValueError(what)


def unpay(receipt: str, what: str) -> None:
    did.append(f"undo {receipt} {what[:3]}")


@hf.effect(in_doubt="ask", undo=unpay)
async def pay(what: str) -> str:
    did.append(f"pay {what[:3]}")
    if mood.get("doubt") == what[:3]:
        raise RuntimeError("reset by peer")
    return f"r-{what[:3]}"


async def body() -> list[Any]:
    notes: dict[str, int] = hf.state({"n": 0})
    found: list[Any] = [await look("a", LONG), hf.now().timestamp()]
    notes["n"] += 1
    found += await hf.gather(look("b", LONG), pay(f"one{LONG}"), shaky("c"))
    notes["n"] += len(found)
    with suppress(ValueError):
        await wrong(f"caught {LONG}")
    found += [await look(f"n is {notes['n']}", LONG), hf.current().random.random()]
    return found


@hf.agent(name="long")
async def crashing_one() -> list[Any]:
    found = await body()
    if "crash" in mood:
        raise Crash
    return [*found, await look("end")]


@hf.agent(name="long")
async def asking_one() -> list[Any]:
    found = await body()
    return [*found, await hf.ask("go on?", bool), await look("end")]


@hf.agent(name="long")
async def sleeping_one() -> list[Any]:
    found = await body()
    await hf.sleep(mood.get("sleep", 0))
    return [*found, await look("end")]


@hf.agent(name="long")
async def doubting_one() -> list[Any]:
    found = await body()
    return [*found, await pay(f"two{LONG}"), await look("end")]


@hf.agent(name="long")
async def failing_one() -> list[Any]:
    found = await body()
    return [*found, await wrong(LONG), await look("end")]


@hf.agent(name="long")
async def changing_one() -> list[Any]:
    found = await body()
    found += [await look("old", LONG) if "old" in mood else await shaky("new")]
    found += [await pay(f"two{LONG}"), await look("after", LONG)]
    if "crash" in mood:
        raise Crash
    return [*found, await look("end")]


def pruned(store: MemoryStore, **options: Any) -> Pruning:
    with hf.Holdfast(store, lease=LEASE_S) as app:
        return app.prune(hf.Retention(details=0), dry_run=False, by="ann", **options)


def stopped(store: MemoryStore, agent: Callable[..., Any], **how: Any) -> None:
    """Play until it stops for the first time."""
    mood.update(how)
    with suppress(Crash, ValueError, hf.HoldfastError):
        play(store, agent)
    mood.clear()


def gone_on(store: MemoryStore, agent: Callable[..., Any], then: Callable[[hf.Holdfast], object]) -> tuple[Any, list[str]]:
    """What comes of a run when an operator has said a word, and what is executed for it."""
    did.clear()
    with hf.Holdfast(store, lease=LEASE_S) as app:
        then(app)
        try:
            result: Any = app.run(agent, run_id="r", wait=False)
        except Exception as error:  # noqa: BLE001 (how it ends is what is compared)
            result = repr(error)
    return result, list(did)


ROWS: dict[str, tuple[Any, dict[str, Any], Callable[[hf.Holdfast], object]]] = {
    "crashed": (crashing_one, {"crash": 1}, lambda app: None),
    "asks": (asking_one, {}, lambda app: app.answer("r", "8", yes=True, by="ann")),
    "sleeps": (sleeping_one, {"sleep": 900}, lambda app: None),
    "in doubt, landed": (doubting_one, {"doubt": "two"}, lambda app: app.resolve("r", "8", landed="r-9", by="ann")),
    "in doubt, not landed": (doubting_one, {"doubt": "two"}, lambda app: app.resolve("r", "8", not_landed=True, by="ann")),
    "in doubt": (doubting_one, {"doubt": "two"}, lambda app: None),
    "failed": (failing_one, {"fail": 1}, lambda app: None),
    "failed, undone": (failing_one, {"fail": 1}, lambda app: app.cancel("r", undo=True, by="ann")),
    "crashed, undone": (crashing_one, {"crash": 1}, lambda app: app.cancel("r", undo=True, by="ann")),
    "done": (crashing_one, {}, lambda app: None),
}


@pytest.mark.parametrize("row", ROWS)
def test_it_goes_on_as_it_would_have(row: str) -> None:
    agent, how, then = ROWS[row]
    store = MemoryStore()
    stopped(store, agent, **how)
    twin = copy_of(store)
    before = loaded(store)[0]
    report = pruned(store)
    assert (report.lightened, report.kept) == (1, 0)
    assert report.bytes > 7 * len(LONG)
    after = loaded(store)[0]
    assert after._replace(seq=0, digest=b"") == before._replace(seq=0, digest=b"")
    assert gone_on(store, agent, then) == gone_on(twin, agent, then)
    with hf.Holdfast(store) as app:
        assert all(verdict.good for verdict in app.check())


def copy_of(store: MemoryStore) -> MemoryStore:
    twin = MemoryStore()
    twin._heads, twin._rows, twin._letters = dict(store._heads), copy.deepcopy(store._rows), dict(store._letters)
    twin._beats, twin._posted = dict(store._beats), store._posted
    return twin


def accepted() -> MemoryStore:
    """A run whose code was changed behind its body, so that a step, an effect and a state are superseded."""
    store = MemoryStore()
    stopped(store, changing_one, old=1, crash=1)
    stopped(store, changing_one)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        assert app.show("r").status == "blocked"
        app.accept("r", by="ann")
    return store


def test_what_changed_code_superseded_goes_but_effects_are_not_forgotten() -> None:
    store = accepted()
    twin = copy_of(store)
    pruned(store)
    results = {record.step_id: record.value for record in records(store) if isinstance(record, rec.StepDone)}
    assert results["10"] is None
    assert results["9"] is not None
    known = Journal.load(*loaded(store)).superseded
    assert [(step_id, found.name, found.landed()) for step_id, found in known] == [("9", "pay", True)]
    assert gone_on(store, changing_one, lambda app: None) == gone_on(twin, changing_one, lambda app: None)


def test_pruning_twice_adds_up_and_the_second_finds_nothing_new() -> None:
    store = MemoryStore()
    stopped(store, crashing_one, crash=1)
    first = pruned(store, reason="room")
    assert pruned(store).lightened == 0
    stopped(store, crashing_one, crash=1)
    (said,) = [record for record in records(store) if isinstance(record, rec.RunPruned)]
    assert (said.by, said.policy, said.reason, said.bytes) == ("ann", "details=0", "room", first.bytes)


def test_arguments_alone_leave_the_chain_as_it_was() -> None:
    @hf.agent
    async def plain() -> None:
        await look("a", LONG)
        raise Crash

    store = MemoryStore()
    stopped(store, plain)
    before = [row.digest for row in loaded(store)[1]]
    assert pruned(store).lightened == 1
    assert [row.digest for row in loaded(store)[1]][:-1] == before


def test_a_prune_that_takes_a_needed_result_is_found_out_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: with a rule that drops too much nothing is changed; without the guard replay goes wrong."""
    store = MemoryStore()
    stopped(store, crashing_one, crash=1)
    twin = copy_of(store)

    def greedy(self: Any, row: Row) -> Row:
        return row._replace(value=None, args=None) if row.kind == "step.done" and row.step_id == "1" else row

    monkeypatch.setattr(shedding._Needs, "lighten", greedy)
    (kept,) = pruned(store).runs
    assert (kept.what, kept.why) == ("kept", pruning.UNLIKE)
    assert loaded(store) == loaded(twin)
    monkeypatch.setattr(pruning, "replays_alike", lambda before, after: True)
    assert pruned(store).lightened == 1
    assert gone_on(store, crashing_one, lambda app: None) != gone_on(twin, crashing_one, lambda app: None)


@pytest.mark.parametrize("kind", ["state.saved", "time.read", "step.attempt_failed", "run.waiting", "ask.opened"])
def test_the_guard_sees_what_any_record_means(kind: str) -> None:
    store = MemoryStore()
    stopped(store, asking_one)
    head, rows = loaded(store)
    assert any(row.kind == kind for row in rows)
    one, other = Journal.load(head, rows), Journal(head.run_id)
    for row in rows:
        record = from_parts(kind=row.kind, step_id=row.step_id, body=row.body, value=row.value, args=row.args)
        if row.kind != kind:
            other.ledger.fold(record, row.at_us)
            with suppress(KeyError):
                other._index(record, row)
    other.head = head
    assert not shedding.replays_alike(one, other)
    assert shedding.replays_alike(one, Journal.load(head, rows))


FOLDED = {
    "asks", "began", "behind", "claims", "continued", "forked", "generation", "groups", "head", "histories", "keeps",
    "ledger", "looks", "milestone", "models", "partials", "prints", "resumed", "silences", "started", "states", "superseded", "taken",
    "times", "turned", "undoing", "unknown", "unread", "unsettled", "verdict", "waits",
}  # fmt: skip


def test_every_part_of_a_journal_is_compared_or_named_as_one_of_the_moment() -> None:
    """Whoever adds a part says here which it is."""
    assert set(Journal.__slots__) == FOLDED | shedding.OF_THE_MOMENT
    assert not FOLDED & shedding.OF_THE_MOMENT


@pytest.mark.parametrize("name", sorted(FOLDED - {"head"}))
def test_the_guard_sees_a_difference_in_every_part(name: str) -> None:
    store = MemoryStore()
    stopped(store, asking_one)
    one, other = Journal.load(*loaded(store)), Journal.load(*loaded(store))
    assert shedding.replays_alike(one, other)
    setattr(other, name, "something else")
    assert not shedding.replays_alike(one, other)


def test_an_executing_run_is_left_alone() -> None:
    store, reports = MemoryStore(), list[Pruning]()

    @hf.agent
    async def busy() -> str:
        await look("a", LONG)
        await asyncio.to_thread(lambda: reports.append(pruned(store)))
        return await look("b")

    assert play(store, busy) == "seen b"
    (kept,) = reports[0].runs
    assert kept.what == "kept"
    assert "it executes in" in kept.why
