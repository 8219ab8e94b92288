"""The commands that change something: resume, with and without a file, cancel and resolve."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import starting
from cli_stage import Stage, command, staged
from holdfast.cli import app_file, main

AGENT = "import holdfast as hf\n@hf.agent(name='buy')\ndef one(order: str) -> str: return 'one'\n"


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    return staged(tmp_path, capsys)


def test_a_settled_doubt_lets_the_run_finish_here(stage: Stage) -> None:
    told = stage.told("resolve", "waiting", "3", "--landed", '"r-9"', "--reason", "seen in the bank", "--by", "ann")
    how = f"holdfast resume waiting --here APP.py --store {stage.store}"
    assert told == f"the run is ready to go on, by itself where a process waits for it; else: {how}\n"
    assert "doubt settled, ann: landed (seen in the bank)" in stage.told("show", "waiting")
    text = stage.told("resume", "waiting", "--here", str(stage.shop))
    assert text.startswith("done\n")
    assert 'result    "r-9"' in text
    assert "ann: landed (seen in the bank)" in stage.told("history", "waiting")


def test_a_doubt_that_did_not_land_is_executed(stage: Stage) -> None:
    stage.told("resolve", "dead", "3", "--not-landed")
    assert stage.document("resume", "dead", "--here", str(stage.shop))["result"] == "r-dead"


def test_only_the_document_is_on_stdout_whatever_the_agent_prints(stage: Stage) -> None:
    stage.shop.write_text(stage.shop.read_text() + "\nos.system('echo a child speaks')\nprint('loading')\n")
    ended = command("resume", "failed", "--here", "shop.py", "--json", "--store", "runs.db", folder=stage.folder)
    assert json.loads(ended.stdout) == {"run_id": "failed", "status": "done", "result": "r-failed"}
    assert "a child speaks" in ended.stderr


def test_a_run_that_waits_for_a_person_ends_with_a_code_of_its_own(stage: Stage) -> None:
    code, out, err = stage.give("resume", "dead", "--here", str(stage.shop), "--no-wait")
    assert (code, out) == (3, "")
    assert "holdfast: run 'dead' waits: did charge" in err
    assert stage.status("dead") == "waiting"


def test_a_run_that_fails_shows_the_line_of_the_agent_and_keeps_its_steps(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "1")
    code, _, err = stage.give("resume", "failed", "--here", str(stage.shop))
    assert code == 1
    assert f'File "{stage.shop}"' in err
    assert "await stock(order)" in err
    assert "site-packages" not in err
    assert r"holdfast: the run failed: Declined: [red]no stock[/red] \x1b]0;owned\x07\x1b[31m\u202e\r" in err
    assert stage.document("resume", "failed", "--here", str(stage.shop), code=1)["error"]["type"] == "Declined"
    assert stage.status("failed") == "failed"


def test_a_run_that_fails_with_an_error_of_a_step_says_so_like_any_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.shop.write_text(stage.shop.read_text().replace("@hf.step(raises=Declined)", "@hf.step"))
    monkeypatch.setenv("FAIL", "1")
    code, _, err = stage.give("resume", "failed", "--here", str(stage.shop))
    assert (code, "await stock(order)" in err) == (1, True)
    assert "holdfast: the run failed: StepFailed: [red]no stock" in err
    assert stage.document("resume", "failed", "--here", str(stage.shop), code=1)["error"]["type"] == "StepFailed"


@pytest.mark.parametrize("named", [True, False])
def test_an_error_that_proposes_a_command_says_with_which_store(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(stage.store))
    words = ["show", "nobody", *(["--store", str(stage.store)] if named else [])]
    assert main(words) == 1
    err = capsys.readouterr().err
    assert "`holdfast runs` lists them" in err
    assert err.endswith(f"\n  Here a command needs, too: --store {stage.store}\n") is named


def test_a_done_run_gives_its_result_again_and_executes_nothing(stage: Stage) -> None:
    before = stage.records("done")
    assert stage.document("resume", "done", "--here", str(stage.shop))["result"] == "r-done"
    assert stage.records("done") == before


def test_who_and_why_are_recorded_when_a_run_is_resumed_here(stage: Stage) -> None:
    stage.told("resume", "failed", "--here", str(stage.shop), "--reason", "the shop is full again", "--by", "ann")
    assert "resume by ann: the shop is full again" in stage.told("history", "failed")


def test_resume_elsewhere_marks_the_run_as_ready(stage: Stage) -> None:
    assert stage.told("resume", "failed") == "the run is ready for whoever runs its agent next\n"
    assert stage.status("failed") == "queued"
    assert stage.told("show", "failed").startswith("ready to go on, and nobody runs it")


def test_cancel_closes_for_good_and_remembers_who_and_why(stage: Stage) -> None:
    assert stage.told("cancel", "waiting", "--reason", "[b]enough[/b]", "--by", "ann").startswith("the run is cancelled; step 3 charge(")
    assert stage.told("show", "waiting").startswith("cancelled by ann: [b]enough[/b]")
    code, _, err = stage.give("cancel", "waiting")
    assert (code, err) == (1, "holdfast: run 'waiting' is cancelled and stays so; nothing was changed\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not a file"),
        ("raise ValueError('bad\\x1b[31m')", r"cannot be loaded: ValueError (line 1): bad\x1b[31m"),
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError (line 1)"),
        ("def f(:", "cannot be loaded: SyntaxError (line 1)"),
        ("import sys\nsys.exit(3)", "cannot be loaded: SystemExit (line 2)"),
        ("x = 1", "has no agent named 'buy' (it has: none)"),
        (AGENT.replace("buy", "sell"), "has no agent named 'buy' (it has: sell)"),
        (AGENT + AGENT.replace("def one", "def two"), "has 2 different agents named 'buy'"),
    ],
)
def test_a_file_that_is_no_use_changes_nothing(stage: Stage, text: str | None, said: str) -> None:
    before, file = stage.records("waiting"), stage.folder / "other.py"
    if text is not None:
        file.write_text(text)
    code, _, err = stage.give("resume", "waiting", "--here", str(file), "--reason", "try", "--no-wait")
    assert code == 1
    assert said in err
    assert "the run is unchanged" in err
    assert stage.records("waiting") == before


def test_one_agent_under_two_names_is_one_agent(stage: Stage) -> None:
    stage.shop.write_text(stage.shop.read_text() + "\nalso = buy\n")
    module = app_file.loaded(stage.shop)
    assert [agent.name for agent in app_file.agents_in(module)] == ["buy"]
    assert module.__name__ != "__main__"
    assert stage.document("resume", "failed", "--here", str(stage.shop))["result"] == "r-failed"


def test_the_file_is_no_main_and_finds_its_neighbours(stage: Stage) -> None:
    (stage.folder / "main.py").write_text("from shop import buy\nif __name__ == '__main__':\n    raise SystemExit('started as a script')\n")
    words = ("resume", "failed", "--here", str(stage.folder / "main.py"), "--json", "--store", str(stage.store))
    ended = command(*words, folder=stage.folder.parent)
    assert json.loads(ended.stdout)["result"] == "r-failed"


SLOW = """
    import asyncio
    print("begun", flush=True)
    await asyncio.Event().wait()
"""


def test_interrupting_ends_with_130_and_the_run_can_go_on(stage: Stage) -> None:
    (stage.folder / "slow.py").write_text(stage.shop.read_text().replace("    return 3\n", SLOW))
    words = [sys.executable, "-m", "holdfast", "resume", "failed", "--here", "slow.py", "--store", "runs.db"]
    with starting.Popen[str](words, cwd=stage.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "begun\n" in process.stdout
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    assert stage.status("failed") == "queued"
    assert stage.document("resume", "failed", "--here", str(stage.shop))["result"] == "r-failed"


def test_a_doubt_outlives_the_run_that_is_cancelled_until_it_is_resolved(stage: Stage) -> None:
    stage.told("resolve", "dead", "3", "--not-landed")
    [key] = [item["key"] for item in stage.document("inbox")["items"]]
    said = stage.told("cancel", "waiting", "--by", "ann")
    assert f'the run is cancelled; step 3 charge(order="waiting", cents=500) stays in doubt, key {key}' in said
    assert stage.told("show", "waiting").startswith("cancelled by ann; step 3 stays in doubt")
    assert [item["run_id"] for item in stage.document("inbox")["items"]] == ["waiting"]
    assert stage.told("resolve", "waiting", "3", "--landed", '"r-9"').startswith("the run stays cancelled")
    assert stage.told("inbox").startswith("nothing needs a person in ")
    assert (stage.status("waiting"), stage.told("check", "waiting").endswith("no damage\n")) == ("cancelled", True)
