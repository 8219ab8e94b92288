"""Undoing a run stops where it must not guess: at a doubt, at an undo that fails, at code that does not call what was done."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync
from agents_for_tests.refunds import (
    BROKEN,
    DONE,
    cancel,
    closed,
    failed_run,
    keeping,
    look,
    pay,
    refund,
    resolve,
    start_afresh,
    undone,
)  # fmt: skip
from agents_for_tests.sites import eventually
from crashing import dies_at, lines, loaded, play, status
from holdfast.errors import StoreFailed, UndoFailed
from holdfast.running.ordering import ordered
from holdfast.running.runner import attend_async
from holdfast.stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def _fresh() -> None:
    start_afresh()


# --- doubts ---------------------------------------------------------------------------------------------------------


@hf.agent
async def doubtful() -> None:
    await pay("a")
    await hf.gather(pay("b"), pay("c"), errors="return")
    await pay("d")


def in_doubt_at_b() -> MemoryStore:
    store = MemoryStore()
    BROKEN.add("b")
    with pytest.raises(hf.RunWaiting):
        play(store, doubtful)
    assert DONE == ["pay a", "pay c"]
    BROKEN.clear()
    cancel(store)
    with pytest.raises(hf.RunWaiting, match=r"did pay\(what=\"b\"\) at step 2 happen"):
        play(store, doubtful)
    assert (status(store), undone()) == ("waiting", ["c"])
    return store


def test_it_stops_at_a_doubt_and_undoes_what_landed() -> None:
    store = in_doubt_at_b()
    with hf.Holdfast(store) as app:
        assert [(item.kind, item.step_id) for item in app.inbox()] == [("doubt", "2")]
    resolve(store, "2", landed="found")
    assert closed(store, doubtful) == "3 effects undone"
    assert DONE[2:] == ["refund r-c c 5", "refund found b 5", "refund r-a a 5"]


def test_a_doubt_that_no_life_has_looked_at_is_put_before_a_person_where_the_run_is_undone() -> None:
    """Otherwise the effect would settle it as it declares, when the run comes to it; an undo begins nothing any more."""
    store = dies_at("step.done", "2")

    @hf.agent
    async def cut_off() -> None:
        await pay("a")
        await pay("b")

    with pytest.raises(StoreFailed):
        play(store, cut_off)
    store.mend()
    cancel(store)
    with pytest.raises(hf.RunWaiting, match=r"did pay\(what=\"b\"\) at step 2 happen"):
        play(store, cut_off)
    with hf.Holdfast(store) as app:
        assert [(item.kind, item.step_id) for item in app.inbox()] == [("doubt", "2")]
    resolve(store, "2", not_landed=True)
    assert closed(store, cut_off) == "1 effect undone"


def test_what_did_not_land_is_passed_over() -> None:
    store = in_doubt_at_b()
    resolve(store, "2", not_landed=True)
    assert closed(store, doubtful) == "2 effects undone"
    assert undone() == ["c", "a"]


def test_a_result_that_does_not_fit_is_put_before_the_person_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.life.doubt.wants_of_result", lambda annotation: {})  # so that only the run finds out
    store = in_doubt_at_b()
    resolve(store, "2", landed=5)
    with pytest.raises(hf.RunWaiting, match="does not fit"):
        play(store, doubtful)
    resolve(store, "2", landed="r-b")
    closed(store, doubtful)
    assert undone() == ["c", "b", "a"]


def test_an_undo_in_doubt_waits_for_a_person_and_is_not_repeated_unasked() -> None:
    store = failed_run()
    cancel(store)
    BROKEN.add("b?")
    for _ in range(2):
        with pytest.raises(hf.RunWaiting, match=r"did refund\(receipt=\"r-b\", what=\"b\"\) at step undo:2 happen"):
            play(store, keeping)
    assert undone() == []
    resolve(store, "undo:2", landed=None)
    assert closed(store, keeping) == "2 effects undone"
    assert undone() == ["a"]


def test_an_undo_that_is_asked_for_again_while_it_goes_on_does_not_wake_the_run_at_its_doubt_for_ever() -> None:
    store = in_doubt_at_b()
    store.post("r", "cancel", b'{"by": "bob", "reason": "", "undo": true}', 1)
    with hf.Holdfast(store) as app:
        assert [run.run_id for run in app.ready()] == ["r"]
        with pytest.raises(hf.RunWaiting):
            play(store, doubtful)
        assert (app.ready(), store.letters(["r"])) == ([], [])
    resolve(store, "2", landed="found")
    assert closed(store, doubtful) == "3 effects undone"


def test_who_asks_for_an_undo_that_executes_is_told_so_and_leaves_no_letter() -> None:
    told: list[str] = []

    async def back(result: None) -> None:
        with hf.Holdfast(store) as app, pytest.raises(hf.HoldfastError) as caught:
            await asyncio.to_thread(app.cancel, "r", undo=True, by="bob")
        told.append(str(caught.value))

    @hf.effect(in_doubt="ask", undo=back)
    async def act() -> None:
        return None

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await act()
        raise ValueError

    store = MemoryStore()
    with pytest.raises(ValueError):
        play(store, agent)
    assert "is being undone already; nothing was changed. It executes now in " in told[0]
    assert store.letters(["r"]) == []


def test_an_undo_that_did_not_happen_is_run() -> None:
    store = failed_run()
    cancel(store)
    BROKEN.add("b?")
    with pytest.raises(hf.RunWaiting):
        play(store, keeping)
    BROKEN.discard("b?")
    resolve(store, "undo:2", not_landed=True)
    closed(store, keeping)
    assert undone() == ["b", "a"]


@pytest.mark.parametrize("in_doubt", ["fail", "resend"])
@pytest.mark.parametrize("verdict", [{"landed": None}, {"not_landed": True}])
def test_an_undo_that_gives_up_in_doubt_waits_for_a_person_too(verdict: dict[str, Any], in_doubt: Any) -> None:
    tried: list[str] = []

    async def unsend(sent: str, text: str) -> None:
        tried.append(text)
        if len(tried) == 1:
            raise TimeoutError

    undo: Callable[[str, str], object] = hf.effect(in_doubt=in_doubt, retry=hf.Retry(attempts=1))(unsend)

    @hf.effect(in_doubt="ask", undo=undo)
    async def send(text: str) -> str:
        return text

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await send("hello")
        raise ValueError

    store = MemoryStore()
    for _ in range(2):
        with pytest.raises(hf.RunWaiting, match="unsend"):
            play(store, agent)
    resolve(store, "undo:1", **verdict)
    with pytest.raises(ValueError):
        play(store, agent)
    assert (status(store), len(tried)) == ("cancelled", 1 + ("not_landed" in verdict))


def test_a_time_out_that_breaks_off_an_effect_leaves_a_doubt_at_its_place() -> None:
    @hf.effect(in_doubt="ask", undo=refund)
    async def slow(what: str, cents: int = 5) -> str:
        await asyncio.sleep(30)
        return what

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await pay("a")
        try:
            async with hf.timeout(0.02):
                await slow("b")
        except TimeoutError:
            await pay("c")
        raise ValueError

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting, match="slow"):
        play(store, agent)
    assert undone() == ["c"]
    resolve(store, "3", landed="r-b")
    with pytest.raises(ValueError):
        play(store, agent)
    assert undone() == ["c", "b", "a"]


def test_a_doubt_without_an_undo_does_not_stop_it_and_stays_in_the_inbox() -> None:
    @hf.effect(in_doubt="fail")
    async def wire() -> None:
        raise TimeoutError

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await pay("a")
        await wire()

    store = MemoryStore()
    with pytest.raises(hf.InDoubt):
        play(store, agent)
    assert (status(store), undone()) == ("cancelled", ["a"])
    with hf.Holdfast(store) as app:
        assert [item.step_id for item in app.inbox()] == ["2"]


def test_a_call_that_waits_for_a_word_before_it_begins_does_not_stop_it() -> None:
    store, taken_back = MemoryStore(), list[str]()

    @hf.effect(in_doubt="ask")
    async def unsend(sent: str) -> None:
        taken_back.append(sent)

    @hf.effect(in_doubt="fail", undo=unsend)
    async def send() -> str:
        raise RuntimeError("no reply")

    @hf.agent
    async def agent() -> None:
        try:
            await send()
        except hf.InDoubt:
            await send()

    with pytest.raises(hf.RunWaiting, match="could do it twice"):
        play(store, agent)
    cancel(store)
    resolve(store, "1", landed="hello")
    assert closed(store, agent) == "1 effect undone"
    assert taken_back == ["hello"]


def test_an_undo_that_needs_an_approval_waits_for_it() -> None:
    @hf.effect(in_doubt="ask", approve=True)
    async def unsend(sent: str, text: str) -> None:
        DONE.append(f"unsend {text}")

    @hf.effect(in_doubt="ask", undo=unsend)
    async def send(text: str) -> str:
        return text

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await send("hello")
        raise ValueError

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting, match=r"may unsend\(sent=\"hello\", text=\"hello\"\) be executed at step undo:1"):
        play(store, agent)
    with hf.Holdfast(store) as app:
        app.answer("r", "approve:undo:1", yes=True, by="ann")
    with pytest.raises(ValueError):
        play(store, agent)
    assert (status(store), DONE) == ("cancelled", ["unsend hello"])


def test_a_process_that_waits_goes_on_undoing_when_somebody_has_spoken() -> None:
    store, told = failed_run(), list[str]()
    cancel(store)
    BROKEN.add("b?")

    def waiting() -> None:
        try:
            hf.run(keeping, run_id="r", store=store)
        except hf.RunCancelled as error:
            told.append(error.reason)

    process = threading.Thread(target=waiting, daemon=True)
    process.start()
    eventually(lambda: status(store) == "waiting")
    resolve(store, "undo:2", landed=None)
    process.join(10)
    assert (told, undone()) == (["2 effects undone"], ["a"])


def test_an_undo_that_is_interrupted_is_a_doubt() -> None:
    def unsend(sent: str, text: str) -> None:
        if "interrupted" not in DONE:
            DONE.append("interrupted")
            raise KeyboardInterrupt

    @hf.effect(in_doubt="ask", undo=unsend)
    def send(text: str) -> str:
        return text

    @hf.agent(on_failure="undo")
    def agent() -> None:
        send("hello")
        raise ValueError

    store = MemoryStore()
    with pytest.raises(KeyboardInterrupt):
        play(store, agent)
    assert (status(store), loaded(store)[0].note) == ("queued", "interrupted by KeyboardInterrupt")
    with pytest.raises(hf.RunWaiting, match="did unsend"):
        play(store, agent)


def test_an_undo_that_is_cancelled_from_outside_is_a_doubt_and_the_cancellation_goes_on() -> None:
    begun = asyncio.Event()

    async def unsend(sent: str, text: str) -> None:
        begun.set()
        await asyncio.sleep(30)

    @hf.effect(in_doubt="ask", undo=unsend)
    async def send(text: str) -> str:
        return text

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await send("hello")
        raise ValueError

    async def main(app: hf.Holdfast) -> None:
        task = asyncio.create_task(attend_async(app.engine, ordered(agent, (), wait=False, options={"run_id": "r"})))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    store = MemoryStore()
    with hf.Holdfast(store) as app:
        asyncio.run(main(app))
    assert lines(store)[-3:] == ["step.started undo:1", "step.broken_off undo:1", "run.released"]
    with pytest.raises(hf.RunWaiting, match="did unsend"):
        play(store, agent)


# --- what fails -----------------------------------------------------------------------------------------------------


def test_an_undo_that_fails_leaves_the_run_failed_and_a_resume_goes_on_from_there() -> None:
    store = failed_run()
    BROKEN.clear()
    cancel(store)
    BROKEN.add("a")
    with pytest.raises(UndoFailed, match=r"effect 'pay' \(step 1\) of run 'r' could not be undone: refund failed with Conn") as caught:
        play(store, keeping)
    assert "holdfast resume r --here APP.py" in str(caught.value)
    assert (status(store), undone()) == ("failed", ["b"])
    assert loaded(store)[0].note.startswith("UndoFailed: effect 'pay' (step 1) of run 'r' could not be undone")
    with hf.Holdfast(store) as app:
        (item,) = app.inbox()
        assert (item.kind, item.step_id, item.commands) == ("undo", "1", ["holdfast resume r --here APP.py"])
        assert "refund failed with ConnectionRefusedError: no bank for a; what came after it is undone" in item.what
    BROKEN.clear()
    assert closed(store, keeping) == "2 effects undone"
    assert undone() == ["b", "a"]


def test_an_undo_is_tried_again_as_it_says() -> None:
    tried: list[int] = []

    @hf.effect(in_doubt="ask", retry=hf.Retry(attempts=3, base=0))
    async def unsend(sent: None) -> None:
        tried.append(1)
        if len(tried) < 3:
            raise ConnectionRefusedError

    @hf.effect(in_doubt="ask", undo=unsend)
    async def send() -> None:
        pass

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await send()
        raise ValueError

    store = MemoryStore()
    with pytest.raises(ValueError):
        play(store, agent)
    assert (status(store), len(tried)) == ("cancelled", 3)


def test_an_effect_whose_result_was_not_kept_is_undone_once_somebody_says_what_it_was() -> None:
    def unmake(result: object) -> None:
        DONE.append(f"unmade {result}")

    @hf.effect(in_doubt="ask", undo=unmake)
    async def make() -> object:
        return {1}

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await pay("a")
        await make()

    store = MemoryStore()
    with pytest.raises(UndoFailed, match="Say what it was: holdfast resolve r 2 --landed JSON"):
        play(store, agent)
    assert undone() == []
    with hf.Holdfast(store) as app:
        commands = ["holdfast resolve r 2 --landed RESULT", "holdfast resume r --here APP.py"]
        assert [item.commands for item in app.inbox()] == [commands]
        assert app.show("r").next_commands == commands
    resolve(store, "2", landed="it")
    closed(store, agent)
    assert DONE[1:] == ["unmade it", "refund r-a a 5"]


def test_a_run_that_merely_failed_or_is_undone_by_now_is_not_in_the_inbox() -> None:
    store = failed_run()
    with hf.Holdfast(store) as app:
        assert app.inbox() == []
        cancel(store)
        BROKEN.add("a")
        with pytest.raises(UndoFailed):
            play(store, keeping)
        BROKEN.discard("a")
        closed(store, keeping)
        assert app.inbox() == []


def test_a_run_that_is_undone_at_last_shows_its_own_error_and_no_advice_of_ours() -> None:
    store = failed_run()
    cancel(store)
    BROKEN.add("a")
    with pytest.raises(UndoFailed):
        play(store, keeping)
    with hf.Holdfast(store) as app:
        assert app.show("r").last_error.startswith("UndoFailed")
    BROKEN.discard("a")
    closed(store, keeping)
    with hf.Holdfast(store) as app:
        assert app.show("r").last_error == "ValueError: cannot see c"


def test_what_an_undo_returns_need_not_be_kept() -> None:
    def unmake(result: int) -> object:
        DONE.append("unmade")
        return {result}

    @hf.effect(in_doubt="ask", undo=unmake)
    async def make() -> int:
        return 1

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await make()
        raise ValueError

    store = MemoryStore()
    with pytest.raises(ValueError):
        play(store, agent)
    assert (status(store), DONE) == ("cancelled", ["unmade"])


def test_an_undo_whose_records_were_damaged_is_put_before_a_person() -> None:
    store = failed_run()
    BROKEN.clear()
    cancel(store)
    BROKEN.add("a")
    with pytest.raises(UndoFailed):
        play(store, keeping)
    BROKEN.clear()
    seq = next(row.seq for row in loaded(store)[1] if (row.kind, row.step_id) == ("step.done", "undo:2"))
    store._rows["r"][seq - 1] = store._rows["r"][seq - 1]._replace(body=b"{}")
    with hf.Holdfast(store) as app:
        app.repair("r", dry_run=False, by="ann")
        assert sorted(item.step_id for item in app.inbox() if item.kind == "doubt") == ["undo:1", "undo:2"]
        app.resolve("r", "undo:2", landed=None, by="ann")
        app.resolve("r", "undo:1", not_landed=True, by="ann")
    assert closed(store, keeping) == "2 effects undone; records that a repair could not read may have told of more, which is not undone"
    assert undone() == ["b", "a"]


# --- code that changed ----------------------------------------------------------------------------------------------


@hf.agent(name="keeping")
async def changed() -> str:
    await pay("a")
    await look("else")
    return await look("c")


def test_code_that_does_not_call_what_was_done_undoes_nothing() -> None:
    store = failed_run()
    cancel(store)
    with pytest.raises(hf.ReplayMismatch):
        play(store, changed)
    assert (status(store), undone()) == ("blocked", [])
    closed(store, keeping)
    assert undone() == ["b", "a"]


@hf.agent(name="keeping")
async def shorter() -> str:
    await pay("a")
    return "early"


def test_code_that_ends_before_what_was_done_undoes_nothing() -> None:
    store = failed_run()
    cancel(store)
    with pytest.raises(hf.ReplayMismatch, match="ends without calling it"):
        play(store, shorter)
    assert (status(store), undone()) == ("blocked", [])


def test_what_accepted_code_does_not_call_any_more_is_named_as_not_undone(caplog: pytest.LogCaptureFixture) -> None:
    store = failed_run()
    cancel(store)
    with pytest.raises(hf.ReplayMismatch):
        play(store, changed)
    with hf.Holdfast(store) as app:
        app.accept("r", by="ann")
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert closed(store, changed) == "1 effect undone; made before the code changed, and not undone: pay (step 2)"
    assert "not undone: pay (step 2)" in caplog.text
    assert undone() == ["a"]
