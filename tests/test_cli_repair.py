"""`check --repair`: shown first, then done; a run that was repaired goes on when an operator says so."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import holdfast as hf
from cli_stage import Stage, staged


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    stage = staged(tmp_path, capsys)
    connection = apsw.Connection(str(stage.store))
    connection.execute("UPDATE journal SET body = CAST(CAST(body AS TEXT) || ' ' AS BLOB) WHERE run_id = 'done' AND seq = 3")
    connection.close()
    return stage


def test_check_names_what_is_good_and_the_command_that_shows_a_repair(stage: Stage) -> None:
    text = stage.told("check", "done", code=4)
    assert "its records 1 to 2 are good, up to step 1, search" in text
    assert "holdfast check done --repair --dry-run --store" in text
    assert stage.document("check", "done", code=4)["runs"][0]["checkpoint"] == "step 1, search"


def test_a_dry_run_shows_and_changes_nothing(stage: Stage) -> None:
    before = stage.store.read_bytes()
    text = stage.told("check", "done", "--repair", "--dry-run")
    assert text.startswith("run done would be repaired; nothing is changed yet\n")
    assert "moved aside   4 records and the head as it was" in text
    assert 'in doubt: step 3, charge(order="done", cents=500): its records were damaged' in text
    assert "At least 1 record could not be read: an effect may have happened that is not known" in text
    assert text.endswith(f"holdfast check done --repair --store {stage.store}\n")
    assert stage.store.read_bytes() == before


def test_a_repaired_run_goes_on_after_its_doubt_is_settled(stage: Stage) -> None:
    text = stage.told("check", "done", "--repair", "--by", "ann", "--reason", "the disk")
    assert text.startswith("run done was repaired\n")
    assert stage.told("check", "--all").endswith("no damage\n")
    assert stage.told("show", "done").startswith("blocked: repaired: its records from 3 on were lost")
    assert "by ann: record 3 was damaged" in stage.told("history", "done")
    assert {item["kind"] for item in stage.document("inbox")["items"] if item["run_id"] == "done"} == {"doubt", "blocked"}
    stage.told("resolve", "done", "3", "--landed", '"r-done"')
    assert stage.document("resume", "done", "--here", str(stage.shop))["result"] == "r-done"


def test_resuming_here_is_an_operators_word(stage: Stage) -> None:
    stage.told("check", "done", "--repair")
    assert "did charge" in stage.give("resume", "done", "--here", str(stage.shop), "--no-wait")[2]
    assert stage.status("done") == "waiting"


def test_the_word_on_what_could_not_be_read(stage: Stage) -> None:
    assert "an effect that is not on record counts as one in doubt" in stage.told("check", "done", "--repair")
    shown = stage.told("show", "done")
    assert "unknown" in shown
    assert f"holdfast resume done --effects repeat --store {stage.store}" in shown
    assert stage.give("resume", "done", "--effects", "repeat", "--accept")[0] == 2
    assert stage.give("resume", "--status", "blocked", "--effects", "repeat")[0] == 2
    assert stage.give("resume", "done", "--effects", "reuse")[0] == 1
    stage.told("resume", "done", "--effects", "repeat", "--by", "ann", "--reason", "seen")
    assert "resume by ann: seen; effects that are not on record did not happen" in stage.told("history", "done")
    assert "unknown" not in stage.told("show", "done")
    assert stage.give("resume", "done", "--effects", "repeat")[0] == 1


def test_as_json_the_repair_is_one_document(stage: Stage) -> None:
    shown = stage.document("check", "done", "--repair", "--dry-run")["repair"]
    done = stage.document("check", "done", "--repair")["repair"]
    assert (shown["done"], done["done"]) == (False, True)
    assert {**shown, "done": True} == done
    assert (done["bad_seq"], done["keeps"], done["moved"], done["unreadable"], done["status"]) == (3, 2, 4, 1, "blocked")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("check", "--all", "--repair"), 2),
        (("check", "done", "--dry-run"), 2),
        (("check", "waiting", "--repair"), 1),
        (("check", "nobody", "--repair"), 1),
    ],
)
def test_what_cannot_be_repaired_is_refused(stage: Stage, words: tuple[str, ...], code: int) -> None:
    assert stage.give(*words)[0] == code


def test_findings_of_the_store_are_shown_once_for_all(stage: Stage) -> None:
    with hf.Holdfast(stage.store) as app:
        app.store.post("nobody", "cancel", b"{}", 1)
    text = stage.told("check", "--all", code=4)
    assert text.startswith("the store: letter 1 is addressed to run nobody, which is not there\n")
    assert stage.document("check", "--all", code=4)["problems"] == ["letter 1 is addressed to run nobody, which is not there"]
