"""An agent that keeps files and folders, and somebody who sweeps with no grace at all, made to be killed.

    artifact_agent.py FOLDER   run it once, from the store in FOLDER

Without a folder it is served by `serving.py`. Exit status: 0 done; 74 the store gave up; anything else is a defect.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import holdfast as hf
from agents_for_tests import sweep_agent
from holdfast.errors import StoreError
from holdfast.store import Shelf
from holdfast.stores import _sqlite_blobs

LATER_US = 1 << 60


@dataclasses.dataclass
class Desk:
    """A state with an artifact in it."""

    note: str
    last: hf.Artifact | None = None


@hf.step
def write(text: str) -> hf.Artifact:
    return hf.Artifact(sweep_agent.did("write", text).encode(), name=f"{text}.txt")


@hf.step
def snapshot(number: int) -> hf.Artifact:
    folder = sweep_agent.folder / "code"
    folder.mkdir(exist_ok=True)
    (folder / "same.py").write_text("same")
    (folder / "other.py").write_text(f"other {number}")
    return hf.Artifact(folder)


@hf.effect(in_doubt=hf.resend())
def publish(report: hf.Artifact) -> dict[str, hf.Artifact]:
    return {"report": report, "receipt": hf.Artifact(b"receipt of " + report.bytes())}


@hf.agent
def keeping(given: hf.Artifact) -> list[hf.Artifact]:
    desk = hf.state(Desk("new"))
    desk.last = write("a")
    first, second = snapshot(1), snapshot(2)
    return [given, desk.last, first, second, publish(desk.last)["receipt"]]


def texts(kept: list[hf.Artifact]) -> list[str]:
    """What is in the result; every byte of it is checked."""
    given, last, first, second, receipt = kept
    folders = [f"{(each.path() / 'same.py').read_text()} {(each.path() / 'other.py').read_text()}" for each in (first, second)]
    return [given.bytes().decode(), last.bytes().decode(), *folders, receipt.bytes().decode()]


def run_once(variant: str, store: str = "") -> int:
    with hf.Holdfast(store) as app:
        if variant == "sweep":
            assert isinstance(app.store, Shelf)
            swept = app.store.sweep_blobs(LATER_US)
            sweep_agent.write("swept", blobs=str(swept.blobs))
            return 0
        try:
            result = app.run(keeping, hf.Artifact(b"given"), run_id=sweep_agent.RUN_ID)
        except StoreError as error:
            (sweep_agent.folder / "store_error.json").write_text(json.dumps([type(error).__name__, str(error)]))
            return sweep_agent.STORE_GAVE_UP
        (sweep_agent.folder / "result.json").write_text(json.dumps(texts(result)))
    return 0


def break_references() -> None:
    """Appends do not say what they refer to."""
    _sqlite_blobs.refer = lambda *_: None


BREAKS = {"references": break_references}

if __name__ == "__main__":
    sweep_agent.folder = Path(sys.argv[1])
    sys.exit(run_once("run", str(sweep_agent.folder / "runs.db")))
