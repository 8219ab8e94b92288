"""`holdfast.operating.onward`: what is open in a run, and what helps it on; an operator is never told less, or other, than is true."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.cli.page import plain
from holdfast.cli.views import Setting, in_words, run_page
from holdfast.errors import Refusal


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
async def around_search(order: str) -> str:
    return "went" if await hf.ask(await search(order)) else "stayed"


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


def test_a_word_on_the_wrong_step_is_told_which_step_is_in_doubt() -> None:
    with hf.Holdfast("memory:") as app:
        parked(app, buy_changed)
        with pytest.raises(Refusal) as refused:
            app.resolve("r-1", "1", landed="r-9")
    assert str(refused.value) == "step 1 of run 'r-1' is not in doubt; nothing was changed. In doubt: step 2"


def test_a_run_in_line_that_nobody_serves_proposes_a_worker_of_its_queue() -> None:
    with hf.Holdfast("memory:") as app:
        app.submit(buy, "shoes", run_id="r-1", queue="mail")
        app.submit(buy, "shoes", run_id="r-2")
        assert app.show("r-1").next_commands == ["holdfast resume r-1 --here APP.py", "holdfast worker APP.py --queue mail"]
        assert app.show("r-2").next_commands == ["holdfast resume r-2 --here APP.py", "holdfast worker APP.py"]


@hf.agent
async def shopping(order: str) -> str:
    return await buy(order)


@hf.agent
async def around(order: str) -> str:
    return await careful(order)


def test_a_child_that_is_ready_goes_on_with_its_parent_in_the_command_that_is_proposed_too() -> None:
    with hf.Holdfast("memory:") as app:
        parked(app, around)
        said = app.answer("r-1.1", "1", yes=True)
        assert app.show("r-1.1").next_commands[0] == "holdfast resume r-1 --here APP.py"
        assert said.endswith("holdfast resume r-1 --here APP.py")


def test_what_blocked_a_run_is_not_its_last_error_once_somebody_went_on() -> None:
    with hf.Holdfast("memory:") as app:
        parked(app)
        with pytest.raises(hf.ReplayMismatch):
            app.run(buy_changed, "shoes", run_id="r-1", wait=False)
        assert app.show("r-1").last_error.startswith("ReplayMismatch: step 1 ")
        app.resume("r-1")
        assert app.show("r-1").last_error.startswith("ReplayMismatch: step 1 ")
        parked(app)
        assert app.show("r-1").last_error == "TimeoutError: no answer"


def test_an_edit_begins_no_generation() -> None:
    with hf.Holdfast("memory:") as app:
        parked(app, around_search)
        app.edit("r-1", "1", "boots", by="ann")
        assert app.show("r-1").generation == 0


def test_cancelling_tells_what_stays_in_doubt_inside_a_child() -> None:
    with hf.Holdfast("memory:") as app:
        parked(app, shopping)
        said = app.cancel("r-1")
        (doubt,) = app.inbox()
    assert said.startswith('the run is cancelled; step 1 of run \'r-1.1\' charge(order="shoes") stays in doubt, key hf-')
    assert (doubt.run_id, doubt.kind) == ("r-1.1", "doubt")


def test_an_undo_in_doubt_is_settled_by_the_command_as_it_is_proposed() -> None:
    async def refund(receipt: str, order: str) -> None:
        raise TimeoutError("no answer")

    @hf.effect(in_doubt="ask", undo=refund)
    async def bill(order: str) -> str:
        return order

    @hf.agent(on_failure="undo")
    async def sell(order: str) -> str:
        await bill(order)
        raise LookupError("sold out")

    with hf.Holdfast("memory:") as app:
        parked(app, sell)
        (item,) = app.inbox()
        assert item.commands[0] == "holdfast resolve r-1 undo:1 --landed null"
        app.resolve("r-1", "undo:1", landed=None)
        with pytest.raises(LookupError):
            app.run(sell, "shoes", run_id="r-1")
        assert app.show("r-1").note.endswith("sold out: 1 effect undone")


@hf.agent
async def sleepy(order: str) -> str:
    await hf.sleep("3d")
    return await hf.receive("parcel", str)


def test_a_run_that_sleeps_says_when_it_wakes_and_one_that_waits_says_so_once() -> None:
    with hf.Holdfast("memory:") as app:
        parked(app, sleepy)
        run = app.show("r-1")
        page = [*plain(run_page(run, Setting(run.created_us)))]
    assert run.wake_us is not None
    assert [line.rpartition(" (")[2] for line in page if line.startswith("  wakes")] == ["in 3 d)"]
    assert in_words(replace(run, waits="waits for message parcel"))[0] == "waiting for message parcel"


@hf.agent(name="shopping")
async def shopping_changed(order: str) -> str:
    return await buy_changed(order)


def test_a_parent_whose_child_was_looked_after_does_not_say_that_it_is_blocked() -> None:
    with hf.Holdfast("memory:") as app:
        parked(app, shopping)
        app.resolve("r-1.1", "1", landed="r-9")
        with pytest.raises(hf.HoldfastError, match=r"child run 'r-1\.1' stopped"):
            app.run(shopping_changed, "shoes", run_id="r-1", wait=False)
        assert app.show("r-1").note.startswith("ChildStopped: child run 'r-1.1' stopped: step 1 ")
        assert "blocked. Nothing is lost: look after it" in app.show("r-1").note
        app.resume("r-1.1")
        run = app.show("r-1")
    assert run.last_error == ""
    assert run.note == "child run 'r-1.1', which had stopped it, is queued by now: it can go on"
    assert "holdfast resume r-1 --here APP.py" in run.next_commands


@hf.agent
async def buy_two(order: str) -> list[str]:
    return list(await hf.gather(charge(order), charge(f"{order} again")))


def test_who_settles_one_of_two_doubts_is_told_that_the_run_still_needs_a_person() -> None:
    with hf.Holdfast("memory:") as app:
        with pytest.raises(hf.RunWaiting):
            app.run(buy_two, "o-1", run_id="two", wait=False)
        first, second = (item.step_id for item in app.inbox())
        assert app.resolve("two", first, landed="r-1", by="ann").startswith("it is recorded, and the run still needs the word of a person")
        assert app.resolve("two", second, landed="r-2", by="ann").startswith("the run is ready to go on")


def test_an_error_that_proposes_a_command_says_which_store_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "mine.db"
    with hf.Holdfast(place) as app:
        with pytest.raises(hf.RunWaiting, match="`holdfast inbox`") as named:
            app.run(buy, "o-1", run_id="r", wait=False)
        assert named.value.__notes__ == [f"here a command needs, too: --store {place}"]
        monkeypatch.setenv("HOLDFAST_STORE", str(place))
        with pytest.raises(hf.RunWaiting) as usual:
            app.run(buy, "o-1", run_id="r", wait=False)
    with hf.Holdfast("memory:") as app, pytest.raises(hf.RunWaiting) as nowhere:
        app.run(buy, "o-1", run_id="r", wait=False)
    assert not any(hasattr(found.value, "__notes__") for found in (usual, nowhere))
