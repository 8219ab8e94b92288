"""Looking where a store would be: a dry run of `move` and `copy` makes nothing, and says what the real command would say."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import holdfast as hf
from cli_stage import Stage, staged
from holdfast.cli.exits import Exit
from holdfast.errors import StoreError, StoreForeign
from holdfast.stores.opening import open_store
from holdfast.stores.planning import PlannedStore, open_planned
from object_server import BUCKET

PLACES = ["dry/", "dry.db", "new/deep.db", "empty/"]


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    return staged(tmp_path / "stage", capsys)


def there(folder: Path) -> list[str]:
    """Everything below a folder, but for what SQLite keeps beside a file that is open."""
    return sorted(str(each) for each in folder.rglob("*") if not each.name.endswith(("-wal", "-shm")))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("words", [("move", "waiting"), ("copy", "failed"), ("copy", "done"), ("copy", "done.holdfast")])
def test_a_dry_run_makes_nothing(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], place: str
) -> None:
    (tmp_path / "empty").mkdir()
    stage.told("copy", "done", "--to", str(tmp_path / "done.holdfast"))
    monkeypatch.chdir(tmp_path)
    before = there(tmp_path)
    assert "would be" in stage.told(*words, "--to", place, "--dry-run")
    assert there(tmp_path) == before
    stage.told(*words, "--to", place)
    assert there(tmp_path) != before, "or this would notice nothing"


def test_a_dry_run_makes_no_schema(stage: Stage, postgres_url: str) -> None:
    schema = f"t_{secrets.token_hex(6)}"
    with closing(psycopg.connect(postgres_url, autocommit=True)) as admin:
        assert f"schema={schema}" in stage.told("move", "waiting", "--to", f"{postgres_url}?schema={schema}", "--dry-run")
        assert admin.execute("SELECT to_regnamespace(%s) IS NULL", (schema,)).fetchall() == [(True,)]
        stage.told("move", "waiting", "--to", f"{postgres_url}?schema={schema}")
        assert admin.execute("SELECT to_regnamespace(%s) IS NULL", (schema,)).fetchall() == [(False,)]


def test_nothing_is_put_into_a_bucket_and_a_missing_one_is_said(object_endpoint: str) -> None:
    url = f"s3://{BUCKET}/p{secrets.token_hex(6)}?endpoint={object_endpoint}"
    for _ in range(2):
        with closing(open_planned(url)) as store:
            assert (type(store), store.url) == (PlannedStore, url)
    open_store(url).close()
    with closing(open_planned(url)) as store:
        assert type(store) is not PlannedStore
    with pytest.raises(StoreError, match="there is no bucket"):
        open_planned(url.replace(BUCKET, "nowhere-at-all"))


@pytest.mark.parametrize("place", ["no/such/runs.db", "no/such/", "a.txt/runs.db", "a.txt/runs/"])
def test_a_place_where_no_store_can_be_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("mine")
    for opening in (open_planned, open_store):
        with pytest.raises(StoreError, match=r"there is no folder \S+no;|a\.txt is a file, not a folder"):
            opening(place)
    assert there(tmp_path) == [str(tmp_path / "a.txt")]


def test_what_is_there_is_opened_or_refused_as_it_would_be(tmp_path: Path) -> None:
    open_store(tmp_path / "runs.db").close()
    with closing(open_planned(tmp_path / "runs.db")) as store:
        assert type(store) is not PlannedStore
    with pytest.raises(StoreForeign, match="holds other things"):
        open_planned(f"{tmp_path}/")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    for place in ("runs.db", "runs/"):
        with pytest.raises(hf.StoreError, match="not writable"):
            open_planned(f"{tmp_path}/{place}")


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_a_run_that_was_moved_elsewhere_is_refused_and_nothing_is_made(stage: Stage, tmp_path: Path, words: list[str]) -> None:
    stage.told("move", "waiting", "--to", str(tmp_path / "other.db"))
    code, _, said = stage.give("move", "waiting", "--to", str(tmp_path / "q.db"), *words)
    assert (code, "was moved to" in said) == (Exit.REFUSED, True)
    assert not (tmp_path / "q.db").exists()
    assert "it was moved before" in stage.told("move", "waiting", "--to", str(tmp_path / "other.db"), *words)


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_a_copy_that_is_there_already_is_said(stage: Stage, tmp_path: Path, words: list[str]) -> None:
    file, other = str(tmp_path / "done.holdfast"), str(tmp_path / "other.db")
    for each in (["copy", "done", "--to", file], ["copy", file, "--to", other], ["copy", "failed", "--to", other]):
        stage.told(*each)
    assert "is copied to" in stage.told("copy", file, "--to", other, *words)
    assert "already, as it is: done" in stage.told("copy", file, "--to", other, *words)
    assert "already as failed.f1" in stage.told("copy", "failed", "--to", other, *words)
    code, _, said = stage.give("copy", "done", "--to", file, *words)
    assert (code, "there is a file of that name already" in said) == (Exit.STORE, True)
    code, _, said = stage.give("copy", "failed", "--to", other, "--id", "done", *words)
    assert (code, "there is a run 'done'" in said) == (Exit.REFUSED, True)
