"""State objects: saved with each checkpoint, and set in place to what they were at each boundary of a replay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, lines, play, records, status
from holdfast.records import kinds as rec
from holdfast.records.state import Tracked
from holdfast.stores.memory import MemoryStore


@hf.step
async def think(number: int) -> int:
    return number


class Notes(BaseModel):
    found: list[int] = []
    best: int | None = None


@dataclass
class Plan:
    found: list[int] = field(default_factory=list)
    best: int | None = None


@pytest.mark.parametrize("make", [Notes, Plan])
def test_state_comes_back_as_it_was(make: type[Any]) -> None:
    views: list[tuple[int, Any]] = []

    @hf.agent
    async def agent() -> list[int]:
        notes = hf.state(make())
        for number in range(3):
            notes.found.append(await think(number))
            notes.best = number
        await think(9)
        views.append((id(notes), notes))
        if len(views) == 1:
            raise Crash
        return [*notes.found, notes.best]

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == [0, 1, 2, 2]
    assert views[0][1] == views[1][1]


@pytest.mark.parametrize("make", [dict, list])
def test_dict_and_list_are_state_too(make: type[Any]) -> None:
    crashes = [True]

    @hf.agent
    async def agent() -> str:
        held = hf.state(make())
        inside = held
        number = await think(4)
        if isinstance(held, dict):
            held["n"] = number
        else:
            held.append(number)
        await think(5)
        if crashes:
            crashes.clear()
            raise Crash
        assert inside is held
        return str(held)

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == ("{'n': 4}" if make is dict else "[4]")


def test_state_is_set_at_each_boundary_in_order() -> None:
    """On replay the code changes nothing by itself: the recorded value wins, in place, at every step."""
    views: list[list[int]] = []

    @hf.agent
    async def agent() -> int:
        counter = hf.state({"n": 0})
        seen = []
        for number in range(4):
            counter["n"] += 1 if not views else 100
            await think(number)
            seen.append(counter["n"])
        views.append(seen)
        if len(views) == 1:
            raise Crash
        return counter["n"]

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == 4
    assert views == [[1, 2, 3, 4]] * 2


def test_replay_begins_with_the_initial_value() -> None:
    initial: list[int] = []

    @hf.agent
    async def agent() -> int:
        counter = hf.state({"n": 0})
        initial.append(counter["n"])
        counter["n"] = 7
        await think(1)
        if len(initial) == 1:
            raise Crash
        return counter["n"]

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == 7
    assert initial == [0, 0]


def test_only_changes_are_saved_and_no_step_number_is_used() -> None:
    @hf.agent
    async def agent() -> int:
        counter = hf.state({"n": 0})
        await think(1)
        counter["n"] = 1
        await think(2)
        await think(3)
        return 0

    store = MemoryStore()
    play(store, agent)
    saved = [record.value for record in records(store) if isinstance(record, rec.StateSaved)]
    assert saved == [b'{"n":1}']
    assert [record.step_id for record in records(store) if isinstance(record, rec.StepDone)] == ["1", "2", "3"]


def test_shared_state_is_seen_in_the_recorded_order_by_all_branches() -> None:
    delays_s = {1: 0.006, 2: 0.004, 3: 0.002}
    views: list[list[int]] = []

    @hf.step
    async def work(number: int) -> int:
        await asyncio.sleep(delays_s.get(number, 0))
        return number

    @hf.agent
    async def agent() -> list[int]:
        shared: list[int] = hf.state([])

        async def branch(number: int) -> None:
            shared.append(await work(number))
            await work(len(shared) * 10)

        await hf.gather(*(branch(number) for number in (1, 2, 3)))
        views.append(list(shared))
        if len(views) == 1:
            delays_s.clear()
            raise Crash
        return shared

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == [3, 2, 1]
    assert views == [[3, 2, 1]] * 2


def test_branches_have_states_of_their_own() -> None:
    crashes = [True]

    async def branch(number: int) -> int:
        mine = hf.state({"n": number})
        await think(number)
        mine["n"] += 10
        await think(number)
        return mine["n"]

    @hf.agent
    async def agent() -> list[int]:
        result = list(await hf.gather(branch(1), branch(2)))
        await think(0)
        if crashes:
            crashes.clear()
            raise Crash
        return result

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == [11, 12]
    assert {record.step_id for record in records(store) if isinstance(record, rec.StateSaved)} == {"1.1/state.1", "1.2/state.1"}


def test_state_of_a_def_agent_is_kept_too() -> None:
    crashes = [True]

    @hfs.step
    def work(number: int) -> int:
        return number

    @hfs.agent
    def agent() -> list[int]:
        held: list[int] = hfs.state([])
        held.append(work(1))
        hfs.gather(lambda: work(2), lambda: work(3))
        held.append(work(4))
        work(5)
        if crashes:
            crashes.clear()
            raise Crash
        return held

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == [1, 4]


def test_state_that_cannot_be_kept_stops_the_run_and_keeps_the_step() -> None:
    calls: list[int] = []

    @hf.step
    async def work() -> int:
        calls.append(1)
        return 1

    @hf.agent
    async def agent() -> int:
        held: dict[str, object] = hf.state({})
        await work()
        held["socket"] = object()
        await work()
        return 1

    store = MemoryStore()
    with pytest.raises(hf.NotKept, match="the state"):
        play(store, agent)
    assert status(store) != "done"
    assert len(calls) == 2


@pytest.mark.parametrize("target", [7, "text", (1,), {1}, None, object()])
def test_state_that_cannot_be_set_in_place_is_refused(target: object) -> None:
    with pytest.raises(hf.Misuse, match="model, dataclass, dict or list"):
        Tracked(target, [])


def test_state_inside_a_body_is_refused() -> None:
    @hf.step
    async def work() -> int:
        hf.state({})
        return 1

    @hf.agent
    async def agent() -> int:
        return await work()

    with pytest.raises(hf.NestedStep, match=r"hf\.state"):
        play(MemoryStore(), agent)


def test_later_boundaries_win_and_earlier_ones_are_not_looked_at_again() -> None:
    held = {"n": 0}
    tracked = Tracked(held, [(3, b'{"n":1}'), (5, b'{"n":2}'), (9, b'{"n":3}')])
    tracked.set_to(2)
    assert held == {"n": 0}
    tracked.set_to(6)
    assert held == {"n": 2}
    held["n"] = 50
    tracked.set_to(4)
    assert held == {"n": 50}
    tracked.set_to(9)
    assert held == {"n": 3}
    assert tracked.changed() is None


def test_what_was_saved_behind_the_last_outcome_does_not_come_back_later() -> None:
    store, lives = MemoryStore(), list[str]()

    @hf.step
    async def flaky(name: str) -> str:
        if name not in lives:
            lives.append(name)
            raise Crash
        return name

    @hf.agent
    async def agent() -> list[str]:
        notes: list[str] = hf.state([])
        try:
            await flaky("first")
        except BaseException:
            notes.append("it crashed")
            raise
        await flaky("second")
        return notes

    crashing(lambda: play(store, agent))
    crashing(lambda: play(store, agent))
    assert "state.saved" in " ".join(lines(store))
    assert play(store, agent) == []
