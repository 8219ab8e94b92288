"""The doctor: what a store rests on is told truly, what a crash could cost is told in plain words, and nothing is changed by asking."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg
import pytest

import holdfast as hf
from cli_stage import Stage, staged
from holdfast._clock import SystemClock
from holdfast.cli import main
from holdfast.cli.doctor import doctor_page
from holdfast.cli.page import plain
from holdfast.operating.doctor import diagnosed, worst
from holdfast.store import Examined, Finding, Store
from holdfast.stores import _examining, _postgres_examined, _postgres_transaction, _sqlite_examined, postgres
from holdfast.stores._file_system import Mount, mount_of
from holdfast.stores._files_place import FilesPlace
from holdfast.stores.files import FilesStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.opening import open_store
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.sample import create, head
from postgres_server import Server, server
from test_bad_input import snapshot
from test_cli_terminal import STYLE, on_a_terminal

SHM = Path("/dev/shm")
TOPICS = {"versions", "permissions", "durability", "clock", "room", "speed", "runs", "crash"}


class Shifted(SystemClock):
    """This machine's clock, were it wrong by so many seconds."""

    def __init__(self, by_s: float) -> None:
        self._by_us = int(by_s * 1e6)

    def now_us(self) -> int:
        return super().now_us() + self._by_us


class Jumping(SystemClock):
    """A clock that somebody sets forward each time it is read."""

    def __init__(self) -> None:
        self._jumps = itertools.count()

    def now_us(self) -> int:
        return super().now_us() + next(self._jumps) * 10_000_000


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    return staged(tmp_path, capsys)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "runs.db")) as store:
        yield store


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine like most, whatever these tests run on: a disk that is local and has room, and commits that take no time worth a word."""
    monkeypatch.setattr(_examining, "mount_of", lambda _: Mount("ext4"))
    monkeypatch.setattr(_examining, "LITTLE_BYTES", 0)
    monkeypatch.setattr(_examining, "SLOW_S", 60.0)


def found(store: Store, what: str, clock: SystemClock | None = None) -> Finding:
    """The one finding about this."""
    [one] = [one for one in diagnosed(store, clock or SystemClock()) if one.what == what]
    return one


class Asked(NamedTuple):
    """How the command ended."""

    code: int
    out: str
    err: str


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> Asked:
    capsys.readouterr()
    code = main(["doctor", *words])
    return Asked(code, *capsys.readouterr())


# --- what is told --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("usual")
def test_a_sound_store_is_well_and_says_what_a_crash_costs(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    with hf.Holdfast(stage.store) as app:
        app.cancel("dead")
    asked = ask(capsys, str(stage.store))
    assert asked.code == 0, asked.out
    assert asked.out.startswith(f"All is well.\nsqlite:///{stage.store}\n")
    assert re.search(r"ok +a process is killed +nothing that was acknowledged", asked.out)
    assert re.search(r"ok +the power fails +nothing that was acknowledged", asked.out)
    assert "\x1b" not in asked.out


@pytest.mark.usefixtures("usual")
def test_the_document_has_every_topic_and_the_same_code(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(capsys, "--json", "--store", str(stage.store))
    told = json.loads(asked.out)
    assert (asked.code, told["grade"], told["store"]) == (1, "warn", f"sqlite:///{stage.store}")
    assert {one["topic"] for one in told["findings"]} == TOPICS
    assert {*told["findings"][0]} == {"topic", "what", "value", "grade", "meaning", "advice"}


def test_versions_and_settings_are_those_of_the_store(store: SqliteStore) -> None:
    assert found(store, "SQLite").value == apsw.sqlite_lib_version()
    assert (found(store, "journal mode").value, found(store, "synchronous").value) == ("wal", "full")
    assert found(store, "format of the store").value == "2"
    assert found(store, "psycopg").value == psycopg.__version__


def with_a_torn_page(stage: Stage) -> None:
    """Zero the beginning of the page that holds a record of the run `done`."""
    with closing(apsw.Connection(str(stage.store))) as connection:
        connection.execute("PRAGMA wal_checkpoint(truncate)")
        size = int(connection.execute("PRAGMA page_size").get)
        digest = bytes(connection.execute("SELECT digest FROM journal WHERE run_id = 'done' AND seq = 1").get)
    data = bytearray(stage.store.read_bytes())
    start = data.index(digest) // size * size
    data[start : start + 200] = bytes(200)
    stage.store.write_bytes(data)


def test_a_page_that_is_damaged_is_told_with_the_remedy(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    [before] = [one for one in json.loads(ask(capsys, str(stage.store), "--json").out)["findings"] if one["what"] == "pages of the file"]
    with_a_torn_page(stage)
    asked = ask(capsys, str(stage.store), "--json")
    [after] = [one for one in json.loads(asked.out)["findings"] if one["what"] == "pages of the file"]
    assert (before["value"], before["grade"], after["value"], after["grade"]) == ("whole", "ok", "damaged", "bad")
    assert (asked.code, "holdfast check --all" in after["advice"]) == (1, True)
    assert "\n" not in after["meaning"]


def test_a_file_that_is_large_is_left_to_the_check(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite_examined, "MOST_READ_BYTES", 0)
    pages = found(store, "pages of the file")
    assert (pages.value, pages.grade, "holdfast check --all" in pages.meaning) == ("not looked at", "ok", True)


def test_it_is_told_that_records_are_looked_at_elsewhere() -> None:
    assert "holdfast check --all" in found(MemoryStore(), "what records hold").meaning


def test_the_check_of_a_damaged_file_gives_its_advice_once(stage: Stage) -> None:
    with_a_torn_page(stage)
    code, out, _ = stage.give("check", "--all")
    assert (code, out.count("Keep a copy"), out.count("holdfast check --all")) == (4, 1, 0)
    assert "the store: the database is damaged (" in out


def test_the_speed_is_that_of_real_commits(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log grows with each of them; were they nothing, the number would mean nothing."""
    log = store.path.with_name("runs.db-wal")
    with store._writer.transaction() as cursor:
        cursor.execute("PRAGMA wal_autocheckpoint = 0")
        frames = log.stat().st_size
    speed = found(store, "commit")
    assert log.stat().st_size >= frames + _examining.TIMES * 4096
    assert re.fullmatch(r"[\d.]+ ms", speed.value)
    assert "steps per second" in speed.meaning
    monkeypatch.setattr(_examining, "SLOW_S", 0.0)
    assert found(store, "commit").grade == "warn"


def test_the_look_at_the_log_notices_commits_that_write_nothing(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test above."""
    monkeypatch.setattr(_sqlite_examined, "COME", "SELECT ?")
    monkeypatch.setattr(_sqlite_examined, "GO", "SELECT ?")
    log = store.path.with_name("runs.db-wal")
    frames = log.stat().st_size
    assert found(store, "commit").what == "commit"
    assert log.stat().st_size == frames


@pytest.mark.skipif(mount_of(SHM).kind != "tmpfs", reason="needs a tmpfs")
def test_a_store_in_memory_is_told_and_what_that_costs(capsys: pytest.CaptureFixture[str]) -> None:
    path = SHM / f"holdfast-{secrets.token_hex(8)}" / "runs.db"
    try:
        with closing(SqliteStore(path)) as store:
            assert found(store, "file system").value == "tmpfs"
            assert found(store, "the power fails").value == "everything"
        asked = ask(capsys, str(path))
        assert asked.code == 1
        assert "as it is, a crash can cost more than it should" in asked.out
        assert "-> name a path on a disk" in asked.out
    finally:
        shutil.rmtree(path.parent)


@pytest.mark.parametrize(
    ("mount", "grade", "cost"),
    [
        (Mount("ext4"), "ok", "nothing that was acknowledged"),
        (Mount("ext4", frozenset({"rw", "nobarrier"})), "ok", "the last steps, and perhaps the whole store"),
        (Mount("overlay"), "warn", "nothing that was acknowledged"),
        (Mount("nfs4"), "bad", "perhaps the last steps"),
        (Mount("tmpfs"), "bad", "everything"),
        (Mount(), "ok", "nothing that was acknowledged"),
    ],
)
def test_what_a_file_system_is_good_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: Mount, grade: str, cost: str) -> None:
    monkeypatch.setattr(_examining, "mount_of", lambda _: mount)
    said = {one.what: one for one in _examining.examined_folder(tmp_path, SystemClock())}
    assert said["file system"].grade == grade
    assert _examining.power_loss(tmp_path).value == cost
    assert ("flushes" in said) == ("nobarrier" in mount.options)
    assert list(tmp_path.iterdir()) == []


def test_the_options_of_a_mount_are_read(tmp_path: Path) -> None:
    lines = tmp_path / "mountinfo"
    lines.write_text("1 0 8:1 / / rw,relatime - ext4 /dev/vda rw,barrier=0\n2 1 0:3 / /x ro shared:1 - xfs /dev/vdb rw,nobarrier\n")
    assert mount_of(Path("/y"), lines) == Mount("ext4", frozenset({"rw", "relatime", "barrier=0"}))
    assert mount_of(Path("/x/y"), lines) == Mount("xfs", frozenset({"ro", "rw", "nobarrier"}))
    assert mount_of(Path("/x"), tmp_path / "nowhere") == Mount()


def test_a_library_that_swallows_flushes_is_found(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_examining, "mount_of", lambda _: Mount("ext4"))
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libeatmydata.so")
    assert found(store, "flushes").grade == "bad"
    assert found(store, "the power fails").value.startswith("the last steps")


def test_a_disk_that_refuses_flushes_or_links_is_told(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    for name, what in (("fsync", "fsync"), ("link", "hard links")):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse)
            assert (found(store, what).value, found(store, what).grade) == ("refused", "bad")
    assert sorted(path.name for path in store.path.parent.iterdir() if "doctor" in path.name) == []


@pytest.mark.parametrize(("free", "grade"), [(2 * 1024**3, "ok"), (500 * 1024**2, "warn"), (1024**2, "bad")])
def test_little_room_is_told(store: SqliteStore, monkeypatch: pytest.MonkeyPatch, free: int, grade: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, free))
    assert found(store, "disk").grade == grade


def test_a_store_that_others_can_read_is_told_with_the_remedy(store: SqliteStore) -> None:
    assert found(store, "runs.db").grade == "ok"
    store.path.chmod(0o644)
    told = found(store, "runs.db")
    assert (told.value, told.grade, told.advice) == ("-rw-r--r--", "warn", f"chmod go= {store.path}")


def test_a_log_that_nobody_can_write_back_is_told(store: SqliteStore) -> None:
    log = store.path.with_name("runs.db-wal")
    os.truncate(log, 300 * 1024**2)
    assert found(store, "write-ahead log").grade == "warn"


def test_a_store_in_the_memory_of_a_process_costs_everything(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(capsys, "memory:")
    assert asked.code == 1
    assert re.search(r"bad +a process is killed +everything", asked.out)


def test_a_store_that_cannot_tell_is_told_so() -> None:
    class Mute(MemoryStore):
        examine = None  # type: ignore[assignment]

    one = found(Mute(), "Mute")
    assert (one.grade, one.advice) == ("warn", "give it the method `examine`")


@pytest.mark.usefixtures("usual")
def test_a_folder_of_files_is_examined_and_left_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_store(f"{tmp_path}/runs/")) as store:
        store.append([create("one")._replace(head=head("one", 1, owner=None, status="waiting"))])
    before = snapshot(tmp_path)
    asked = ask(capsys, f"{tmp_path}/runs/")
    assert asked.code == 0, asked.out
    assert snapshot(tmp_path) == before
    assert re.search(r"ok +names +given once", asked.out)
    assert re.search(r"ok +commit +[\d.]+ ms +a step waits for one", asked.out)
    assert re.search(r"ok +a process is killed +nothing that was acknowledged", asked.out)


def test_a_place_that_gives_a_name_twice_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of `_place_examined`: a folder in which whoever comes second takes the name."""

    def overwriting(place: FilesPlace, name: str, data: bytes) -> bool:
        place.replace(name, data)
        return True

    with closing(FilesStore(tmp_path / "runs")) as store:
        assert found(store, "names").grade == "ok"
        monkeypatch.setattr(FilesPlace, "create", overwriting)
        assert (found(store, "names").value, found(store, "names").grade) == ("overwritten", "bad")


def test_files_on_another_machine_are_told_as_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_examining, "mount_of", lambda _: Mount("nfs4"))
    with closing(FilesStore(tmp_path / "runs")) as store:
        told = found(store, "file system")
    assert (told.value, told.grade, "when its lease is over" in told.meaning) == ("nfs4", "warn", True)


# --- the clock -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by_s", "said", "grade"), [(90, "90.0 s behind", "warn"), (-90, "90.0 s ahead of", "warn"), (0, " ms ", "ok")])
def test_clocks_that_differ_are_told(postgres_store: PostgresStore, by_s: float, said: str, grade: str) -> None:
    told = found(postgres_store, "the server's clock", Shifted(by_s))
    assert said in told.value
    assert told.grade == grade
    assert ("wake too early or too late" in told.meaning) == (grade == "warn")


def test_records_from_the_future_are_told(stage: Stage) -> None:
    with closing(open_store(stage.store)) as store:
        told = found(store, "records", Shifted(-3 * 86_400))
        assert (told.grade, "2 days from now" in told.meaning) == ("warn", True)
        assert [one for one in diagnosed(store, SystemClock()) if one.what == "records"] == []


def test_a_clock_that_jumps_is_told(store: SqliteStore) -> None:
    assert found(store, "this machine's clock").value == "steady"
    assert found(store, "this machine's clock", Jumping()).value == "it jumps"


# --- runs ----------------------------------------------------------------------------------------------------------


def test_runs_whose_process_is_dead_are_named(stage: Stage) -> None:
    with closing(open_store(stage.store)) as store:
        told = found(store, "left behind")
    assert (told.value, told.grade) == ("1 of 1 that run", "warn")
    assert told.meaning == "the process that ran them is dead: dead"


def test_a_run_that_executes_is_not_left_behind(stage: Stage) -> None:
    @hf.step
    def look() -> str:
        with closing(open_store(stage.store)) as other:
            return found(other, "left behind").value

    @hf.agent
    def looking() -> str:
        return look()

    with hf.Holdfast(stage.store) as app:
        app.cancel("dead")
        assert app.run(looking, run_id="live") == "none (1 executed now)"


def test_letters_that_nobody_took_are_told_once_they_are_old(stage: Stage) -> None:
    now_us = time.time_ns() // 1000
    with closing(open_store(stage.store)) as store:
        assert found(store, "letters nobody took").value == "none"
        store.post("waiting", "message", b"{}", now_us - 20 * 60_000_000)
        young = found(store, "letters nobody took")
        store.post("waiting", "message", b"{}", now_us - 3 * 3_600_000_000)
        old = found(store, "letters nobody took")
    assert (young.grade, young.value) == ("ok", "1, the oldest since 20 minutes")
    assert (old.grade, old.value, "waiting" in old.meaning) == ("warn", "2, the oldest since 3 hours", True)


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def careful() -> Iterator[Server]:
    """A server that waits for its disk, as those of other tests do not."""
    with server("fsync=on") as one:
        yield one


@pytest.fixture
def admin(careful: Server) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(careful.url().partition("?")[0], autocommit=True)) as connection:
        yield connection


@pytest.mark.xdist_group("careful")  # a server of their own
@pytest.mark.usefixtures("usual")
def test_a_careful_server_is_well(careful: Server, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(capsys, careful.url())
    assert asked.code == 0, asked.out
    assert re.search(r"ok +PostgreSQL +18", asked.out)
    assert re.search(r"ok +the server's power fails +nothing that was acknowledged", asked.out)
    assert re.search(r"ok +a standby takes over +what it had not received +because synchronous_standby_names is empty", asked.out)


def test_a_server_that_does_not_flush_is_told_and_what_that_costs(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The tests' own server was started with fsync=off."""
    asked = ask(capsys, f"{postgres_url}?schema=t_{secrets.token_hex(6)}")
    assert asked.code == 1
    assert re.search(r"bad +fsync +off +the server does not wait for its disk.*-> set fsync = on", asked.out)
    assert re.search(r"bad +the server's power fails +the last commits, or the whole database +because fsync is off", asked.out)
    assert re.search(r"ok +the server is killed +nothing that was acknowledged", asked.out)


def test_a_server_started_without_the_other_two_settings_is_told() -> None:
    with server("fsync=on", "full_page_writes=off", "synchronous_commit=off") as one, closing(open_store(one.url())) as store:
        assert found(store, "full_page_writes").grade == "bad"
        assert found(store, "the server's power fails").meaning == "because full_page_writes is off"
        told = found(store, "synchronous_commit")
    assert (told.value, told.grade) == ("on", "ok")
    assert told.meaning == "off elsewhere; overruled in the sessions of Holdfast, so it costs nothing here"


def test_a_session_that_gives_up_its_commits_is_told() -> None:
    assert _postgres_examined._synchronous("off", "off").grade == "bad"


def test_standbys_that_are_waited_for_are_told() -> None:
    costs = {one.what: one for one in _postgres_examined._costs("on", "on", "ANY 1 (a, b)")}
    assert costs["a standby takes over"].value == "nothing that was acknowledged"


@pytest.mark.xdist_group("careful")  # a server of their own
@pytest.mark.parametrize(
    ("change", "back", "what", "grade"),
    [
        ("ALTER TABLE journal SET UNLOGGED", "ALTER TABLE journal SET LOGGED", "unlogged tables", "bad"),
        ("ALTER SYSTEM SET autovacuum = off", "ALTER SYSTEM RESET autovacuum", "autovacuum", "warn"),
    ],
)
def test_what_somebody_turned_off_is_told(
    careful: Server, admin: psycopg.Connection[Any], *, change: str, back: str, what: str, grade: str
) -> None:
    with closing(open_store(careful.url())) as store:
        admin.execute("SET search_path TO holdfast")
        for order in (change, "SELECT pg_reload_conf()"):
            admin.execute(order.encode())
        try:
            assert _until(lambda: any(one.what == what and one.grade == grade for one in diagnosed(store, SystemClock())))
        finally:
            for order in (back, "SELECT pg_reload_conf()"):
                admin.execute(order.encode())


def _until(true: Any) -> bool:
    """Whether it is true soon: a server takes a moment to read its settings."""
    return any(true() for _ in range(100))


def test_the_connections_that_a_process_takes_are_those_of_the_page(postgres_store: PostgresStore) -> None:
    page = (Path(__file__).parent.parent / "docs" / "stores.md").read_text()
    beside = 3  # one that writes, one for what is emitted, one that listens
    assert beside + postgres.READERS + _postgres_transaction.SESSIONS == 15
    assert "three as a rule, fifteen at the most" in page
    assert found(postgres_store, "connections").meaning.endswith("three as a rule, fifteen at the most")


@pytest.mark.xdist_group("careful")  # a server of their own
def test_a_schema_of_somebody_else_is_told_with_the_remedy(careful: Server, admin: psycopg.Connection[Any]) -> None:
    open_store(careful.url("lent")).close()
    admin.execute("CREATE ROLE guest LOGIN; GRANT USAGE ON SCHEMA lent TO guest; GRANT ALL ON ALL TABLES IN SCHEMA lent TO guest")
    with closing(open_store(careful.url("lent", user="guest"))) as store:
        told = found(store, "schema")
    assert (told.grade, told.advice) == ("warn", "ALTER SCHEMA lent OWNER TO guest")


@pytest.mark.parametrize(
    ("encrypted", "host", "address", "grade"),
    [("True", "db", "10.0.0.7", "ok"), ("False", "db", "10.0.0.7", "warn"), (None, "/run", "", "ok"), ("False", "localhost", "::1", "ok")],
)
def test_a_connection_in_the_open_is_told(encrypted: str | None, host: str, address: str, grade: str) -> None:
    assert _postgres_examined._encryption(encrypted, host, address).grade == grade


# --- it changes nothing --------------------------------------------------------------------------------------------


def test_asking_changes_nothing_in_sqlite(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    before = dump(stage.store), sorted(path.name for path in stage.folder.iterdir())
    assert ask(capsys, str(stage.store)).code == 1
    assert (dump(stage.store), sorted(path.name for path in stage.folder.iterdir())) == before


def dump(path: Path) -> dict[str, list[Any]]:
    with closing(apsw.Connection(str(path))) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")]
        return {name: list(connection.execute(f"SELECT * FROM {name}")) for name in names}


@pytest.mark.xdist_group("careful")  # a server of their own
@pytest.mark.usefixtures("usual")
def test_asking_changes_nothing_in_postgres(careful: Server, admin: psycopg.Connection[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_store(careful.url("asked"))) as store:
        store.append([create("one"), create("two")])
        store.enroll("me")
        admin.execute("SET search_path TO asked")
        tables = [name for (name,) in admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'asked' ORDER BY 1")]
        before = [admin.execute(f"SELECT * FROM {name} ORDER BY 1".encode()).fetchall() for name in tables]
        assert ask(capsys, careful.url("asked")).code == 0
        assert [admin.execute(f"SELECT * FROM {name} ORDER BY 1".encode()).fetchall() for name in tables] == before
        store.retire("me")


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["runs.db", "new/runs.db", "runs/", "empty/"])
def test_a_place_is_examined_before_there_is_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    asked = ask(capsys, f"{tmp_path}/{place}")
    assert asked.code == 1, "a path that was mistyped is never well"
    for words in ("none yet", "file system", "hard links", "What a crash could cost here", "the power fails"):
        assert words in asked.out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(mount_of(SHM).kind != "tmpfs", reason="needs a tmpfs")
def test_a_place_in_memory_is_told_before_there_is_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(capsys, str(SHM / f"holdfast-{secrets.token_hex(8)}.db"))
    assert "it is in memory: all runs are gone when the machine restarts" in asked.out


def test_a_store_that_is_not_named_here_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "runs.db"))
    asked = ask(capsys)
    assert (asked.code, "there is no store here (named by HOLDFAST_STORE)" in asked.err) == (2, True)


@pytest.mark.parametrize("url", ["sqlite:////no/such/folder/runs.db", "unheard://of", "postgresql://ann:s3cret@127.0.0.1:1/x"])
def test_a_store_that_cannot_be_opened_has_a_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    asked, told = ask(capsys, url), ask(capsys, url, "--json")
    assert (asked.code, told.code, asked.out) == (2, 2, "")
    assert asked.err.startswith("holdfast: ")
    assert json.loads(told.out)["error"]["message"]
    assert "s3cret" not in asked.err + told.out
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(capsys, "a.db", "--store", "b.db")
    assert (asked.code, "name the store once" in asked.err) == (2, True)


def test_on_a_terminal_the_grades_are_in_colour_and_lines_fit(stage: Stage) -> None:
    text = on_a_terminal("doctor", str(stage.store), columns=80)
    assert "\x1b[32mok" in text
    assert "\x1b[1;33mwarn" in text
    assert max(len(line) for line in STYLE.sub("", text).split("\n") if "sqlite:///" not in line) <= 80


def test_the_page_and_the_grade_follow_the_worst_finding() -> None:
    fine = Finding(topic="room", what="disk", value="much")
    warned = Finding(topic="speed", what="commit", value="slow", grade="warn", meaning="why", advice="what to do")
    assert worst([fine, warned]) == "warn"
    page = list(plain(doctor_page("here", [fine, warned])))
    assert page[0] == "1 thing to mend."
    assert [line.split() for line in page if line.startswith("warn")] == [["warn", "commit", "slow", "why", "->", "what", "to", "do"]]


@pytest.mark.parametrize("kind", [MemoryStore, SqliteStore, FilesStore, PostgresStore])
def test_every_store_can_be_examined(kind: type) -> None:
    assert issubclass(kind, Examined)
