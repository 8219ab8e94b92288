"""What a run has spent, folded from its records: each once, however often they are read, and after every death of its process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import holdfast as hf
import starting
from crashing import Crash, crashing, lines, play
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.records.ledger import Ledger, Reached
from holdfast.stores.memory import MemoryStore

SECOND_US = 1_000_000
COST = [{"usd": 0.5, "input_tokens": 3, "output_tokens": 4}]
STARTED = rec.RunStarted(agent="a", fingerprint="1:a", origin="r", owner="o", budget={"by": "agent", "usd": 2.0})
WAITING = rec.RunWaiting(waits="for ann")
TAKEN = rec.RunResumed(owner="o", why="taken over")
LEFT = rec.RunResumed(owner="", why="answer by ann")
DONE = rec.StepDone(step_id="1", name="s", fingerprint="1:a", usage=COST)
RACE = rec.StepDone(step_id="1", name="hf.first", fingerprint="")
FAILED = rec.StepFailed(step_id="1", name="s", fingerprint="1:a", error={}, usage=COST)
AGAIN = rec.AttemptFailed(step_id="1", name="s", fingerprint="1:a", error={}, usage=COST)
CUT = rec.StepBrokenOff(step_id="1", name="s", fingerprint="1:a", cause="2", usage=COST)
INTERRUPTED = rec.StepBrokenOff(step_id="1", name="s", fingerprint="1:a", usage=COST)


def folded(*said: tuple[int, rec.Record]) -> Ledger:
    """A ledger after these records, each with the second in which it was stored."""
    ledger = Ledger()
    for second, record in said:
        ledger.fold(record, second * SECOND_US)
    return ledger


@pytest.mark.parametrize(
    ("record", "spent"),
    [
        (DONE, hf.Spent(usd=0.5, tokens=7, steps=1, seconds=1)),
        (RACE, hf.Spent(seconds=1)),
        (FAILED, hf.Spent(usd=0.5, tokens=7, steps=1, seconds=1)),
        (AGAIN, hf.Spent(usd=0.5, tokens=7, retries=1, seconds=1)),
        (CUT, hf.Spent(usd=0.5, tokens=7, steps=1, seconds=1)),
        (INTERRUPTED, hf.Spent(usd=0.5, tokens=7, seconds=1)),
    ],
    ids=["done", "race", "failed", "attempt failed", "broken off by a time-out", "interrupted"],
)
def test_what_each_record_adds(record: rec.Record, spent: hf.Spent) -> None:
    assert folded((10, STARTED), (11, record)).spent(11 * SECOND_US) == spent


@pytest.mark.parametrize(
    ("said", "now", "seconds"),
    [
        ([(10, STARTED)], 15, 5),
        ([(10, STARTED), (12, DONE), (13, WAITING)], 99, 3),
        ([(10, STARTED), (12, DONE), (13, WAITING), (50, LEFT)], 99, 3),
        ([(10, STARTED), (12, DONE), (13, WAITING), (50, LEFT), (60, TAKEN)], 62, 5),
        ([(10, STARTED), (12, DONE), (50, TAKEN), (51, DONE)], 52, 4),
        ([(10, STARTED), (12, DONE), (5, TAKEN)], 4, 2),
    ],
    ids=["executing", "waiting", "answered", "taken up", "crashed and taken over", "a clock that was set back"],
)
def test_time_is_from_the_claim_of_a_life_to_its_last_record(said: list[tuple[int, rec.Record]], now: int, seconds: float) -> None:
    assert folded(*said).spent(now * SECOND_US).seconds == seconds


def test_limits_are_the_codes_then_the_operators_then_what_was_granted() -> None:
    ledger = folded((1, STARTED))
    assert dict(ledger.limits) == {"usd": 2.0}
    ledger.grant({"usd": 4.0})
    assert dict(ledger.limits) == {"usd": 4.0}
    ledger.set({"usd": 3.0, "steps": 9})
    assert dict(ledger.limits) == {"usd": 3.0, "steps": 9}
    ledger.fold(rec.RunResumed(owner="o", why="x", budget={"by": "run", "usd": 1.0, "time": 5.0}), 2)
    assert dict(ledger.limits) == {"usd": 3.0, "time": 5.0, "steps": 9}


@pytest.mark.parametrize(
    ("reached", "granted"),
    [(Reached("usd", 2, 2, 2), 4), (Reached("usd", 9, 2, 2), 11), (Reached("retries", 1, 0, 0), 1), (Reached("retries", 4, 3, 3), 6)],
)
def test_a_grant_is_the_same_amount_once_more_and_never_less_than_is_spent(reached: Reached, granted: float) -> None:
    assert reached.granted() == granted


@pytest.mark.parametrize(("changes", "still_open"), [(1, False), (2, True)])
def test_a_question_that_was_put_while_the_limits_changed_waits_for_nobody(changes: int, *, still_open: bool) -> None:
    journal = Journal("r")
    asked = rec.AskOpened(step_id="budget", topic="budget", question="more?", about=f"usd 2.0 {changes}", grants={"usd": 4.0})
    said = [STARTED, rec.BudgetSet(step_id="budget", limits={"usd": 50.0}, by="ann"), asked]
    journal.stored(journal.seal(said, at_us=1), said)
    assert [ask_id for ask_id, _ in journal.open_asks()] == ["budget"] * still_open
    assert dict(journal.ledger.limits) == {"usd": 50.0}


@pytest.mark.parametrize("limits", ['{"usd": -1}', '{"usd": "much"}', '{"love": 5}', "5", "null", "[]"])
def test_a_letter_with_limits_that_make_no_sense_is_taken_and_changes_nothing(limits: str) -> None:
    store, crashes = MemoryStore(), [Crash()]

    @hf.agent
    def work() -> str:
        if crashes:
            raise crashes.pop()
        return "done"

    crashing(lambda: play(store, work))
    store.post("r", "budget", f'{{"by": "ann", "limits": {limits}}}'.encode(), 1)
    assert play(store, work) == "done"
    assert store.letters(["r"]) == []
    assert "budget.set budget" not in lines(store)


def spender(folder: Path, failpoint: str = "") -> str:
    """A process of its own; gives what it printed, or "killed"."""
    here = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent / "src"), str(here)])}
    command = [sys.executable, "-m", "agents_for_tests.spender", str(folder / "runs.db"), str(folder / "ledger")]
    done = starting.run(command, env={**env, "HOLDFAST_FAILPOINT": failpoint} if failpoint else env, text=True, timeout=60)
    return "killed" if done.returncode == -signal.SIGKILL else done.stdout.strip() or done.stderr


@pytest.mark.parametrize("failpoint", ["step.before_body:3", "step.after_body:4", "step.after_outcome:4"])
def test_a_killed_process_counts_what_was_recorded_once_and_asks_at_the_same_step(tmp_path: Path, failpoint: str) -> None:
    """What a step used whose outcome was lost with the process is not known: it was executed again, and counts once."""
    assert spender(tmp_path, failpoint) == "killed"
    assert [spender(tmp_path) for _ in range(2)] == ["waiting", "waiting"]
    with hf.Holdfast(tmp_path / "runs.db") as app:
        assert app.show("r").spent.usd == 4.0
        app.answer("r", "budget", yes=True, by="ann")
    assert spender(tmp_path) == "15"
    executed = (tmp_path / "ledger").read_text().split()
    again = ["3"] if "after_body" in failpoint else []
    assert sorted(executed) == sorted(["0", "1", "2", "3", "4", "5", *again])
