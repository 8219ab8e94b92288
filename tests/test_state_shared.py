"""A state that several branches change, and code that holds on to what is inside one, are after a crash what they were without."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, play
from holdfast.records.state import overwrite
from holdfast.stores.memory import MemoryStore


@dataclass
class Progress:
    done: list[int] = field(default_factory=list)
    notes: dict[str, list[int]] = field(default_factory=dict)


def held_on_to(how: str) -> list[int]:
    """The result of a run that failed in its third step and was run again, with code that holds on to what is inside its state."""
    lives: list[int] = []

    @hf.step
    async def look(number: int) -> int:
        if number == 3 and len(lives) == 1:
            raise OSError("not now")
        return number

    @hf.agent
    async def agent() -> list[int]:
        lives.append(1)
        state = hf.state(Progress(notes={"seen": []}))
        inside = state.done if how != "in a dict" else state.notes["seen"]
        for number in (1, 2, 3):
            match how:
                case "bound before the await":
                    state.done.append(await look(number))
                case "in a dict":
                    state.notes["seen"].append(await look(number))
                case _:
                    inside.append(await look(number))
        return state.notes["seen"] if how == "in a dict" else state.done

    store = MemoryStore()
    with pytest.raises(OSError, match="not now"):
        play(store, agent)
    return list(play(store, agent))


@pytest.mark.parametrize("how", ["bound before the await", "in a dict", "in a variable"])
def test_code_may_hold_on_to_what_is_inside_a_state(how: str) -> None:
    assert held_on_to(how) == [1, 2, 3]


@pytest.mark.parametrize("how", ["bound before the await", "in a dict", "in a variable"])
def test_a_state_whose_inside_is_replaced_loses_what_code_holds_on_to(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test before."""
    monkeypatch.setattr("holdfast.records.state._kept", lambda _old, new: new)
    monkeypatch.setattr("holdfast.records.state.Tracked.differs", lambda *_: True)
    assert held_on_to(how) != [1, 2, 3]


def test_a_value_is_put_into_the_objects_that_are_there() -> None:
    inner: list[Any] = [1, {"a": [2]}]
    deep = inner[1]["a"]
    target = {"x": inner, "gone": 1}
    overwrite(target, {"x": [5, {"a": [6, 7], "b": 1}, 8], "new": {1}})
    assert target == {"x": [5, {"a": [6, 7], "b": 1}, 8], "new": {1}}
    assert target["x"] is inner
    assert inner[1]["a"] is deep


def shared(*, crashes: bool) -> tuple[list[int], list[int]]:
    """What branches left in a list that they share, as an effect after them saw it and as the run returned it."""
    lives: list[int] = []
    paid: list[list[int]] = []

    @hf.step
    async def ask(number: int) -> int:
        return number

    @hf.effect(in_doubt="ask")
    async def pay(numbers: list[int]) -> None:
        paid.append(numbers)

    @hf.agent
    async def agent() -> list[int]:
        lives.append(1)
        found: list[int] = hf.state([])

        async def a() -> None:
            found.append(await ask(1))
            found.append(await ask(2))

        async def b() -> None:
            found.append(await ask(3))

        await hf.gather(a(), b())
        if crashes and len(lives) == 1:
            raise Crash
        await pay(list(found))
        return found

    store = MemoryStore()
    if crashes:
        crashing(lambda: play(store, agent))
    returned = play(store, agent)
    assert len(paid) == 1
    return paid[0], list(returned)


def test_what_branches_leave_in_a_state_survives_a_crash_behind_them() -> None:
    assert shared(crashes=True) == shared(crashes=False) == ([1, 3, 2], [1, 3, 2])


def test_a_state_that_is_set_between_branches_loses_what_they_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test before."""
    monkeypatch.setattr("holdfast.life.run.Run._boundary", lambda run, seq: run.riders.set_states(seq) if seq <= run.recorded_seq else None)
    assert shared(crashes=True) != shared(crashes=False)


def test_threads_that_share_a_state_leave_in_it_what_they_left_without_a_crash() -> None:
    lives: list[int] = []
    lock = threading.Lock()

    @hfs.step
    def ask(number: int) -> int:
        return number

    @hfs.agent
    def agent() -> list[int]:
        lives.append(1)
        found: list[int] = hfs.state([])

        def branch(first: int) -> None:
            for number in range(first, first + 3):
                answer = ask(number)
                with lock:
                    found.append(answer)

        hfs.map(branch, [0, 10, 20])
        if len(lives) == 1:
            raise Crash
        return sorted(found)

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
