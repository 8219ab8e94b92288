"""What people said and sent on paths that were given up: a fork or a second edit has it as it came, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S
from holdfast.stores.memory import MemoryStore


@pytest.fixture
def app() -> Iterator[hf.Holdfast]:
    with hf.Holdfast(MemoryStore(), lease=LEASE_S) as opened:
        yield opened


@hf.step
async def see(what: str) -> str:
    return what


def waits(app: hf.Holdfast, agent: Any, run_id: str = "r") -> str:
    with pytest.raises(hf.RunWaiting) as waiting:
        app.run(agent, run_id=run_id, wait=False)
    return str(waiting.value)


def test_an_answer_after_the_point_of_a_fork_does_not_answer_a_question_of_an_older_path(app: hf.Holdfast) -> None:
    @hf.agent
    async def asks() -> str:
        plan, colour = await see("a"), await see("red")
        return f"{plan} {colour} {await hf.ask('which?', str)}"

    waits(app, asks)
    app.edit("r", 1, "b")
    waits(app, asks)
    app.answer("r", "3", "first")
    assert app.run(asks, run_id="r") == "b red first"
    app.fork("r", at=2, new_id="f")
    assert "which?" in waits(app, asks, "f")
    app.answer("f", "3", "second")
    assert app.run(asks, run_id="f") == "b red second"


@hf.agent
async def reads() -> list[str]:
    plan = await see("read")
    came = await hf.receive("note", str) if plan == "read" else await see("nothing")
    return [plan, came, await hf.ask("which?", str)]


def test_a_message_comes_to_a_fork_as_it_was_sent_whatever_stands_at_its_step_by_now(app: hf.Holdfast) -> None:
    waits(app, reads)
    app.send("r", "note", "hello")
    waits(app, reads)
    app.edit("r", 1, "skip")
    waits(app, reads)
    app.fork("r", at=1, edits={1: "read"}, new_id="f")
    waits(app, reads, "f")
    app.answer("f", "3", "x")
    assert app.run(reads, run_id="f") == ["read", "hello", "x"]


def test_a_message_that_was_corrected_comes_again_as_it_was_sent(app: hf.Holdfast) -> None:
    waits(app, reads)
    app.send("r", "note", "hello")
    waits(app, reads)
    app.edit("r", 2, "corrected")
    waits(app, reads)
    app.fork("r", at=1, new_id="f")
    for run_id, came in (("r", "corrected"), ("f", "hello")):
        waits(app, reads, run_id)
        app.answer(run_id, "3", "x")
        assert app.run(reads, run_id=run_id)[1] == came


def test_a_message_that_changed_code_did_not_want_comes_again_where_somebody_goes_back(app: hf.Holdfast) -> None:
    @hf.agent(name="reads")
    async def changed() -> list[str]:
        return [await see("read"), await see("other"), await hf.ask("which?", str)]

    waits(app, reads)
    app.send("r", "note", "hello")
    waits(app, reads)
    with pytest.raises(hf.ReplayMismatch):
        app.run(changed, run_id="r", wait=False)
    app.accept("r", by="ann")
    waits(app, changed)
    app.fork("r", at=1, new_id="f")
    app.edit("r", 1, "read")
    for run_id in ("r", "f"):
        waits(app, reads, run_id)
        app.answer(run_id, "3", "x")
        assert app.run(reads, run_id=run_id) == ["read", "hello", "x"]
