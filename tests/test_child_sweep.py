"""A run with children is killed at failpoints and flushes, and started again: no effect is lost or repeated, no child doubled.

The same sweep over an engine that does not record its children before they begin must find that out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agents_for_tests.sweep_agent import lines
from holdfast._failpoints import CHILDREN
from sweeping import Death, Stage, death_at, misfits, result_of, staged, swept

WHATS = {"async": ["1", "2", "3", "4", "5"], "def": ["1", "2", "3", "4", "4b", "5"]}
RESULTS = {
    "async": ["charge-2look-2", "charge-1look-1", "charge-3look-3", "charge-4look-4", "charge-5red", "look-end"],
    "def": ["charge-1look-1", "charge-2look-2", "charge-3look-3", "charge-4look-4", "charge-4blook-4b", "charge-5red", "look-end"],
}
RUNS = {"async": 7, "def": 8}
POINTS = {
    0: (
        "claim.before", "claim.after", "child.before", "child.after", "child.before_take", "child.after_take", "effect.after_intent",
        "effect.after_body", "effect.after_outcome", "run.before_done", "run.after_done", "ask.before", "ask.after", "wait.before_outcome",
        "wait.after_outcome", "park.before", "park.after",
    ),
    1: ("answer.before", "answer.after"),
    2: ("claim.after", "child.before_take", "child.after_take", "wait.after_outcome", "run.before_done"),
}  # fmt: skip
"""Where each act is killed, at every occurrence."""

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(400)]

stage = staged("child_agent")


def wrong(stage: Stage, folder: Path, variant: str) -> list[str]:
    """What is not as it must be at the end."""
    with stage.open(folder) as app:
        good, runs = all(verdict.good for verdict in app.check()), app.runs()
    found: dict[str, object] = {
        "the result": result_of(folder),
        "charged": sorted(line["what"] for line in lines(folder) if line["name"] == "charge"),
        "runs": (len(runs), {run.status for run in runs}),
        "good": good,
    }
    due = {"the result": RESULTS[variant], "charged": WHATS[variant], "runs": (RUNS[variant], {"done"}), "good": True}
    return misfits(folder, found, due)


def played(stage: Stage, variant: str, dying: int, folder: Path, death: Death) -> list[str] | None:
    """What is wrong after all acts were played, one of which was killed; None where it was not."""
    killed = stage.played(folder, [variant, "answer", variant], dying, death)
    return wrong(stage, folder, variant) if killed else None


@pytest.mark.parametrize(("variant", "dying"), [*(("async", act) for act in POINTS), ("def", 0)])
def test_a_kill_at_every_failpoint_every_second_time_and_every_fifth_flush(stage: Stage, tmp_path: Path, variant: str, dying: int) -> None:
    points = (*POINTS[dying], "sync") if variant == "async" else POINTS[dying]  # what is flushed is the same for both
    kills, problems = swept(tmp_path, points, partial(played, stage, variant, dying), every=2, flushes_every=5)
    assert problems == []
    assert set(kills) == set(points)


def cancelled(stage: Stage, folder: Path, death: Death) -> list[str] | None:
    """What is wrong with a family that waits and is cancelled by somebody who is killed, and cancels again; None where he was not."""
    if not stage.played(folder, ["async", "cancel"], 1, death):
        return None
    with stage.open(folder) as app:
        ended: dict[str, object] = {"ended": Counter(run.status for run in app.runs())}
    return misfits(folder, ended, {"ended": {"done": RUNS["async"] - 2, "cancelled": 2}})


def test_a_cancel_that_is_killed_anywhere_is_completed_by_doing_it_again(stage: Stage, tmp_path: Path) -> None:
    kills, problems = swept(tmp_path, ("child.before_cancel", "sync"), partial(cancelled, stage))
    assert problems == []
    assert kills["child.before_cancel"] == 1
    assert kills["sync"] >= 2
    assert set(CHILDREN) <= {*(name for names in POINTS.values() for name in names), "child.before_cancel"}


def test_the_sweep_finds_out_an_engine_that_does_not_record_its_children_first(stage: Stage, tmp_path: Path) -> None:
    problems = []
    for number in (1, 2):
        found = played(replace(stage, broken="children"), "def", 0, tmp_path / str(number), death_at(f"run.after_done:{number}"))
        assert found is not None
        problems += found
    assert any("charged is" in problem for problem in problems), problems
