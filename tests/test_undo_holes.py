"""Undoing a run in states that are rarely met: gone behind, repaired, renamed, idle, not kept."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from agents_for_tests.refunds import BROKEN, DONE, cancel, closed, look, mail, pay, refund, resolve, start_afresh, undone
from crashing import FailingStore, play, status
from holdfast.errors import NotAwaited, Refusal, StoreFailed, UndoFailed
from holdfast.stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def _fresh() -> None:
    start_afresh()


def resume(store: MemoryStore) -> None:
    with hf.Holdfast(store) as app:
        app.resume("r", by="ann")


# --- a failure that somebody had gone behind ------------------------------------------------------------------------


@hf.agent
async def with_fee() -> None:
    await pay("a")
    try:
        await look("c")
    except ValueError:
        await pay("fee")
        raise


@hf.agent
async def with_note() -> None:
    await pay("a")
    try:
        await look("c")
    except ValueError:
        await look("the log")
        raise


async def paid_unless(what: str) -> None:
    await look(what)
    await pay(what)


@hf.agent
async def one_by_one() -> None:
    await hf.map(paid_unless, ["c", "d"], limit=1)


def failed(agent: Callable[..., Any], store: MemoryStore | None = None) -> MemoryStore:
    store = store or MemoryStore()
    BROKEN.add("c")
    with pytest.raises(ValueError, match="cannot see c"):
        play(store, agent)
    return store


def test_a_failure_that_was_gone_behind_and_not_decided_anew_is_on_the_path_that_is_undone() -> None:
    store = failed(with_fee)
    resume(store)
    cancel(store)
    assert closed(store, with_fee) == "2 effects undone"
    assert undone() == ["fee", "a"]


def test_so_it_is_where_a_start_died_right_after_its_claim_and_its_owner_was_told() -> None:
    store = FailingStore()
    failed(with_fee, store)
    store.fails, store.written = lambda row: row.kind == "run.resumed", True
    with pytest.raises(StoreFailed):
        play(store, with_fee)
    store.mend()
    store.post("r", "cancel", b'{"by": "ann", "undo": true}', 1)
    assert closed(store, with_fee) == "2 effects undone"
    assert undone() == ["fee", "a"]


def test_a_later_branch_is_reached_through_the_failure_of_an_earlier_one() -> None:
    store = failed(one_by_one)
    assert "pay d" in DONE
    resume(store)
    cancel(store)
    assert closed(store, one_by_one) == "1 effect undone"
    assert undone() == ["d"]


def test_what_was_forgotten_with_the_failure_is_on_the_path_again_and_not_called() -> None:
    store = failed(with_note)
    resume(store)
    cancel(store)
    assert closed(store, with_note) == "1 effect undone"
    assert DONE == ["pay a", "look the log", "refund r-a a 5"]


def test_a_failure_that_was_decided_anew_stays_behind() -> None:
    store = failed(keeps_on)
    BROKEN.clear()
    BROKEN.add("e")
    with pytest.raises(ValueError, match="cannot see e"):
        play(store, keeps_on)
    resume(store)
    cancel(store)
    assert closed(store, keeps_on) == "2 effects undone"
    assert undone() == ["d", "a"]


@hf.agent
async def keeps_on() -> None:
    await pay("a")
    try:
        await look("c")
    except ValueError:
        await look("the log")
        raise
    await pay("d")
    await look("e")


def test_an_effect_that_was_begun_anew_stays_in_doubt() -> None:
    @hf.effect(in_doubt="ask", raises=(LookupError,))
    async def order(what: str) -> None:
        raise LookupError(what) if "c" in BROKEN else TimeoutError

    @hf.agent
    async def agent() -> None:
        await pay("a")
        await order("x")

    store = MemoryStore()
    BROKEN.add("c")
    with pytest.raises(LookupError):
        play(store, agent)
    BROKEN.clear()
    with pytest.raises(hf.RunWaiting):
        play(store, agent)
    cancel(store)
    assert closed(store, agent) == "1 effect undone"
    with hf.Holdfast(store) as app:
        assert [(item.kind, item.step_id) for item in app.inbox()] == [("doubt", "2")]


# --- traces that a repair had found ---------------------------------------------------------------------------------


@hf.agent
async def seen_and_paid() -> None:
    await look("s")
    await pay("a")
    await look("c")


def damaged(path: Path, first_lost: str = "step.done 1") -> Path:
    """A repaired run whose first step is lost, or only its effect, and with it all records behind it: of its effect a person is asked."""
    BROKEN.add("c")
    with hf.Holdfast(path) as app, pytest.raises(ValueError, match="cannot see c"):
        app.run(seen_and_paid, run_id="r")
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE journal SET digest = zeroblob(32) WHERE kind || ' ' || step_id = ?", (first_lost,))
    with hf.Holdfast(path) as app:
        assert len(app.repair("r", dry_run=False, by="ann").doubts) == 1
        app.resume("r", effects="repeat", by="ann")  # the damaged record told of nothing else
    return path


def repaired(path: Path, first_lost: str = "step.done 1") -> Path:
    """The same, to be undone."""
    with hf.Holdfast(damaged(path, first_lost)) as app:
        app.cancel("r", undo=True, by="ann")
    return path


@pytest.mark.parametrize("first_lost", ["step.done 1", "step.started 2"])
def test_an_effect_that_a_repair_found_stops_the_undo_while_in_doubt_whether_the_code_comes_to_it_or_not(
    tmp_path: Path, first_lost: str
) -> None:
    with hf.Holdfast(repaired(tmp_path / "runs.db", first_lost)) as app:
        with pytest.raises(hf.RunWaiting, match=r'did pay\(what="a"\) at step 2 happen'):
            app.run(seen_and_paid, run_id="r", wait=False)
        assert [(item.kind, item.step_id) for item in app.inbox()] == [("doubt", "2")]


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        ({"landed": "r-a"}, "0 effects undone; known from what a repair moved aside, and not undone: pay (step 2)"),
        ({"not_landed": True}, "0 effects undone"),
    ],
)
def test_it_is_named_as_not_undone_once_a_person_said_that_it_happened(tmp_path: Path, verdict: dict[str, Any], reason: str) -> None:
    with hf.Holdfast(repaired(tmp_path / "runs.db")) as app:
        app.resolve("r", "2", by="ann", **verdict)
        with pytest.raises(hf.RunCancelled) as caught:
            app.run(seen_and_paid, run_id="r", wait=False)
    assert caught.value.reason == reason


@pytest.mark.parametrize("instead", [look, mail])
def test_it_is_named_though_the_code_called_something_else_there_since(tmp_path: Path, instead: Callable[..., Any]) -> None:
    @hf.agent(name="seen_and_paid")
    async def another_way() -> None:
        await look("s")
        await instead("x")
        await look("c")

    with hf.Holdfast(damaged(tmp_path / "runs.db")) as app:
        app.resolve("r", "2", landed="r-a", by="ann")
        with pytest.raises(ValueError, match="cannot see c"):
            app.run(another_way, run_id="r")
        app.cancel("r", undo=True, by="ann")
        with pytest.raises(hf.RunCancelled) as caught:
            app.run(another_way, run_id="r")
    assert caught.value.reason == "0 effects undone; made before the code changed, and not undone: pay (step 2)"


# --- code that waits for something of its own -----------------------------------------------------------------------


async def wait_for_a_webhook() -> None:
    """Interrupted in the first life; in another one it would wait for ever, and says so before it gives up."""
    if "webhook" in BROKEN:
        raise KeyboardInterrupt
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 5)
    except TimeoutError:
        DONE.append("waited in vain")


@hf.agent
async def behind_a_step() -> None:
    await pay("a")
    await wait_for_a_webhook()
    await look("c")


@hf.agent
async def behind_branches() -> None:
    await hf.gather(pay("a"), pay("b"))
    await asyncio.create_task(wait_for_a_webhook())


@hf.agent
async def behind_nothing() -> None:
    await wait_for_a_webhook()


@pytest.mark.parametrize("by_letter", [False, True])
@pytest.mark.parametrize(("agent", "count"), [(behind_a_step, 1), (behind_branches, 2), (behind_nothing, 0)])
def test_an_idle_run_is_undone_whatever_its_code_would_wait_for_of_its_own(
    agent: Callable[..., Any], count: int, *, by_letter: bool
) -> None:
    store = MemoryStore()
    BROKEN.add("webhook")
    with pytest.raises(KeyboardInterrupt):
        play(store, agent)
    BROKEN.clear()
    if by_letter:
        store.post("r", "cancel", b'{"by": "ann", "undo": true}', 1)
    else:
        cancel(store)
    assert closed(store, agent) == f"{count} effect{'' if count == 1 else 's'} undone"
    assert len(undone()) == count
    assert "waited in vain" not in DONE


def test_it_is_so_for_what_only_a_repair_told_of_too(tmp_path: Path) -> None:
    path = repaired(tmp_path / "runs.db")
    with hf.Holdfast(path) as app:
        app.resolve("r", "2", not_landed=True, by="ann")
        with pytest.raises(hf.RunCancelled):
            app.run(waits_first, run_id="r")
    assert "waited in vain" not in DONE


@hf.agent(name="seen_and_paid")
async def waits_first() -> None:
    await wait_for_a_webhook()


# --- a result that was not kept -------------------------------------------------------------------------------------


@hf.effect(in_doubt="ask", undo=refund)
async def pay_oddly(what: str, cents: int = 5) -> str:
    DONE.append(f"pay {what}")
    return object()  # type: ignore[return-value]


@hf.agent
async def odd() -> str:
    return await pay_oddly("a")


@pytest.mark.parametrize("undoing", [False, True])
def test_a_word_on_a_result_that_was_not_kept_is_asked_for_again_until_it_fits(*, undoing: bool) -> None:
    store = MemoryStore()
    with pytest.raises(hf.ResultNotKept):
        play(store, odd)
    if undoing:
        cancel(store)
    for _ in range(2):
        resolve(store, "1", landed=5)
        with pytest.raises(hf.ResultNotKept, match=r"does not fit.*must be.*resolve r 1 --landed"):
            play(store, odd)
    with hf.Holdfast(store) as app:
        assert app.show("r").next_commands == ["holdfast resolve r 1 --landed RESULT", "holdfast resume r --here APP.py"]
        assert [(item.kind, item.run_id) for item in app.inbox()] == [("result", "r")]
    resolve(store, "1", landed="r-7")
    if undoing:
        assert closed(store, odd) == "1 effect undone"
    else:
        assert play(store, odd) == "r-7"
    assert undone() == ["a"] * undoing
    assert DONE.count("pay a") == 1


def test_a_word_that_fits_is_kept_whatever_came_after_it() -> None:
    @hf.agent(name="odd")
    async def goes_on() -> None:
        await pay_oddly("a")
        await look("c")

    store = MemoryStore()
    BROKEN.add("c")
    with pytest.raises(hf.ResultNotKept):
        play(store, goes_on)
    resolve(store, "1", landed="r-7")
    with pytest.raises(ValueError, match="cannot see c"):
        play(store, goes_on)
    cancel(store)
    assert closed(store, goes_on) == "1 effect undone"
    assert DONE == ["pay a", "refund r-7 a 5"]


# --- code that changed meanwhile ------------------------------------------------------------------------------------


def accept(store: MemoryStore) -> str:
    with hf.Holdfast(store) as app:
        return app.accept("r", by="ann")


async def refund_anew(receipt: str, what: str, cents: int = 5) -> None:
    DONE.append(f"refund {receipt} {what} {cents}")


def paying_back_with(undo: Callable[..., Any]) -> Callable[..., Any]:
    @hf.effect(name="pay", in_doubt="ask", undo=undo)
    async def pay_it(what: str, cents: int = 5) -> str:
        return f"r-{what}"

    @hf.agent(name="agent")
    async def agent() -> None:
        await pay_it("a")
        await pay_it("b")
        raise ValueError("sold out")

    return agent


def not_undone(broken: str) -> MemoryStore:
    """A run whose undo of "a" did not come to its end, with code that names another undo since."""
    store, agent = MemoryStore(), paying_back_with(refund)
    with pytest.raises(ValueError, match="sold out"):
        play(store, agent)
    cancel(store)
    BROKEN.add(broken)
    with pytest.raises((UndoFailed, hf.RunWaiting)):
        play(store, agent)
    with pytest.raises(hf.ReplayMismatch, match="undo:1"):
        play(store, paying_back_with(refund_anew))
    return store


def test_a_failed_undo_is_mended_under_another_name() -> None:
    store = not_undone("a")
    assert accept(store).startswith("the run goes on with the new code from step undo:1; 1 recorded step is superseded; the run is ready")
    assert closed(store, paying_back_with(refund_anew)) == "2 effects undone"
    assert DONE == ["refund r-b b 5", "refund r-a a 5"]


@pytest.mark.parametrize(("verdict", "count"), [({"landed": None}, 1), ({"not_landed": True}, 2)])
def test_an_undo_in_doubt_is_not_given_up_with_its_name(verdict: dict[str, Any], count: int) -> None:
    store = not_undone("a?")
    with pytest.raises(Refusal, match="step undo:1 of run 'r' is in doubt: settle it first"):
        accept(store)
    resolve(store, "undo:1", **verdict)
    agent = paying_back_with(refund_anew)
    if "not_landed" in verdict:
        with pytest.raises(hf.ReplayMismatch, match="undo:1"):
            play(store, agent)
        accept(store)
    assert closed(store, agent) == "2 effects undone"
    assert len(undone()) == count


ORDER = {"what": "old"}


@hf.agent
async def ordering() -> None:
    await pay(ORDER["what"])
    await look("c")


def superseded(store: MemoryStore) -> None:
    """Code that pays for something else now at the same step, accepted."""
    ORDER["what"] = "new"
    with pytest.raises(hf.ReplayMismatch):
        play(store, ordering)
    accept(store)


@pytest.mark.parametrize("crashed", [False, True])
def test_a_superseded_effect_is_named_though_the_undo_at_its_step_was_done_in_an_earlier_life(*, crashed: bool) -> None:
    ORDER["what"], store = "old", FailingStore()
    failed(ordering, store)
    superseded(store)
    with pytest.raises(ValueError, match="cannot see c"):
        play(store, ordering)
    cancel(store)
    if crashed:
        store.fails = lambda row: row.kind == "run.cancelled"
        with pytest.raises(StoreFailed):
            play(store, ordering)
        store.mend()
    assert closed(store, ordering) == "1 effect undone; made before the code changed, and not undone: pay (step 1)"
    assert undone() == ["new"]


def test_an_effect_that_was_undone_before_the_code_changed_is_not_named() -> None:
    ORDER["what"], store = "old", FailingStore()
    failed(ordering, store)
    cancel(store)
    store.fails = lambda row: row.kind == "run.cancelled"
    with pytest.raises(StoreFailed):
        play(store, ordering)
    store.mend()
    superseded(store)
    assert closed(store, ordering) == "0 effects undone"
    assert undone() == ["old"]


# --- agents that fail by what they return ---------------------------------------------------------------------------


@hf.agent(on_failure="undo")
async def returns_oddly() -> int:
    await pay("a")
    return object()  # type: ignore[return-value]


@hf.agent(on_failure="undo")
async def forgets_to_wait() -> int:
    await pay("a")
    look("c")  # type: ignore[unused-coroutine]
    return 1


@hf.agent(on_failure="undo", budget=hf.Budget(steps=1, on_limit="fail"))
async def spends_too_much() -> int:
    await pay("a")
    await look("c")
    return 1


@pytest.mark.parametrize(("agent", "error"), [(returns_oddly, hf.NotKept), (forgets_to_wait, NotAwaited)])
def test_an_agent_that_undoes_its_failures_undoes_those_that_show_only_when_it_returns(
    agent: Callable[..., Any], error: type[Exception]
) -> None:
    store = MemoryStore()
    with pytest.raises(error) as caught:
        play(store, agent)
    assert (status(store), undone()) == ("cancelled", ["a"])
    assert "run 'r' is cancelled: failed with" in caught.value.__notes__[0]
    assert closed(store, agent).endswith(": 1 effect undone")


def test_a_budget_that_is_used_up_can_be_raised_and_undoes_nothing() -> None:
    store = MemoryStore()
    with pytest.raises(hf.BudgetExceeded):
        play(store, spends_too_much)
    assert (status(store), undone()) == ("failed", [])
    with hf.Holdfast(store) as app:
        app.resume("r", budget=hf.Budget(steps=2), by="ann")
    assert play(store, spends_too_much) == 1


def test_a_changed_model_for_which_the_run_was_undone_is_not_to_be_accepted() -> None:
    models = ["m1", "m2"]

    @hf.step
    async def think(n: int) -> int:
        hf.usage(model=models[0])
        return n

    @hf.agent(on_failure="undo", on_model_change="fail")
    async def agent() -> None:
        await think(0)
        await pay("a")
        if len(models) == 2:
            raise KeyboardInterrupt
        await think(1)
        await think(2)

    store = MemoryStore()
    with pytest.raises(KeyboardInterrupt):
        play(store, agent)
    del models[0]
    with pytest.raises(hf.ModelChanged, match="it is m2, it was m1") as caught:
        play(store, agent)
    assert (status(store), undone()) == ("cancelled", ["a"])
    for told in (str(caught.value), str(pickle.loads(pickle.dumps(caught.value))), closed(store, agent)):
        assert "--accept" not in told
        assert "undone" in told
