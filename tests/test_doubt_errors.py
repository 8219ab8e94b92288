"""What the errors of an effect mean: its answer, that it did not happen, or a doubt; for `def` and `async def`."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests import bank as banking
from agents_for_tests.bank import Bank
from agents_for_tests.buyer import DOUBTS, QUICK, buyer, charging
from agents_for_tests.sites import WatchedMemory

LANDED_ERRORS = ("lands, 500", "lands, 503", "lands, reset")
LOST_ERRORS = ("drops, 500", "drops, reset")


@pytest.fixture
def bank() -> Iterator[Bank]:
    with Bank() as opened:
        yield opened


@pytest.fixture
def app() -> Iterator[hf.Holdfast]:
    with hf.Holdfast(WatchedMemory()) as opened:
        yield opened


@pytest.fixture(params=["async", "def"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def paying(bank: Bank) -> Callable[[str], str]:
    return lambda order: banking.charge(bank.port, order, hf.key())


def kinds(app: hf.Holdfast) -> list[str]:
    loaded = app.store.load("r")
    assert loaded is not None
    return [row.kind for row in loaded[1]]


def unsure(_: str) -> hf.Verdict[str]:
    return hf.Unknown("two charges look alike")


@pytest.mark.parametrize("word", [*LANDED_ERRORS, *LOST_ERRORS])
@pytest.mark.parametrize("doubt", DOUBTS)
def test_an_ambiguous_error_is_a_doubt(app: hf.Holdfast, bank: Bank, mode: str, doubt: str, word: str) -> None:
    bank.plan.append(word)
    agent = buyer(mode, doubt, bank.port)
    if doubt in ("ask", "fail"):
        with pytest.raises(hf.RunWaiting if doubt == "ask" else hf.InDoubt):
            app.run(agent, "o-1", run_id="r", wait=False)
        assert bank.charged.count("o-1") == (word in LANDED_ERRORS)
    else:
        app.run(agent, "o-1", run_id="r", wait=False)
        assert bank.charged.count("o-1") == 1
    assert len(bank.seen) <= 3


def test_a_timeout_of_the_client_is_a_doubt(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    bank.plan.append("lands, silence")

    def pay(order: str) -> str:
        return banking.charge(bank.port, order, hf.key(), timeout_s=0.1)

    with pytest.raises(hf.RunWaiting):
        app.run(charging(mode, pay, "ask"), "o-1", run_id="r", wait=False)
    assert "TimeoutError" in app.inbox()[0].what or "timed out" in app.inbox()[0].what
    assert bank.charged == ["o-1"]


@pytest.mark.parametrize(
    "error", [TimeoutError(), ConnectionResetError(), BrokenPipeError(), ValueError("bug"), KeyError("x"), Exception()]
)
def test_any_other_error_is_a_doubt(app: hf.Holdfast, mode: str, error: Exception) -> None:
    calls: list[str] = []

    def pay(order: str) -> str:
        calls.append(order)
        raise error

    with pytest.raises(hf.RunWaiting):
        app.run(charging(mode, pay, "ask", retry=QUICK), "o-1", run_id="r", wait=False)
    assert calls == ["o-1"]
    assert app.inbox()[0].kind == "doubt"


def test_a_doubt_whose_retries_are_used_up_raises_in_doubt(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    bank.plan.extend(["drops, 500"] * 3)
    agent = charging(mode, paying(bank), "resend", retry=QUICK)
    with pytest.raises(hf.InDoubt, match="500"):
        app.run(agent, "o-1", run_id="r")
    assert len(bank.seen) == QUICK.attempts
    assert len(set(bank.seen)) == 1


def test_a_run_that_failed_in_doubt_goes_on_when_it_is_run_again(app: hf.Holdfast, bank: Bank, mode: str) -> None:
    bank.plan.extend(["lands, 500"] * 3)
    agent = charging(mode, paying(bank), "resend", retry=QUICK)
    with pytest.raises(hf.InDoubt):
        app.run(agent, "o-1", run_id="r")
    assert app.run(agent, "o-1", run_id="r") == "r-1"
    assert bank.charged == ["o-1"]


# --- errors that say it did not happen ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 404, 409, 429])
def test_a_client_error_says_that_nothing_happened(app: hf.Holdfast, bank: Bank, mode: str, status: int) -> None:
    bank.plan.extend([f"drops, {status}"] * 2)
    agent = charging(mode, paying(bank), "ask", retry=hf.Retry(attempts=3, base=0, on=banking.HttpError))
    assert app.run(agent, "o-1", run_id="r", wait=False) == "r-1"
    assert "doubt.opened" not in kinds(app)
    assert [line.state for line in app.history("r") if line.step_id] == ["attempt failed", "attempt failed", "done"]


def unresolvable(_: str) -> str:
    http.client.HTTPConnection("no-such-host.invalid").request("GET", "/")
    raise AssertionError("it has an address")


def refused(_: str) -> str:
    return banking.charge(banking.closed_port(), "o-1", hf.key())


def declined(_: str) -> str:
    raise hf.NotLanded("closed today")


@pytest.mark.parametrize("pay", [unresolvable, refused, declined])
def test_what_was_never_reached_fails_without_a_doubt(app: hf.Holdfast, mode: str, pay: Any) -> None:
    with pytest.raises(Exception) as raised:
        app.run(charging(mode, pay, "ask"), "o-1", run_id="r", wait=False)
    assert not isinstance(raised.value, hf.InDoubt | hf.RunWaiting)
    assert app.show("r").status == "failed"
    assert app.inbox() == []


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_failed_run_whose_effect_did_not_happen_runs_it_again(app: hf.Holdfast, bank: Bank, mode: str, doubt: str) -> None:
    bank.plan.append("drops, 404")
    agent = buyer(mode, doubt, bank.port)
    with pytest.raises(hf.StepFailed):
        app.run(agent, "o-1", run_id="r")
    assert app.inbox() == []
    assert app.run(agent, "o-1", run_id="r", wait=False) == "r-1"
    assert bank.charged == ["o-1"]


class Declined(Exception):
    """The bank's answer."""


@pytest.mark.parametrize("doubt", DOUBTS)
def test_an_error_in_raises_is_the_answer(app: hf.Holdfast, mode: str, doubt: str) -> None:
    calls: list[str] = []

    def pay(order: str) -> str:
        calls.append(order)
        if len(calls) == 1:
            raise Declined("no money")
        return "r-1"

    in_doubt: Any = {"verify": hf.verify(unsure), "reset": hf.reset(lambda order: None)}.get(doubt, doubt)
    agent = charging(mode, pay, in_doubt, raises=Declined)
    with pytest.raises(Declined, match="no money"):
        app.run(agent, "o-1", run_id="r")
    assert calls == ["o-1"]
    assert app.inbox() == []
    assert app.run(agent, "o-1", run_id="r", wait=False) == "r-1"


class Busy(Exception):
    """A client's error that the table does not know."""


def failing(*errors: Exception) -> tuple[list[str], Callable[[str], str]]:
    """The calls so far, and a body that raises these errors, one per call, before it succeeds."""
    calls: list[str] = []

    def pay(order: str) -> str:
        calls.append(order)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return "r-1"

    return calls, pay


def test_errors_may_say_that_it_did_not_happen_and_retry_decides(app: hf.Holdfast, mode: str) -> None:
    calls, pay = failing(Busy("later"), Busy("later"))
    agent = charging(mode, pay, "ask", errors={Busy: "not_landed"}, retry=hf.Retry(attempts=3, base=0, on=Busy))
    assert app.run(agent, "o-1", run_id="r", wait=False) == "r-1"
    assert len(calls) == 3
    assert "doubt.opened" not in kinds(app)


def test_errors_may_say_that_it_did_not_happen_and_without_retry_it_is_raised(app: hf.Holdfast, mode: str) -> None:
    calls, pay = failing(Busy("later"))
    agent = charging(mode, pay, "ask", errors={Busy: lambda error: "not_landed" if str(error) == "later" else None})
    with pytest.raises(hf.StepFailed, match="later"):
        app.run(agent, "o-1", run_id="r", wait=False)
    assert app.inbox() == []
    assert app.run(agent, "o-1", run_id="r", wait=False) == "r-1"
    assert len(calls) == 2


def test_errors_may_say_that_a_refusal_is_not_believed(app: hf.Holdfast, mode: str) -> None:
    calls, pay = failing(ConnectionRefusedError("by a proxy that repeats"))
    with pytest.raises(hf.RunWaiting):
        app.run(charging(mode, pay, "ask", errors={ConnectionError: "unknown"}), "o-1", run_id="r", wait=False)
    assert (len(calls), [item.kind for item in app.inbox()]) == (1, ["doubt"])


@pytest.mark.parametrize(
    ("error", "raises", "comes"),
    [(Busy("no money"), (), hf.StepFailed), (Busy("no money"), (Declined,), hf.StepFailed), (LookupError("no money"), (), LookupError)],
)
def test_errors_may_say_that_it_is_the_answer(
    app: hf.Holdfast, mode: str, error: Exception, raises: tuple[type[Exception], ...], comes: type[Exception]
) -> None:
    calls, pay = failing(error)
    agent = charging(mode, pay, "ask", errors={(Busy, LookupError): "answer"}, raises=raises, retry=QUICK)
    with pytest.raises(comes, match="no money"):
        app.run(agent, "o-1", run_id="r", wait=False)
    assert (calls, app.inbox()) == (["o-1"], [])
    assert [line.state for line in app.history("r") if line.step_id] == ["failed"]


def test_a_copy_of_an_effect_keeps_its_errors(app: hf.Holdfast) -> None:
    _, pay = failing(Busy("no money"))

    @hf.effect(in_doubt="ask", errors={Busy: "answer"})
    async def charge(order: str) -> str:
        return pay(order)

    @hf.agent
    async def buy(order: str) -> str:
        return await hf.step(charge, name="other")(order)

    with pytest.raises(hf.StepFailed, match="no money"):
        app.run(buy, "o-1", run_id="r", wait=False)
    assert app.inbox() == []


def test_wrong_errors_are_refused_when_the_effect_is_declared() -> None:
    def charge(order: str) -> str:
        return order

    for wrong in ([Busy], {"Busy": "answer"}, {Busy: "landed"}):
        with pytest.raises(hf.Misuse, match=r"such as errors=\{"):
            hf.effect(in_doubt="ask", errors=wrong)(charge)  # type: ignore[call-overload]
    with pytest.raises(hf.Misuse, match="errors"):
        hf.step(charge, errors={Busy: "answer"})  # type: ignore[call-overload]


def test_the_same_call_under_a_new_number_cannot_step_around_a_doubt(app: hf.Holdfast, bank: Bank) -> None:
    bank.plan.append("lands, 500")

    @hf.effect(in_doubt="fail")
    async def charge(order: str) -> str:
        return banking.charge(bank.port, order, hf.key())

    @hf.agent
    async def stubborn(order: str) -> str:
        try:
            return await charge(order)
        except hf.InDoubt:
            return await charge(order)

    with pytest.raises(hf.RunWaiting):
        app.run(stubborn, "o-1", run_id="r", wait=False)
    assert len(bank.seen) == 1
    app.resolve("r", "1", landed="r-1", by="ann")
    app.resolve("r", "2", landed="r-1", by="ann")
    assert app.run(stubborn, "o-1", run_id="r", wait=False) == "r-1"
    assert bank.charged == ["o-1"]


def test_an_attempt_that_surely_did_not_happen_says_nothing_about_the_one_before_it() -> None:
    store, errors = WatchedMemory(), [RuntimeError("no reply"), ConnectionRefusedError("nobody is there")]

    @hf.effect(in_doubt="resend", retry=hf.Retry(attempts=2, base=0.001))
    async def pay() -> None:
        raise errors.pop(0)

    @hf.agent
    async def agent() -> None:
        await pay()

    with hf.Holdfast(store) as app:
        with pytest.raises(hf.InDoubt):
            app.run(agent, run_id="r")
        assert [item.kind for item in app.inbox()] == ["doubt"]
