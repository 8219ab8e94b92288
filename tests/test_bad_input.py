"""Bad input gets a clear error that says what is true now and what to do; nothing is lost, and nothing is created by it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.errors import (
    BadRunId,
    HoldfastError,
    Misuse,
    NotKept,
    ResultNotKept,
    RunConflict,
    StoreBusy,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreNewer,
    StoreReadOnly,
    UnknownAgent,
    UnknownRun,
)  # fmt: skip
from holdfast.stores import _sqlite_line
from holdfast.stores.sqlite import SqliteStore

NOBODY = 65534
done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def app(path: Path) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(path) as app:
        yield app


@hf.step
def look(what: str) -> str:
    done.append(what)
    return what


@hf.agent
def greet(name: str) -> str:
    return f"hello {look(name)}"


@hf.agent
def other(name: str) -> str:
    return look(name)


# --- run ids --------------------------------------------------------------------------------------------------------

BAD_IDS = ["", "/", "a/b", "../runs", ".hidden", "-x", "a b", "a\nb", "a\n", "a\0b", "a%2Fb", "a" * 129, "a" * 10_000]
BAD_IDS += ["r\u00fcn", "\u8dd1", "\U0001f3c3", "\ud800"]
VERBS: dict[str, Callable[[hf.Holdfast, str], object]] = {
    "run": lambda app, run_id: app.run(greet, "you", run_id=run_id),
    "start": lambda app, run_id: asyncio.run(_started(app, run_id)),
    "show": lambda app, run_id: app.show(run_id),
    "show_at": lambda app, run_id: app.show_at(run_id, "1"),
    "history": lambda app, run_id: app.history(run_id),
    "check": lambda app, run_id: app.check(run_id),
    "resolve": lambda app, run_id: app.resolve(run_id, "1", not_landed=True),
    "cancel": lambda app, run_id: app.cancel(run_id),
    "resume": lambda app, run_id: app.resume(run_id),
    "resume_here": lambda app, run_id: app.resume_here(run_id, [greet], where="here"),
}


async def _started(app: hf.Holdfast, run_id: str) -> str:
    return await (await app.start(greet, "you", run_id=run_id)).result()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("run_id", BAD_IDS, ids=lambda run_id: ascii(run_id)[:12])
def test_an_id_that_cannot_be_one_is_refused_by_every_verb(app: hf.Holdfast, verb: str, run_id: str) -> None:
    with pytest.raises(BadRunId, match=r"letters, digits, .* at most 128 long") as caught:
        VERBS[verb](app, run_id)
    assert len(str(caught.value)) < 400
    assert done == []
    assert app.runs() == []


@pytest.mark.parametrize("run_id", ["a", "7", "order-47", "a.b_c:d-e", "a" * 128])
def test_an_id_that_can_be_one_is_taken(app: hf.Holdfast, run_id: str) -> None:
    assert app.run(greet, "you", run_id=run_id) == "hello you"
    assert app.show(run_id).status == "done"


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("run", "start")])
def test_an_unknown_run_is_said_and_not_created(app: hf.Holdfast, verb: str) -> None:
    app.run(greet, "you", run_id="known")
    with pytest.raises(UnknownRun, match=r"no run 'unknown'.*holdfast runs"):
        VERBS[verb](app, "unknown")
    assert [run.run_id for run in app.runs()] == ["known"]


def test_the_same_id_with_other_arguments_shows_both(app: hf.Holdfast) -> None:
    app.run(greet, "you", run_id="one")
    before = app.store.load("one")
    with pytest.raises(RunConflict) as caught:
        app.run(greet, "me", run_id="one")
    assert 'greet(name="you")' in str(caught.value)
    assert 'greet(name="me")' in str(caught.value)
    assert "The recorded run is unchanged" in str(caught.value)
    assert app.store.load("one") == before
    assert app.run(greet, "you", run_id="one") == "hello you"
    assert done == ["you"]


def test_the_same_id_for_another_agent_shows_both(app: hf.Holdfast) -> None:
    app.run(greet, "you", run_id="one")
    with pytest.raises(RunConflict) as caught:
        app.run(other, "you", run_id="one")
    assert 'greet(name="you")' in str(caught.value)
    assert 'other(name="you")' in str(caught.value)
    assert done == ["you"]


# --- agents and values ----------------------------------------------------------------------------------------------


class Client:
    """Something that holds a connection."""


@hf.step
def connect() -> Any:
    done.append("connect")
    return Client()


@hf.effect(in_doubt="fail")
def order() -> Any:
    done.append("order")
    return Client()


@hf.agent
def connecting() -> str:
    return str(connect())


@hf.agent
def ordering() -> str:
    return str(order())


@hf.agent
def talking(client: Client) -> str:
    done.append("talking")
    return str(client)


@hf.agent
def returning() -> Any:
    look("a")
    return Client()


def test_a_step_whose_result_cannot_be_kept_fails_and_says_so(app: hf.Holdfast) -> None:
    with pytest.raises(NotKept, match=r"result of step 'connect' cannot be kept.*Client") as caught:
        app.run(connecting, run_id="one")
    with pytest.raises(NotKept, match=re.escape(str(caught.value)[:60])):
        app.run(connecting, run_id="one")
    assert app.show("one").status == "failed"
    assert app.check("one")[0].good


def test_an_effect_whose_result_cannot_be_kept_is_not_repeated(app: hf.Holdfast) -> None:
    for _ in range(3):
        with pytest.raises(ResultNotKept, match=r"'order' \(step 1\) happened and will not be repeated.*Client"):
            app.run(ordering, run_id="one")
    assert done == ["order"]


def test_a_result_that_could_not_be_kept_is_in_the_inbox_until_somebody_says_what_it_was(app: hf.Holdfast) -> None:
    with pytest.raises(ResultNotKept) as raised:
        app.run(ordering, run_id="one")
    assert raised.value.__notes__[0].endswith("finished steps are kept; once that is said, the same line again goes on from there")
    (item,) = app.inbox()
    assert (item.kind, item.run_id, item.step_id) == ("result", "one", "1")
    assert item.what.startswith("what did order return? It happened, and its result could not be kept: ")
    assert item.commands[0] == "holdfast resolve one 1 --landed RESULT"
    app.resolve("one", "1", landed="said", by="ann")
    assert app.inbox() == []


def test_an_argument_that_cannot_be_kept_starts_nothing(app: hf.Holdfast) -> None:
    with pytest.raises(HoldfastError, match=r"'?client'?.*Client|Client.*'?client'?"):
        app.run(talking, Client(), run_id="one")
    assert done == []
    assert app.runs() == []


def test_a_result_of_the_agent_that_cannot_be_kept_fails_the_run(app: hf.Holdfast) -> None:
    with pytest.raises(NotKept, match=r"result of agent 'returning'"):
        app.run(returning, run_id="one")
    assert app.show("one").status == "failed"
    assert done == ["a"]


@pytest.mark.parametrize("args", [(), ("a", "b")])
def test_arguments_that_do_not_fit_start_nothing(app: hf.Holdfast, args: tuple[str, ...]) -> None:
    any_app: Any = app
    with pytest.raises((TypeError, HoldfastError), match="argument"):
        any_app.run(greet, *args, run_id="one")
    assert app.runs() == []


def test_an_agent_that_is_not_there_is_named_with_those_that_are(app: hf.Holdfast) -> None:
    app.run(greet, "you", run_id="one")
    with pytest.raises(UnknownAgent, match=r"app\.py has no agent named 'greet' \(it has: other\); .*: @hf\.agent\(name='greet'\)"):
        app.resume_here("one", [other], where="app.py")


NOT_AGENTS = {"step": look, "class": str, "builtin": print, "lambda": lambda: None, "number": 7, "nothing": None, "name": "greet"}


@pytest.mark.parametrize("thing", NOT_AGENTS.values(), ids=NOT_AGENTS)
def test_what_is_not_an_agent_is_not_run(app: hf.Holdfast, thing: Any) -> None:
    with pytest.raises(Misuse, match=r"not an agent; nothing was started\. (Decorate it|Hand over the agent)"):
        app.run(thing, run_id="one")
    assert app.runs() == []


@hf.agent
async def greet_async(name: str) -> str:
    return f"hello {look(name)}"


def test_run_on_a_running_loop_points_to_start(app: hf.Holdfast) -> None:
    async def on_a_loop() -> None:
        app.run(greet_async, "you", run_id="one")

    with pytest.raises(Misuse, match=r"cannot be called on a running .*nothing .*Use `await hf\.start"):
        asyncio.run(on_a_loop())
    assert done == []
    assert app.runs() == []


# --- stores ---------------------------------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(one.relative_to(folder)): one.read_bytes() if one.is_file() else None for one in folder.rglob("*")}


def text(path: Path) -> None:
    path.write_text("Dear diary, " * 50)


def short(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0")


def directory(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("mine")


def foreign(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE runs (a); INSERT INTO runs VALUES (1)")


def foreign_in_wal_mode(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA journal_mode = wal; CREATE TABLE runs (a); INSERT INTO runs VALUES (1)")


@pytest.mark.parametrize("make", [text, Path.touch, short, directory, foreign, foreign_in_wal_mode])
def test_what_is_not_our_store_is_left_byte_for_byte(tmp_path: Path, path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    before = snapshot(tmp_path)
    with pytest.raises(StoreForeign, match=r"left as it is\. Name (another path|a path of its own)"):
        hf.run(greet, "you", run_id="one", store=path)
    assert snapshot(tmp_path) == before
    assert done == []


def test_a_newer_format_is_left_byte_for_byte(tmp_path: Path, path: Path) -> None:
    SqliteStore(path).close()
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE meta SET value = '2000' WHERE key = 'format'")
    before = snapshot(tmp_path)
    with pytest.raises(StoreNewer, match=r"format 2000.*nothing was changed\. Install the newer Holdfast"):
        hf.run(greet, "you", run_id="one", store=path)
    assert snapshot(tmp_path) == before
    assert done == []


@contextlib.contextmanager
def without_privileges() -> Iterator[Path]:
    """A folder of one's own, seen as somebody whom file modes stop, even where the tests run as root."""
    folder = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    try:
        if root:
            os.chown(folder, NOBODY, -1)
            os.seteuid(NOBODY)
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_read_only_store_is_said_and_unchanged(what: str) -> None:
    with without_privileges() as folder:
        path = folder / "runs.db"
        hf.run(greet, "you", run_id="one", store=path)
        before = snapshot(folder)
        (path if what == "file" else folder).chmod(0o400 if what == "file" else 0o500)
        with pytest.raises(StoreReadOnly, match=r"nothing was changed\. Make the file and its folder writable"):
            hf.run(greet, "me", run_id="two", store=path)
        assert snapshot(folder) == before
    assert done == ["you"]


def test_a_store_that_another_program_keeps_locked_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf.run(greet, "you", run_id="one", store=path)
    monkeypatch.setattr(_sqlite_line, "BUSY_LIMIT_MS", 30)
    with closing(apsw.Connection(str(path))) as locking:
        locking.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match=r"nothing was written\. Try again, or end the program that keeps the database locked"):
            hf.run(greet, "me", run_id="two", store=path)
        assert done == ["you"]
        locking.execute("ROLLBACK")
    assert hf.run(greet, "me", run_id="two", store=path) == "hello me"


def test_a_store_that_is_locked_for_a_moment_is_waited_for(path: Path) -> None:
    hf.run(greet, "you", run_id="one", store=path)
    with closing(apsw.Connection(str(path))) as locking:
        locking.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.1, locking.execute, ["ROLLBACK"])
        release.start()
        assert hf.run(greet, "me", run_id="two", store=path) == "hello me"
        release.join()


@hf.agent
def hoard(name: str) -> int:
    return len(look(name)) + len(look("x" * 60_000))


def test_a_store_without_room_is_said_and_goes_on_when_there_is_some(path: Path) -> None:
    """The limit on pages is a full disk without a disk; test_io_errors fills a real one."""
    with hf.Holdfast(path) as app:
        with app.store._writer.transaction() as cursor:  # type: ignore[attr-defined]
            cursor.execute(f"PRAGMA max_page_count = {cursor.execute('PRAGMA page_count').get + 20}")
        with pytest.raises(StoreFull, match=r"what was acknowledged before is safe\. Free some space, then run again"):
            app.run(hoard, "a", run_id="one")
    assert done == ["a", "x" * 60_000]
    assert hf.run(hoard, "a", run_id="one", store=path) == 60_001
    assert done == ["a", "x" * 60_000, "x" * 60_000]


@pytest.mark.parametrize(
    "url", ["mysql://me:secret@host/db", "postgres", "runs.sqlite", "", "sqlite://runs.db", "sqlite:///", "http://x/runs.db"]
)
def test_an_unknown_store_is_said_without_its_password(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=r"nothing was opened\. Write sqlite:///PATH") as caught:
        hf.run(greet, "you", store=url)
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert done == []


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="file"):
        hf.run(greet, "you", store=tmp_path / "file" / "runs.db")
    assert (tmp_path / "file").read_text() == "in the way"


def test_bad_input_leaves_the_store_whole(app: hf.Holdfast) -> None:
    app.run(greet, "you", run_id="one")
    for verb, run_id in (("run", "a/b"), ("cancel", "one"), ("resume", "one"), ("resolve", "one")):
        with pytest.raises(HoldfastError):
            VERBS[verb](app, run_id)
    assert [(verdict.run_id, verdict.good, verdict.last_good) for verdict in app.check()] == [("one", True, "run.done")]
    assert app.store.check() == []
