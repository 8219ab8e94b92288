"""An effect of which it is not known whether it happened, after a crash: all five actions, for `def` and `async def`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

import holdfast as hf
import starting
from agents_for_tests import bank as banking
from agents_for_tests.bank import Bank
from agents_for_tests.buyer import DOUBTS, QUICK, buyer, charging
from agents_for_tests.sites import HandClock, WatchedMemory, eventually
from holdfast.errors import Refusal, StoreError
from holdfast.life.calls import Call
from holdfast.records import replay
from holdfast.records.journal import Journal
from holdfast.records.replay import History

HERE = Path(__file__).parent


@pytest.fixture
def bank() -> Iterator[Bank]:
    with Bank() as opened:
        yield opened


@pytest.fixture
def forgetful() -> Iterator[Bank]:
    """A bank that takes a second request under the same key for a second charge."""
    with Bank(remembers_keys=False) as opened:
        yield opened


@pytest.fixture
def store() -> WatchedMemory:
    return WatchedMemory()


@pytest.fixture
def app(store: WatchedMemory) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(store) as opened:
        yield opened


@pytest.fixture(params=["async", "def"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def paying(bank: Bank) -> Callable[[str], str]:
    return lambda order: banking.charge(bank.port, order, hf.key())


def looking(bank: Bank) -> Callable[[str], hf.Verdict[str]]:
    def look(order: str) -> hf.Verdict[str]:
        found = banking.find(bank.port, order)
        return hf.Landed(found) if found else hf.NotLanded()

    return look


def crash(app: hf.Holdfast, store: WatchedMemory, agent: Any) -> None:
    """Run until the outcome of the effect would be written, and lose it: what a crash leaves behind."""
    store.trips_at = "step.done"
    with pytest.raises(StoreError):
        app.run(agent, "o-1", run_id="r")


def kinds(app: hf.Holdfast) -> list[str]:
    loaded = app.store.load("r")
    assert loaded is not None
    return [row.kind for row in loaded[1]]


def killed(store: Path, bank: Bank, mode: str, doubt: str, death: str) -> None:
    """A process of its own that dies by SIGKILL in the body of its effect."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}
    command = [sys.executable, "-m", "agents_for_tests.buyer", str(store), str(bank.port), mode, doubt, death]
    done = starting.run(command, env=env, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


# --- after a crash --------------------------------------------------------------------------------------------------


def recovered(store: Path, bank: Bank, mode: str, doubt: str, death: str) -> str:
    """What comes of a run whose process was killed inside its effect, when another process goes on with it."""
    killed(store, bank, mode, doubt, death)
    with hf.Holdfast(store) as app:
        try:
            return str(app.run(buyer(mode, doubt, bank.port), "o-1", run_id="r", wait=False))
        except (hf.RunWaiting, hf.InDoubt) as error:
            return type(error).__name__


@pytest.mark.parametrize("death", ["before", "after"])
@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_process_killed_inside_an_effect_never_charges_twice(tmp_path: Path, bank: Bank, mode: str, doubt: str, death: str) -> None:
    told = {"ask": "RunWaiting", "fail": "InDoubt"}
    assert recovered(tmp_path / "runs.db", bank, mode, doubt, death) == told.get(doubt, "r-1")
    assert bank.charged == ["o-1"] * (doubt not in told or death == "after")


@pytest.mark.parametrize("doubt", ["ask", "fail", "verify"])
def test_without_a_decision_for_doubts_a_process_killed_inside_an_effect_charges_twice(
    tmp_path: Path, forgetful: Bank, doubt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: an effect without an outcome that is taken for a step without one."""
    monkeypatch.setattr(replay, "_decide_unfinished", lambda history: replay.Execute(history.attempts + 1))
    assert recovered(tmp_path / "runs.db", forgetful, "def", doubt, "after") == "r-2"
    assert forgetful.charged == ["o-1", "o-1"]


def test_without_a_memory_of_keys_a_resend_does_charge_twice(app: hf.Holdfast, store: WatchedMemory, forgetful: Bank, mode: str) -> None:
    """The negative control: the ledger does show a repetition where there is one."""
    agent = charging(mode, paying(forgetful), "resend", retry=QUICK)
    crash(app, store, agent)
    assert app.run(agent, "o-1", run_id="r") == "r-2"
    assert forgetful.charged == ["o-1", "o-1"]


def test_resend_sends_the_same_key_again(app: hf.Holdfast, store: WatchedMemory, bank: Bank, mode: str) -> None:
    agent = charging(mode, paying(bank), "resend", retry=QUICK)
    crash(app, store, agent)
    assert app.run(agent, "o-1", run_id="r") == "r-1"
    assert len(bank.seen) == 2
    assert len(set(bank.seen)) == 1
    assert bank.charged == ["o-1"]


def test_resend_after_the_key_was_forgotten_asks_a_person(store: WatchedMemory, forgetful: Bank, mode: str) -> None:
    clock = HandClock()
    agent = charging(mode, paying(forgetful), hf.resend(within="1h"), retry=QUICK)
    with hf.Holdfast(store, clock=clock) as app:
        crash(app, store, agent)
        clock.ahead_s = 3_601
        with pytest.raises(hf.RunWaiting, match="charge"):
            app.run(agent, "o-1", run_id="r", wait=False)
        assert forgetful.charged == ["o-1"]
        app.resolve("r", "1", landed="r-1", by="ann")
        assert app.run(agent, "o-1", run_id="r", wait=False) == "r-1"
    assert forgetful.charged == ["o-1"]


def requests_within(within: str, store: WatchedMemory, forgetful: Bank, mode: str) -> int:
    """How many requests the bank saw of an effect that crashed, crashed again half an hour later, and is tried once more after another."""
    clock = HandClock()
    agent = charging(mode, paying(forgetful), hf.resend(within=within), retry=QUICK)
    with hf.Holdfast(store, clock=clock) as app:
        crash(app, store, agent)
        clock.ahead_s = 1_900
        crash(app, store, agent)
        clock.ahead_s = 3_800
        with suppress(hf.RunWaiting):
            app.run(agent, "o-1", run_id="r", wait=False)
    return len(forgetful.seen)


def test_resend_counts_from_the_first_intent_not_from_the_latest(store: WatchedMemory, forgetful: Bank, mode: str) -> None:
    assert requests_within("1h", store, forgetful, mode) == 2


def test_a_key_that_is_taken_to_be_remembered_is_sent_again(store: WatchedMemory, forgetful: Bank, mode: str) -> None:
    """The negative control: nothing but `within` keeps the third request back."""
    assert requests_within("2h", store, forgetful, mode) == 3


def test_counted_from_the_latest_intent_a_forgotten_key_is_sent_again(
    store: WatchedMemory, forgetful: Bank, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: every attempt would make the key young again."""
    monkeypatch.setattr(Call, "first_us", Call.started_us)
    assert requests_within("1h", store, forgetful, mode) == 3


def test_verify_takes_what_the_probe_found(app: hf.Holdfast, store: WatchedMemory, forgetful: Bank, mode: str) -> None:
    agent = charging(mode, paying(forgetful), hf.verify(looking(forgetful), settle=0))
    crash(app, store, agent)
    assert app.run(agent, "o-1", run_id="r") == "r-1"
    assert forgetful.charged == ["o-1"]
    assert app.history("r")[-2].note == '"r-1"'


def test_verify_runs_the_effect_that_did_not_land(app: hf.Holdfast, store: WatchedMemory, forgetful: Bank, mode: str) -> None:
    forgetful.plan.append("drops, 200")
    agent = charging(mode, paying(forgetful), hf.verify(looking(forgetful), settle=0))
    crash(app, store, agent)
    assert app.run(agent, "o-1", run_id="r") == "r-1"
    assert forgetful.charged == ["o-1"]


def raising(_: str) -> hf.Verdict[str]:
    raise OSError("the bank is closed")


def silly(_: str) -> Any:
    return True


def unsure(_: str) -> hf.Verdict[str]:
    return hf.Unknown("two charges look alike")


def unkept(_: str) -> Any:
    return hf.Landed(object())


PROBES = [(raising, "the bank is closed"), (silly, "bool"), (unsure, "look alike"), (unkept, "cannot be kept")]


@pytest.mark.parametrize(("probe", "said"), PROBES, ids=["raises", "nonsense", "unknown", "unkept"])
def test_a_probe_that_does_not_know_leaves_it_to_a_person(app: hf.Holdfast, bank: Bank, mode: str, probe: Any, said: str) -> None:
    bank.plan.append("lands, 500")
    agent = charging(mode, paying(bank), hf.verify(probe, settle=0))
    with pytest.raises(hf.RunWaiting):
        app.run(agent, "o-1", run_id="r", wait=False)
    assert said in app.inbox()[0].what
    assert len(bank.seen) == 1
    app.resolve("r", "1", landed="r-1", by="ann")
    assert app.run(agent, "o-1", run_id="r", wait=False) == "r-1"
    assert bank.charged == ["o-1"]


def test_a_probe_that_takes_too_long_leaves_it_to_a_person(app: hf.Holdfast, bank: Bank) -> None:
    async def endless(order: str) -> hf.Verdict[str]:
        await asyncio.sleep(60)
        return hf.NotLanded()

    bank.plan.append("lands, 500")
    agent = charging("async", paying(bank), hf.verify(endless, settle=0), timeout=0.1)
    with pytest.raises(hf.RunWaiting):
        app.run(agent, "o-1", run_id="r", wait=False)
    assert "TimeoutError" in app.inbox()[0].what
    assert bank.charged == ["o-1"]


def test_inconclusive_verdicts_are_recorded(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    bank.plan.append("lands, 500")
    with pytest.raises(hf.RunWaiting):
        app.run(charging(mode, paying(bank), hf.verify(unsure, settle=0)), "o-1", run_id="r", wait=False)
    notes = [line.note for line in app.history("r") if line.state in ("still in doubt", "doubt settled")]
    assert notes == ["probe: unknown (the probe does not know: two charges look alike)"]


def test_not_landed_is_believed_only_after_the_settling_time(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    sent: list[float] = []
    probed: list[float] = []

    def pay(order: str) -> str:
        sent.append(time.monotonic())
        return banking.charge(bank.port, order, hf.key())

    def look(order: str) -> hf.Verdict[str]:
        probed.append(time.monotonic())
        return looking(bank)(order)

    bank.plan.append("drops, 500")
    assert app.run(charging(mode, pay, hf.verify(look, settle=0.3), retry=QUICK), "o-1", run_id="r") == "r-1"
    assert probed[-1] - sent[0] >= 0.29
    assert bank.charged == ["o-1"]


@pytest.mark.parametrize(("settle_s", "charges"), [(0.8, 1), (0, 2)])
def test_a_request_that_lands_late_is_why_there_is_a_settling_time(
    app: hf.Holdfast, forgetful: Bank, settle_s: float, charges: int
) -> None:
    """Without it, the negative control, the probe looks too early and the effect is run beside the request that is under way."""
    forgetful.plan.append("late, lands, 200")
    threading.Timer(0.3, forgetful.late.set).start()

    def pay(order: str) -> str:
        return banking.charge(forgetful.port, order, hf.key(), timeout_s=0.05)

    agent = charging("def", pay, hf.verify(looking(forgetful), settle=settle_s), retry=QUICK)
    app.run(agent, "o-1", run_id="r")
    eventually(lambda: len(forgetful.charged) >= charges)
    assert forgetful.charged == ["o-1"] * charges


class Lying(WatchedMemory):
    """Acknowledges intents without keeping them."""

    def append(self, batch: Any, *, wait: bool = True) -> Any:
        if any(row.kind == "step.started" for one in batch for row in one.rows):
            return [None] * len(batch)
        return super().append(batch, wait=wait)


def test_without_a_durable_intent_the_effect_is_repeated(forgetful: Bank, mode: str) -> None:
    """The negative control of every test above: it is the intent that keeps an effect from being repeated."""
    store = Lying()
    agent = charging(mode, paying(forgetful), "ask")
    with hf.Holdfast(store) as app:
        for _ in range(2):
            with pytest.raises(hf.LeaseLost):
                app.run(agent, "o-1", run_id="r", wait=False)
    assert forgetful.charged == ["o-1", "o-1"]


def test_a_settling_time_that_is_over_is_not_waited_for_again(store: WatchedMemory, bank: Bank, mode: str) -> None:
    clock = HandClock()
    agent = charging(mode, paying(bank), hf.verify(looking(bank), settle="1h"))
    with hf.Holdfast(store, clock=clock) as app:
        crash(app, store, agent)
        clock.ahead_s = 3_601
        assert app.run(agent, "o-1", run_id="r") == "r-1"
    assert bank.charged == ["o-1"]


def test_reset_is_called_then_the_effect_runs(app: hf.Holdfast, store: WatchedMemory, bank: Bank, mode: str) -> None:
    def take_back(order: str) -> None:
        bank.ledger.clear()

    agent = charging(mode, paying(bank), hf.reset(take_back, settle=0))
    crash(app, store, agent)
    assert bank.charged == ["o-1"]
    assert app.run(agent, "o-1", run_id="r") == "r-1"
    assert bank.charged == ["o-1"]
    assert len(bank.seen) == 2


def test_a_reset_that_fails_leaves_it_to_a_person(app: hf.Holdfast, store: WatchedMemory, bank: Bank, mode: str) -> None:
    def broken(order: str) -> None:
        raise OSError("cannot take it back")

    agent = charging(mode, paying(bank), hf.reset(broken, settle=0))
    crash(app, store, agent)
    with pytest.raises(hf.RunWaiting):
        app.run(agent, "o-1", run_id="r", wait=False)
    assert "cannot take it back" in app.inbox()[0].what
    assert len(bank.seen) == 1


# --- a person -------------------------------------------------------------------------------------------------------


def asked(app: hf.Holdfast, store: WatchedMemory, bank: Bank, mode: str) -> Any:
    agent = charging(mode, paying(bank), "ask")
    crash(app, store, agent)
    with pytest.raises(hf.RunWaiting):
        app.run(agent, "o-1", run_id="r", wait=False)
    return agent


def test_a_person_says_landed_and_the_run_goes_on_with_that_result(app: hf.Holdfast, store: WatchedMemory, bank: Bank, mode: str) -> None:
    agent = asked(app, store, bank, mode)
    app.resolve("r", "1", landed="r-9", by="ann", reason="seen in the bank")
    assert app.run(agent, "o-1", run_id="r") == "r-9"
    assert bank.charged == ["o-1"]
    assert app.show("r").status == "done"


def test_a_person_says_not_landed_and_the_effect_is_run(app: hf.Holdfast, store: WatchedMemory, bank: Bank, mode: str) -> None:
    bank.plan.append("drops, 200")
    agent = asked(app, store, bank, mode)
    app.resolve("r", "1", not_landed=True, by="ann")
    assert app.run(agent, "o-1", run_id="r") == "r-1"
    assert bank.charged == ["o-1"]


def test_a_run_that_waits_asks_again_and_again_and_never_runs_the_effect(
    app: hf.Holdfast, store: WatchedMemory, bank: Bank, mode: str
) -> None:
    agent = asked(app, store, bank, mode)
    for _ in range(3):
        with pytest.raises(hf.RunWaiting):
            app.run(agent, "o-1", run_id="r", wait=False)
    assert bank.seen == bank.seen[:1]
    assert kinds(app).count("doubt.opened") == 1


def test_a_result_of_the_wrong_type_is_put_to_the_person_again(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    bank.plan.append("lands, 500")

    def pay(order: str) -> int:
        return len(banking.charge(bank.port, order, hf.key()))

    agent = charging(mode, pay, "ask", returns=Annotated[int, Field(gt=0)])
    with pytest.raises(hf.RunWaiting):
        app.run(agent, "o-1", run_id="r", wait=False)
    app.resolve("r", "1", landed=-3, by="ann")  # a rule that only the code knows
    with pytest.raises(hf.RunWaiting):
        app.run(agent, "o-1", run_id="r", wait=False)
    assert "does not fit: Input should be greater than 0; it must be int" in app.inbox()[0].what
    app.resolve("r", "1", landed=3, by="ann")
    assert app.run(agent, "o-1", run_id="r", wait=False) == "3"
    assert bank.charged == ["o-1"]


def test_resolving_twice_is_refused(app: hf.Holdfast, store: WatchedMemory, bank: Bank, mode: str) -> None:
    asked(app, store, bank, mode)
    app.resolve("r", "1", landed="r-1", by="ann")
    before = kinds(app)
    with pytest.raises(Refusal, match="ann said landed"):
        app.resolve("r", "1", not_landed=True, by="bob")
    assert kinds(app) == before


def test_a_step_that_is_not_in_doubt_cannot_be_resolved(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    app.run(charging(mode, paying(bank), "ask"), "o-1", run_id="r")
    for step in ("1", "2"):
        with pytest.raises(Refusal, match="nothing was changed"):
            app.resolve("r", step, not_landed=True, by="ann")
    with pytest.raises(Refusal, match="either"):
        app.resolve("r", "1", by="ann")
    with pytest.raises(Refusal, match="either"):
        app.resolve("r", "1", landed="x", not_landed=True, by="ann")


def test_a_word_that_cannot_be_kept_is_refused(app: hf.Holdfast, store: WatchedMemory, bank: Bank) -> None:
    asked(app, store, bank, "async")
    with pytest.raises(Refusal, match="nothing was changed"):
        app.resolve("r", "1", landed=object(), by="ann")


def test_a_run_that_is_waited_for_goes_on_when_a_person_has_spoken(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    bank.plan.append("lands, 500")
    agent = charging(mode, paying(bank), "ask")

    async def both() -> str:
        handle = await app.start(agent, "o-1", run_id="r")
        await asyncio.to_thread(eventually, lambda: app.store.head("r") and app.show("r").status == "waiting")
        app.resolve("r", "1", landed="r-1", by="ann")
        return str(await handle.result(timeout=10))

    assert asyncio.run(both()) == "r-1"
    assert bank.charged == ["o-1"]


# --- fail -----------------------------------------------------------------------------------------------------------


def fails_three_times(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    """An effect in doubt that was declared to fail, in a run that is resumed again and again."""
    bank.plan.append("lands, 500")
    agent = charging(mode, paying(bank), "fail")
    for _ in range(3):
        with suppress(hf.InDoubt):
            app.run(agent, "o-1", run_id="r")
        assert app.show("r").status == "failed"
    assert len(bank.seen) == 1


def test_fail_raises_in_doubt_live_and_again_until_resolved(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    fails_three_times(app, bank, mode)
    with pytest.raises(hf.InDoubt, match="charge"):
        app.run(charging(mode, paying(bank), "fail"), "o-1", run_id="r")


def test_when_a_doubt_is_taken_for_a_plain_failure_resuming_charges_twice(
    app: hf.Holdfast, forgetful: Bank, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a failure says that nothing happened, and a doubt does not."""
    clear = History.clear_failure

    def cleared(history: History) -> None:
        clear(history)
        history.answered = True

    monkeypatch.setattr(History, "clear_failure", cleared)
    with pytest.raises(AssertionError, match="'done' == 'failed'"):
        fails_three_times(app, forgetful, mode)
    assert forgetful.charged == ["o-1", "o-1"]


def test_a_failed_run_goes_on_at_once_when_its_doubt_is_resolved(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    bank.plan.append("lands, 500")
    agent = charging(mode, paying(bank), "fail")
    with pytest.raises(hf.InDoubt):
        app.run(agent, "o-1", run_id="r")
    app.resolve("r", "1", landed="r-1", by="ann")
    assert app.run(agent, "o-1", run_id="r") == "r-1"
    assert bank.charged == ["o-1"]


def test_a_failed_run_repeats_the_effect_when_a_person_says_it_did_not_land(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    bank.plan.append("drops, 500")
    agent = charging(mode, paying(bank), "fail")
    with pytest.raises(hf.InDoubt):
        app.run(agent, "o-1", run_id="r")
    app.resolve("r", "1", not_landed=True, by="ann")
    assert app.run(agent, "o-1", run_id="r") == "r-1"
    assert bank.charged == ["o-1"]


def catching(bank: Bank, mode: str) -> Any:
    effect: Any = hf.effect(in_doubt="fail", name="charge")

    if mode == "async":

        @effect  # type: ignore[untyped-decorator]
        async def charge(order: str) -> str:
            return banking.charge(bank.port, order, hf.key())

        @hf.agent
        async def careless(order: str) -> str:
            try:
                return str(await charge(order))
            except hf.InDoubt:
                return "whatever"

        return careless

    @effect  # type: ignore[untyped-decorator]
    def charge_blocking(order: str) -> str:
        return banking.charge(bank.port, order, hf.key())

    @hf.agent(name="careless")
    def careless_blocking(order: str) -> str:
        try:
            return str(charge_blocking(order))
        except hf.InDoubt:
            return "whatever"

    return careless_blocking


def waits_for_its_doubt(app: hf.Holdfast, bank: Bank, mode: str) -> Any:
    """An agent that goes on as if its doubt were none: its run has come to its end, and waits all the same."""
    bank.plan.append("lands, 500")
    agent = catching(bank, mode)
    for _ in range(2):
        with suppress(hf.RunWaiting):
            app.run(agent, "o-1", run_id="r", wait=False)
        assert app.show("r").status == "waiting"
        assert [item.step_id for item in app.inbox()] == ["1"]
    return agent


def test_an_agent_that_catches_the_doubt_is_not_done_until_it_is_resolved(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    agent = waits_for_its_doubt(app, bank, mode)
    app.resolve("r", "1", landed="r-1", by="ann")
    assert app.run(agent, "o-1", run_id="r", wait=False) == "whatever"
    assert app.show("r").status == "done"
    assert bank.charged == ["o-1"]


def test_without_the_look_for_open_doubts_a_run_in_doubt_becomes_done(
    app: hf.Holdfast, bank: Bank, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: nothing else keeps a run in doubt from being done."""
    open_doubts = Journal.open_doubts
    monkeypatch.setattr(Journal, "open_doubts", lambda journal, *, ended=False: [] if ended else open_doubts(journal))
    with pytest.raises(AssertionError, match="'done' == 'waiting'"):
        waits_for_its_doubt(app, bank, mode)


def test_the_doubt_of_a_cancelled_run_can_be_resolved_and_the_run_stays_closed(
    app: hf.Holdfast, store: WatchedMemory, bank: Bank, mode: str
) -> None:
    asked(app, store, bank, mode)
    assert "stays in doubt, key hf-" in app.cancel("r", by="ann")
    assert [item.step_id for item in app.inbox()] == ["1"]
    before = app.show("r")
    assert "stays cancelled" in app.resolve("r", "1", landed="r-1", by="bob")
    assert (app.show("r").status, app.show("r").attempt) == ("cancelled", before.attempt)
    assert (app.inbox(), app.show("r").next_commands, app.check("r")[0].good) == ([], [], True)
    with pytest.raises(Refusal, match="cancelled and stays so"):
        app.resolve("r", "1", not_landed=True, by="bob")
    with pytest.raises(hf.RunCancelled):
        app.run(charging(mode, paying(bank), "ask"), "o-1", run_id="r")
