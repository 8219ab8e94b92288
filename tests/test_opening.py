"""Opening a store by what a user writes: every form, and for each mistake whose it is, what is true now, and what to do."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import traceback
from contextlib import closing
from pathlib import Path

import pytest

import holdfast as hf
from cli_stage import command
from holdfast.errors import StoreError, StoreForeign, StoreReadOnly
from holdfast.stores import opening
from holdfast.stores.files import FilesStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.opening import KINDS, kind_of, open_store, place_of, without_password
from test_bad_input import snapshot, without_privileges

SECRET = "s3cret"
READ_ONLY = """
import sys
from holdfast.stores.opening import open_store
try:
    open_store(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
"""


def refusal(url: str) -> StoreError:
    with pytest.raises(StoreError) as caught:
        open_store(url)
    said = f"{caught.value!r} {''.join(traceback.format_exception(caught.value))}"
    assert SECRET not in said
    return caught.value


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("postgre://a:s3cret@b/c", "postgres://..."),
        ("postgressql://a:s3cret@b/c", "postgresql://..."),
        ("postgresql+psycopg://a:s3cret@b/c", "postgresql://..."),
        ("PostgreSQL://a:s3cret@b/c", "postgresql://..."),
        ("sqllite:///runs.db", "sqlite:///..."),
        ("sqlite://runs.db", "sqlite:///..."),
        ("sqlite:runs.db", "sqlite:///..."),
        ("Memory:", "memory:"),
        ("memory:x", "memory:"),
        ("file:/var/runs", "file:///..."),
        ("file://host/runs", "file:///..."),
        ("runs", "runs.db, or runs/"),
        ("runs.sqlite3", "sqlite:///runs.sqlite3"),
    ],
)
def test_the_nearest_form_is_suggested_and_nothing_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"did you mean {meant}? As it stands, this names no store that is known; nothing was opened" in str(refusal(written))
    assert list(tmp_path.iterdir()) == []


def test_the_words_of_libpq_are_not_repeated() -> None:
    assert "s3cret" not in str(refusal("host=db user=ann password=s3cret"))


@pytest.mark.parametrize("written", ["mysql://me:s3cret@host/db", "oracle://me:s3cret@h", "ftp://x", "", "a:s3cret@host", "   "])
def test_what_is_like_nothing_gets_no_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert "did you mean" not in str(refusal(written))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.opener)
def test_every_kind_is_found_by_its_schemes_and_named_where_one_is_unknown(kind: opening.Kind) -> None:
    for scheme in kind.schemes:
        rest = {"nothing": "", "folder": "/x"}.get(kind.given, "x")
        assert kind_of(scheme if kind.given == "nothing" else f"{scheme}x") == (kind, rest)
    assert kind.written in str(refusal("unheard://of"))


def test_a_module_is_loaded_only_when_its_store_is_opened(tmp_path: Path) -> None:
    code = "import sys, holdfast as hf; hf.Holdfast('runs.db').close(); print([name for name in sys.modules if 'psycopg' in name])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_folder_where_a_file_is_expected_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "runs.db"
    folder.mkdir()
    (folder / "mine").write_text("precious")
    before = snapshot(tmp_path)
    for written in (str(folder), f"sqlite:///{folder}", f"sqlite:///{tmp_path}"):
        with pytest.raises(StoreForeign, match=r"this is a folder, not a file; it was left as it is\. Name a path of its own"):
            open_store(written)
    assert snapshot(tmp_path) == before


def test_a_file_where_a_folder_is_expected_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for written in (f"file://{file}", f"{file}/"):
        with pytest.raises(StoreForeign, match=r"this is a file, and this kind of store is a folder; it was left as it is\. Name another"):
            open_store(written)
    assert file.read_text() == "precious"


@pytest.mark.parametrize("form", ["file://{}/runs", "{}/runs/", "{}"])
def test_a_folder_is_opened_by_path_or_url(tmp_path: Path, form: str) -> None:
    with closing(open_store(form.format(tmp_path))) as store:
        assert isinstance(store, FilesStore)
        assert store.url.startswith(f"file://{tmp_path}")


def test_a_path_in_a_file_and_one_in_no_folder_are_told_as_mistakes_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    assert "file is a file, not a folder; nothing was changed" in str(refusal(str(tmp_path / "file" / "runs.db")))
    nowhere = refusal(str(tmp_path / "a" / "b" / "runs.db"))
    assert f"there is no folder {tmp_path / 'a'}; nothing was created. Create it" in str(nowhere)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["a\0b.db", "\ud800.db", "sqlite:///\0"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no file can have this name; nothing was opened" in str(refusal(name))


@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_a_folder_that_one_may_not_enter_is_said(mode: int) -> None:
    with without_privileges() as folder:
        (folder / "inner").mkdir()
        (folder / "inner").chmod(mode)
        try:
            with pytest.raises(StoreReadOnly, match=r"nothing was changed\. Make the file and its folder writable"):
                open_store(folder / "inner" / "runs.db")
        finally:
            (folder / "inner").chmod(0o700)


def can_mount() -> bool:
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o ro none /mnt"]
    return os.geteuid() == 0 and subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a file system")
def test_a_read_only_file_system_is_said(tmp_path: Path) -> None:
    """A real one, seen by one process alone."""
    with closing(open_store(tmp_path / "old.db")):
        pass
    mounted = f'mount --bind "{tmp_path}" "{tmp_path}" && mount -o remount,bind,ro "{tmp_path}" && exec "$@"'
    for name in ("old.db", "new.db"):
        words = ["unshare", "--mount", "sh", "-c", mounted, "sh", sys.executable, "-c", READ_ONLY, str(tmp_path / name)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("StoreReadOnly "), done.stdout + done.stderr
        assert "nothing was changed" in done.stdout


PLACES = {"runs.db": "runs.db", "file:///a/b": "/a/b", "a/": "a", "sqlite:////a/b.db": "/a/b.db", "memory:": None, "postgresql://h/x": None}


@pytest.mark.parametrize(("url", "place"), PLACES.items())
def test_the_place_that_a_url_names_is_known_without_opening_it(url: str, place: str | None) -> None:
    assert place_of(url) == (None if place is None else Path(place).absolute())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:s3cret@h:5432/db?schema=x", "postgresql://ann@h:5432/db?schema=x"),
        ("postgresql://ann:s3c@s3cret/s3cret@h/db", "postgresql://ann@h/db"),
        ("postgresql://h/db?password=s3cret&schema=x", "postgresql://h/db?password=***&schema=x"),
        ("postgresql://h/db?schema=x&sslpassword=s3cret", "postgresql://h/db?schema=x&sslpassword=***"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("runs.db", "runs.db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_neither_the_log_nor_the_command_line_shows_a_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"postgresql://ann:{SECRET}@127.0.0.1:1/bank"
    with caplog.at_level(logging.DEBUG):
        refusal(url)
    assert SECRET not in caplog.text
    for words in (("runs", "--store", url), ("runs", "--json", "--store", url), ("show", "a", "--store", url)):
        done = command(*words, folder=tmp_path)
        assert done.returncode == 5
        assert SECRET not in done.stdout + done.stderr
        assert "ann@127.0.0.1" in done.stdout + done.stderr


def test_commands_to_try_do_not_repeat_the_password_of_the_store(postgres_url: str, tmp_path: Path) -> None:
    @hf.effect(in_doubt="ask")
    def pay() -> None:
        raise OSError("the line went dead")

    @hf.agent
    def obey() -> None:
        pay()

    url = postgres_url.replace("postgres@", f"postgres:{SECRET}@") + "?schema=t_commands_to_try"
    with hf.Holdfast(url) as app, pytest.raises(hf.RunWaiting):
        app.run(obey, run_id="odd", wait=False)
    told = command("show", "odd", "--store", url, folder=tmp_path).stdout
    assert "--not-landed --store 'postgresql://postgres@" in told
    assert SECRET not in told
    assert json.loads(command("show", "odd", "--json", "--store", url, folder=tmp_path).stdout)["run"]["status"] == "waiting"


@pytest.mark.parametrize("name", ["empty", "nowhere", "nowhere.db"])
def test_looking_makes_no_store_where_there_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    done = command("runs", "--store", f"{tmp_path}/{name}" + ("" if name.endswith(".db") else "/"), folder=tmp_path)
    assert done.returncode == 5
    assert "there is no store here" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_memory_is_opened_by_its_exact_word() -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
