"""What an operator reads who is called at night: what is wrong stands there once, in words that are true, with commands that work."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from cli_stage import Stage, staged
from holdfast.stores import _sqlite_line
from test_io_errors import small_disk


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    return staged(tmp_path, capsys)


def test_the_list_of_runs_tells_what_a_killed_process_left_in_doubt(stage: Stage) -> None:
    asked = 'did charge(order="dead", cents=500) at step 3 happen?'
    assert f"its process is dead; {asked}" in stage.told("runs")
    assert [run["note"] for run in stage.document("runs", "--status", "stopped")["runs"]] == [asked]


def test_what_blocks_a_run_is_told_once(stage: Stage) -> None:
    stage.shop.write_text(stage.shop.read_text().replace("await search(order)\n", "await stock(order)\n"))
    assert stage.give("resume", "failed", "--here", str(stage.shop))[0] == 1
    assert stage.told("show", "failed").count("when it was recorded") == 1
    assert stage.document("show", "failed")["run"]["last_error"].startswith("ReplayMismatch: step 1 ")


def findings(stage: Stage, store: Path) -> dict[str, Any]:
    """What the doctor found of a store, by name; it must find something to mend."""
    stage.store = store
    return {one["what"]: (one["value"], one["grade"]) for one in stage.document("doctor", code=1)["findings"]}


@pytest.mark.parametrize("closed", [True, False])
def test_the_doctor_examines_a_store_on_a_full_disk(stage: Stage, tmp_path: Path, *, closed: bool) -> None:
    with small_disk(tmp_path / "disk") as disk:
        stage.told("runs")  # which leaves no log behind, in place of the process that was killed
        shutil.copytree(stage.store.parent, disk, dirs_exist_ok=True, ignore=shutil.ignore_patterns("disk", "*.py"))
        with closing(apsw.Connection(str(disk / "runs.db"))) as other:
            if not closed:  # somebody has it open: SQLite needs no more room to read it
                assert other.execute("SELECT count(*) FROM runs").get
            with pytest.raises(OSError, match="No space"), (disk / "filler").open("wb", buffering=0) as filler:
                while filler.write(bytes(1024)):
                    pass
            found = findings(stage, disk / "runs.db")
    assert found["disk"] == ("0 bytes free", "bad")
    assert (found["flush of a small file"], found["hard links"][1]) == (("not measured", "ok"), "ok")
    assert found["store" if closed else "commit"] == (("cannot be opened", "bad") if closed else ("refused", "warn"))


def test_the_doctor_examines_a_store_that_somebody_keeps_locked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite_line, "BUSY_LIMIT_MS", 10)
    with closing(apsw.Connection(str(stage.store))) as other:
        other.execute("BEGIN IMMEDIATE")
        assert findings(stage, stage.store)["commit"] == ("refused", "warn")
        other.execute("ROLLBACK")
    assert findings(stage, stage.store)["commit"][1] == "ok"
