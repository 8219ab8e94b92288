"""Those who keep artifacts, and those who sweep them, are killed at every failpoint and flush: nothing is referred to that is not there.

Between the kill and the next start everything that nobody refers to is swept, with no grace. The same over an engine that does not
write its references must find that out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import holdfast as hf
from holdfast._failpoints import ARTIFACTS
from holdfast.store import Shelf
from sweeping import KILLED, RUN_ID, Death, Stage, misfits, result_of, said, staged, swept

RESULT = ["given", "write-a", "same other 1", "same other 2", "receipt of write-a"]
BLOBS = 8
"""Three files, two listings with three files in them: what the run refers to at its end."""
RUN_POINTS = ("blob.before", "blob.after", "claim.after", "step.after_body", "step.after_outcome", "effect.after_body", "run.before_done")
SWEEP_POINTS = ("sweep.before", "sweep.after")

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(400)]

stage = staged("artifact_agent")


def wrong(stage: Stage, folder: Path) -> list[str]:
    """What is not as it must be at the end; the store was swept then."""
    with stage.open(folder) as app:
        good, left, kept = all(verdict.good for verdict in app.check()), shelf(app).sweep_blobs(1 << 60), referred(shelf(app))
    found: dict[str, object] = {"result": result_of(folder), "good": good, "left": left, "blobs": kept}
    due: dict[str, object] = {"result": RESULT, "good": True, "left": (0, 0), "blobs": BLOBS}
    beside = folder / "runs.db.blobs"
    if beside.exists():
        found["files"], due["files"] = sum(path.is_file() for path in beside.rglob("*")), BLOBS
    return misfits(folder, found, due)


def shelf(app: hf.Holdfast) -> Shelf:
    assert isinstance(app.store, Shelf)
    return app.store


def referred(shelf: Shelf) -> int:
    """How many blobs the run refers to, itself or through others, that are there."""
    refs = set(shelf.blob_refs(RUN_ID))
    refs |= {part for ref in refs for part in shelf.blob_parts(ref)}
    streams = [stream for ref in refs if (stream := shelf.open_blob(ref)) is not None]
    for stream in streams:
        stream.close()
    return len(streams)


def played(stage: Stage, dying: str, folder: Path, death: Death) -> list[str] | None:
    """What is wrong after a run, a sweep, a run and a sweep, of which one was killed; None where it was not."""
    folder.mkdir()
    codes: list[int] = []
    for act in ("run", "sweep", "run", "sweep"):
        codes.append(stage.run(folder, act, death if act == dying and KILLED not in codes else None))
    assert set(codes) <= {0, KILLED}, (folder.name, codes, said(folder))
    return wrong(stage, folder) if KILLED in codes else None


@pytest.mark.parametrize(("dying", "points"), [("run", RUN_POINTS), ("sweep", SWEEP_POINTS)])
def test_a_kill_at_every_failpoint_and_every_flush(stage: Stage, tmp_path: Path, dying: str, points: tuple[str, ...]) -> None:
    kills, problems = swept(tmp_path, (*points, "sync"), partial(played, stage, dying))
    assert problems == []
    assert set(points) <= set(kills)
    assert set(ARTIFACTS) <= {*RUN_POINTS, *SWEEP_POINTS}


def test_the_sweep_notices_references_that_are_not_written(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    assert replace(stage, broken="references").run(folder, "run") == 0
    assert stage.run(folder, "sweep") == 0
    assert any("files is 0" in problem for problem in wrong(stage, folder))
    (folder / "result.json").unlink()
    assert stage.run(folder, "run") not in (0, KILLED), "the result cannot be read any more, and that is said"
