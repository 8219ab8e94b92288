"""What is left of a store when the power goes: every write and flush of a run is recorded, and every moment of it rebuilt.

At power loss a flushed write is there, and of the others nobody knows: none, all, or any sectors of any of them. A folder is rebuilt
for every prefix of the recording under each of these, opened by a store that knows nothing of it, and must hold all that was acknowledged.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import apsw
import pytest

import holdfast as hf
from holdfast.records.journal import Journal
from holdfast.store import Append, Stale
from holdfast.stores import _sqlite_file, _tail_file
from holdfast.stores.sqlite import SqliteStore

SECTOR = 512
REAL_VFS = "unix"
RUN_ID = "run"
RANDOM_ROUNDS = 3


class Write(NamedTuple):
    file: str
    offset: int
    data: bytes


class Truncate(NamedTuple):
    file: str
    size: int


class Sync(NamedTuple):
    file: str


class Delete(NamedTuple):
    file: str


class Ack(NamedTuple):
    """The store has said that everything up to `seq` is safe."""

    seq: int


Event: TypeAlias = Write | Truncate | Sync | Delete | Ack
Log: TypeAlias = list[Event]

# --- recording ------------------------------------------------------------------------------------------------------


class RecordingFile(apsw.VFSFile):
    """A file that writes down what is done to it; the methods have SQLite's names."""

    def __init__(self, log: Log, name: Any, flags: list[int]) -> None:
        self.log, self.file = log, Path(name.filename() if isinstance(name, apsw.URIFilename) else name).name
        super().__init__(REAL_VFS, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self.log.append(Write(self.file, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        self.log.append(Truncate(self.file, size))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self.log.append(Sync(self.file))

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        return 0

    def xSectorSize(self) -> int:  # noqa: N802
        return 4096


class RecordingVfs(apsw.VFS):
    """Hands out files that write down what is done to them."""

    def __init__(self, log: Log) -> None:
        self.log = log
        super().__init__("recording", REAL_VFS, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> RecordingFile:  # noqa: N802
        return RecordingFile(self.log, name, flags)

    def xDelete(self, name: str, syncdir: bool) -> None:  # noqa: N802, FBT001
        super().xDelete(name, syncdir)
        self.log.append(Delete(Path(name).name))


class RecordingOs:
    """`os` for tails, which writes down what is done to them; the folders that they flush hold nothing else."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._files: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        fd = os.open(path, flags, mode)
        self._files[fd] = f"{path.parent.name}/{path.name}" if path.suffix == ".tail" else ""
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        written = os.pwrite(fd, data, offset)
        self.log.append(Write(self._files[fd], offset, bytes(data)))
        return written

    def pwritev(self, fd: int, parts: Sequence[bytes], offset: int, flags: int = 0) -> int:
        written = os.pwritev(fd, parts, offset, flags)
        self.log.append(Write(self._files[fd], offset, b"".join(parts)))
        if flags & os.RWF_DSYNC:
            self._flushed(fd)
        return written

    def fsync(self, fd: int) -> None:
        os.fsync(fd)
        self._flushed(fd)

    def _flushed(self, fd: int) -> None:
        if self._files[fd]:
            self.log.append(Sync(self._files[fd]))

    fdatasync = fsync


@contextmanager
def recording() -> Iterator[Log]:
    log: Log = []
    vfs = RecordingVfs(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tail_file, "os", RecordingOs(log))
        try:
            yield log
        finally:
            vfs.unregister()
    assert apsw.vfs_names()[0] == REAL_VFS


class AckingStore(SqliteStore):
    """Notes in the recording when it acknowledges."""

    def __init__(self, path: Path, log: Log) -> None:
        self.log = log
        super().__init__(path)

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        answers = super().append(batch, wait=wait)
        self.log += [Ack(one.head.seq) for one, stale in zip(batch, answers, strict=True) if stale is None]
        return answers


broken_once: list[str] = []


@hf.step
def look(what: str) -> str:
    return what * 700


@hf.effect(in_doubt="resend")
def pay(what: str) -> str:
    return f"paid {what}"


@hf.step
def stumble(store: str) -> str:
    """The first time, for each store, the run ends here, its store is closed, and all of it is checkpointed."""
    if store not in broken_once:
        broken_once.append(store)
        raise RuntimeError("once")
    return "up again"


@hf.agent
def errand(store: str) -> list[str]:
    found = hf.state([""])
    found[0] = look("a")
    found.append(pay("rent"))
    found += [look("b"), look("c"), stumble(store), look("d"), pay("tax"), look("e")]
    return [one[:4] for one in [*found, look("f"), look("g")]]


def recorded(folder: Path) -> tuple[bytes, Log]:
    """The store as it was before, and all that a run of two sessions did to it."""
    path = folder / "runs.db"
    SqliteStore(path).close()
    before = path.read_bytes()
    with recording() as log:
        with hf.Holdfast(AckingStore(path, log)) as app, pytest.raises(RuntimeError, match="once"):
            app.run(errand, str(path), run_id=RUN_ID)
        with hf.Holdfast(AckingStore(path, log)) as app:
            assert app.run(errand, str(path), run_id=RUN_ID)[-1] == "gggg"
    return before, log


# --- rebuilding -----------------------------------------------------------------------------------------------------


Disk: TypeAlias = dict[str, bytearray]
Survives: TypeAlias = Callable[[Write | Truncate], Sequence[Write | Truncate]]


def apply(disk: Disk, event: Write | Truncate) -> None:
    data = disk.setdefault(event.file, bytearray())
    if isinstance(event, Truncate):
        del data[event.size :]
        data.extend(bytes(event.size - len(data)))
    else:
        data.extend(bytes(max(0, event.offset - len(data))))
        data[event.offset : event.offset + len(event.data)] = event.data


class Cut:
    """The disk while the recording goes by: what is flushed, and per file what is not."""

    def __init__(self, before: bytes) -> None:
        self.flushed: Disk = {"runs.db": bytearray(before)}
        self.pending: dict[str, list[Write | Truncate]] = {}
        self.unlinked: set[str] = set()
        self.acked = 0

    def go_on(self, event: Event) -> None:
        match event:
            case Ack(seq):
                self.acked = seq
            case Delete(file):
                self.unlinked.add(file)
            case Sync(file):
                self._flush(file)
            case _:
                self._write(event)

    def _write(self, event: Write | Truncate) -> None:
        if event.file in self.unlinked:
            self._unlink()
        self.pending.setdefault(event.file, []).append(event)

    def _flush(self, file: str) -> None:
        """Flushing one file also makes the removals before it durable: the journal of the file system keeps their order."""
        self._unlink()
        for event in self.pending.pop(file, ()):
            apply(self.flushed, event)

    def _unlink(self) -> None:
        for file in self.unlinked:
            self.flushed.pop(file, None)
            self.pending.pop(file, None)
        self.unlinked.clear()

    def left(self, survives: Survives, *, removed: bool) -> Disk:
        """What a machine finds that comes up again."""
        disk = {file: bytearray(data) for file, data in self.flushed.items()}
        for pending in (event for events in self.pending.values() for event in events):
            for survivor in survives(pending):
                apply(disk, survivor)
        return {file: data for file, data in disk.items() if not (removed and file in self.unlinked)}


def nothing(_: Write | Truncate) -> list[Write | Truncate]:
    return []


def everything(event: Write | Truncate) -> list[Write | Truncate]:
    return [event]


def any_sectors(dice: random.Random) -> Survives:
    """Some of the sectors that were under way, and now and then rubbish in one of them.

    The first sector of the database is spared the rubbish: it says what the file is, and a store that cannot read it leaves it alone.
    """

    def survives(event: Write | Truncate) -> list[Write | Truncate]:
        if isinstance(event, Truncate):
            return [event] if dice.random() < 0.5 else []
        first = event.offset - event.offset % SECTOR
        cuts = [event.offset, *range(first + SECTOR, event.offset + len(event.data), SECTOR)]
        ends = [*cuts[1:], event.offset + len(event.data)]
        pieces = [(at, event.data[at - event.offset : end - event.offset]) for at, end in zip(cuts, ends, strict=True)]
        kept = [piece for piece in pieces if dice.random() < 0.5]
        spared = {0} if event.file == "runs.db" else set()
        return [Write(event.file, at, data if at in spared or dice.random() < 0.95 else dice.randbytes(len(data))) for at, data in kept]

    return survives


def wrong_with(disk: Disk, folder: Path, acked: int) -> str:
    """Open what is left, load and verify it; what is wrong with it, or nothing."""
    folder.mkdir()
    (folder / "runs.db.owners").mkdir()
    for file, data in disk.items():
        (folder / file).write_bytes(data)
    try:
        store = SqliteStore(folder / "runs.db")
        found = store.load(RUN_ID)
        seq = 0 if found is None else Journal.load(*found).head.seq
        damage = store.check()
        store.close()
    except hf.HoldfastError as error:
        return f"damaged: {error}"
    shutil.rmtree(folder)
    return f"damaged: {damage}" if damage else f"lost: {acked} were acknowledged, {seq} are left" if seq < acked else ""


def policies(seed: int, position: int) -> Iterator[tuple[str, Survives, bool]]:
    """What may be left of what was not flushed, and whether files that were removed are gone."""
    yield "nothing of what was", nothing, False
    yield "everything that was", everything, True
    for number in range(RANDOM_ROUNDS):
        dice = random.Random(f"{seed} {position} {number}")
        yield f"(seed {seed}, position {position}, round {number}) some of what was", any_sectors(dice), dice.random() < 0.5


def cut_everywhere(before: bytes, log: Log, folder: Path, seed: int) -> Iterator[str]:
    """Cut the power after every event of the recording, under every policy; for each state, what was wrong with it, or nothing."""
    states, cut = count(), Cut(before)
    for position, event in enumerate(log):
        cut.go_on(event)
        if isinstance(event, Ack):
            continue
        for name, survives, removed in policies(seed, position):
            found = wrong_with(cut.left(survives, removed=removed), folder / f"{next(states)}", cut.acked)
            yield found and f"after event {position} ({type(event).__name__} {event.file}), {name} not flushed is left: {found}"


def lost(before: bytes, log: Log, folder: Path, seed: int) -> int:
    """In how many states acknowledged records are lost; after ten nobody looks for more."""
    return len(list(islice((found for found in cut_everywhere(before, log, folder, seed) if ": lost: " in found), 10)))


@pytest.fixture
def seed() -> int:
    return int.from_bytes(os.urandom(4), "big")


def test_what_was_acknowledged_survives_power_loss_at_every_moment(tmp_path: Path, seed: int) -> None:
    before, log = recorded(tmp_path)
    acks = [event.seq for event in log if isinstance(event, Ack)]
    assert len(acks) > 15
    assert acks == sorted(acks)
    found = list(cut_everywhere(before, log, tmp_path, seed))
    assert len(found) > 400
    assert not any(found), json.dumps({"seed": seed, "states": len(found), "wrong": list(filter(None, found))}, indent=1)


def test_the_checkpoint_of_the_log_is_among_the_moments(tmp_path: Path) -> None:
    _, log = recorded(tmp_path)
    written = {event.file for event in log if isinstance(event, Write)}
    flushed = {event.file for event in log if isinstance(event, Sync)}
    assert {"runs.db", "runs.db-wal"} <= written & flushed
    assert Delete("runs.db-wal") in log


def normal_flushes(connection: apsw.Connection, url: str) -> None:
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("PRAGMA synchronous = normal")


def test_with_fewer_flushes_acknowledged_records_are_lost(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_sqlite_file, "_assert_durable", normal_flushes)
        before, log = recorded(tmp_path)
    assert lost(before, log, tmp_path, seed) == 10, f"seed {seed}"


def test_without_the_flush_of_a_tail_acknowledged_records_are_lost(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RecordingOs, "RWF_DSYNC", 0, raising=False)
        before, log = recorded(tmp_path)
    assert any(isinstance(event, Write) and event.file.endswith(".tail") and event.offset for event in log)
    assert lost(before, log, tmp_path, seed) == 10, f"seed {seed}"
