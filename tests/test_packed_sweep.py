"""Who records large and growing values is killed at every failpoint and every flush: all that they are put together from is there.

Between the kill and the next start every blob that no run refers to is swept, with no grace. The same over engines that are broken on
purpose must find them out.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from agents_for_tests.growing_agent import CALLS, text
from agents_for_tests.sweep_agent import lines
from holdfast import Holdfast
from holdfast._failpoints import PACKING
from holdfast.large.packing import is_packed
from holdfast.store import Shelf
from sweeping import KILLED, RUN_ID, Stage, staged

MOST = 40
POINTS = (*PACKING, "step.after_outcome", "effect.after_intent", "effect.after_body")

pytestmark = pytest.mark.sweep

stage = staged("growing_agent")


def wrong(folder: Path) -> list[str]:
    """What is not as it must be at the end."""
    with Holdfast(folder / "runs.db") as app:
        assert isinstance(app.store, Shelf)
        good, refs, left = all(verdict.good for verdict in app.check()), app.store.blob_refs(RUN_ID), app.store.sweep_blobs(1 << 60)
        found = app.store.load(RUN_ID)
    files = [path for path in (folder / "runs.db.blobs").rglob("*") if path.is_file()]
    result, did = folder / "result.json", Counter(line["name"] for line in lines(folder))
    seen = {
        "result": json.loads(result.read_text()) if result.exists() else None, "good": good, "left": left, "posted": did["post"],
        "files": len(files) == len(refs), "packed": found is not None and sum(map(is_packed, found[1])) >= CALLS,
    }  # fmt: skip
    due = {"result": [text(n) for n in range(CALLS)], "good": True, "left": (0, 0), "posted": 1, "files": True, "packed": True}
    return [f"{folder.name}: {name} is {str(seen[name])[:80]}" for name in due if seen[name] != due[name]]


def played(stage: Stage, folder: Path, **order: object) -> bool:
    """Run, sweep, run again, sweep; the first run is killed there. Whether it was."""
    folder.mkdir()
    codes = [stage.run(folder, act, order if number == 0 else None) for number, act in enumerate(("run", "sweep") * 2)]
    assert set(codes) <= {0, KILLED}, (folder.name, codes, (folder / "stderr").read_text()[-1500:])
    return KILLED in codes


def test_a_kill_at_every_failpoint_and_every_flush(stage: Stage, tmp_path: Path) -> None:
    kills, problems = Counter[str](), list[str]()
    for how, name in (*(("failpoint", name) for name in POINTS), ("sync", "")):
        for number in range(1, MOST):
            folder = tmp_path / f"{how}-{name}-{number}"
            if not played(stage, folder, **{how: f"{name}:{number}" if name else number}):
                break
            kills[name or how] += 1
            problems += wrong(folder)
    assert problems == []
    assert set(POINTS) <= set(kills)


def test_the_sweep_notices_references_that_are_not_written(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "references"
    folder.mkdir()
    assert replace(stage, broken="references").run(folder, "run") == 0
    assert stage.run(folder, "sweep") == 0
    assert any("good is False" in problem for problem in wrong(folder))


def test_the_sweep_notices_differences_from_another_record_than_they_say(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "places"
    folder.mkdir()
    replace(stage, broken="places").run(folder, "run")
    assert any("good is False" in problem for problem in wrong(folder))
