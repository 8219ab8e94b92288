"""What only the SQLite store promises: durability, refusals that touch nothing, typed errors, fork, proof of death."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from holdfast.errors import StoreBusy, StoreDamaged, StoreError, StoreFailed, StoreForeign, StoreFull, StoreNewer, StoreReadOnly
from holdfast.store import Append, Head, Query, Stale
from holdfast.stores import _sqlite_file, _sqlite_heads, _sqlite_line
from holdfast.stores._owners import OwnerLocks
from holdfast.stores._sqlite_append import FIELDS
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.sample import create, head, onward, row

NOBODY = 65534
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def connection_of(store: SqliteStore) -> apsw.Connection:
    with store._writer.transaction() as cursor:
        return cursor.connection


def big(run_id: str, size: int) -> Append:
    return Append(run_id, 0, 0, [row(1, value=bytes(size))], head(run_id, 1))


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


# --- the file ------------------------------------------------------------------------------------------------------


def test_commits_are_flushed(store: SqliteStore) -> None:
    for line in (store._writer, store._reader):
        with line.transaction() as cursor:
            assert cursor.execute("PRAGMA journal_mode").get == "wal"
            assert cursor.execute("PRAGMA synchronous").get == 2


def test_a_store_that_lost_its_wal_mode_gets_it_back(path: Path) -> None:
    SqliteStore(path).close()
    other = apsw.Connection(str(path))
    assert other.execute("PRAGMA journal_mode = delete").get == "delete"
    other.close()
    store = SqliteStore(path)
    assert connection_of(store).execute("PRAGMA journal_mode").get == "wal"
    store.close()


def test_a_store_that_cannot_get_its_wal_mode_back_is_not_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteStore(path).close()
    reading = apsw.Connection(str(path)).execute("PRAGMA journal_mode = delete; SELECT * FROM meta")
    next(reading), next(reading)
    monkeypatch.setattr(_sqlite_line, "BUSY_LIMIT_MS", 1)
    with pytest.raises(StoreBusy):
        SqliteStore(path)
    reading.connection.close(True)


def test_without_wal_and_full_flushes_there_is_no_connection() -> None:
    with pytest.raises(StoreFailed, match="journal_mode memory"):
        _sqlite_file._assert_durable(apsw.Connection(":memory:"), "sqlite:///x")


def test_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    store = SqliteStore(tmp_path / "new" / "deep" / "runs.db")
    store.append([create("run")])
    store.enroll("me")
    modes = {str(one.relative_to(tmp_path)): stat.S_IMODE(one.stat().st_mode) for one in tmp_path.rglob("*")}
    store.close()
    assert {modes[name] for name in ("new/deep", "new/deep/runs.db.owners")} == {0o700}
    assert {modes[f"new/deep/{name}"] for name in ("runs.db", "runs.db-wal", "runs.db-shm", "runs.db.owners/me.lock")} == {0o600}
    assert len(modes) == 7


def test_many_may_create_the_store_at_once(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: SqliteStore(path), range(8)))
    for number, store in enumerate(stores):
        assert store.append([create(f"run{number}")]) == [None]
    assert len(stores[0].heads(Query())) == 8
    for store in stores:
        store.close()
    assert sorted(one.name for one in path.parent.iterdir()) == ["runs.db"]


def text(path: Path) -> None:
    path.write_text("Dear diary, " * 50)


def empty(path: Path) -> None:
    path.touch()


def foreign_database(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE meta (key, value); INSERT INTO meta VALUES ('format', '1')")
    connection.close()


@pytest.mark.parametrize("make", [text, empty, foreign_database])
def test_what_is_not_ours_is_left_untouched(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    with pytest.raises(StoreForeign, match="it was left as it is"):
        SqliteStore(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_is_not_a_store(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreForeign):
        SqliteStore(path)


def test_a_newer_format_is_refused(path: Path) -> None:
    SqliteStore(path).close()
    other = apsw.Connection(str(path))
    other.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreNewer, match="format 99"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_damaged_database_is_refused(path: Path) -> None:
    SqliteStore(path).close()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xaa" * (PAGE - 100))
    with pytest.raises(StoreDamaged):
        SqliteStore(path)


def test_a_database_that_does_not_say_its_format_is_refused(path: Path) -> None:
    SqliteStore(path).close()
    other = apsw.Connection(str(path))
    other.execute("DELETE FROM meta")
    other.close()
    with pytest.raises(StoreDamaged, match="which format"):
        SqliteStore(path)


def test_a_file_that_cannot_be_written_is_refused() -> None:
    with without_privileges() as folder:
        SqliteStore(folder / "runs.db").close()
        (folder / "runs.db").chmod(0o400)
        with pytest.raises(StoreReadOnly, match="Make the file and its folder writable"):
            SqliteStore(folder / "runs.db")


@pytest.mark.parametrize("name", ["old.db", "new.db", "deep/new.db"])
def test_a_folder_that_cannot_be_written_is_refused(name: str) -> None:
    with without_privileges() as folder:
        SqliteStore(folder / "old.db").close()
        folder.chmod(0o500)
        with pytest.raises(StoreReadOnly):
            SqliteStore(folder / name)
        assert list(folder.iterdir()) == [folder / "old.db"]


@pytest.mark.parametrize(
    ("folder", "kind"), [("/mnt/my share/x", "nfs4"), ("/mnt", "ext4"), ("/mnt/my sharex", "ext4"), ("/over", "tmpfs"), ("/home", "9p")]
)
def test_the_file_system_of_a_folder_is_known(tmp_path: Path, folder: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    lines = ["1 0 0:1 / / rw - 9p host rw", "2 1 8:1 / /mnt rw shared:1 - ext4 /dev/vda rw"]
    lines += [r"3 2 0:3 / /mnt/my\040share rw - nfs4 host:/ rw", "4 1 0:4 / /over rw - nfs host:/ rw", "5 1 0:5 / /over rw - tmpfs none rw"]
    mounts.write_text("\n".join(lines))
    assert _sqlite_file.file_system(Path(folder), mounts) == kind


def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite_file, "file_system", lambda _: "nfs4")
    with pytest.raises(StoreFailed, match=r"network file system \(nfs4\)"):
        SqliteStore(path)
    assert not path.exists()


# --- errors while it is used ---------------------------------------------------------------------------------------


def test_a_lock_of_another_process_is_not_waited_for_when_told_so(store: SqliteStore, path: Path) -> None:
    store.append([create("run")])
    kept, other = connection_of(store), apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="nothing was written"):
        store.append([onward("run", 1)], wait=False)
    other.execute("ROLLBACK")
    other.close()
    assert store.append([onward("run", 1)]) == [None]
    assert connection_of(store) is kept


def test_a_lock_of_another_process_is_waited_for_up_to_the_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite_line, "BUSY_LIMIT_MS", 20)
    store = SqliteStore(path)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        store.append([create("run")])
    other.execute("ROLLBACK")
    other.close()
    assert store.append([create("run")]) == [None]
    store.close()


def test_a_lock_of_another_thread_is_not_waited_for_when_told_so(store: SqliteStore) -> None:
    with store._writer.transaction(), ThreadPoolExecutor(1) as other, pytest.raises(StoreBusy, match="another thread"):
        other.submit(store.append, [create("run")], wait=False).result()


def test_reading_does_not_wait_for_a_writer(store: SqliteStore) -> None:
    store.append([create("run")])
    with store._writer.transaction() as cursor:
        cursor.execute("DELETE FROM runs")
        assert store.head("run") == head("run", 1)
        cursor.execute("ROLLBACK; BEGIN IMMEDIATE")


def test_two_handles_fence_each_other(store: SqliteStore, path: Path) -> None:
    other = SqliteStore(path)
    store.append([create("run")])
    assert other.append([onward("run", 1)]) == [None]
    assert store.append([onward("run", 1)]) == [Stale(head("run", 2))]
    other.close()


def test_a_full_database_is_said_and_the_connection_replaced(store: SqliteStore) -> None:
    store.append([create("kept")])
    full = connection_of(store)
    full.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StoreFull, match="Free some space"):
        store.append([onward("kept", 1), big("large", 100 * PAGE)])
    assert store.load("kept") == (head("kept", 1), [row(1)])
    assert store.append([onward("kept", 1), big("large", 100 * PAGE)]) == [None, None]
    assert connection_of(store) is not full


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting needs root; the limit on pages says the same")
def test_a_full_disk_is_said_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", disk], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        store = SqliteStore(disk / "runs.db")
        store.enroll("me")
        store.append([create("kept")])
        with pytest.raises(StoreFull):
            store.append([onward("kept", 1), big("large", 1 << 20)])
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        assert store.append([onward("kept", 1), big("large", 1 << 20)]) == [None, None]
        assert store.check() == []
        store.close()
    finally:
        subprocess.run(["umount", disk], check=True)


REFUSED_WRITE = f"""
import resource, signal, sys
from holdfast.errors import StoreFailed
from holdfast.store import Append
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.sample import create, head, onward, row
store = SqliteStore(sys.argv[1])
store.enroll("me")
store.append([create("kept")])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40 * {PAGE}, resource.RLIM_INFINITY))
large = Append("large", 0, 0, [row(1, value=bytes(100 * {PAGE}))], head("large", 1))
try:
    store.append([onward("kept", 1), large])
except StoreFailed as error:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert store.load("kept") == (head("kept", 1), [row(1)])
    assert store.append([onward("kept", 1), large]) == [None, None]
    assert store.check() == []
    print("went on")
"""


def test_a_refused_write_is_said_and_nothing_of_it_stays(path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", REFUSED_WRITE, path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("went on\n", "")


def test_an_error_inside_a_transaction_undoes_it(store: SqliteStore) -> None:
    with pytest.raises(UnicodeEncodeError):
        store.append([create("good"), create("bad\ud800")])
    assert store.heads(Query()) == []
    assert store.append([create("good")]) == [None]


def test_damage_found_while_reading_is_said(path: Path) -> None:
    store = SqliteStore(path)
    store.append([big("run", 50 * PAGE)])
    store.close()
    with path.open("r+b") as file:
        file.seek(10 * PAGE)
        file.write(b"\xff" * (path.stat().st_size - 10 * PAGE))
    store = SqliteStore(path)
    assert store.check() != []
    with pytest.raises(StoreDamaged):
        store.load("run")
    store.close()


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        ("DELETE FROM runs", "run run has 2 records in its journal but no head"),
        ("UPDATE runs SET seq = 5", "the head of run run stands at 5, its journal ends at 2"),
        ("DELETE FROM journal WHERE seq = 2", "the head of run run stands at 2, its journal ends at 1"),
        ("DELETE FROM journal", "the head of run run stands at 2, its journal ends at 0"),
    ],
)
def test_check_compares_heads_with_journals(store: SqliteStore, harm: str, found: str) -> None:
    store.enroll("me")
    store.append([create("run", rows=2)])
    with store._writer.transaction() as cursor:
        cursor.execute(harm)
    assert store.check() == [found]


def test_a_closed_store_says_so(store: SqliteStore) -> None:
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.append([create("run")])
    with pytest.raises(StoreError, match="closed"):
        store.head("run")


# --- listing and appending stay cheap ------------------------------------------------------------------------------


def test_an_owned_run_moves_without_touching_an_index(store: SqliteStore) -> None:
    """Two pages: the head, and the end of the journal."""
    store.append([create("run")])
    connection = connection_of(store)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    store.append([onward("run", 1)])
    assert connection.wal_checkpoint()[0] == 2


def test_listing_does_not_read_what_it_does_not_list(store: SqliteStore) -> None:
    with store._writer.transaction() as cursor:
        cursor.execute("SELECT 1")
        heads = (tuple(head(f"run{number}", 1, status="done", owner=None, updated_us=number)) for number in range(20_000))
        cursor.executemany(f"INSERT INTO runs ({FIELDS}, last) VALUES ({', '.join('?' * len(Head._fields))}, 0)", heads)
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    with store._reader.transaction() as cursor:
        cursor.connection.set_progress_handler(count, 100)
    assert [found.updated_us for found in store.heads(Query(statuses=["done"], limit=50))] == list(range(19_999, 19_949, -1))
    assert len(store.heads(Query(limit=50))) == 50
    assert steps < 100


# --- owners --------------------------------------------------------------------------------------------------------


def test_a_closed_owner_is_proven_dead(store: SqliteStore, path: Path) -> None:
    other = SqliteStore(path)
    other.enroll("other")
    assert store.pulse("other") == (1, False)
    other.close()
    assert store.pulse("other") == (1, True)
    store.retire("other")
    assert store.pulse("other") is None
    assert list(Path(f"{path}.owners").iterdir()) == []


def test_a_missing_lock_file_proves_nothing(store: SqliteStore, path: Path) -> None:
    store.enroll("me")
    Path(f"{path}.owners/me.lock").unlink()
    assert store.pulse("me") == (1, False)


def test_an_owner_enrolls_once(store: SqliteStore) -> None:
    store.enroll("me")
    with pytest.raises(StoreError):
        store.enroll("me")
    assert store.pulse("me") == (1, False)


def test_observers_do_not_take_each_other_for_the_owner(tmp_path: Path) -> None:
    locks = OwnerLocks(tmp_path)
    locks.hold("dead")
    locks.close()
    fd = os.open(tmp_path / "dead.lock", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert locks.proves_dead("dead")
    os.close(fd)


# --- fork ----------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child that ends without tidying up; its exit code says whether it was content."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            work()
            code = 0
        os._exit(code)
    return pid


def refuses_everything(store: SqliteStore) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.append([onward("run", 1)]),
        lambda: store.append([onward("run", 1)], wait=False),
        lambda: store.load("run"),
        lambda: store.heads(Query()),
        lambda: store.letters(["run"]),
        lambda: store.enroll("child"),
        lambda: store.pulse("me"),
        lambda: store.retire("me"),
        store.check,
    ]
    for call in calls:
        with pytest.raises(StoreError, match="Open it anew in the child"):
            call()
    store.close()


def test_a_forked_child_drops_the_store(store: SqliteStore) -> None:
    store.append([create("run")])
    store.enroll("me")
    with store._writer.transaction():
        pid = in_child(lambda: refuses_everything(store))
        assert os.waitpid(pid, 0)[1] == 0
    assert store.append([onward("run", 1)]) == [None]
    assert store.pulse("me") == (1, False)
    assert store.check() == []


def test_a_child_may_open_the_store_anew(store: SqliteStore, path: Path) -> None:
    store.append([create("run")])

    def work() -> None:
        assert SqliteStore(path).append([onward("run", 1)]) == [None]

    assert os.waitpid(in_child(work), 0)[1] == 0
    assert store.append([onward("run", 2)]) == [None]


def test_the_death_of_an_owner_is_proven_while_its_child_lives(store: SqliteStore, path: Path) -> None:
    ready, tell = os.pipe()
    hold, let_go = os.pipe()

    def grandchild() -> None:
        os.close(let_go)
        os.write(tell, b"x")
        os.read(hold, 1)

    def work() -> None:
        SqliteStore(path).enroll("victim")
        in_child(grandchild)
        signal.pause()

    pid = in_child(work)
    assert os.read(ready, 1) == b"x"
    assert store.pulse("victim") == (1, False)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert store.pulse("victim") == (1, True)
    for fd in (ready, tell, hold, let_go):
        os.close(fd)


def test_what_was_a_store_is_not_said_to_be_something_to_move_away(path: Path) -> None:
    store = SqliteStore(path)
    store.enroll("host.me")
    store.close()
    for damage in (b"", b"X" + path.read_bytes()[1:]):
        path.write_bytes(damage)
        with pytest.raises(StoreForeign, match=r"not a database any more, though a store has stood here; .* restore a backup"):
            SqliteStore(path)
    other = path.with_name("other.db")
    other.write_bytes(b"notes")
    with pytest.raises(StoreForeign, match=r"move the file away; but if it was a store, restore a backup"):
        SqliteStore(other)


def test_no_list_of_heads_reads_a_journal(store: SqliteStore) -> None:
    lists = {name: sql for name, sql in vars(_sqlite_heads).items() if name.isupper() and str(sql).lstrip().startswith(("SELECT", "WITH"))}
    connection = connection_of(store)
    journal = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'journal'").get
    read = {name: {row[3] for row in connection.execute(f"EXPLAIN {sql}", [None] * sql.count("?")) if row[1] == "OpenRead"}
            for name, sql in lists.items()}  # fmt: skip
    assert {"RESTING", "OWNED", "BEHIND", "DUE", "IN_TURN", "ADDRESSED", "STATUSES"} <= read.keys()
    assert [name for name, pages in read.items() if journal in pages or not pages] == []


def test_by_a_link_it_is_the_same_store_with_all_that_stands_beside_it(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(path)
    with contextlib.closing(SqliteStore(path)) as store, contextlib.closing(SqliteStore(link)) as linked:
        assert (linked.path, linked.url) == (store.path, store.url)
        assert store.append([create("run")]) == [None]
        assert linked.load("run") == store.load("run")
    assert list(link.parent.iterdir()) == [link]
