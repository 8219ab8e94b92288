"""Holes between features that were built apart: children, continuing, going back, staying in place, waking, messages."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import Refusal
from holdfast.stores.memory import MemoryStore

booked: list[tuple[str, str]] = []
trouble: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_booked() -> None:
    booked.clear()
    trouble.clear()


@hf.step
async def pick(number: int) -> str:
    return f"city {number}"


@hf.step
async def confirm() -> None:
    if trouble:
        raise ValueError(trouble.pop())


@hf.effect(in_doubt="ask")
async def book(city: str) -> str:
    booked.append((city, hf.key()))
    return f"{city} booked"


@hf.agent
async def trip(city: str) -> str:
    return await book(city)


@hf.agent
async def tour(city: str) -> str:
    picked = await pick(1)
    found = await trip(city or picked)
    await confirm()
    return found


def failed_tour(city: str) -> hf.Holdfast:
    trouble.append("no answer")
    app = hf.Holdfast(MemoryStore())
    with pytest.raises(ValueError, match="no answer"):
        app.run(tour, city, run_id="t")
    return app


def test_what_a_child_did_is_not_done_again_after_an_edit_before_it() -> None:
    with failed_tour("Rome") as app:
        assert app.edit("t", 1, "Oslo").startswith("child runs were called after it: t.2;")
        assert app.run(tour, "Rome", run_id="t") == "Rome booked"
        assert [city for city, _ in booked] == ["Rome"]


def test_a_run_that_has_called_a_child_cannot_be_undone_after_an_edit_before_it() -> None:
    with failed_tour("Rome") as app:
        app.edit("t", 1, "Oslo")
        with pytest.raises(Refusal, match="has child runs"):
            app.cancel("t", undo=True)


def test_a_fork_does_not_do_again_unasked_what_a_child_of_its_source_did() -> None:
    with failed_tour("Rome") as app:
        with pytest.raises(Refusal, match=r"called child runs after this point: t\.2"):
            app.fork("t", at=1)
        again = app.fork("t", at=1, effects="repeat")
        assert app.run(tour, "Rome", run_id=again) == "Rome booked"
        behind = app.fork("t", at=2)
        assert app.run(tour, "Rome", run_id=behind) == "Rome booked"
        assert [city for city, _ in booked] == ["Rome", "Rome"]


def test_the_children_of_a_fork_have_keys_of_their_own() -> None:
    with failed_tour("") as app:
        other = app.fork("t", at=1, edits={1: "Oslo"}, effects="repeat")
        assert app.run(tour, "", run_id=other) == "Oslo booked"
        assert len({key for _, key in booked}) == 2
