"""A step is tried again as long as its policy allows: by attempts, time and money, over restarts too; a crash is no attempt."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from email.message import Message
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

import holdfast as hf
import starting
from agents_for_tests.bank import Bank
from agents_for_tests.buyer import QUICK, buyer
from agents_for_tests.sites import StillClock
from crashing import FailingStore, dies_at, records
from holdfast._clock import to_datetime
from holdfast.errors import StoreError
from holdfast.life import trying
from holdfast.records import kinds as rec
from holdfast.records.replay import History
from holdfast.stores.memory import MemoryStore

HERE = Path(__file__).parent
TEN: Any = {"base": 10, "factor": 1, "max": 10, "on": OSError}


@pytest.fixture(autouse=True)
def _unspread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is as long as the policy says."""
    monkeypatch.setattr(trying, "jitter", lambda: 1.0)


class Caller:
    """A run with one step that fails until it is told to work, on a clock that stands still."""

    def __init__(
        self, retry: hf.Retry, *, store: MemoryStore | None = None, raises: Callable[[], Exception] = OSError, usd: float = 0
    ) -> None:
        self.store, self.clock = store or MemoryStore(), StillClock()
        self.began, self.works = list[int](), False

        @hf.step(retry=retry)
        def call() -> str:
            self.began.append((self.clock.at_us - 1_700_000_000_000_000) // 1_000_000)
            hf.usage(usd=usd)
            if not self.works:
                raise raises()
            return "worked"

        @hf.agent
        def agent() -> str:
            return call()

        self.agent = agent

    def run(self) -> str:
        with hf.Holdfast(self.store, clock=self.clock, lease=0.02) as app:
            return app.run(self.agent, run_id="r")

    def crash(self) -> None:
        """Run until the store is lost, and mend it."""
        with pytest.raises(StoreError):
            self.run()
        assert isinstance(self.store, FailingStore)
        self.store.mend()


def test_no_attempt_begins_later_than_within_after_the_first() -> None:
    caller = Caller(hf.Retry(attempts=100, within=35, **TEN))
    with pytest.raises(OSError):
        caller.run()
    assert caller.began == [0, 10, 20, 30]


def test_no_attempt_begins_once_the_failed_ones_have_cost_too_much() -> None:
    caller = Caller(hf.Retry(attempts=100, usd=0.5, **TEN), usd=0.2)
    with pytest.raises(OSError):
        caller.run()
    assert len(caller.began) == 3


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(
    ("retry", "tries"),
    [(hf.Retry(attempts=4, **TEN), 4), (hf.Retry(attempts=9, within=35, **TEN), 4), (hf.Retry(attempts=9, usd=0.7, **TEN), 4)],
    ids=["attempts", "within", "usd"],
)
def test_a_limit_holds_over_a_crash_at_the_record_of_a_failed_attempt(retry: hf.Retry, tries: int, *, written: bool) -> None:
    """Where the record was lost with the process, that attempt was never known of."""
    caller = Caller(retry, store=dies_at("step.attempt_failed", written=written), usd=0.2)
    caller.crash()
    with pytest.raises(OSError):
        caller.run()
    assert len(caller.began) == tries + (not written)


def test_it_is_noticed_when_nothing_of_it_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: an engine that counts anew after a crash tries too often."""
    caller = Caller(hf.Retry(attempts=4, **TEN), store=dies_at("step.attempt_failed", written=True))
    caller.crash()
    monkeypatch.setattr(History, "failures", property(lambda self: 0, lambda self, value: None))
    with pytest.raises((OSError, AssertionError)):
        _until(caller, 10)
    assert len(caller.began) > 4


def _until(caller: Caller, most: int) -> None:
    """Run a caller that might never end."""
    sleep = caller.clock.sleep

    def bounded(duration_s: float) -> None:
        if len(caller.began) >= most:
            raise AssertionError("it does not stop")
        sleep(duration_s)

    caller.clock.sleep = bounded  # type: ignore[method-assign]
    caller.run()


def test_the_rest_of_a_wait_is_waited_for_after_a_crash() -> None:
    caller = Caller(hf.Retry(attempts=4, **TEN), store=dies_at("step.attempt_failed", written=True))
    caller.crash()
    caller.clock.at_us += 4_000_000
    caller.works = True
    assert caller.run() == "worked"
    assert caller.began == [0, 10]


def test_a_step_whose_time_ran_out_while_its_process_was_dead_fails_with_its_last_error_and_resumes() -> None:
    store = dies_at("step.attempt_failed", written=True)
    caller = Caller(hf.Retry(within="1m", **TEN), store=store, raises=lambda: OSError("the line is dead"))
    caller.crash()
    caller.clock.at_us += 61_000_000
    with pytest.raises(OSError, match="the line is dead"):
        caller.run()
    assert len(caller.began) == 1
    caller.works = True
    assert caller.run() == "worked"


def test_what_failed_attempts_cost_counts_to_the_run() -> None:
    caller = Caller(hf.Retry(attempts=3, **TEN), usd=0.25)
    with pytest.raises(OSError):
        caller.run()
    with hf.Holdfast(caller.store) as app:
        assert app.show("r").usd == 0.75
        assert all(verdict.good for verdict in app.check("r"))


def test_retry_after_with_a_date_is_honoured() -> None:
    def busy() -> HTTPError:
        headers = Message()
        headers["Retry-After"] = format_datetime(to_datetime(caller.clock.at_us) + timedelta(seconds=90), usegmt=True)
        return HTTPError("http://bank", 503, "busy", headers, None)

    caller = Caller(hf.Retry(attempts=2), raises=busy)
    with pytest.raises(Exception, match="busy"):
        caller.run()
    assert caller.began == [0, 90]


def test_attempt_error_and_delay_are_in_the_history() -> None:
    caller = Caller(hf.Retry(attempts=2, **TEN), raises=lambda: OSError("the line is dead"))
    with pytest.raises(OSError):
        caller.run()
    with hf.Holdfast(caller.store) as app:
        first, last = [line for line in app.history("r") if line.step_id == "1"]
    assert (first.attempt, first.note, first.delay_s) == (1, "OSError: the line is dead; again after 10 s", 10.0)
    assert (last.attempt, last.state, last.delay_s) == (2, "failed", None)


def test_an_effect_waits_as_long_as_the_other_side_asks_before_it_is_sent_again() -> None:
    clock, sent = StillClock(), list[int]()

    @hf.effect(in_doubt="resend", retry=hf.Retry(attempts=2, base=1))
    def charge() -> str:
        sent.append(clock.at_us)
        headers = Message()
        headers["Retry-After"] = "120"
        raise HTTPError("http://bank", 503, "busy", headers, None)

    @hf.agent
    def agent() -> str:
        return charge()

    store = MemoryStore()
    with hf.Holdfast(store, clock=clock) as app, pytest.raises(hf.InDoubt):
        app.run(agent, run_id="r", wait=False)
    assert (sent[1] - sent[0]) / 1e6 == 120
    assert [record.delay_ms for record in records(store) if isinstance(record, rec.DoubtOpened)] == [120_000, 0]


def started(number: int) -> rec.StepStarted:
    return rec.StepStarted(step_id="1", name="pay", fingerprint="1:a", attempt=number, effect=True)


def settled(by: str) -> rec.DoubtSettled:
    return rec.DoubtSettled(step_id="1", verdict="not_landed", by=by)


def failed(number: int, landed: str = "no") -> rec.AttemptFailed:
    return rec.AttemptFailed(step_id="1", name="pay", fingerprint="1:a", error={}, attempt=number, landed=landed, usage=[{"usd": 0.5}])


@pytest.mark.parametrize(
    ("said", "failures", "tries"),
    [
        ([started(1), started(2)], 0, 2),
        ([started(1), failed(1), started(2)], 1, 2),
        ([started(1), failed(1), started(2), started(3), failed(3)], 2, 3),
        ([started(1), settled("probe"), started(2), settled("reset")], 0, 0),
        ([started(1), failed(1, "unknown"), settled("probe")], 1, 1),
        ([started(1), failed(1, "unknown"), settled("ann")], 0, 0),
    ],
    ids=["crashes", "a failure and a crash", "both", "found out", "an error that was found out", "a person wants it done"],
)
def test_errors_are_counted_and_crashes_only_where_nothing_was_found_out(said: list[rec.Record], failures: int, tries: int) -> None:
    history = History()
    for seq, record in enumerate(said, 1):
        history.fold(record, seq=seq, at_us=seq, epoch=1)
    assert (history.failures, history.tries()) == (failures, tries)
    assert history.usd == 0.5 * failures


def killed(store: Path, bank: Bank, doubt: str) -> int:
    """A process that SIGKILLs itself in the body of its effect, if it gets that far; gives how it ended."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}
    command = [sys.executable, "-m", "agents_for_tests.buyer", str(store), str(bank.port), "def", doubt, "before"]
    return starting.run(command, env=env, timeout=60).returncode


def test_crashes_use_up_no_attempts_where_a_probe_says_what_is_true(tmp_path: Path) -> None:
    with Bank() as bank:
        for _ in range(QUICK.attempts + 1):
            assert killed(tmp_path / "runs.db", bank, "verify") == -signal.SIGKILL
        with hf.Holdfast(tmp_path / "runs.db") as app:
            assert app.run(buyer("def", "verify", bank.port), "o-1", run_id="r", wait=False) == "r-1"
        assert bank.charged == ["o-1"]


def test_an_effect_that_kills_its_process_every_time_ends_when_it_is_resent(tmp_path: Path) -> None:
    with Bank() as bank:
        deaths = [killed(tmp_path / "runs.db", bank, "resend") for _ in range(QUICK.attempts + 1)]
    assert deaths == [-signal.SIGKILL] * QUICK.attempts + [1]
