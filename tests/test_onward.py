"""`holdfast.operating.onward`: what is open in a run, and what helps it on; an operator is never told less, or other, than is true."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf


@hf.step
async def search(order: str) -> str:
    return order


@hf.effect(in_doubt="ask")
async def charge(order: str) -> str:
    raise TimeoutError("no answer")


@hf.agent
async def buy(order: str) -> str:
    return await charge(order)


@hf.agent(name="buy")
async def buy_changed(order: str) -> str:
    return await charge(await search(order))


@hf.agent
async def careful(order: str) -> str:
    return "went" if await hf.ask(f"Buy {order}?") else "stayed"


def parked(app: hf.Holdfast, agent: Any = buy) -> str:
    with pytest.raises(hf.RunWaiting):
        app.run(agent, "shoes", run_id="r-1", wait=False)
    return "r-1"


def test_a_doubt_that_was_settled_is_not_shown_as_open_when_other_code_blocks_the_run_at_its_step() -> None:
    with hf.Holdfast("memory:") as app:
        app.resolve(parked(app), "1", landed="r-9", by="ann")
        with pytest.raises(hf.ReplayMismatch):
            app.run(buy_changed, "shoes", run_id="r-1", wait=False)
        current = app.show("r-1").current
    assert current is not None
    assert (current.step_id, current.state, current.note) == ("1", "doubt settled", "ann: landed")


@pytest.mark.parametrize(("agent", "kind", "settled"), [(careful, "ask", "went"), (buy, "doubt", "went")])
def test_what_a_run_asks_stays_in_the_inbox_when_it_is_resumed_without_a_word(agent: Any, kind: str, settled: str) -> None:
    with hf.Holdfast("memory:") as app:
        (before,) = app.inbox() if parked(app, agent) else []
        said = app.resume("r-1", by="ann")
        (item,) = app.inbox()
        assert (item.kind, item.commands) == (kind, before.commands)
        assert said == "the run is ready for whoever runs its agent next, and still needs the word of a person: holdfast inbox"
        assert app.show("r-1").next_commands[: len(before.commands)] == before.commands
        app.answer("r-1", "1", yes=True) if kind == "ask" else app.resolve("r-1", "1", landed=settled)
        assert app.inbox() == []
        assert app.run(agent, "shoes", run_id="r-1") == settled
