"""Going back in a run that begins anew: what earlier generations did is not done again, nor what was superseded before the next one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S
from holdfast.stores.memory import MemoryStore

DONE: list[int] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@pytest.fixture
def app() -> Iterator[hf.Holdfast]:
    with hf.Holdfast(MemoryStore(), lease=LEASE_S) as opened:
        yield opened


@hf.step
async def size() -> int:
    return 2


@hf.effect(in_doubt="ask")
async def post(number: int) -> int:
    DONE.append(number)
    return number


@hf.agent
async def posts(first: int) -> str:
    """Posts numbers, some in each generation, and asks before it is done with the last two."""
    numbers = range(first, first + await size())
    for number in numbers:
        await post(number)
    if numbers.stop < 5:
        hf.continue_as(numbers.stop)
    return await hf.ask("which?", str)


def waits(app: hf.Holdfast, run_id: str = "r") -> str:
    with pytest.raises(hf.RunWaiting) as waiting:
        app.run(posts, 1, run_id=run_id, wait=False)
    return str(waiting.value)


@pytest.mark.parametrize("effects", ["ask", "reuse"])
def test_a_fork_before_the_first_step_begins_with_the_generation_whose_effects_are_known(app: hf.Holdfast, effects: Any) -> None:
    assert "which?" in waits(app)
    app.fork("r", at=0, effects=effects, new_id="f")
    said = waits(app, "f")
    assert ("the same call was made at step 2 of run r" in said) == (effects == "ask")
    assert DONE == [1, 2, 3, 4]


@pytest.mark.parametrize("effects", ["ask", "reuse"])
def test_what_was_superseded_is_asked_about_in_the_next_generation_too(app: hf.Holdfast, effects: Any) -> None:
    waits(app)
    app.edit("r", 1, 1, effects=effects, by="ann")  # from here on one number in a generation: 4 comes in the next one
    if effects == "ask":
        assert "number=3" in waits(app)
        app.resolve("r", "2", landed=3)
    said = waits(app)
    assert "number=4" in said
    assert "before ann edited step 1" in said
    app.resolve("r", "2", landed=4)
    waits(app)
    assert DONE == [1, 2, 3, 4, 5]


def test_what_is_to_be_repeated_is_repeated_in_the_next_generation_too(app: hf.Holdfast) -> None:
    waits(app)
    app.edit("r", 1, 1, effects="repeat")
    assert "which?" in waits(app)
    assert DONE == [1, 2, 3, 4, 3, 4, 5]
