"""`holdfast pause`, `resume` and `cancel` of more than one run: what they say, what they ask, and what they refuse."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import holdfast as hf
from cli_stage import Stage, staged
from holdfast.cli import stopping


@hf.agent
def buys(number: int) -> int:
    return number


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    """Beside the runs of the stage, three in line in a queue of their own."""
    stage = staged(tmp_path, capsys)
    with hf.Holdfast(stage.store) as app:
        for number in range(3):
            app.submit(buys, number, run_id=f"buys-{number}", queue="mail", tags={"nr": f"{number}"})
    return stage


def statuses(stage: Stage) -> dict[str, str]:
    return {run["run_id"]: run["status"] for run in stage.document("runs", "--of-queue", "mail")["runs"]}


# --- a queue and the fleet ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "named"), [(("--queue", "mail"), "Queue mail"), (("--fleet",), "The fleet")])
def test_what_is_paused_is_told_wherever_one_looks_with_the_command_that_lifts_it(
    stage: Stage, words: tuple[str, ...], named: str
) -> None:
    assert stage.told("pause", *words, "--by", "ann", "--reason", "look").startswith(f"{named} is paused: ")
    lifting = f"  holdfast resume {' '.join(words)} --store {stage.store}"
    for looking in (("runs",), ("inbox",), ("workers",), ("show", "buys-1")):
        lines = stage.told(*looking).splitlines()
        assert lines[-1] == lifting
        assert lines[-2].startswith(f"{named} was paused ")
        assert "ago by ann: look. Workers take no run" in lines[-2] or "just now by ann: look. Workers take no run" in lines[-2]
    assert "paused already, by ann: look" in stage.told("pause", *words)
    assert statuses(stage) == dict.fromkeys(["buys-0", "buys-1", "buys-2"], "queued")
    assert stage.told("resume", *words) == f"{named} goes on by itself\n"
    assert stage.told("resume", *words) == f"{named} is not paused; nothing was changed\n"
    assert "paused" not in stage.told("runs")


def test_a_run_that_is_not_concerned_does_not_tell_of_it(stage: Stage) -> None:
    stage.told("pause", "--queue", "mail")
    assert "Queue mail" not in stage.told("show", "waiting")
    stage.told("pause", "--fleet")
    assert "The fleet" not in stage.told("show", "done")
    assert "The fleet" in stage.told("show", "waiting")


def test_documents_hold_what_is_held(stage: Stage) -> None:
    assert stage.document("runs")["held"] == stage.document("workers")["held"] == []
    said = stage.document("pause", "--queue", "mail", "--now", "--by", "ann")
    (one,) = said["held"]
    assert (one["queue"], one["by"], one["reason"], one["now"]) == ("mail", "ann", "", True)
    assert one["since"].endswith("Z")
    for looking in (("runs",), ("inbox",), ("workers",), ("show", "buys-1")):
        assert stage.document(*looking)["held"] == [one]


# --- many runs ------------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_what_would_be_touched_and_then_it_is(stage: Stage) -> None:
    text = stage.told("pause", "--of-queue", "mail", "--dry-run")
    assert text.startswith("3 runs would be paused; nothing is changed yet\n")
    assert all(f"buys-{number}" in text for number in range(3))
    assert set(statuses(stage).values()) == {"queued"}
    assert stage.told("pause", "--of-queue", "mail", "--tag", "nr=1").startswith("1 run paused\n")
    assert statuses(stage) == {"buys-0": "queued", "buys-1": "paused", "buys-2": "queued"}
    assert stage.told("resume", "--agent", "buys").startswith("1 run resumed\n")
    assert stage.told("cancel", "--agent", "buys", "--reason", "night").startswith("3 runs cancelled\n")
    assert set(statuses(stage).values()) == {"cancelled"}
    assert stage.told("pause", "--agent", "buys") == "no run matches; nothing was changed\n"


def test_some_that_fail_are_told_first_and_by_the_exit_code(stage: Stage) -> None:
    stage.told("cancel", "buys-2")
    text = stage.told("cancel", "--of-queue", "mail", "--status", "queued", "--status", "cancelled", code=1)
    assert text.startswith("2 runs cancelled, 1 run not\n")
    assert text.splitlines()[2].startswith("buys-2")
    assert "run 'buys-2' is cancelled and stays so" in text.splitlines()[2]
    found = stage.document("cancel", "--of-queue", "mail", "--status", "cancelled", code=1)
    assert (found["chosen"], found["refused"], found["done"]) == (3, 3, True)
    assert all("stays so" in one["refused"] for one in found["runs"])


def test_more_than_the_limit_are_left_and_counted(stage: Stage) -> None:
    text = stage.told("pause", "--agent", "buys", "--limit", "1")
    assert text.startswith("1 run paused\n")
    assert text.endswith("2 more runs match, and are left as they are: say the same again, or --limit N\n")
    assert stage.document("pause", "--agent", "buys", "--limit", "1")["left"] == 1


@hf.step
def looks(what: str) -> str:
    return what


def blocked_by_a_deploy(stage: Stage, *ids: str) -> None:
    """Runs that executed the code of before, and then met another one."""
    version = "old"

    @hf.agent(name="deployed")
    def deployed() -> str:
        looks(version)
        raise hf.NotLanded("the process ends here")

    with hf.Holdfast(stage.store) as app:
        for error in (hf.NotLanded, hf.ReplayMismatch):
            for run_id in ids:
                with pytest.raises(error):
                    app.run(deployed, run_id=run_id)
            version = "new"


def test_what_a_deploy_changed_is_accepted_for_all_runs_that_it_blocks(stage: Stage) -> None:
    blocked_by_a_deploy(stage, "d-1", "d-2", "d-3")
    words = ("resume", "--agent", "deployed", "--accept", "--by", "ann")
    looked = stage.told(*words, "--dry-run")
    assert looked.startswith("3 runs would be resumed with what changed; nothing is changed yet\n")
    assert looked.count("ReplayMismatch") == 3
    assert stage.document(*words)["refused"] == 0
    assert {run["run_id"]: run["status"] for run in stage.document("runs", "--agent", "deployed")["runs"]} == dict.fromkeys(
        ["d-1", "d-2", "d-3"], "queued"
    )
    assert stage.told(*words) == "no run matches; nothing was changed\n"


def test_a_run_that_nothing_changed_for_is_not_resumed_by_accepting(stage: Stage) -> None:
    blocked_by_a_deploy(stage, "d-1")
    code, out, _ = stage.give("resume", "--status", "blocked", "--status", "queued", "--accept")
    assert (code, out.startswith("1 run resumed with what changed, 3 runs not\n")) == (1, True)
    assert set(statuses(stage).values()) == {"queued"}


@pytest.mark.parametrize("said", ["n\n", "y\n"])
def test_a_person_is_asked_first(stage: Stage, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(stopping, "is_terminal", lambda stream: stream is not sys.stderr)
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    code, out, err = stage.give("cancel", "--agent", "buys")
    assert "Cancel 3 runs (buys-0, buys-1, buys-2)?" in out
    assert (code, "nothing was changed" in err) == ((1, True) if said == "n\n" else (0, False))
    assert set(statuses(stage).values()) == {"queued" if said == "n\n" else "cancelled"}


MISUNDERSTOOD = [
    (("pause",), "name a RUN, or say --queue NAME or --fleet, or choose runs with --status, --agent, --tag, --idle or --of-queue"),
    (("resume",), "name a RUN, or say --queue NAME or --fleet"),
    (("cancel",), "name a RUN, or choose runs with --status"),
    (("cancel", "--queue", "mail"), "No such option: --queue"),
    (("cancel", "--dry-run"), "name a RUN, or choose"),
    (("pause", "buys-1", "--agent", "buys"), "not both"),
    (("pause", "buys-1", "--dry-run"), "--dry-run: it is for runs that filters choose"),
    (("cancel", "buys-1", "--yes"), "--yes: it is for runs that filters choose"),
    (("pause", "--queue", "mail", "--fleet"), "say only one of"),
    (("pause", "--queue", "mail", "--status", "queued"), "say --of-queue NAME"),
    (("pause", "buys-1", "--queue", "mail"), "it goes with no RUN and no filter"),
    (("pause", "--fleet", "--dry-run"), "--dry-run: --fleet touches no run by itself"),
    (("resume", "--queue", "mail", "--limit", "3"), "--limit: --queue touches no run by itself"),
    (("resume", "--fleet", "--reason", "x"), "is forgotten when it is lifted"),
    (("resume", "--agent", "buys", "--here", "shop.py"), "--here: it is for one run: name it"),
    (("resume", "--fleet", "--accept"), "--accept: it is for one run: name it"),
    (("cancel", "--agent", "buys", "--here", "shop.py"), "--here: it is for one run: name it"),
    (("pause", "--status", "asleep"), "'asleep' is not a status"),
    (("runs", "--due", "--of-queue", "mail"), "--due goes with --agent and --limit only"),
]


def test_what_is_not_understood_changes_nothing(stage: Stage) -> None:
    for words, told in MISUNDERSTOOD:
        code, _, err = stage.give(*words)
        assert (code, told in err) == (2, True), (words, err)
    assert set(statuses(stage).values()) == {"queued"}
    assert stage.document("runs")["held"] == []


def test_a_store_that_cannot_hold_a_queue_back_says_so(tmp_path: Path, stage: Stage) -> None:
    with hf.Holdfast(f"{tmp_path}/folder/") as app:
        app.submit(buys, 1, run_id="one")
    stage.store = tmp_path / "folder"
    code, _, err = stage.give("pause", "--queue", "mail")
    assert (code, "cannot hold back a queue or a fleet; nothing was changed" in err) == (1, True)
    assert stage.told("pause", "--agent", "buys").startswith("1 run paused\n")
