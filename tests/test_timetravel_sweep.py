"""Those who edit and fork a run, and those who go on with it, are killed at every failpoint and flush: nothing is lost or done twice.

The same over an engine that forgets what happened after the point must find that out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agents_for_tests.sweep_agent import lines
from crashing import records
from holdfast._failpoints import TIME_TRAVEL
from holdfast.records import kinds as rec
from sweeping import Death, Stage, death_at, misfits, result_of, staged, swept

ACTS = ("run sweep", "edit", "run sweep", "fork", "run branch", "answer sweep", "answer branch", "run sweep", "run branch")
POINTS = {
    1: ("edit.before", "edit.after"),
    2: ("claim.after", "effect.before_reuse", "effect.after_reuse", "ask.before", "park.after"),
    3: ("fork.before", "fork.after"),
    4: ("claim.before", "effect.before_reuse", "effect.after_reuse", "park.before"),
}
"""Where each act is killed, at every occurrence."""

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(400)]

stage = staged("time_agent")


def wrong(stage: Stage, folder: Path) -> list[str]:
    """What is not as it must be at the end."""
    ledger = Counter(line["what"] for line in lines(folder))
    with stage.open(folder) as app:
        good = all(verdict.good for verdict in app.check())
        kinds = [Counter(type(record) for record in records(app.store, run_id)) for run_id in ("sweep", "branch")]
    found: dict[str, object] = {
        "the results": [result_of(folder, run_id) for run_id in ("sweep", "branch")],
        "looked and paid": [ledger["a"], ledger["5"]],
        "edits and forks": [kinds[0][rec.StepEdited], kinds[0][rec.RunForked], kinds[1][rec.RunForked]],
        "good": good,
    }
    results = [[1, "pay-5", True], [2, "pay-5", True]]
    return misfits(folder, found, {"the results": results, "looked and paid": [1, 1], "edits and forks": [1, 0, 1], "good": True})


def played(stage: Stage, dying: int, folder: Path, death: Death) -> list[str] | None:
    """What is wrong after all acts were played, one of which was killed; None where it was not."""
    return wrong(stage, folder) if stage.played(folder, ACTS, dying, death) else None


@pytest.mark.parametrize("dying", POINTS)
def test_a_kill_at_every_failpoint_and_every_third_flush_of_the_verbs(stage: Stage, tmp_path: Path, dying: int) -> None:
    points = (*POINTS[dying], *(["sync"] if ACTS[dying] in ("edit", "fork") else []))
    kills, problems = swept(tmp_path, points, partial(played, stage, dying), flushes_every=3)
    assert problems == []
    assert set(kills) == set(points)
    assert set(TIME_TRAVEL) <= {name for names in POINTS.values() for name in names}


def test_the_sweep_finds_out_an_engine_that_forgets_what_happened(stage: Stage, tmp_path: Path) -> None:
    found = played(replace(stage, broken="knowledge"), 1, tmp_path / "broken", death_at("edit.after:1"))
    assert found is not None
    assert "broken: looked and paid is [1, 3]" in found
