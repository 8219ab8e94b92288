"""Runs with large and growing values: they take little room and memory, and everybody reads them as if they stood there as a whole."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S, Crash, crashing, lines, play, records
from holdfast.app import app as app_room
from holdfast.errors import Damaged, ReplayMismatch
from holdfast.large.packed import packed
from holdfast.large.packing import BLOB_FROM, is_packed
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.records.state import Saved
from holdfast.store import Store
from holdfast.stores.files import FilesStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from test_packing import words
from test_pruning import Ticking, later

did: list[int] = []
dies_at: set[int] = set()


def reply(number: int) -> str:
    return words(1000, seed=number).decode()


@hf.step
def think(messages: list[dict[str, str]]) -> str:
    did.append(len(messages))
    return reply(len(messages))


@hf.effect(in_doubt="ask")
def send(letter: str) -> int:
    return len(letter)


@hf.agent
def talk(calls: int) -> int:
    """Each call gets all that was said before, and so does a state; in the end all of it is sent."""
    messages: list[dict[str, str]] = []
    seen = hf.state({"messages": messages})
    for number in range(calls):
        if number in dies_at:
            dies_at.discard(number)
            raise Crash
        messages.append({"role": "user", "content": think(messages)})
        seen["last"] = messages[-1:]
    return send("".join(message["content"] for message in messages))


@hf.agent
def again(text: str, left: int) -> str:
    think([{"role": "user", "content": text}])
    return hf.continue_as(text + reply(left), left - 1) if left else text


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    did.clear()
    dies_at.clear()
    yield
    assert not dies_at


@pytest.fixture(params=["memory", "sqlite", "files", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_store")
        return
    makes: dict[str, Callable[[], Store]] = {"memory": MemoryStore, "files": lambda: FilesStore(tmp_path / "runs")}
    opened = makes.get(request.param, lambda: SqliteStore(tmp_path / "runs.db"))()
    yield opened
    opened.close()


def plain(store: Store) -> Store:
    return packed(store, Ticking())


def size(store: Store, run_id: str = "r") -> int:
    found = store.load(run_id)
    assert found is not None
    return sum(len(each.body) + len(each.value or b"") + len(each.args or b"") for each in found[1])


def arguments(store: Store, run_id: str = "r") -> list[bytes | None]:
    return [record.args for record in records(plain(store), run_id) if isinstance(record, rec.StepDone) and record.args]


CALLS = 40


def test_a_run_that_was_killed_goes_on_with_differences_and_gives_the_same_result() -> None:
    store = MemoryStore()
    dies_at.update({10, 20, 30})
    for _ in range(3):
        crashing(lambda: play(store, talk, CALLS))
    assert play(store, talk, CALLS) == 1000 * CALLS
    assert did == list(range(CALLS))
    assert size(store) < size(plain(store)) / 4
    assert sum(map(is_packed, store._rows["r"])) > 1.6 * CALLS


def test_everybody_reads_values_as_they_were(store: Store) -> None:
    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.run(talk, CALLS, run_id="r")
        seen = app.show_at("r", CALLS)
        assert [message["content"] for message in seen.arguments["messages"]] == [reply(n) for n in range(CALLS - 1)]
        (state,) = seen.state.values()
        assert state["last"] == [{"role": "user", "content": reply(CALLS - 2)}]
        assert len(app.show_at("r", CALLS + 1).arguments["letter"]) == 1000 * CALLS
        assert any(line.call.startswith(f'think(messages=[{{"content":"{reply(0)[:100]}') for line in app.history("r"))
        told = list(app.tail("r"))
        assert [event.call[:15] for event in told if event.kind == "step.done"][3] == "think(messages="
        assert app.diff("r@3", "r@4").changes
        assert app.check()[0].good


def test_a_store_of_an_earlier_version_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    dies_at.add(10)
    with monkeypatch.context() as before:
        before.setattr(app_room, "packed", lambda opened, clock: opened)
        crashing(lambda: play(store, talk, 20))
    assert not any(map(is_packed, store._rows["r"]))
    assert play(store, talk, 20) == 20_000
    assert did == list(range(20))
    assert any(map(is_packed, store._rows["r"]))


def test_a_fork_an_edit_and_a_prune_have_all_that_they_need(store: Store) -> None:
    with hf.Holdfast(store, lease=LEASE_S, clock=Ticking()) as app:
        dies_at.add(10)
        crashing(lambda: app.run(talk, 12, run_id="r"))
        app.fork("r", at=6, new_id="fork", by="ann")
        app.edit("r", 8, reply(100), by="ann")
        assert app.run(talk, 12, run_id="r") == 12_000
        later(app, 48)
        before = arguments(store, "fork")
        done = app.prune(hf.Retention(details="24h"), dry_run=False, by="ann")
        assert done.lightened == 2
        assert app.run(talk, 12, run_id="fork") == 12_000
        assert len(before) == len(after := arguments(store, "fork")) == 6
        assert not set(before) & set(after)  # those of the steps before the fork went, and those behind it came
        assert all(verdict.good for verdict in app.check())
        assert app.show_at("fork", 12).arguments["messages"][3]["content"] == reply(3)


def test_generations_that_a_prune_drops_leave_nothing_that_is_like_them(store: Store) -> None:
    with hf.Holdfast(store, lease=LEASE_S, clock=Ticking()) as app:
        result = app.run(again, reply(100), 6, run_id="r")
        later(app, 48)
        assert app.prune(hf.Retention(details="24h"), dry_run=False, by="ann").lightened == 1
        assert "run.continued" in lines(plain(store))
        assert len(lines(plain(store))) < 8
        assert app.check()[0].good
        assert app.run(again, reply(100), 6, run_id="r") == result


@pytest.mark.parametrize("broken", ["base", "blob"])
def test_damage_is_told_with_its_record_and_repaired(broken: str) -> None:
    store = MemoryStore()
    crash_at = 100
    dies_at.add(crash_at)
    crashing(lambda: play(store, talk, crash_at + 1))
    bad = _damaged(store, broken)
    with hf.Holdfast(store, lease=LEASE_S) as app:
        (verdict,) = app.check("r")
        assert (verdict.good, verdict.seq) == (False, bad)
        assert ("put together" in verdict.what) == (broken == "blob")
        with pytest.raises(Damaged):
            app.run(talk, crash_at + 1, run_id="r")
        assert app.repair("r", dry_run=False, by="ann").keeps == bad - 1
        app.resume("r", effects="repeat", by="ann")
        assert app.run(talk, crash_at + 1, run_id="r") == 1000 * (crash_at + 1)
        assert app.check("r")[0].good


def _damaged(store: MemoryStore, broken: str) -> int:
    """Damage something in the middle on which many records rely; gives the seq of the first that is lost."""
    rows = store._rows["r"]
    if broken == "blob":
        store._blobs.clear()
        return next(each.seq for each in rows if b'"blob"' in (each.args or b"")[:8] + (each.value or b"")[:8])
    index = next(index for index, each in enumerate(rows) if index > 20 and (each.args or b"")[:7] == b'={"like')
    rows[index] = rows[index]._replace(args=(rows[index].args or b"").replace(b'"text":"', b'"text":"x'))
    return rows[index].seq


def test_a_mismatch_names_both_calls_though_their_arguments_are_long() -> None:
    store = MemoryStore()
    dies_at.add(10)
    crashing(lambda: play(store, talk, 20))
    changed = hf.agent(name="talk")(lambda calls: think([{"role": "user", "content": "new " * 2000}]) and "")
    with pytest.raises(ReplayMismatch) as caught:
        play(store, changed, 20)
    assert "think(messages=[" in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_a_long_run_is_loaded_in_little_memory() -> None:
    """And it would take much to hold it all, as a journal does that is told to be whole."""
    store = MemoryStore()
    play(store, _listing, 300)
    found = plain(store).load("r")
    assert found is not None
    light, heavy = _peak(lambda: Journal.load(*found)), _peak(lambda: Journal.load(*found, whole=True))
    assert heavy > 40_000_000
    assert light < 4_000_000


def test_a_state_that_grew_is_replayed_in_little_memory() -> None:
    values = [(seq, words(300 * seq)) for seq in range(1, 400)]
    assert list(Saved(values)) == values
    assert (Saved(values).at(7), Saved(values).at(0), Saved(values).last) == (values[6][1], None, values[-1][1])
    assert Saved(values) != Saved(values[:-1])
    assert _peak(lambda: Saved((seq, words(300 * seq)) for seq in range(1, 400))) < 2_000_000 < sum(len(value) for _, value in values) / 10


@hf.agent(name="talk")
def _listing(calls: int) -> str:
    messages: list[dict[str, str]] = []
    for _ in range(calls):
        messages.append({"role": "user", "content": think(messages)})
    return "done"


def _peak(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_async_run_with_large_values_keeps_them_off_its_event_loop() -> None:
    keepers = list[str]()

    class Telling(MemoryStore):
        def keep_blob(self, *args: Any, **kwargs: Any) -> str:
            keepers.append(threading.current_thread().name)
            return super().keep_blob(*args, **kwargs)

    assert play(Telling(), _large_async) == reply(1) * 100
    assert keepers == ["holdfast-commit"] * 2, "the result of the step, and that of the run"


@hf.step
async def fetch() -> str:
    return reply(1) * 100


@hf.agent
async def _large_async() -> str:
    return await fetch()


def test_large_results_are_blobs_of_their_run_and_go_with_it(store: Store) -> None:
    with hf.Holdfast(store, lease=LEASE_S, clock=Ticking()) as app:
        assert app.run(_large, run_id="r") == app.run(_large, run_id="s")
        assert size(store) < BLOB_FROM / 8
        assert app.artifacts("r") == []
        app.prune(hf.Retention(keep_last=1), dry_run=False, by="ann")
        later(app, 25)
        assert app.prune(hf.Retention(keep_last=1), dry_run=False, by="ann").artifacts == 0  # the other run has the same
        assert app.run(_large, run_id="s") == reply(1) * 100
        assert app.prune(hf.Retention(max_age="1h"), dry_run=False, by="ann").artifacts == 1


@hf.step
def load() -> str:
    return reply(1) * 100


@hf.agent
def _large() -> str:
    return load()
