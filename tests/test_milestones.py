"""Milestones: named checkpoints, and agents whose safe steps reach the disk with the next thing that must."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, dies_at, lines, loaded, play
from holdfast._clock import SystemClock
from holdfast.cli.page import Facts
from holdfast.cli.views import Setting, run_page
from holdfast.life.commit import Committer
from holdfast.records import journal as journal_room
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.running import lease
from holdfast.store import Append, Stale
from holdfast.stores.memory import MemoryStore
from holdfast.verbs import milestones

SEEN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


class Counting(MemoryStore):
    """Remembers what each append held."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[list[str]] = []

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        self.appends += [[f"{row.kind} {row.step_id}".strip() for row in append.rows] for append in batch]
        return super().append(batch, wait=wait)


@hf.step
async def think(what: str) -> str:
    SEEN.append(what)
    return what


@hf.step
def think_def(what: str) -> str:
    SEEN.append(what)
    return what


@hf.effect(in_doubt="ask")
async def pay(what: str) -> str:
    SEEN.append(f"pay {what}")
    return what


@hf.effect(in_doubt="ask")
def pay_def(what: str) -> str:
    SEEN.append(f"pay {what}")
    return what


@hf.agent(durability="milestone")
async def saving() -> str:
    await think("a")
    await think("b")
    hf.milestone("thought")
    await think("c")
    await pay("d")
    await think("e")
    return await think("f")


@hf.agent(durability="milestone")
def saving_def() -> str:
    think_def("a")
    think_def("b")
    hfs.milestone("thought")
    think_def("c")
    pay_def("d")
    think_def("e")
    return think_def("f")


APPENDS = [
    ["run.started"],
    ["step.done 1", "step.done 2", "milestone.reached 3", "step.done 3"],
    ["step.done 4", "step.started 5"],
    ["step.done 5"],
    ["step.done 6", "step.done 7", "run.done"],
]


@pytest.mark.parametrize("agent", [saving, saving_def])
def test_safe_steps_ride_on_the_next_milestone_intent_or_end(agent: Any) -> None:
    store = Counting()
    assert play(store, agent) == "f"
    assert store.appends == APPENDS


def test_with_durability_step_each_is_written_by_itself() -> None:
    store = Counting()
    plain = hf.agent(saving.__wrapped__)  # type: ignore[attr-defined]
    assert play(store, plain) == "f"
    assert len(store.appends) == 10


def test_a_milestone_is_shown_by_name_and_not_reached_again_on_replay() -> None:
    store = MemoryStore()

    @hf.agent
    async def stopping() -> str:
        hf.milestone("half way")
        if hf.current().attempt == 1:
            raise Crash
        return "done"

    crashing(lambda: play(store, stopping))
    with hf.Holdfast(store) as app:
        view = app.show("r")
        assert view.milestone == "half way"
        assert ("milestone", "half way") in next(block.facts for block in run_page(view, Setting(0)) if isinstance(block, Facts))
        assert [line.call for line in app.history("r") if line.step_id] == ['milestone(name="half way")']
        assert app.show_at("r", "1").checkpoint.state == "done"
    assert play(store, stopping) == "done"
    assert lines(store).count("milestone.reached 1") == 1


def test_another_name_at_the_same_place_is_a_mismatch() -> None:
    store, names = MemoryStore(), ["old"]

    @hf.agent
    async def renamed() -> None:
        hf.milestone(names[0])
        raise Crash

    crashing(lambda: play(store, renamed))
    names[0] = "new"
    with pytest.raises(hf.ReplayMismatch):
        play(store, renamed)


@hf.agent(durability="milestone")
async def dying() -> str:
    await think("a")
    hf.milestone("safe")
    await think("b")
    await think("c")
    raise Crash


def test_a_crash_before_the_flush_executes_safe_steps_again_and_never_what_a_milestone_had() -> None:
    store = dies_at("run.released")  # as if the process had died without a word
    with pytest.raises((Crash, hf.StoreError)):
        play(store, dying)
    store.mend()
    crashing(lambda: play(store, dying))
    assert SEEN == ["a", "b", "c", "b", "c"]


def test_replaying_ends_where_the_disk_ends() -> None:
    store, told = dies_at("run.released"), list[bool]()

    @hf.agent(durability="milestone")
    async def telling() -> None:
        told.append(hf.current().replaying)
        hf.milestone("here")
        told.append(hf.current().replaying)
        await think("a")
        raise Crash

    with pytest.raises((Crash, hf.StoreError)):
        play(store, telling)
    store.mend()
    crashing(lambda: play(store, telling))
    assert (told, SEEN) == ([False, False, True, False], ["a", "a"])


def test_an_interruption_that_can_be_recorded_loses_nothing() -> None:
    store = MemoryStore()
    for _ in range(2):
        crashing(lambda: play(store, dying))
    assert SEEN == ["a", "b", "c"]


def test_a_run_that_parks_writes_what_it_holds() -> None:
    store = Counting()

    @hf.agent(durability="milestone")
    async def asking() -> str:
        await think("a")
        return await hf.ask("colour?", str)

    with pytest.raises(hf.RunWaiting):
        play(store, asking)
    assert store.appends[1] == ["step.done 1", "ask.opened 2"]


def test_a_message_is_not_sent_before_what_it_relies_on_is_written() -> None:
    store, stored = Counting(), list[list[str]]()

    @hf.agent
    async def waiting() -> str:
        return await hf.receive("note", str)

    @hf.agent(durability="milestone")
    async def sending() -> None:
        await think("a")
        await hf.send("other", "note", "a")
        stored.append(lines(store))

    with pytest.raises(hf.RunWaiting):
        play(store, waiting, run_id="other")
    play(store, sending)
    assert ["step.done 1"] in store.appends
    assert stored == [["run.started", "step.done 1", "step.done 2"]]


def test_cleanups_are_written_one_by_one() -> None:
    store = Counting()

    @hf.agent(durability="milestone")
    async def tidy() -> None:
        hf.cleanup(SEEN.append, "x")
        hf.cleanup(SEEN.append, "y")
        await think("a")

    play(store, tidy)
    assert store.appends[1:] == [["step.done 1", "step.done cleanup.2"], ["step.done cleanup.1"], ["run.done"]]


def test_times_and_states_keep_their_order() -> None:
    store, read = MemoryStore(), list[list[object]]()

    @hf.agent(durability="milestone")
    async def reading() -> None:
        notes: list[str] = hf.state([])
        now = [hf.now()]
        for what in ("a", "b"):
            notes.append(await think(what))
            now.append(hf.now())
        await hf.gather(think("c"), pay("d"), think("e"))
        read.append([*now, *notes])
        raise Crash

    for _ in range(2):
        crashing(lambda: play(store, reading))
    assert read[0] == read[1]
    assert sorted(SEEN) == ["a", "b", "c", "e", "pay d"]


@hf.step
async def note(order: str) -> str:
    SEEN.append(order)
    return order


@hf.agent(durability="milestone")
async def racing() -> None:
    order: list[str] = []

    async def branch(number: int) -> None:
        for turn in range(6):
            told = f"{number}.{turn}"
            await (pay(told) if (number + turn) % 3 == 0 else think(told))
            order.append(told)
            await note(" ".join(order))

    await hf.gather(*(branch(number) for number in range(6)))
    raise Crash


def replayed(path: Path) -> None:
    """Run it twice: what the branches saw of each other is in the arguments of their steps."""
    for _ in range(2):
        with hf.Holdfast(path) as app, pytest.raises(Crash):
            app.run(racing, run_id="r")


def test_outcomes_from_memory_and_from_the_disk_come_in_the_same_order_on_replay(tmp_path: Path) -> None:
    for number in range(5):
        replayed(tmp_path / f"{number}.db")
    assert len([what for what in SEEN if what.startswith("pay")]) == 5 * 12


def test_what_is_held_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Counting()

    @hf.agent(durability="milestone")
    async def many() -> None:
        for number in range(10):
            await think(str(number))

    monkeypatch.setattr(journal_room, "MAX_HELD", 4)
    play(store, many)
    assert [len(rows) for rows in store.appends] == [1, 5, 5, 1]
    monkeypatch.setattr(journal_room, "MAX_HELD_BYTES", 1)
    play(store, many, run_id="bytes")
    assert [len(rows) for rows in store.appends[4:]] == [1, 2, 2, 2, 2, 2, 1]


def test_the_keeper_writes_what_has_been_held_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HELD_S", 0.0)
    store = Counting()

    @hf.agent(durability="milestone")
    async def slow() -> None:
        await think("a")
        while ["step.done 1"] not in store.appends:  # noqa: ASYNC110 (the keeper is a thread)
            await asyncio.sleep(0.01)

    play(store, slow)
    assert store.appends == [["run.started"], ["step.done 1"], ["run.done"]]


class SetBack(SystemClock):
    """A clock that somebody sets back by an hour once a step is held."""

    def __init__(self) -> None:
        self.behind_us = 0

    def now_us(self) -> int:
        return super().now_us() - self.behind_us


def test_a_clock_that_is_set_back_does_not_keep_what_is_held_from_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HELD_S", 0.05)
    store, clock = Counting(), SetBack()

    @hf.agent(durability="milestone")
    async def slow() -> None:
        await think("a")
        clock.behind_us = 3_600_000_000
        for _ in range(500):
            if ["step.done 1"] in store.appends:
                break
            await asyncio.sleep(0.01)

    with hf.Holdfast(store, clock=clock) as app:
        app.run(slow, run_id="r")
    assert store.appends == [["run.started"], ["step.done 1"], ["run.done"]]


def test_the_budget_counts_steps_that_are_held_back() -> None:
    @hf.agent(durability="milestone", budget=hf.Budget(steps=2, on_limit="fail"))
    async def spending() -> None:
        for number in range(5):
            await think(str(number))

    with pytest.raises(hf.BudgetExceeded):
        play(MemoryStore(), spending)
    assert SEEN == ["0", "1"]


def test_a_step_that_ends_while_a_write_is_under_way_waits_for_it() -> None:
    journal = Journal("r")
    started = [rec.RunStarted(agent="a", fingerprint="f", origin="r", owner="o")]
    journal.stored(journal.seal(started, at_us=1), started)
    done = [rec.StepDone(step_id="1", name="s", fingerprint="f")]
    journal.begin_write()
    assert journal.hold(done, at_us=2) is None
    journal.end_write()
    assert journal.hold(done, at_us=2) == 2
    assert [row.seq for row in journal.seal([rec.RunDone()], at_us=3).rows] == [2, 3]


def test_threads_of_a_def_agent_hold_back_in_order() -> None:
    store = MemoryStore()

    @hf.agent(durability="milestone")
    def threads() -> list[str]:
        def branch(number: int) -> str:
            return "".join([think_def(f"{number}{turn}") for turn in "abc"] + [pay_def(f"{number}d")])

        return hfs.map(branch, range(8), limit=4)

    assert play(store, threads) == [f"{n}a{n}b{n}c{n}d" for n in range(8)]
    head, rows = loaded(store)
    assert [row.seq for row in rows] == list(range(1, head.seq + 1))


def test_whoever_lost_the_run_cannot_begin_an_effect() -> None:
    store = Counting()

    @hf.agent(durability="milestone")
    async def losing() -> None:
        await think("a")
        head, rows = loaded(store)
        other = Journal.load(head, rows)
        Committer(store, SystemClock()).commit(other, [rec.RunResumed(owner="thief", why="taken over")])
        await pay("b")

    with pytest.raises(hf.LeaseLost):
        play(store, losing)
    assert SEEN == ["a"]


def test_misuse_says_what_to_do() -> None:
    with pytest.raises(hf.Misuse, match="durability='never'"):
        hf.agent(durability="never")(print)  # type: ignore[call-overload]
    with pytest.raises(hf.Misuse, match="outside a run"):
        milestones.milestone("x")
    with pytest.raises(hf.Misuse, match="needs a name"):
        hf.milestone("")
