"""Undoing a run (`_undo`): what its effects did is taken back, newest first, by whoever has its code; it stops at a doubt."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync
from crashing import FailingStore, dies_at, lines, loaded, play, status
from holdfast.errors import Refusal, StoreError, UndoFailed
from holdfast.stores.memory import MemoryStore

DONE: list[str] = []
"""What was really done, in order."""
BROKEN: set[str] = set()
"""What fails for now."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    DONE.clear()
    BROKEN.clear()


async def refund(receipt: str, what: str, cents: int = 5) -> None:
    if what in BROKEN:
        raise ConnectionRefusedError(f"no bank for {what}")
    if f"{what}?" in BROKEN:
        raise TimeoutError("no answer")
    DONE.append(f"refund {receipt} {what} {cents}")


@hf.effect(in_doubt="ask", undo=refund)
async def pay(what: str, cents: int = 5) -> str:
    if what in BROKEN:
        raise TimeoutError("no answer")
    DONE.append(f"pay {what}")
    return f"r-{what}"


@hf.effect(in_doubt="ask")
async def mail(text: str) -> None:
    DONE.append(f"mail {text}")


@hf.step
async def look(what: str) -> str:
    if what in BROKEN:
        raise ValueError(f"cannot see {what}")
    DONE.append(f"look {what}")
    return what


def refund_blocking(receipt: str, what: str) -> None:
    DONE.append(f"refund {receipt} {what}")


@hf.effect(in_doubt="ask", undo=refund_blocking)
def pay_blocking(what: str) -> str:
    DONE.append(f"pay {what}")
    return f"r-{what}"


def undone() -> list[str]:
    return [line.split()[2] for line in DONE if line.startswith("refund")]


def cancel(store: MemoryStore, **more: Any) -> str:
    with hf.Holdfast(store) as app:
        return app.cancel("r", undo=True, by="ann", **more)


def resolve(store: MemoryStore, step_id: str, **verdict: Any) -> None:
    with hf.Holdfast(store) as app:
        app.resolve("r", step_id, by="ann", **verdict)


def closed(store: MemoryStore, agent: Callable[..., Any]) -> str:
    """Play a run that is to be undone; the reason with which it is closed."""
    with pytest.raises(hf.RunCancelled) as caught:
        play(store, agent)
    assert status(store) == "cancelled"
    return caught.value.reason


# --- when an agent fails --------------------------------------------------------------------------------------------


@hf.agent(on_failure="undo")
async def failing() -> None:
    await pay("a", 7)
    await mail("thanks")
    await pay("b", cents=8)
    raise ValueError("out of stock")


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


@hf.agent
async def keeping() -> str:
    await pay("a")
    await pay("b")
    return await look("c")


def failed_run() -> MemoryStore:
    store = MemoryStore()
    BROKEN.add("c")
    with pytest.raises(ValueError):
        play(store, keeping)
    assert (status(store), undone()) == ("failed", [])
    return store


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
    async def slow(what: str) -> str:
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


def test_what_did_not_land_is_passed_over() -> None:
    store = in_doubt_at_b()
    resolve(store, "2", not_landed=True)
    assert closed(store, doubtful) == "2 effects undone"
    assert undone() == ["c", "a"]


def test_a_result_that_does_not_fit_is_put_before_the_person_again() -> None:
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


@pytest.mark.parametrize("verdict", [{"landed": None}, {"not_landed": True}])
def test_an_undo_that_gives_up_in_doubt_waits_for_a_person_too(verdict: dict[str, Any]) -> None:
    tried: list[str] = []

    @hf.effect(in_doubt="fail")
    async def unsend(sent: str, text: str) -> None:
        tried.append(text)
        if len(tried) == 1:
            raise TimeoutError

    @hf.effect(in_doubt="ask", undo=unsend)
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
    async def slow(what: str) -> str:
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
    keepable = [False]

    @hf.effect(in_doubt="ask", undo=lambda result: DONE.append(f"unmade {result}"))
    async def make() -> Any:
        return {1} if not keepable[0] else 1

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await pay("a")
        await make()

    store = MemoryStore()
    with pytest.raises(UndoFailed, match="Say what it was: holdfast resolve r 2 --landed JSON"):
        play(store, agent)
    assert undone() == []
    resolve(store, "2", landed="it")
    closed(store, agent)
    assert DONE[1:] == ["unmade it", "refund r-a a 5"]


def test_what_an_undo_returns_need_not_be_kept() -> None:
    @hf.effect(in_doubt="ask", undo=lambda result: DONE.append("unmade") or {DONE[-1]})
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


# --- branches -------------------------------------------------------------------------------------------------------


async def later(what: str) -> str:
    await look(what)
    return await pay(what)


def test_branches_are_undone_in_the_order_of_their_outcomes() -> None:
    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await hf.gather(later("slow"), pay("quick"), later("slower"))
        raise ValueError

    store = dies_at("run.undoing")
    with pytest.raises(StoreError):
        play(store, agent)
    store.mend()
    paid = [line.split()[1] for line in DONE if line.startswith("pay")]
    assert paid[0] == "quick"
    with pytest.raises(ValueError):
        play(store, agent)
    assert undone() == paid[::-1]


def test_every_branch_is_replayed_to_its_edge_before_anything_is_undone() -> None:
    @hf.agent
    async def agent() -> None:
        await hf.gather(pay("a"), later("b"))
        await hf.first(later("c"), later("d"))

    store = dies_at("step.started", "3.1.2")
    with pytest.raises(StoreError):
        play(store, agent)
    store.mend()
    cancel(store)
    closed(store, agent)
    assert sorted(undone()) == sorted(line.split()[1] for line in DONE if line.startswith("pay"))


def test_threads_are_replayed_to_their_ends_too() -> None:
    @hf.step
    def peek(what: str) -> None:
        if what in BROKEN:
            raise ValueError(what)

    def branch(what: str) -> str:
        peek(what)
        return pay_blocking(what)

    @hf.agent
    def agent() -> None:
        holdfast.sync.gather(lambda: branch("a"), lambda: branch("b"), lambda: branch("c"))

    store = MemoryStore()
    BROKEN.add("b")
    with pytest.raises(ValueError):
        play(store, agent)
    paid = [line.split()[1] for line in DONE]
    assert sorted(paid) == ["a", "c"]
    cancel(store)
    assert closed(store, agent) == "2 effects undone"
    assert sorted(undone()) == ["a", "c"]


def test_a_def_effect_of_an_async_agent_at_the_live_edge_does_not_cut_the_others_short() -> None:
    """On replay its branch comes to the edge before the other one has been given what it had recorded."""
    live, paid = [True], asyncio.Event()

    @hf.effect(in_doubt="ask", undo=refund_blocking)
    def doubtful_blocking(what: str) -> str:
        raise TimeoutError

    async def blocking() -> str:
        await look("x")
        if live:
            await paid.wait()
        return doubtful_blocking("a")

    async def quick() -> None:
        await later("b")
        paid.set()

    @hf.agent
    async def agent() -> None:
        await hf.gather(blocking(), quick())

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    live.clear()
    cancel(store)
    resolve(store, "1.1.2", not_landed=True)
    assert closed(store, agent) == "1 effect undone"
    assert undone() == ["b"]


def test_the_loser_of_a_race_is_undone_where_it_had_done_something() -> None:
    @hf.agent(on_failure="undo")
    async def agent() -> None:
        await hf.first(pay_then_wait("a"), later("b"))
        raise ValueError

    async def pay_then_wait(what: str) -> str:
        result = await pay(what)
        await asyncio.sleep(30)
        return result

    store = dies_at("step.started", "undo:1.2.2")
    with pytest.raises(StoreError):
        play(store, agent)
    store.mend()
    with pytest.raises(ValueError):
        play(store, agent)
    assert undone() == ["b", "a"]


def test_an_effect_of_a_task_that_nobody_waits_for_is_waited_for_and_undone() -> None:
    tasks: set[asyncio.Task[str]] = set()

    @hf.effect(in_doubt="ask", undo=refund, call_id=lambda what: what)
    async def slow(what: str) -> str:
        await asyncio.sleep(0.02)
        DONE.append(f"pay {what}")
        return f"r-{what}"

    @hf.agent(on_failure="undo")
    async def agent() -> None:
        tasks.add(asyncio.create_task(slow("stray")))
        await pay("a")
        raise ValueError

    store = FailingStore()
    with pytest.raises(ValueError):
        play(store, agent)
    assert DONE == ["pay a", "pay stray", "refund r-stray stray 5", "refund r-a a 5"]


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
    with pytest.raises(hf.Misuse, match="decorates a function, not int"):
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
        assert app.show("r").next_commands == ["holdfast resume r --here APP.py"]
    closed(store, keeping)
    with hf.Holdfast(store) as app:
        told = [(line.step_id, line.call, line.state) for line in app.history("r") if line.step_id.startswith("undo:")]
        assert told == [
            ("undo:2", 'refund(receipt="r-b", what="b")', "done"), ("undo:1", 'refund(receipt="r-a", what="a")', "done"),
        ]  # fmt: skip
        assert ("run undoing", "by ann: not wanted") in [(line.state, line.note) for line in app.history("r")]
        assert app.show("r").undoing == ""
        assert app.show("r").note == "by ann: not wanted: 2 effects undone"
