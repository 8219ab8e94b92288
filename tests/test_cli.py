"""The commands that look: what they say to people, what they give to scripts, and that they change nothing."""

from __future__ import annotations

import json
import re
import shlex
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
import holdfast.sync as hf
from cli_stage import Stage, command, staged
from holdfast.cli import location, main
from holdfast.cli.location import project_root
from holdfast.cli.wording import clean

READING = (
    ("runs",), ("show", "waiting"), ("show", "waiting", "--at", "3"), ("show", "waiting", "--drift"), ("history", "waiting"), ("inbox",),
    ("check", "waiting"), ("check", "--all"),
)  # fmt: skip


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    return staged(tmp_path, capsys)


def test_the_page_lists_every_command() -> None:
    from holdfast.cli.commands import app, name_of

    page = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text().partition("## Every command")[0]
    listed = list(dict.fromkeys(re.findall(r"^\| `(\w+)", page, re.MULTILINE)))
    assert sorted(listed) == sorted(map(name_of, app.registered_commands))


def test_a_command_reads_its_own_arguments_only_and_a_word_that_is_none_those_of_all() -> None:
    from holdfast.cli.commands import app, commands_for, name_of

    assert list(commands_for("show").commands) == ["show"]
    assert list(commands_for("shwo").commands) == list(commands_for("").commands) == list(map(name_of, app.registered_commands))


def test_runs_lists_what_changed_last_first(stage: Stage) -> None:
    header, *rows = stage.told("runs").splitlines()
    assert header.split() == ["RUN", "AGENT", "STATUS", "CHANGED", "NOTE"]
    assert [row.split()[0] for row in rows] == ["dead", "waiting", "failed", "done"]
    assert "stopped" in rows[0]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--status", "waiting"), {"waiting"}),
        (("--status", "stopped"), {"dead"}),
        (("--status", "stopped", "--status", "done"), {"dead", "done"}),
        (("--status", "running"), {"dead"}),
        (("--status", "done", "--status", "failed"), {"done", "failed"}),
        (("--agent", "sell"), set()),
        (("--tag", "customer=7", "--status", "done"), {"done"}),
        (("--tag", "customer=8"), set()),
        (("--idle", "1d"), set()),
        (("--idle", "0s"), {"dead", "waiting", "failed", "done"}),
        (("--limit", "1"), {"dead"}),
    ],
)
def test_runs_can_be_narrowed(stage: Stage, words: tuple[str, ...], found: set[str]) -> None:
    assert {run["run_id"] for run in stage.document("runs", *words)["runs"]} == found


def test_show_begins_with_the_status_in_words_and_ends_with_the_next_commands(stage: Stage) -> None:
    text = stage.told("show", "waiting")
    assert text.startswith('waiting for a person: did charge(order="waiting", cents=500) at step 3 happen?')
    assert text.index("owner     nobody") < text.index("Next:") < text.index("holdfast resolve waiting 3 --not-landed")


def test_show_tells_that_the_owner_is_dead_and_the_effect_in_doubt(stage: Stage) -> None:
    text = stage.told("show", "dead")
    assert text.startswith('stopped: the process that ran it is dead at step 3, charge(order="dead", cents=500)')
    assert "(dead)" in text
    assert "in doubt" in text
    assert "holdfast resume dead --here APP.py" in text


def test_show_of_a_failed_run_tells_its_error_and_of_a_done_one_its_result(stage: Stage) -> None:
    assert stage.told("show", "failed").startswith("failed: Declined: [red]no stock[/red]")
    assert 'result    "r-done"' in stage.told("show", "done")


def test_commands_to_try_name_the_store_that_was_named(stage: Stage) -> None:
    for words in (("show", "waiting"), ("inbox",)):
        assert f"--not-landed --store {stage.store}" in stage.told(*words)


def test_show_at_a_step_is_what_the_agent_knew_then(stage: Stage) -> None:
    text = stage.told("show", "done", "--at", "2")
    assert 'arguments  {"order": "done"}' in text
    assert "result     3" in text
    assert text.rstrip().endswith('1     search(what="done")  done   ["done-red","done-blue"]')
    assert "charge" not in text


def test_history_has_a_column_for_keys_only_where_there_is_one(stage: Stage) -> None:
    assert stage.told("history", "waiting").splitlines()[1].split() == ["TIME", "STEP", "STATE", "TOOK", "CALL", "KEY", "NOTE"]
    assert stage.told("history", "failed").splitlines()[1].split() == ["TIME", "STEP", "STATE", "TOOK", "CALL", "NOTE"]


def test_history_has_every_checkpoint_with_its_key(stage: Stage) -> None:
    rows = [line.split() for line in stage.told("history", "waiting").splitlines()[2:]]
    assert [row[1:3] for row in rows if row[1].isdigit()] == [["1", "done"], ["2", "done"], ["3", "in"], ["3", "doubt"]]
    lines = stage.document("history", "waiting")["checkpoints"]
    assert [line["state"] for line in lines if line["key"]] == ["in doubt"]
    assert all(line["key"] in stage.told("history", "waiting") for line in lines)


def test_inbox_has_each_doubt_with_the_commands_that_settle_it(stage: Stage) -> None:
    stopped, item = stage.document("inbox")["items"]
    assert (item["kind"], item["run_id"], item["step_id"]) == ("doubt", "waiting", "3")
    assert item["commands"][1] == "holdfast resolve waiting 3 --not-landed"
    assert (stopped["kind"], stopped["run_id"], stopped["step_id"]) == ("doubt", "dead", "3")


def test_a_run_whose_process_died_in_an_effect_is_in_the_inbox_and_its_next_names_resolve(stage: Stage) -> None:
    """Edit, fork and prune refuse because of the doubt, and say that the inbox lists it."""
    [item] = [item for item in stage.document("inbox")["items"] if item["run_id"] == "dead"]
    ways = ["holdfast resolve dead 3 --landed RESULT", "holdfast resolve dead 3 --not-landed", "holdfast resume dead --here APP.py"]
    assert item["commands"] == ways == stage.document("show", "dead")["run"]["next_commands"]
    assert "the run settles it when it goes on, or asks" in item["what"]
    stage.told("resolve", "dead", "3", "--not-landed")
    assert "dead" not in [item["run_id"] for item in stage.document("inbox")["items"]]


def test_inbox_says_when_nothing_needs_a_person(stage: Stage) -> None:
    for run_id in ("waiting", "dead"):
        stage.told("resolve", run_id, "3", "--not-landed")
    stage.told("resume", "failed")
    assert stage.told("inbox") == f"nothing needs a person in sqlite:///{stage.store}\n"


def test_a_run_that_executes_is_shown_with_its_living_owner_and_its_step(stage: Stage) -> None:
    begun, end = threading.Event(), threading.Event()

    @hf.effect(in_doubt="ask")
    def call(who: str) -> None:
        begun.set()
        end.wait()

    @hf.agent
    def phone() -> None:
        call("ann")

    def work() -> None:
        with hf.Holdfast(stage.store) as app:
            app.run(phone, run_id="live")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert begun.wait(30)
        text = stage.told("show", "live")
        code, _, refusal = stage.give("resume", "live")
    finally:
        end.set()
        worker.join()
    assert text.startswith('running at step 1, call(who="ann")')
    assert "(alive)" in text
    assert (code, "executes now" in refusal) == (1, True)


def damage(store: Path, run_id: str, seq: int) -> None:
    connection = apsw.Connection(str(store))
    connection.execute("UPDATE journal SET body = CAST(CAST(body AS TEXT) || ' ' AS BLOB) WHERE run_id = ? AND seq = ?", (run_id, seq))
    connection.close()


def test_check_names_the_first_bad_record_and_what_is_still_good(stage: Stage) -> None:
    damage(stage.store, "done", 3)
    text = stage.told("check", "--all", code=4)
    assert "run done is damaged at record 3: its digest does not match what it holds" in text
    assert "its records 1 to 2 are good, up to step 1, search" in text
    assert "1 damaged run" in text
    assert stage.told("check", "waiting").endswith("no damage\n")
    verdict = next(run for run in stage.document("check", "done", code=4)["runs"] if not run["good"])
    assert (verdict["seq"], verdict["records"]) == (3, 2)


def test_a_damaged_run_is_refused_with_a_code_of_its_own(stage: Stage) -> None:
    damage(stage.store, "waiting", 2)
    for words in (("show", "waiting"), ("history", "waiting"), ("resume", "waiting", "--here", str(stage.shop)), ("cancel", "waiting")):
        assert stage.document(*words, code=4)["error"]["type"] == "Damaged"
    assert [item["kind"] for item in stage.document("inbox")["items"] if item["run_id"] == "waiting"] == ["damaged"]


def test_runs_are_listed_even_where_a_head_is_damaged(stage: Stage) -> None:
    connection = apsw.Connection(str(stage.store))
    connection.execute("UPDATE runs SET tags = '{\"customer' WHERE run_id = 'done'")
    connection.close()
    assert len(stage.document("runs")["runs"]) == 4
    assert "run done is damaged" in stage.told("check", "--all", code=4)


@pytest.mark.parametrize("words", READING)
def test_machine_output_is_one_document_with_times_as_numbers_and_text(stage: Stage, words: tuple[str, ...]) -> None:
    found = stage.document(*words)
    dated = [each for each in _objects(found) if any(name.endswith("_us") for name in each)]
    for each in dated:
        assert all(each[name.removesuffix("_us")] is None for name in each if name.endswith("_us") and each[name] is None)
        for name in [name for name in each if name.endswith("_us") and each[name] is not None]:
            moment = datetime.fromisoformat(each[name.removesuffix("_us")])
            assert round(moment.timestamp() * 1e6) == each[name]
    assert found["store"] == f"sqlite:///{stage.store}"


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(each for inner in value.values() for each in _objects(inner))]
    return [each for inner in value for each in _objects(inner)] if isinstance(value, list) else []


@pytest.mark.parametrize("words", [*READING, ("show", "failed"), ("history", "failed"), ("show", "failed", "--at", "2")])
def test_what_agents_wrote_is_shown_as_text(stage: Stage, words: tuple[str, ...]) -> None:
    text = stage.told(*words)
    assert all(line.isprintable() for line in text.split("\n"))
    if "failed" in words:
        assert r"[red]no stock[/red] \x1b]0;owned\x07\x1b[31m\u202e\r" in text


def test_only_what_a_terminal_could_obey_is_escaped() -> None:
    assert clean("Zürich 東京 👩‍💻 5\u202f€") == "Zürich 東京 👩‍💻 5\u202f€"
    assert clean("a\x1b\x9b\x7f\u2066\u2028\ud800\t") == r"a\x1b\x9b\x7f\u2066\u2028\ud800\t"


@pytest.mark.parametrize("words", READING)
def test_looking_creates_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code = main([*words, "--store", str(tmp_path / "new" / "runs.db")])
    assert code == 5
    assert "there is no store here (named by --store); nothing was created" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_a_name_the_store_of_the_project_above_the_current_folder_is_meant(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    assert project_root(inside) == tmp_path
    ended = command("runs", "--json", folder=inside)
    assert ended.returncode == 5
    assert str(tmp_path / ".holdfast" / "holdfast.db") in json.loads(ended.stdout)["error"]["message"]
    assert not (tmp_path / ".holdfast").exists()


def test_where_there_is_no_project_it_says_where_a_script_keeps_its_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.setattr(location, "MARKS", (".no-folder-holds-this",))
    assert main(["runs"]) == 5
    told = capsys.readouterr().err
    assert "a script that is in no project keeps its store beside itself); nothing was created" in told
    assert "Name another with --store or HOLDFAST_STORE" in told


def test_a_status_that_no_run_can_have_is_not_offered(stage: Stage) -> None:
    code, _, err = stage.give("runs", "--status", "lost")
    assert code == 2
    assert "there are queued, running, waiting, paused, blocked, failed, done, cancelled, moving, moved, stopped" in err


def test_the_environment_names_the_store(stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(stage.store))
    assert main(["check", "--all"]) == 0
    assert capsys.readouterr().out.startswith("4 runs checked, ")


def test_a_step_named_by_a_model_cannot_make_the_commands_do_something_else(stage: Stage) -> None:
    @hf.effect(in_doubt="ask", call_id="call; touch pwned $(id) '")
    def pay() -> None:
        raise OSError("the line went dead")

    @hf.agent
    def obey() -> None:
        pay()

    with hf.Holdfast(stage.store) as app, pytest.raises(hf.RunWaiting):
        app.run(obey, run_id="odd", wait=False)
    item = next(item for item in stage.document("inbox")["items"] if item["run_id"] == "odd")
    assert shlex.split(item["commands"][1]) == ["holdfast", "resolve", "odd", item["step_id"], "--not-landed"]
    assert stage.told("resolve", "odd", item["step_id"], "--not-landed").startswith("the run is ready")


def test_the_version_is_told_and_usage_names_arguments_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {holdfast.__version__}\n"
    assert main(["show", "--help"]) == 0
    assert "Usage: holdfast show [OPTIONS] RUN\n" in capsys.readouterr().out
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        holdfast.nothing_of_this_name  # type: ignore[attr-defined]  # noqa: B018


def test_help_shows_the_exit_codes_and_every_command_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "Exit codes:" in text
    assert "130  interrupted" in text
    names = [line.split()[0] for line in text.partition("Commands:")[2].partition("Exit codes:")[0].strip().splitlines() if line.strip()]
    assert names == [
        "runs", "show", "history", "tail", "diff", "resume", "cancel", "answer", "send", "inbox", "resolve", "check", "pause", "fork",
        "edit", "artifact", "prune", "copy", "move", "migrate", "doctor", "worker", "workers", "queues", "schedules", "demo",
    ]  # fmt: skip
    for name in names:
        assert main([name, "--help"]) == 0
        assert f"Examples:\n    holdfast {name}" in capsys.readouterr().out
