"""A breaker: after failures in a row nobody calls for a while, then one tries; shared by name by all runs of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests.bank import HttpError
from agents_for_tests.sites import HandClock, StillClock, eventually
from crashing import lines, records, status
from holdfast import breaker as machine
from holdfast.breaker import Breaker, Circuit, Closed, Go, Open, Rest, State, Trying, Wait, Word, admitted, told, word_of
from holdfast.errors import Misuse
from holdfast.records import kinds as rec
from holdfast.retry import Retry
from holdfast.stores.memory import MemoryStore

ME, OTHER = "me", "another"
THREE = Breaker("table", failures=3, rest=10)
NUMBERS = count()


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breakers live as long as the process: those of one test are not those of another."""
    monkeypatch.setattr(machine, "_circuits", {})


@pytest.fixture
def name() -> str:
    """A breaker of this test's own."""
    return f"bank {next(NUMBERS)}"


@pytest.fixture(params=["async", "def"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- the machine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "now_s", "after", "answer"),
    [
        (Closed(0), 5, Closed(0), Go()),
        (Closed(2), 5, Closed(2), Go()),
        (Open(15), 5, Open(15), Rest(10)),
        (Open(15), 15, Trying(ME), Go()),
        (Trying(OTHER), 99, Trying(OTHER), Wait()),
    ],
)
def test_who_may_begin(state: State, now_s: float, after: State, answer: machine.Answer) -> None:
    assert admitted(state, ME, now_s) == (after, answer)


@pytest.mark.parametrize(
    ("state", "word", "after"),
    [
        (Closed(2), "success", Closed(0)),
        (Closed(1), "failure", Closed(2)),
        (Closed(2), "failure", Open(15)),
        (Closed(2), "nothing", Closed(2)),
        (Open(7), "success", Open(7)),
        (Open(7), "failure", Open(7)),
        (Open(7), "nothing", Open(7)),
        (Trying(ME), "success", Closed(0)),
        (Trying(ME), "failure", Open(15)),
        (Trying(ME), "nothing", Open(5)),
        (Trying(OTHER), "success", Trying(OTHER)),
        (Trying(OTHER), "failure", Trying(OTHER)),
        (Trying(OTHER), "nothing", Trying(OTHER)),
    ],
)
def test_what_follows_from_how_an_attempt_ended(state: State, word: Word, after: State) -> None:
    assert told(state, ME, word, 5, THREE) == after


class Declined(Exception):
    """An answer of the bank."""


class Odd(Exception):
    """Nobody knows what it says."""


@pytest.mark.parametrize(
    ("error", "step", "effect"),
    [
        (ConnectionRefusedError(), "failure", "failure"),
        (TimeoutError(), "failure", "failure"),
        (HttpError(503), "failure", "failure"),
        (HttpError(429), "failure", "failure"),
        (HttpError(404), "success", "success"),
        (HttpError(409), "success", "success"),
        (Declined(), "success", "success"),
        (Odd(), "nothing", "failure"),
        (hf.NotLanded(), "nothing", "nothing"),
        (Misuse("x"), "nothing", "nothing"),
    ],
    ids=repr,
)
def test_what_an_error_says_of_the_other_side(error: Exception, step: Word, effect: Word) -> None:
    said = [word_of(error, effect=effect, raises=(Declined,), errors=(), retry=None) for effect in (False, True)]
    assert said == [step, effect]


def test_what_a_step_would_try_again_after_counts_too() -> None:
    assert word_of(Odd(), effect=False, raises=(), errors=(), retry=Retry(on=Odd)) == "failure"


def test_many_threads_let_one_through(name: str) -> None:
    circuit = Circuit(name)
    for _ in range(5):
        circuit.tell(ME, "failure", 0)
    answers: list[machine.Answer] = []
    barrier = threading.Barrier(8)

    def ask(who: int) -> None:
        barrier.wait(10)
        answers.append(circuit.admit(who, 30))

    threads = [threading.Thread(target=ask, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(map(repr, answers)) == ["Go()"] + ["Wait()"] * 7


# --- in runs --------------------------------------------------------------------------------------------------------


class Caller:
    """Runs with one call of a bank that is down until it is mended, on a clock that stands still."""

    def __init__(
        self, name: str, mode: str = "def", *, effect: bool = False, error: Callable[[], Exception] = ConnectionRefusedError, **options: Any
    ) -> None:
        self.store, self.clock, self.calls, self.mended = MemoryStore(), StillClock(), 0, False
        options = {"breaker": hf.Breaker(name, failures=2, rest="30s"), "name": "call", **options}

        def call() -> str:
            self.calls += 1
            if not self.mended:
                raise error()
            return "answered"

        async def call_async() -> str:
            return call()

        async def work_async() -> str:
            return str(await step())

        def work() -> str:
            return str(step())

        body: Any = call_async if mode == "async" else call
        step: Any = hf.effect(in_doubt="resend", **options)(body) if effect else hf.step(body, **options)
        self.agent: Any = hf.agent(name="work")(work_async if mode == "async" else work)

    def run(self, run_id: str) -> str:
        with hf.Holdfast(self.store, clock=self.clock) as app:
            return str(app.run(self.agent, run_id=run_id, wait=False))

    def fails(self, run_id: str, error: type[Exception]) -> None:
        with pytest.raises(error):
            self.run(run_id)


@pytest.mark.parametrize("effect", [False, True])
def test_after_failures_in_a_row_nobody_calls_until_one_tries_and_finds_it_mended(name: str, mode: str, *, effect: bool) -> None:
    caller = Caller(name, mode, effect=effect)
    caller.fails("a", ConnectionRefusedError)
    caller.fails("b", ConnectionRefusedError)
    caller.fails("c", hf.CircuitOpen)
    assert caller.calls == 2
    assert status(caller.store, "c") == "failed"
    assert "step.started 1" not in lines(caller.store, "c")
    caller.clock.at_us += 30_000_000
    caller.fails("c", ConnectionRefusedError)  # it tried, and the rest begins anew
    caller.fails("a", hf.CircuitOpen)
    caller.clock.at_us += 30_000_000
    caller.mended = True
    assert [caller.run(run_id) for run_id in "abc"] == ["answered"] * 3
    assert caller.calls == 6


def test_it_is_noticed_when_a_breaker_never_opens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(machine, "told", lambda state, *rest: state)
    caller = Caller(name)
    for run_id in "abc":
        caller.fails(run_id, ConnectionRefusedError)
    assert caller.calls == 3


def test_an_answer_of_the_other_side_closes_the_row(name: str) -> None:
    errors = iter([HttpError(503), HttpError(404), HttpError(503), HttpError(404), HttpError(503)])
    caller = Caller(name, error=lambda: next(errors))
    for run_id in "abcde":
        caller.fails(run_id, hf.StepFailed)
    assert caller.calls == 5


@pytest.mark.parametrize("effect", [False, True])
def test_a_retry_waits_for_the_rest_and_wastes_no_attempt_on_it(name: str, *, effect: bool) -> None:
    caller = Caller(name, effect=effect, retry=hf.Retry(attempts=9, base=1, factor=1, max=1, on=ConnectionRefusedError))
    mend = caller.clock.sleep

    def sleep(duration_s: float) -> None:
        mend(duration_s)
        caller.mended = duration_s >= 25

    caller.clock.sleep = sleep  # type: ignore[method-assign]
    assert caller.run("a") == "answered"
    assert caller.calls == 3
    failed = [record for record in records(caller.store, "a") if isinstance(record, rec.AttemptFailed)]
    assert [record.error["type"] for record in failed] == ["ConnectionRefusedError", "ConnectionRefusedError"]
    assert failed[0].delay_ms <= 1000
    assert failed[1].delay_ms == 30_000
    assert {record.landed for record in failed} == {"no"}


def test_an_open_breaker_does_not_make_an_earlier_attempt_unhappened(name: str) -> None:
    """The first two may have landed; that the third was not made says nothing about them."""
    caller = Caller(name, effect=True, error=TimeoutError, retry=hf.Retry(attempts=3, base=1))
    caller.fails("a", hf.InDoubt)
    assert caller.calls == 2
    assert [record.landed for record in records(caller.store, "a") if isinstance(record, rec.AttemptFailed)] == ["unknown"] * 3
    with hf.Holdfast(caller.store) as app:
        assert [item.kind for item in app.inbox()] == ["doubt"]


def test_replay_asks_no_breaker(name: str, mode: str) -> None:
    caller = Caller(name, mode)
    caller.mended = True
    assert caller.run("a") == "answered"
    circuit = machine.circuit_of(name, "")
    assert circuit is not None
    for _ in range(2):
        circuit.tell(ME, "failure", caller.clock.monotonic_s())
    assert caller.run("a") == "answered"
    caller.fails("b", hf.CircuitOpen)


def test_while_one_tries_the_others_wait_and_go_on_when_it_succeeds(name: str) -> None:
    store, clock, calls = MemoryStore(), StillClock(), list[int]()

    async def scenario() -> list[int]:
        go = asyncio.Event()

        @hf.step(breaker=hf.Breaker(name, failures=1, rest=60))
        async def call(number: int) -> int:
            calls.append(number)
            await go.wait()
            return number

        @hf.agent
        async def work() -> list[int]:
            return list(await hf.gather(call(1), call(2), call(3)))

        circuit = machine.circuit_of(name, "")
        assert circuit is not None
        circuit.tell(ME, "failure", clock.monotonic_s())
        clock.at_us += 60_000_000
        with hf.Holdfast(store, clock=clock) as app:
            handle = await app.start(work, run_id="r")
            await asyncio.to_thread(eventually, lambda: calls == [1])
            assert circuit.admit(ME, clock.monotonic_s()) == Wait()
            go.set()
            return await handle.result(timeout=20)

    assert asyncio.run(scenario()) == [1, 2, 3]
    assert sorted(calls) == [1, 2, 3]


def test_one_that_is_cancelled_while_it_tries_lets_the_next_one_try(name: str) -> None:
    store, clock, calls = MemoryStore(), HandClock(), list[str]()

    @hf.effect(in_doubt="resend", breaker=hf.Breaker(name, failures=1, rest=60))
    async def call(what: str) -> str:
        calls.append(what)
        if what == "hangs":
            await asyncio.sleep(60)
        return what

    @hf.agent
    async def work() -> str:
        try:
            async with hf.timeout(0.02):
                await call("hangs")
        except TimeoutError:
            pass
        return await call("tries")

    circuit = machine.circuit_of(name, "")
    assert circuit is not None
    circuit.tell(ME, "failure", clock.monotonic_s())
    clock.ahead_s += 60
    with hf.Holdfast(store, clock=clock) as app, pytest.raises(hf.RunWaiting):
        app.run(work, run_id="r", wait=False)
    assert calls == ["hangs", "tries"]
    assert circuit.state == Closed(0)


def test_a_def_step_on_the_event_loop_does_not_wait_for_one_that_tries_there(name: str) -> None:
    """It would stop the loop, and with it the one that tries."""

    @hf.step(breaker=hf.Breaker(name, failures=1, rest=60))
    def call() -> str:
        return "called"

    @hf.agent
    async def work() -> str:
        return call()

    circuit = machine.circuit_of(name, "")
    assert circuit is not None
    circuit.tell(ME, "failure", 0)
    circuit.admit(ME, 1e18)
    with hf.Holdfast(MemoryStore()) as app, pytest.raises(hf.CircuitOpen):
        app.run(work, run_id="r")


# --- declaring ------------------------------------------------------------------------------------------------------


def test_a_name_alone_takes_whatever_is_declared_before_or_after(name: str) -> None:
    first = machine.circuit_of(name, "")
    assert first is not None
    assert first.breaker == Breaker(name, failures=5, rest="30s")
    assert machine.circuit_of(Breaker(name, failures=2), "") is first
    assert machine.circuit_of(name, "") is first
    assert first.breaker.failures == 2


def test_another_setting_under_the_same_name_is_refused(name: str) -> None:
    hf.step(breaker=hf.Breaker(name, failures=2))(lambda: 1)
    hf.step(breaker=hf.Breaker(name, failures=2))(lambda: 1)
    with pytest.raises(Misuse, match="a name has one breaker"):
        hf.step(breaker=hf.Breaker(name, failures=3))(lambda: 1)


NONSENSE: list[dict[str, Any]] = [{"failures": 0}, {"failures": 1.5}, {"rest": 0}, {"rest": "soon"}, {"name": ""}, {"name": 5}]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=str)
def test_a_breaker_that_makes_no_sense_is_refused(nonsense: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        hf.Breaker(**{"name": "sense", **nonsense})


def test_what_is_no_breaker_is_refused() -> None:
    wrong: Any = 5
    with pytest.raises(Misuse, match=r"Write breaker='bank'"):
        hf.step(breaker=wrong)(lambda: 1)


def test_a_copy_of_a_step_keeps_its_breaker(name: str) -> None:
    def call() -> int:
        return 1

    declared: Any = hf.step(call, breaker=name)
    copy: Any = hf.step(declared, retry=hf.Retry())
    assert copy.spec.breaker is declared.spec.breaker is machine.circuit_of(name, "")

