"""Whoever prunes is killed at every failpoint and every flush, and prunes again: a run is there whole or gone, and the rest goes on.

The same sweep over a store that removes a run in two transactions must find that out.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import holdfast as hf
from agents_for_tests import prune_agent, sweep_agent
from holdfast._failpoints import PRUNES
from sweeping import KILLED, Death, Server, Stage, death_at, misfits, said, staged, swept

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(400)]

stage = staged("prune_agent")


def make(stage: Stage, folder: Path) -> Path:
    """A store to prune."""
    folder.mkdir()
    assert stage.run(folder, "make") == 0, said(folder)
    return folder


@pytest.fixture(scope="session")
def made(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(Stage(server, "prune_agent"), tmp_path_factory.mktemp("made") / "store")


def half_way(stage: Stage, folder: Path) -> list[str]:
    """What is wrong right after the kill."""
    with stage.open(folder) as app:
        bad = [verdict.what for verdict in app.check() if not verdict.good]
        return [f"{folder.name}: {what}" for what in [*app.store.check(), *bad]]


def at_the_end(stage: Stage, folder: Path) -> list[str]:
    """What is wrong after another prune: the runs that go are gone, their ids taken, and the one that waits goes on as before."""
    sweep_agent.folder = folder
    done = len(sweep_agent.lines(folder))
    with stage.open(folder) as app:
        _, rows = app.store.load("waits-1") or pytest.fail("it is gone")
        found: dict[str, object] = {
            "first generation": [row.kind for row in rows[:2]],
            "left": sorted(run.run_id for run in app.runs()),
            "taken": [number for number in range(5) if refused(app, f"ends-{number}")],
            "result": answered(app),
            "done": [line["what"] for line in sweep_agent.lines(folder)[done:]],
            "kept": app.run(prune_agent.ends, "5", run_id="ends-5"),
        }
    result = ["look-xxxxxxxxxx", "pay-xxxxxxxxxx", "look-bxxxxxxxxx", "True", "look-end"]
    due: dict[str, object] = {
        "first generation": ["run.started", "run.continued"],
        "left": ["ends-5", "waits-1", "waits-2"], "taken": [0, 1, 2, 3, 4], "result": result, "done": ["end"], "kept": "look-5pay-5",
    }  # fmt: skip
    return misfits(folder, found, due)


def refused(app: hf.Holdfast, run_id: str) -> bool:
    try:
        app.run(prune_agent.ends, run_id[-1], run_id=run_id)
    except hf.RunPruned:
        return True
    return False


def answered(app: hf.Holdfast) -> list[str]:
    app.answer("waits-1", "4", yes=True, by="test")
    return app.run(prune_agent.waits, "w", run_id="waits-1", wait=False)


def killed(stage: Stage, folder: Path, death: Death) -> list[str] | None:
    """What is wrong after a prune of the store in the folder that was killed in this way; None where it was not."""
    code = stage.run(folder, "prune", death)
    if code != KILLED:
        assert code == 0, said(folder)
        return None
    if problems := half_way(stage, folder):
        return problems
    assert stage.run(folder, "prune") == 0, said(folder)
    return [*half_way(stage, folder), *at_the_end(stage, folder)]


def test_a_kill_at_every_failpoint_and_every_flush(stage: Stage, made: Path, tmp_path: Path) -> None:
    kills, problems = swept(tmp_path, (*PRUNES, "sync"), lambda folder, death: killed(stage, shutil.copytree(made, folder), death))
    assert problems == []
    assert kills == {**dict.fromkeys(PRUNES[:2], 3), **dict.fromkeys(PRUNES[2:4], 2), **dict.fromkeys(PRUNES[4:], 1), "sync": kills["sync"]}
    assert kills["sync"] >= 5


def test_the_sweep_finds_out_a_store_that_removes_a_run_in_two_steps(stage: Stage, made: Path, tmp_path: Path) -> None:
    found = killed(replace(stage, broken="transactions"), shutil.copytree(made, tmp_path / "broken"), death_at("prune.after:1"))
    assert found is not None
    assert any("has 5 records in its journal but no head" in problem for problem in found), found
