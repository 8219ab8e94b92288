"""Whatever is done to runs in whatever order, and wherever processes die: a simple model knows what must come of it.

Hypothesis draws the plans, the deaths and the orders; on failure it prints the steps that led there and the seed that draws them again.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from agents_for_tests.machine import Machine, machine_on
from holdfast.errors import HoldfastError
from holdfast.records import kinds as rec
from holdfast.records.replay import Execute, History
from sweeping import OTHERS, sqlite_in

pytestmark = pytest.mark.long

FURTHER = int(os.environ.get("HOLDFAST_MACHINE", "1"))
"""So many times the examples, drawn anew each time: for a long search by hand. `make test` plays the same ones every time.

One time takes some 5 s, and a failure is made shorter for up to five minutes before it is shown.
"""

CONTROL: dict[str, Any] = {"phases": [Phase.generate], "report_multiple_bugs": False, "derandomize": True}
"""How a broken engine is played: the same each time, and without looking for the shortest way to break it."""

FOUND = "Failing test case: <state machine>"
"""What is missing may be missed by the engine itself, or by whoever compares."""


@pytest.fixture(autouse=True)
def all_details_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans are too short to be worth a prune."""
    monkeypatch.setattr("holdfast.operating.pruning.WORTH_BYTES", 1)


def played(machine: type[Machine], examples: int, **more: Any) -> None:
    how = settings(
        max_examples=examples, stateful_step_count=15, deadline=None, print_blob=True, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], **more,
    )  # fmt: skip
    gc.collect()  # a task that another test left behind tells of it otherwise while Hypothesis reads our source: CPython 3.11 cannot
    run_state_machine_as_test(machine, settings=how)


@pytest.mark.parametrize(("machine", "examples"), [(Machine, 40), (machine_on(sqlite_in), 15)], ids=["memory", "sqlite"])
def test_no_order_of_events_breaks_a_promise(machine: type[Machine], examples: int) -> None:
    played(machine, examples * FURTHER, derandomize=FURTHER == 1)


@pytest.mark.parametrize("name", OTHERS)
def test_no_order_of_events_breaks_a_promise_elsewhere(request: pytest.FixtureRequest, name: str) -> None:
    played(machine_on(OTHERS[name].home(request)), 4 * FURTHER // OTHERS[name].share, derandomize=FURTHER == 1)


def test_the_machine_finds_out_an_engine_that_repeats_effects_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.records.replay._decide_unfinished", lambda history: Execute(history.attempts + 1))
    with pytest.raises((AssertionError, HoldfastError), match=FOUND):
        played(Machine, 200, **CONTROL)


def test_the_machine_finds_out_an_engine_that_forgets_results(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = History.fold

    def forgetful(self: History, record: rec.Record, **at: int) -> None:
        if not (isinstance(record, rec.StepDone) and record.name == "look"):
            fold(self, record, **at)

    monkeypatch.setattr(History, "fold", forgetful)
    with pytest.raises((AssertionError, HoldfastError), match=FOUND):
        played(Machine, 200, **CONTROL)


def test_the_machine_finds_out_an_edit_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(History, "edit", lambda self, record: None)
    with pytest.raises((AssertionError, HoldfastError), match=FOUND):
        played(Machine, 200, **CONTROL)


def test_the_machine_finds_out_a_prune_that_takes_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.retention.FINAL", ("done", "cancelled", "waiting"))
    with pytest.raises(AssertionError, match="was removed though it is waiting"):
        played(Machine, 200, **CONTROL)


def test_a_fork_that_forgets_what_happened_is_found_out_and_can_be_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed are the steps that led there, and the blob that draws them again."""
    monkeypatch.setattr("holdfast.operating.timetravel.happened", lambda histories, after: [])
    with pytest.raises((AssertionError, HoldfastError)) as found:  # in several ways, a charge too many among them
        played(Machine, 400, **CONTROL)
    notes = "\n".join(found.value.__notes__)
    assert "state.fork(" in notes or "state.edit(" in notes
    assert "@reproduce_failure(" in notes
