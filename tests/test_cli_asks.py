"""What needs a person on the command line: questions and their answers, doubts that outlive their run, blocked runs, state."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import holdfast.sync as hf
from cli_stage import Stage
from holdfast.cli.wording import local
from test_cli_terminal import STYLE, on_a_terminal

WIRE = """
import holdfast.sync as hf

class Bank:
    def __init__(self): self.wired = []

@hf.step
def look(what: str) -> str:
    return what + " " + "is fine, " * 30

@hf.effect(in_doubt="ask", approve=True)
def wire(cents: int) -> str:
    return f"wired {cents} by {type(hf.resource(Bank)).__name__}"

@hf.agent
def transfer(cents: int) -> str:
    kept = hf.state({"seen": []})
    kept["seen"].append(look("the account"))
    return wire(cents)
"""


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    """A run that waits for an approval, and the file of its agent."""
    scope: dict[str, Any]
    stage, scope = Stage(tmp_path, capsys), {"__name__": "app"}
    stage.shop.write_text(WIRE)
    exec(compile(WIRE, str(stage.shop), "exec"), scope)
    with hf.Holdfast(stage.store) as app, pytest.raises(hf.RunWaiting):
        app.run(scope["transfer"], 500, run_id="pay-1", tags={"customer": "7"}, wait=False)
    return stage


def approve(stage: Stage) -> None:
    [item] = stage.document("inbox")["items"]
    assert stage.told(*shlex.split(item["commands"][0])[1:]).startswith("the run is ready to go on")


def test_the_inbox_lists_a_question_with_the_command_that_answers_it(stage: Stage) -> None:
    [item] = stage.document("inbox")["items"]
    assert (item["kind"], item["call"], item["tags"]) == ("approval", "transfer(cents=500)", {"customer": "7"})
    assert item["commands"] == ["holdfast answer pay-1/approve:2 yes", "holdfast answer pay-1/approve:2 no"]
    assert "holdfast answer pay-1/approve:2 yes" in stage.told("show", "pay-1")
    assert "wire(cents=500)" in stage.told("show", "pay-1").splitlines()[0]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("pay-1", "yes"), 2, "is not RUN/QUESTION"),
        (("pay-1/approve:2", "maybe"), 1, '"maybe" is not what is asked for: yes or no; nothing was changed'),
        (("pay-1/approve:9", "yes"), 1, "has no question 'approve:9'"),
        (("pay-2/approve:2", "yes"), 1, "did you mean pay-1?"),
    ],
)
def test_an_answer_that_fits_nothing_changes_nothing(stage: Stage, words: tuple[str, ...], code: int, said: str) -> None:
    found, _, err = stage.give("answer", *words)
    assert (found, said in err) == (code, True)
    assert stage.status("pay-1") == "waiting"


def test_a_no_is_recorded_with_who_and_why_and_the_effect_is_not_executed(stage: Stage) -> None:
    stage.told("answer", "pay-1/approve:2", "no", "--by", "ann", "--reason", "too much")
    assert "approve:2: ann: no (too much)" in stage.told("history", "pay-1")
    assert stage.document("resume", "pay-1", "--here", str(stage.shop), code=1)["error"]["type"] == "Refused"


FUNCTION = "def holdfast_resources(): return [Bank()]"


@pytest.mark.parametrize("text", [FUNCTION, f"async {FUNCTION}", "HOLDFAST_RESOURCES = [Bank()]"])
def test_the_file_hands_resources_to_its_agents(stage: Stage, text: str) -> None:
    approve(stage)
    stage.shop.write_text(f"{WIRE}\n{text}\n")
    assert stage.document("resume", "pay-1", "--here", str(stage.shop))["result"] == "wired 500 by Bank"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def holdfast_resources(): return Bank()", "are Bank, not a list of objects"),
        ("def holdfast_resources(): raise OSError('no line')", "holdfast_resources() of"),
        ("import asyncio\ndef holdfast_resources(): return [asyncio.get_running_loop()]", "Write `async def holdfast_resources()`"),
        ("HOLDFAST_RESOURCES = 7", "are int, not a list of objects"),
        ("hf.run(transfer, 1, run_id='other')", "put hf.run(...) under `if __name__ == '__main__':`"),
        ("with hf.Holdfast('new.db') as app:\n    app.run(transfer, 1)", "put hf.run(...) under"),
        ("import asyncio, holdfast\nasyncio.run(holdfast.start(transfer, 1))", "put hf.run(...) under"),
    ],
)
def test_a_file_whose_resources_or_bare_run_are_no_use_changes_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(stage.folder)
    monkeypatch.setenv("HOLDFAST_STORE", str(stage.folder / "other.db"))
    approve(stage)
    before = stage.records("pay-1")
    stage.shop.write_text(f"{WIRE}\n{text}\n")
    code, _, err = stage.give("resume", "pay-1", "--here", str(stage.shop), "--reason", "try")
    assert (code, said in err, "the run is unchanged" in err) == (1, True, True)
    assert stage.records("pay-1") == before
    assert not (stage.folder / "other.db").exists()


def test_show_has_the_state_shortened_and_at_a_step_all_of_it(stage: Stage) -> None:
    line = next(line for line in stage.told("show", "pay-1").splitlines() if "state 1" in line)
    assert line.endswith("...")
    assert "state /state.1" not in stage.told("show", "pay-1", "--at", "1")
    assert "is fine, " * 30 in stage.document("show", "pay-1")["run"]["state"]["/state.1"]["seen"][0]


def test_a_blocked_run_says_what_does_not_fit_and_how_to_go_on(stage: Stage) -> None:
    approve(stage)
    stage.shop.write_text(WIRE.replace('look("the account")', 'look("the other account")'))
    code, _, _ = stage.give("resume", "pay-1", "--here", str(stage.shop))
    assert code == 1
    text = stage.told("show", "pay-1")
    assert text.startswith('blocked: step 1 was look(what="the account") when it was recorded; the code now calls look(what="the other')
    assert "holdfast resume pay-1 --here OLD_APP.py" in text
    assert "holdfast cancel pay-1" in text
    assert "blocked, by" not in text
    assert stage.told("runs").rstrip().endswith("...")


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_nothing_that_is_to_be_copied_is_cut(stage: Stage, columns: int) -> None:
    @hf.step(call_id="call_0_of_the_model_that_has_long_ids")
    def tool(text: str) -> str:
        return text * 3

    @hf.agent
    def chat() -> None:
        tool("hello there, this is a long argument of a tool " * 3)

    long_id = "a-run-with-a-rather-long-id-2026-11-15-customer-7"
    with hf.Holdfast(stage.store) as app:
        app.run(chat, run_id=long_id)
        step_id = next(line.step_id for line in app.history(long_id) if line.call)
    runs, history = (
        STYLE.sub("", on_a_terminal(*words, "--store", str(stage.store), columns=columns)) for words in (("runs",), ("history", long_id))
    )
    assert any(line.startswith(f"{long_id}  ") for line in runs.splitlines())
    assert f"  {step_id}  done" in history
    assert "TRY" not in history
    assert '"hello there, this is' in history
    assert max(len(line) for line in (runs + history).splitlines()) <= columns


WAITING = """
import holdfast as hf
import holdfast.sync as hfs
from typing import Literal

@hf.agent
def waiting() -> str:
    return f"{hfs.ask('colour?', Literal['red', 'blue'])} {hfs.receive('note', dict)}"
"""


def test_what_an_agent_asks_and_receives_is_given_on_the_command_line(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "waiting.py"
    file.write_text(WAITING)
    space: dict[str, Any] = {}
    exec(compile(WAITING, str(file), "exec"), space)
    with pytest.raises(hf.RunWaiting):
        hf.run(space["waiting"], run_id="w", store=stage.store, wait=False)
    code, _, err = stage.give("answer", "w/1", "green")
    assert (code, '"green" is not what is asked for: "red" | "blue"; nothing was changed' in err) == (1, True)
    assert stage.told("answer", "w/1", "blue", "--by", "ann").startswith("the run is ready")
    for told in ("is kept until the run receives 'note'", "a message with key 'k-1' was sent before; nothing was sent"):
        assert told in stage.told("send", "w", "note", '{"a": 1}', "--key", "k-1")
    assert stage.document("resume", "w", "--here", str(file))["result"] == "blue {'a': 1}"
    assert stage.give("send", "w", "note")[0] == 1


SHY = """
import holdfast.sync as hf
from typing import Literal

@hf.agent
def shy(how: str) -> str:
    if how == "asks":
        return hf.ask("Which tone?", Literal["dry", "very warm"], details={"text": "Kelp is up"}, who="ann")
    if how == "receives":
        return hf.receive("parcel", str)
    hf.sleep(3600)
    return "slept"
"""


@pytest.fixture
def shy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    """Runs that wait: for ann, for a message, for a time."""
    stage, scope = Stage(tmp_path, capsys), dict[str, Any](__name__="app")
    exec(compile(SHY, "shy.py", "exec"), scope)
    with hf.Holdfast(stage.store) as app:
        for how in ("asks", "receives", "sleeps"):
            with pytest.raises(hf.RunWaiting):
                app.run(scope["shy"], how, run_id=how, wait=False)
    return stage


def test_what_is_shown_with_a_question_is_shown_wherever_it_is(shy: Stage) -> None:
    [item] = shy.document("inbox")["items"]
    assert (item["details"], item["who"], item["wants"]) == ({"text": "Kelp is up"}, ["ann"], '"dry" | "very warm"')
    assert shy.document("show", "asks", "--at", "1")["at"]["arguments"]["details"] == {"text": "Kelp is up"}
    for words in (("inbox",), ("show", "asks"), ("show", "asks", "--at", "1")):
        assert "Kelp is up" in shy.told(*words)
    assert shy.told("show", "asks", "--at", "1").startswith("step 1: asked")


@pytest.mark.parametrize("topic", ["ask", "approval"])
def test_a_question_says_until_when_it_can_be_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str], topic: str) -> None:
    @hf.effect(in_doubt="ask", approve="24h")
    def wire() -> str:
        return "wired"

    @hf.agent
    def hurried() -> str:
        return hf.ask("Which?", str, timeout="24h", default="blue") if topic == "ask" else wire()

    stage = Stage(tmp_path, capsys)
    with hf.Holdfast(stage.store) as app, pytest.raises(hf.RunWaiting):
        app.run(hurried, run_id="r", wait=False)
    [item], found = stage.document("inbox")["items"], stage.document("show", "r")["run"]
    assert abs(item["until_us"] - item["since_us"] - 86_400_000_000) < 60_000_000
    assert (found["until_us"], found["until"]) == (item["until_us"], item["until"])
    for words in (("inbox",), ("show", "r")):
        [line] = [line.split() for line in stage.told(*words).splitlines() if line.strip().startswith("until")]
        assert " ".join(line) == f"until {local(item['until_us'])} (in 23 h), then it goes on without an answer"
    assert f"until {item['until'][:10]}" in stage.told("history", "r")


def test_a_question_without_an_end_says_none(shy: Stage) -> None:
    [item] = shy.document("inbox")["items"]
    assert (item["until_us"], item["until"], shy.document("show", "asks")["run"]["until_us"]) == (None, None, None)
    assert not any(line.strip().startswith("until") for line in shy.told("inbox").splitlines())


def test_every_command_of_a_question_can_be_pasted(shy: Stage) -> None:
    commands = [line.strip() for line in shy.told("inbox").splitlines() if line.startswith("  holdfast")]
    ends = [" --by ann --store " + shlex.quote(str(shy.store))] * 2
    assert commands == [f"holdfast answer asks/1 {word}{end}" for word, end in zip(("dry", "'very warm'"), ends, strict=True)]
    [item] = shy.document("inbox")["items"]
    assert shy.told(*shlex.split(item["commands"][1])[1:]).startswith("the run is ready to go on")


@pytest.mark.parametrize(
    ("run_id", "says", "following"),
    [
        ("receives", "waiting for message parcel\n", "holdfast send receives parcel VALUE"),
        ("sleeps", "waiting: sleeps until ", "holdfast history sleeps"),
    ],
)
def test_a_run_that_no_person_can_help_says_what_it_waits_for(shy: Stage, run_id: str, says: str, following: str) -> None:
    found = shy.document("show", run_id)["run"]
    assert (found["asks"], found["next_commands"]) == (False, [following])
    assert shy.told("show", run_id).startswith(says)


def test_a_run_that_was_sent_its_message_can_be_resumed(shy: Stage) -> None:
    shy.told("send", "receives", "parcel", '"here"')
    found = shy.document("show", "receives")["run"]
    assert found["next_commands"] == ["holdfast resume receives --here APP.py"]
    assert found["waits"] == "message 'parcel' has come: it can go on"


def test_a_message_of_another_name_is_kept_and_does_not_pass_for_the_awaited_one(shy: Stage) -> None:
    told = shy.told("send", "receives", "parcle", '"here"')
    assert told == "the message is kept until the run receives 'parcle'; now it waits for 'parcel'\n"
    assert shy.document("show", "receives")["run"]["next_commands"] == ["holdfast send receives parcel VALUE"]
    assert shy.told("send", "receives", "parcel", '"here"') == "the message is kept until the run receives 'parcel'\n"
