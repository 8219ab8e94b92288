"""`holdfast move` and `holdfast copy`: what they say, what they refuse, and what a script reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli_stage import Stage, staged
from holdfast import Holdfast
from holdfast.cli import main, moving
from holdfast.cli.exits import Exit


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    return staged(tmp_path / "stage", capsys)


def status(place: Path, run_id: str) -> str:
    with Holdfast(place) as app:
        return app.show(run_id).status


def test_a_run_is_moved_and_both_places_say_so(stage: Stage, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    assert "would be moved" in stage.told("move", "waiting", "--to", str(other), "--dry-run")
    assert stage.status("waiting") == "waiting"
    said = stage.told("move", "waiting", "--to", str(other), "--reason", "a bigger machine", "--by", "ann")
    assert f"waiting is in sqlite:///{other} now, and closed here" in said
    assert f"holdfast show waiting --store sqlite:///{other}" in said
    assert (stage.status("waiting"), status(other, "waiting")) == ("moved", "waiting")
    assert "it was moved before" in stage.told("move", "waiting", "--to", str(other))
    page = stage.told("show", "waiting")
    assert f"holdfast show waiting --store sqlite:///{other}" in page
    assert page.count("--store") == 1
    code, _, err = stage.give("resume", "waiting")
    assert (code, f"was moved to sqlite:///{other}" in err) == (Exit.REFUSED, True)
    assert "by ann: to" in stage.told("history", "waiting")


def test_what_was_sealed_is_in_the_inbox_and_is_taken_back(stage: Stage, tmp_path: Path) -> None:
    from holdfast.moving import moving as moving_room

    with Holdfast(stage.store) as app, Holdfast(tmp_path / "other.db") as other:
        order = moving_room.ordered(app.engine, other.store, "failed", by="ann", reason="")
        list(moving_room._sealed(order, "t"))
    inbox = stage.document("inbox")
    item = next(each for each in inbox["items"] if each["run_id"] == "failed")
    assert item["kind"] == "move"
    assert [command.split()[:3] for command in item["commands"]] == [["holdfast", "move", "failed"]] * 2
    assert "is taken back: it is failed here, as before" in stage.told("move", "failed", "--back")
    assert stage.give("move", "failed", "--back")[0] == Exit.REFUSED


def test_a_script_reads_what_was_moved_and_copied(stage: Stage, tmp_path: Path) -> None:
    other, file = str(tmp_path / "other.db"), str(tmp_path / "done.holdfast")
    copied = stage.document("copy", "done", "--to", file)["copy"]
    assert (copied["run_id"], copied["to"], copied["done"], len(copied["digest"])) == ("done", file, True, 64)
    checked = stage.document("copy", file, "--dry-run")["copy"]
    assert (checked["digest"], checked["done"]) == (copied["digest"], False)
    moved = stage.document("move", "done", "--to", other)["move"]
    assert (moved["runs"], moved["done"], moved["to"]) == (["done"], True, f"sqlite:///{other}")
    error = stage.document("move", "done", "--to", str(tmp_path / "third.db"), code=Exit.REFUSED)["error"]
    assert error["type"] == "RunMoved"


def test_a_copy_goes_into_a_file_and_comes_back_elsewhere(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "failed.holdfast", tmp_path / "other.db"
    said = stage.told("copy", "failed", "--to", str(file))
    assert f"failed is copied to {file}" in said
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    assert main(["copy", str(file), "--to", str(other)]) == Exit.FINE
    out = capsys.readouterr().out
    assert "as failed.f1, a fork of it that goes on from step 1" in out
    assert f"holdfast resume failed.f1 --here APP.py --store sqlite:///{other}" in out
    assert status(other, "failed.f1") == "queued"
    assert main(["copy", str(file), "--store", str(stage.store), "--id", "again"]) == Exit.FINE
    assert "as again" in capsys.readouterr().out
    assert "done is copied to" in stage.told("copy", "done", "--to", str(other))


def test_a_damaged_archive_has_the_exit_code_of_damage(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "done.holdfast"
    stage.told("copy", "done", "--to", str(file))
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    assert stage.give("copy", str(file))[0] == Exit.DAMAGED
    file.write_bytes(data[:50])
    assert stage.give("copy", str(file))[0] == Exit.STORE


@pytest.mark.parametrize(
    "words",
    [["move", "done"], ["move", "done", "--to", "x.db", "--back"], ["move", "done", "--back", "--dry-run"], ["copy", "done"]],
)
def test_commands_that_cannot_be_understood(stage: Stage, words: list[str]) -> None:
    assert stage.give(*words)[0] == Exit.USAGE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["copy", "done", "--to", "x.zip"], "the name of an archive, which holdfast copy writes, ends in .holdfast"),
        (["copy", "done.holdfast", "--to", "b.holdfast"], "this is the name of an archive"),
        (["move", "done", "--to", "x.holdfast"], "holdfast copy writes, and reads back into a store"),
        (["move", "done", "--to", "trip.py"], "this is a file, and no database"),
    ],
)
def test_an_archive_and_a_file_are_not_taken_for_a_store(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    stage.told("copy", "done", "--to", str(tmp_path / "done.holdfast"))
    (tmp_path / "trip.py").write_text("import holdfast")
    monkeypatch.chdir(tmp_path)
    code, _, err = stage.give(*words)
    assert (code, said in " ".join(err.split())) == (Exit.STORE, True)
    assert "did you mean" not in err


def test_a_run_that_came_or_went_is_said_in_words(stage: Stage, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    failed = stage.told("show", "failed").partition("\n")[0]
    for run_id in ("dead", "failed"):
        stage.told("move", run_id, "--to", str(other))
        assert stage.told("show", run_id).startswith(f"moved to sqlite:///{other}\n")
    stage.store = other
    assert f"nobody runs it; it came from sqlite:///{stage.folder / 'runs.db'}" in stage.told("show", "dead")
    assert stage.told("show", "failed").partition("\n")[0] == failed, "it stands as it stood"


def test_what_was_edited_is_said_at_its_step(stage: Stage) -> None:
    assert "edited" not in stage.told("show", "failed", "--at", "1")
    stage.told("edit", "failed", "1", "--value", '["blue"]', "--by", "ann", "--reason", "sold out")
    said = stage.told("show", "failed", "--at", "1")
    assert "edited" in said
    assert 'ann: ["blue"] (sold out)' in said


def test_the_pages_name_children_artifacts_and_letters() -> None:
    from holdfast.moving.moving import Moving

    found = Moving(
        run_id="r", source="a", to="b", runs=["r", "r.1"], records=1200, artifacts=2, artifact_bytes=5000, letters=3, status="waiting",
        done=False,
    )  # fmt: skip
    said = json.dumps([str(block) for block in moving.moving_page(found)])
    for word in ("with 1 child run", "1,200", "2, 5,000 bytes", "3, which go along"):
        assert word in said
