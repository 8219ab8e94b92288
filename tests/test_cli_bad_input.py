"""Bad input: each gets a clear error and a code of its own, and loses nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw
import pytest

from cli_stage import Stage, staged
from holdfast.cli import main
from holdfast.cli.exits import MEANINGS, Exit

NOBODY = 65534


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    return staged(tmp_path, capsys)


BAD = [
    (("show", "nope"), 1, "there is no run 'nope'"),
    (("history", "nope"), 1, "there is no run 'nope'"),
    (("show", "wating"), 1, "did you mean waiting?"),
    (("check", "nope"), 1, "there is no run 'nope'"),
    (("cancel", "nope"), 1, "there is no run 'nope'"),
    (("resume", "nope", "--here", "shop.py"), 1, "there is no run 'nope'"),
    (("show", "a/b"), 1, "'a/b' cannot be a run id"),
    (("show", "x" * 10_000), 1, "cannot be a run id"),
    (("show", "\x1b[31m"), 1, "cannot be a run id"),
    (("show", ""), 1, "cannot be a run id"),
    (("show", "done", "--at", "9"), 1, "has no step '9'; it has: 1, 2, 3"),
    (("resume", "done"), 1, "is done and stays so"),
    (("cancel", "done"), 1, "is done and stays so"),
    (("resolve", "done", "3", "--not-landed"), 1, "is done and stays so"),
    (("resolve", "waiting", "1", "--not-landed"), 1, "is not in doubt"),
    (("resolve", "waiting", "7", "--not-landed"), 1, "has no step '7'"),
    (("resolve", "waiting", "3"), 2, "say one of --landed JSON and --not-landed"),
    (("resolve", "waiting", "3", "--landed", "1", "--not-landed"), 2, "say only one of --landed JSON and --not-landed"),
    (("resolve", "waiting", "3", "--landed", "r-9"), 2, "--landed '\"r-9\"'"),
    (("resolve", "waiting", "3", "--landed", ""), 2, "is not JSON"),
    (("resolve", "waiting", "3", "--landed", "NaN"), 2, "is not JSON (it has no NaN)"),
    (("resolve", "waiting", "3", "--landed", "[" * 100_000), 2, "is not JSON"),
    (("resolve", "waiting"), 2, "Missing argument"),
    (("runs", "--status", "asleep"), 2, "'asleep' is not a status; there are queued"),
    (("runs", "--tag", "customer"), 2, "'customer' is not KEY=VALUE"),
    (("runs", "--tag", "=7"), 2, "is not KEY=VALUE"),
    (("runs", "--idle", "soon"), 2, "'soon' is not a duration"),
    (("runs", "--limit", "0"), 2, "--limit"),
    (("runs", "--limit", "9" * 30), 2, "--limit"),
    (("runs", "--agent", "\udcff"), 2, "is not UTF-8"),
    (("cancel", "waiting", "--reason", "\udcff"), 2, "is not UTF-8"),
    (("check",), 2, "name one run, or say --all"),
    (("check", "done", "--all"), 2, "name one run, or say --all"),
    (("resume", "waiting", "--no-wait"), 2, "name a file with --here"),
    (("cancel", "waiting", "--undo", "--no-wait"), 2, "name a file with --here"),
    (("shw", "done"), 2, "No such command"),
    (("runs", "--nothing"), 2, "No such option"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "said"), BAD, ids=range(len(BAD)))
def test_bad_input_is_told_and_loses_nothing(stage: Stage, words: tuple[str, ...], code: int, said: str) -> None:
    before = stage.document("runs")["runs"]
    found, out, err = stage.give(*words)
    assert (found, out) == (code, "")
    assert err.startswith("holdfast: ")
    assert said in err
    assert "Traceback" not in err
    assert said in stage.document(*words, code=code)["error"]["message"]
    assert stage.document("runs")["runs"] == before


def test_a_run_that_is_not_there_is_told_with_a_plain_path(stage: Stage) -> None:
    assert f"there is no run 'nope' in {stage.store}. " in stage.give("show", "nope")[2]


def test_an_error_about_a_result_points_to_the_help_of_its_command(stage: Stage) -> None:
    for words in (("--landed", "r-9"), (), ("--landed", "1", "--not-landed")):
        assert "`holdfast resolve --help` tells how it is used" in stage.give("resolve", "waiting", "3", *words)[2]


def execute(store: Path, sql: str) -> None:
    connection = apsw.Connection(str(store))
    connection.execute(sql)
    connection.close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("memory:", "StoreMissing"),
        ("", "StoreError"),
        ("postgresql://user:secret@127.0.0.1:1/db", "StoreFailed"),
        ("runs", "StoreError"),
        ("folder.db", "StoreForeign"),
        ("text.db", "StoreForeign"),
        ("other.db", "StoreForeign"),
        ("newer.db", "StoreNewer"),
    ],
)
def test_a_store_that_cannot_be_used_is_left_as_it_is(stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    monkeypatch.chdir(stage.folder)
    Path("folder.db").mkdir()
    Path("text.db").write_text("dear diary")
    execute(Path("other.db"), "CREATE TABLE diary (day)")
    shutil.copy(stage.store, "newer.db")
    execute(Path("newer.db"), "UPDATE meta SET value = '99' WHERE key = 'format'; PRAGMA wal_checkpoint(truncate)")
    before = {path.name: path.read_bytes() for path in stage.folder.glob("*.db") if path.is_file()}
    stage.store = name  # type: ignore[assignment]
    error = stage.document("runs", code=5)["error"]
    assert error["type"] == kind
    assert "secret" not in error["message"]
    assert {path.name: path.read_bytes() for path in stage.folder.glob("*.db") if path.is_file()} == before


def test_a_locked_store_is_told_and_nothing_is_changed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores._sqlite_line.BUSY_LIMIT_MS", 1)
    holder = apsw.Connection(str(stage.store))
    holder.execute("BEGIN IMMEDIATE")
    assert stage.document("cancel", "waiting", code=5)["error"]["type"] == "StoreBusy"
    holder.close()
    assert stage.status("waiting") == "waiting"


def test_a_store_that_cannot_be_written_is_told(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(tempfile.mkdtemp())
    shutil.copy(stage.store, folder / "runs.db")
    folder.chmod(0o555)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(NOBODY)
        assert main(["runs", "--store", str(folder / "runs.db")]) == 5
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)
    assert "cannot be written" in capsys.readouterr().err


def test_an_error_of_our_own_keeps_its_traceback(stage: Stage) -> None:
    (stage.folder / "sitecustomize.py").write_text("import holdfast.operating.views as i\ni.runs = lambda *a, **k: 1 / 0\n")
    environment = {**os.environ, "PYTHONPATH": f"{stage.folder}:{os.environ.get('PYTHONPATH', '')}"}
    words = [sys.executable, "-m", "holdfast", "runs", "--store", str(stage.store)]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Traceback" in ended.stderr
    assert "ZeroDivisionError" in ended.stderr


def test_a_reader_that_goes_away_is_no_error_of_ours(stage: Stage) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "holdfast", "history", "waiting", "--store", str(stage.store)]
    ended = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_every_exit_code_is_documented() -> None:
    text = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text()
    for code in Exit:
        assert f"| {code.value} |" in text
    assert set(MEANINGS) == set(Exit)
