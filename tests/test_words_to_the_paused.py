"""What people say to a paused run is kept, and the run stays paused: only `resume` lets it go on. What it lacks stays in the inbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import holdfast as hf
from holdfast import Holdfast
from holdfast.stores.memory import MemoryStore

done: list[str] = []


@hf.step
async def draft(what: str) -> str:
    return f"draft of {what}"


@hf.effect(in_doubt="ask")
async def mail(text: str) -> str:
    done.append(text)
    if len(done) == 1 and text.startswith("lost"):
        raise TimeoutError
    return f"mailed {text}"


@hf.agent
async def asks(what: str) -> str:
    text = await draft(what)
    colour = await hf.ask("colour?", str)
    return await mail(f"{colour} {text}")


@hf.agent
async def doubts(what: str) -> str:
    return await mail(f"lost {what}")


@pytest.fixture
def app() -> Iterator[Holdfast]:
    done.clear()
    with Holdfast(MemoryStore()) as opened:
        yield opened


def paused(app: Holdfast, agent: Callable[[str], object]) -> None:
    """A run that waits for a person, and was paused then."""
    with pytest.raises(hf.RunWaiting):
        app.run(agent, "x", run_id="r", wait=False)
    app.pause("r", by="ann", reason="incident")
    done.clear()


def held(app: Holdfast) -> None:
    """Nothing has lifted the pause, and nobody goes on by himself."""
    assert (app.show("r").status, app.show("r").note) == ("paused", "by ann: incident")
    with pytest.raises(hf.RunPaused):
        app.run(asks, "x", run_id="r", wait=False)
    assert done == []


STAYS = "it is recorded, and run 'r' stays paused by ann: incident; it goes on after: holdfast resume r"


def test_an_answer_is_kept_and_the_run_stays_paused(app: Holdfast) -> None:
    paused(app, asks)
    assert app.answer("r", "2", "red", by="bob") == STAYS
    held(app)
    app.resume("r", by="ann")
    assert app.run(asks, "x", run_id="r", wait=False) == "mailed red draft of x"
    assert done == ["red draft of x"]


def test_a_settled_doubt_is_kept_and_the_run_stays_paused(app: Holdfast) -> None:
    paused(app, doubts)
    assert app.resolve("r", "1", landed="by hand", by="bob") == STAYS
    assert app.show("r").status == "paused"
    app.resume("r", by="ann")
    assert app.run(doubts, "x", run_id="r", wait=False) == "by hand"
    assert done == []


def test_an_edit_is_made_and_the_run_stays_paused(app: Holdfast) -> None:
    paused(app, asks)
    assert app.edit("r", "1", "a better draft", by="bob").endswith(STAYS)
    held(app)
    app.resume("r", by="ann")
    with pytest.raises(hf.RunWaiting):
        app.run(asks, "x", run_id="r", wait=False)
    app.answer("r", "2", "red", by="bob")
    assert app.run(asks, "x", run_id="r", wait=False) == "mailed red a better draft"


def test_to_resume_with_another_budget_lifts_the_pause(app: Holdfast) -> None:
    paused(app, asks)
    app.resume("r", by="ann", budget=hf.Budget(usd=5))
    assert app.show("r").status == "queued"


def test_a_cancel_closes_a_paused_run(app: Holdfast) -> None:
    paused(app, asks)
    app.cancel("r", by="bob")
    assert app.show("r").status == "cancelled"


@pytest.mark.parametrize(("agent", "kind", "command"), [(asks, "ask", "answer r/2"), (doubts, "doubt", "resolve r 1")])
def test_what_a_paused_run_lacks_is_in_the_inbox_and_says_that_it_is_paused(
    app: Holdfast, agent: Callable[[str], object], kind: str, command: str
) -> None:
    paused(app, agent)
    (item,) = app.inbox()
    assert item.kind == kind
    assert item.what.endswith(" (the run is paused by ann: incident)")
    assert any(command in each for each in item.commands)
    assert app.show("r").asks
    assert any(command in each for each in app.show("r").next_commands)


# --- a pause that comes while the run does something else --------------------------------------------------------------


turns: list[int] = []


def test_a_run_that_begins_anew_stays_paused_and_goes_on_from_there(app: Holdfast) -> None:
    turns.clear()

    @hf.step
    async def take(number: int) -> int:
        turns.append(number)
        if number == 0:
            app.pause("r", by="ann", reason="incident")
            app.engine.keeper.take_letters()
        return number

    @hf.agent
    async def goes_round(number: int) -> int:
        await take(number)
        return number if number == 2 else hf.continue_as(number + 1)

    with pytest.raises(hf.RunPaused):
        app.run(goes_round, 0, run_id="r", wait=False)
    assert (app.show("r").status, app.show("r").generation, turns) == ("paused", 1, [0])
    app.resume("r", by="ann")
    assert app.run(goes_round, 0, run_id="r", wait=False) == 2
    assert turns == [0, 1, 2]


def test_a_run_that_is_blocked_while_it_is_to_be_paused_is_not_left_to_other_code(app: Holdfast) -> None:
    paused(app, asks)
    app.resume("r", by="ann")

    @hf.agent(name="asks")
    async def other_code(what: str) -> str:
        app.pause("r", by="ann", reason="incident")
        app.engine.keeper.take_letters()
        return await mail(what)

    with pytest.raises(hf.ReplayMismatch):
        app.run(other_code, "x", run_id="r", wait=False)
    held(app)


def test_an_undo_is_paused_between_two_effects_and_goes_on_from_there(app: Holdfast) -> None:
    undone: list[int] = []

    async def take_back(_: int, number: int) -> None:
        undone.append(number)
        if len(undone) == 1:
            app.pause("r", by="ann", reason="incident")
            app.engine.keeper.take_letters()

    @hf.effect(in_doubt="ask", undo=take_back)
    async def do(number: int) -> int:
        return number

    @hf.agent
    async def does() -> None:
        for number in range(3):
            await do(number)
        await hf.ask("enough?")

    with pytest.raises(hf.RunWaiting):
        app.run(does, run_id="r", wait=False)
    app.cancel("r", undo=True, by="bob")
    with pytest.raises(hf.RunPaused):
        app.run(does, run_id="r", wait=False)
    assert (app.show("r").status, undone) == ("paused", [2])
    app.resume("r", by="ann")
    with pytest.raises(hf.RunCancelled, match="3 effects undone"):
        app.run(does, run_id="r", wait=False)
    assert undone == [2, 1, 0]
