"""Undoing where a run was branched: an effect is undone by the run that did it, and by no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S
from holdfast.stores.memory import MemoryStore

DONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@pytest.fixture
def app() -> Iterator[hf.Holdfast]:
    with hf.Holdfast(MemoryStore(), lease=LEASE_S) as opened:
        yield opened


def refund(result: str, what: str) -> None:
    DONE.append(f"refund {what}")


@hf.effect(in_doubt="ask", undo=refund)
async def charge(what: str) -> str:
    DONE.append(f"charge {what}")
    return what


@hf.agent
async def buy() -> str:
    for what in ("a", "b"):
        await charge(what)
    return await charge(await hf.ask("what else?", str)) + await hf.ask("what else?", str)


def waits(app: hf.Holdfast, run_id: str) -> None:
    with pytest.raises(hf.RunWaiting):
        app.run(buy, run_id=run_id, wait=False)


def undone(app: hf.Holdfast, run_id: str) -> str:
    app.cancel(run_id, undo=True)
    with pytest.raises(hf.RunCancelled) as cancelled:
        app.run(buy, run_id=run_id)
    return str(cancelled.value)


def bought(app: hf.Holdfast, run_id: str, what: str) -> None:
    waits(app, run_id)
    app.answer(run_id, "3", what)
    waits(app, run_id)


@pytest.mark.parametrize("effects", ["ask", "reuse"])
def test_a_fork_undoes_what_it_did_and_its_source_the_rest(app: hf.Holdfast, effects: Any) -> None:
    waits(app, "r")
    app.fork("r", at=1, effects=effects, new_id="f")
    if effects == "ask":
        waits(app, "f")
        app.resolve("f", "2", landed="b")
    bought(app, "f", "c")
    told = undone(app, "f")
    assert "1 effect undone; done by run r, and not undone: charge (step 2), charge (step 1)" in told
    assert "2 effects undone." in undone(app, "r")
    assert DONE == ["charge a", "charge b", "charge c", "refund c", "refund b", "refund a"]


def test_an_edit_in_a_fork_does_not_make_what_its_source_did_its_own(app: hf.Holdfast) -> None:
    waits(app, "r")
    app.fork("r", at=2, new_id="f")
    bought(app, "f", "c")
    app.edit("f", 1, "a", effects="reuse")
    bought(app, "f", "c")
    assert "1 effect undone; done by run r" in undone(app, "f")
    assert DONE == ["charge a", "charge b", "charge c", "refund c"]


def test_a_fork_of_a_fork_names_each_run_that_did_something(app: hf.Holdfast) -> None:
    waits(app, "r")
    app.fork("r", at=2, new_id="f")
    bought(app, "f", "c")
    app.fork("f", at=4, new_id="g")
    waits(app, "g")
    told = undone(app, "g")
    assert "0 effects undone" in told
    assert "done by run f, and not undone: charge (step 4)" in told
    assert "done by run r, and not undone: charge (step 2), charge (step 1)" in told
    assert DONE == ["charge a", "charge b", "charge c"]
