"""Undoing a run (`running.undo`): what its effects did is taken back, newest first, by whoever has its code."""

from __future__ import annotations

import asyncio
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
    mail,
    pay,
    pay_blocking,
    refund,
    resolve,
    start_afresh,
    undone,
)  # fmt: skip
from crashing import dies_at, lines, loaded, play, status
from holdfast.errors import Refusal, StoreError
from holdfast.stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def _fresh() -> None:
    start_afresh()


# --- when an agent fails --------------------------------------------------------------------------------------------


@hf.agent(on_failure="undo")
async def failing() -> None:
    await pay("a", 7)
    await mail("thanks")
    await pay("b", cents=8)
    raise ValueError("out of stock")


def test_the_defaults_of_the_effect_count_and_names_may_differ() -> None:
    def unmake(made: int, thing: str, amount: int = 99, *, colour: str = "grey") -> None:
        DONE.append(f"unmade {made} {amount} {colour} {thing}")

    def made(what: str, count: int = 3, *, colour: str = "red") -> int:
        return count

    effect: Any = hf.effect  # the type checker wants the same names
    make = effect(in_doubt="ask", undo=unmake)(made)

    @hf.agent(on_failure="undo")
    def agent() -> None:
        make("chair")
        make(count=4, what="table", colour="blue")
        raise ValueError

    with pytest.raises(ValueError):
        play(MemoryStore(), agent)
    assert DONE == ["unmade 4 4 blue table", "unmade 3 3 red chair"]


@hf.agent(on_failure="undo")
def failing_blocking() -> None:
    pay_blocking("a")
    pay_blocking("b")
    raise ValueError("out of stock")


def test_a_failure_undoes_newest_first_with_the_result_and_the_arguments() -> None:
    store = MemoryStore()
    with pytest.raises(ValueError, match="out of stock") as caught:
        play(store, failing)
    assert DONE == ["pay a", "mail thanks", "pay b", "refund r-b b 8", "refund r-a a 7"]
    assert caught.value.__notes__ == ["run 'r' is cancelled: failed with ValueError: out of stock: 2 effects undone"]
    assert closed(store, failing) == "failed with ValueError: out of stock: 2 effects undone"
    assert len(DONE) == 5


def test_a_blocking_agent_is_undone_as_well() -> None:
    store = MemoryStore()
    with pytest.raises(ValueError, match="out of stock"):
        play(store, failing_blocking)
    assert undone() == ["b", "a"]
    assert status(store) == "cancelled"


def test_an_undo_has_an_intent_an_outcome_and_a_key_of_its_own() -> None:
    store, keys = MemoryStore(), list[str]()

    def unpay(receipt: None, n: int) -> None:
        keys.append(hf.key())

    @hf.effect(in_doubt="ask", undo=unpay)
    def pay(n: int) -> None:
        keys.append(hf.key())

    @hf.agent(on_failure="undo")
    def agent() -> None:
        pay(1)
        raise ValueError

    with pytest.raises(ValueError):
        play(store, agent)
    assert lines(store)[-4:] == ["run.undoing", "step.started undo:1", "step.done undo:1", "run.cancelled"]
    assert len(set(keys)) == len(keys) == 2


def test_without_a_word_a_failure_undoes_nothing_and_the_run_goes_on() -> None:
    store = failed_run()
    BROKEN.clear()
    assert play(store, keeping) == "c"
    assert DONE == ["pay a", "pay b", "look c"]


# --- when somebody asks for it --------------------------------------------------------------------------------------


def test_a_failed_run_is_undone_by_whoever_runs_it_next() -> None:
    store = failed_run()
    BROKEN.clear()
    told = cancel(store, reason="not wanted")
    assert told.endswith("to do it now: holdfast resume r --here APP.py")
    assert (status(store), loaded(store)[0].note) == ("queued", "to be undone by ann: not wanted")
    assert closed(store, keeping) == "not wanted: 2 effects undone"
    assert DONE == ["pay a", "pay b", "refund r-b b 5", "refund r-a a 5"]


def test_what_was_done_in_answer_to_the_failure_is_undone_too() -> None:
    @hf.agent
    async def agent() -> None:
        await pay("a")
        try:
            await look("c")
        except ValueError:
            await pay("fee")
            raise

    store = MemoryStore()
    BROKEN.add("c")
    with pytest.raises(ValueError):
        play(store, agent)
    cancel(store)
    assert closed(store, agent) == "2 effects undone"
    assert undone() == ["fee", "a"]


def test_a_run_of_a_dead_process_is_undone() -> None:
    store = dies_at("step.done", "3")
    with pytest.raises(StoreError):
        play(store, keeping)
    store.mend()
    cancel(store)
    assert closed(store, keeping) == "2 effects undone"
    assert DONE == ["pay a", "pay b", "look c", "refund r-b b 5", "refund r-a a 5"]


def test_a_run_that_has_done_nothing_is_closed() -> None:
    store = dies_at("step.started")
    with pytest.raises(StoreError):
        play(store, keeping)
    store.mend()
    cancel(store)
    assert closed(store, keeping) == "0 effects undone"
    assert DONE == []


def test_no_new_step_begins_and_nothing_that_was_watched_holds_it_up() -> None:
    prices = ["old"]

    @hf.agent
    async def agent() -> None:
        hf.watch(("price", lambda: prices[-1]))
        await pay("a")
        await look("c")
        await pay("b")

    store = MemoryStore()
    BROKEN.add("c")
    with pytest.raises(ValueError):
        play(store, agent)
    BROKEN.clear()
    prices.append("new")
    cancel(store)
    assert closed(store, agent) == "1 effect undone"
    assert DONE == ["pay a", "refund r-a a 5"]


def test_a_question_of_a_step_is_no_matter_any_more() -> None:
    @hf.effect(in_doubt="ask", approve=True)
    async def sign() -> None:
        DONE.append("signed")

    @hf.agent
    async def agent() -> None:
        await pay("a")
        await sign()

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    cancel(store)
    with hf.Holdfast(store) as app:
        assert app.inbox() == []
    assert closed(store, agent) == "1 effect undone"
    assert DONE == ["pay a", "refund r-a a 5"]


def test_a_run_that_had_returned_and_only_waits_is_undone_too() -> None:
    @hf.effect(in_doubt="fail")
    async def wire() -> None:
        raise TimeoutError

    @hf.agent
    async def agent() -> str:
        await pay("a")
        try:
            await wire()
        except hf.InDoubt:
            return "never mind"
        return "wired"

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    cancel(store)
    assert closed(store, agent) == "1 effect undone"


def test_a_handle_cancels_with_undo() -> None:
    begun = asyncio.Event()

    @hf.step
    async def long() -> None:
        begun.set()
        await asyncio.sleep(30)

    @hf.agent
    async def agent() -> None:
        await pay("a")
        await long()

    async def main() -> None:
        with hf.Holdfast(MemoryStore()) as app:
            handle = await app.start(agent)
            await begun.wait()
            handle.cancel(undo=True)
            with pytest.raises(hf.RunCancelled, match="1 effect undone"):
                await handle.result(timeout=10)

    asyncio.run(main())
    assert undone() == ["a"]


def test_who_is_closed_or_undone_already_is_not_undone_again() -> None:
    store = failed_run()
    cancel(store)
    with pytest.raises(Refusal, match="is being undone already; nothing was changed"):
        cancel(store)
    closed(store, keeping)
    with pytest.raises(Refusal, match="is cancelled and stays so"):
        cancel(store)


def test_a_plain_cancel_gives_the_undoing_up() -> None:
    store = failed_run()
    cancel(store)
    with hf.Holdfast(store) as app:
        app.cancel("r", by="bob", reason="leave it")
    assert closed(store, keeping) == "leave it"
    assert undone() == []


def test_cleanups_are_called_once_after_the_undos() -> None:
    @hf.agent(on_failure="undo")
    async def agent() -> None:
        hf.cleanup(DONE.append, "swept")
        await pay("a")
        raise ValueError

    store = dies_at("run.cancelled")
    with pytest.raises(StoreError):
        play(store, agent)
    store.mend()
    with pytest.raises(ValueError):
        play(store, agent)
    assert DONE == ["pay a", "refund r-a a 5", "swept"]


# --- a run that executes --------------------------------------------------------------------------------------------


class Background:
    """A run in a thread of its own; `ended` is what it raised."""

    def __init__(self, app: hf.Holdfast, agent: Callable[..., Any]) -> None:
        self.ended: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(app, agent), daemon=True)
        self._thread.start()

    def _run(self, app: hf.Holdfast, agent: Callable[..., Any]) -> None:
        try:
            app.run(agent, run_id="r", wait=False)
        except BaseException as error:  # noqa: BLE001 (what it raised is what the test wants to know)
            self.ended = error

    def join(self) -> BaseException | None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.ended


def test_a_run_that_executes_is_told_to_stop_and_undoes() -> None:
    store, begun = MemoryStore(), threading.Event()

    @hf.step
    async def long() -> None:
        begun.set()
        await asyncio.sleep(30)

    @hf.agent
    async def agent() -> None:
        await pay("a")
        await pay("b")
        await long()

    with hf.Holdfast(store) as app, hf.Holdfast(store) as operator:
        running = Background(app, agent)
        assert begun.wait(5)
        assert operator.cancel("r", undo=True, by="ann") == "its owner has been told to stop and to undo what it did"
        assert isinstance(running.join(), hf.RunCancelled)
    assert undone() == ["b", "a"]
    assert loaded(store)[0].note == "2 effects undone"
    assert store.letters(["r"]) == []


def test_an_effect_that_the_cancellation_breaks_off_is_a_doubt() -> None:
    store, begun = MemoryStore(), threading.Event()

    @hf.effect(in_doubt="ask", undo=refund)
    async def slow(what: str, cents: int = 5) -> str:
        begun.set()
        await asyncio.sleep(30)
        return what

    @hf.agent
    async def agent() -> None:
        await pay("a")
        await slow("b")

    with hf.Holdfast(store) as app, hf.Holdfast(store) as operator:
        running = Background(app, agent)
        assert begun.wait(5)
        operator.cancel("r", undo=True, by="ann")
        assert isinstance(running.join(), hf.RunWaiting)
    assert (status(store), undone()) == ("waiting", [])
    resolve(store, "2", landed="r-b")
    assert closed(store, agent) == "2 effects undone"
    assert undone() == ["b", "a"]


def test_a_blocking_run_is_undone_at_its_next_step() -> None:
    store, begun, go = MemoryStore(), threading.Event(), threading.Event()

    @hf.step
    def long() -> None:
        begun.set()
        go.wait(10)

    @hf.agent
    def agent() -> None:
        pay_blocking("a")
        while True:
            long()

    with hf.Holdfast(store) as app, hf.Holdfast(store) as operator:
        running = Background(app, agent)
        assert begun.wait(5)
        operator.cancel("r", undo=True, by="ann")
        app.engine.keeper.take_letters()
        go.set()
        assert isinstance(running.join(), hf.RunCancelled)
    assert DONE == ["pay a", "refund r-a a"]


def test_a_letter_that_nobody_has_read_is_obeyed_by_the_next_owner_once_it_knows_what_was_done() -> None:
    store = failed_run()
    store.post("r", "cancel", b'{"by": "ann", "undo": true}', 1)
    assert closed(store, keeping) == "2 effects undone"
    assert "run.undoing" in lines(store)
    assert store.letters(["r"]) == []


# --- declaring ------------------------------------------------------------------------------------------------------


def test_an_undo_that_cannot_be_called_is_refused_when_it_is_declared() -> None:
    async def other(receipt: str) -> None:
        pass

    @hf.step
    def safe(receipt: str, what: str) -> None:
        pass

    def effect(what: str) -> str:
        return what

    untyped: Any = hf.effect
    with pytest.raises(hf.Misuse, match=r"is called with the result and then the arguments of effect\(what"):
        untyped(in_doubt="ask", undo=lambda receipt: None)(effect)
    with pytest.raises(hf.Misuse, match="its undo is `async def`"):
        untyped(in_doubt="ask", undo=refund)(effect)
    with pytest.raises(hf.Misuse, match="is a step; an undo changes the world"):
        untyped(in_doubt="ask", undo=safe)(effect)
    with pytest.raises(hf.Misuse, match="undo=5 is not a function"):
        untyped(in_doubt="ask", undo=5)(effect)
    with pytest.raises(hf.Misuse, match="a step has no option 'undo'"):
        untyped_step: Any = hf.step
        untyped_step(effect, undo=refund)
    with pytest.raises(hf.Misuse, match="on_failure='maybe'"):
        untyped_agent: Any = hf.agent
        untyped_agent(on_failure="maybe")(other)


def test_a_copy_of_an_effect_keeps_its_undo() -> None:
    copied = hf.step(pay, name="pay again")

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await copied("a")
        raise ValueError

    store = MemoryStore()
    with pytest.raises(ValueError):
        play(store, agent)
    assert undone() == ["a"]


# --- what is shown --------------------------------------------------------------------------------------------------


def test_history_and_show_tell_of_the_undoing() -> None:
    store = failed_run()
    cancel(store, reason="not wanted")
    with hf.Holdfast(store) as app:
        assert app.show("r").undoing == "by ann: not wanted"
        assert app.show("r").next_commands == ["holdfast resume r --here APP.py", "holdfast worker APP.py"]
    closed(store, keeping)
    with hf.Holdfast(store) as app:
        told = [(line.step_id, line.call, line.state) for line in app.history("r") if line.step_id.startswith("undo:")]
        assert told == [
            ("undo:2", 'refund(receipt="r-b", what="b")', "done"), ("undo:1", 'refund(receipt="r-a", what="a")', "done"),
        ]  # fmt: skip
        assert ("run undoing", "by ann: not wanted") in [(line.state, line.note) for line in app.history("r")]
        assert app.show("r").undoing == ""
        assert app.show("r").note == "by ann: not wanted: 2 effects undone"
