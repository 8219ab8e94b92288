"""What an operator reads who is called at night: what is wrong stands there once, in words that are true, with commands that work."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_stage import Stage, staged


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
