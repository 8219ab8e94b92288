"""What an operator reads who is called at night: what is wrong stands there once, in words that are true, with commands that work."""

from __future__ import annotations

import io
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from rich.text import Text

import holdfast as hf
from cli_stage import Stage, staged
from holdfast.cli import main
from holdfast.cli.doctor import Health
from holdfast.cli.following import standstill
from holdfast.cli.page import Facts, plain
from holdfast.cli.terminal import draw
from holdfast.cli.views import Setting, check_page
from holdfast.operating.checking import Verdict
from holdfast.stores import _sqlite_line
from test_io_errors import small_disk


class Screened(io.StringIO):
    """What a terminal would show."""

    def isatty(self) -> bool:
        return True


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
    with small_disk(tmp_path / "disk", "3m") as disk:
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


def test_a_schedule_says_below_its_row_what_is_what(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.shop.write_text(f"{stage.shop.read_text()}\nSCHEDULES = [hf.Schedule(buy, 'shoes', every='1h', name='{'long' * 20}')]")
    assert stage.document("schedules", str(stage.shop))["store"] == f"sqlite:///{stage.store}"
    screened = Screened()
    monkeypatch.setattr(sys, "stdout", screened)
    assert main(["schedules", str(stage.shop), "--store", str(stage.store)]) == 0
    told = screened.getvalue().splitlines()
    assert told[2].strip() == "last run: none"
    assert told[3].strip().startswith("next: ")


@pytest.mark.parametrize(("words", "meant"), [(["--agent", "bui"], ["--agent buy"]), (["--of-queue", "defualt"], ["--of-queue default"])])
def test_where_no_run_matches_a_name_that_is_near_is_told(stage: Stage, words: list[str], meant: list[str]) -> None:
    assert stage.told("runs", *words) == f"no run matches; did you mean {meant[0]}?\n"
    assert stage.document("runs", *words)["near"] == meant
    assert stage.told("runs", "--agent", "buy", "--status", "blocked") == "no run matches\n"


def test_a_store_that_is_not_there_names_the_one_beside_it_that_may_be_meant(stage: Stage) -> None:
    stage.store = stage.folder / "rnus.db"
    assert f"Did you mean {stage.folder / 'runs.db'}?" in stage.give("runs")[2]
    stage.store = stage.folder / "elsewhere.db"
    assert "Did you mean" not in stage.give("runs")[2]


def test_what_is_said_of_a_run_names_the_store_in_every_command(stage: Stage) -> None:
    assert stage.told("pause", "waiting") == f"the run is paused; it goes on after: holdfast resume waiting --store {stage.store}\n"


def test_what_the_doctor_proposes_for_a_damaged_store_is_about_that_one(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.told("runs")  # which leaves no log behind
    with stage.store.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 8)
    assert main(["doctor", str(stage.store)]) == Health.CLOSED
    assert capsys.readouterr().err.endswith(f"Here a command needs, too: --store {stage.store}\n")


def test_the_inbox_counts_the_runs_that_failed(stage: Stage) -> None:
    assert stage.told("inbox").endswith(f"\n\n1 run failed, and can be resumed:\n  holdfast runs --status failed --store {stage.store}\n")
    assert stage.document("inbox")["failed"] == 1
    stage.told("cancel", "failed")
    assert "failed" not in stage.told("inbox")


def test_who_follows_a_run_that_nobody_executes_is_told_so(stage: Stage) -> None:
    with hf.Holdfast(stage.store) as app:
        said = {run_id: standstill(app.show(run_id)) for run_id in ("done", "failed", "dead", "waiting")}
    assert (said["done"], said["failed"]) == ("", "")
    assert said["dead"].startswith("stopped: the process that ran it is dead at step 3")
    assert said["waiting"].endswith("Nothing comes until somebody executes it; Ctrl-C ends this. What helps: holdfast show waiting")


def test_facts_on_a_terminal_end_where_they_end() -> None:
    screened = Screened()
    draw([Facts([("run", "r-1"), ("agent", "buy")])], screened)
    assert [line.rstrip() for line in Text.from_ansi(screened.getvalue()).plain.splitlines()] == ["  run    r-1", "  agent  buy"]
    assert max(len(line) for line in Text.from_ansi(screened.getvalue()).plain.splitlines()) == len("  agent  buy")


def test_a_check_of_a_store_that_is_damaged_all_over_can_be_read() -> None:
    verdicts = [Verdict(run_id=f"r-{number}", good=False, records=0, seq=1, what="gone") for number in range(1000)]
    lines = list(plain(check_page(verdicts, ["\n".join(["pages"] * 90)], Setting(0))))
    assert lines[0] == "the store: pages"
    assert [line for line in lines if "more" in line] == ["and 70 more lines; --json has all", "and 980 more damaged runs; --json has all"]
    assert lines[-1] == "1,000 runs checked, 0 good records, 1,000 damaged runs"
