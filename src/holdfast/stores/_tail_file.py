"""A tail: the file beside a database into which one owner writes what its runs record while they go on, one write and one flush each.

- It is made at its full size, so that a flush never has to write more than what was added, and is written over from the start once the
  database has all of it. Each time that is one more generation: what the first frame is of is there, and what stands behind the last of
  these was brought in before.
- Each frame begins on a block of its own: what was acknowledged is never written again, so no torn write can reach it.
- A frame is written and flushed by one call where the system has it, past the cache of the system where that can be had.
- Only its owner adds to it, one frame after the other. Whoever takes a run away from the owner closes the tail first and reads it then.
  The owner looks whether it is closed when a frame has been flushed, before it is acknowledged: so either the other one has read the frame,
  or nobody relies on it.
- A frame that cannot be read is the end, as a frame that was under way when the power went must be. Where frames follow it that the
  database does not know, or the machine has not been started anew since, it was damaged later: no process that is killed tears a block.
  A write that failed may: its owner says in the first block that it gave up.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from holdfast.store import Row
from holdfast.stores._file_system import file_system

BLOCK = 4096
SIZE = 256 * BLOCK
LARGEST = 16 * BLOCK
"""What is larger than this goes into the database at once: it would only be written twice."""

MAGIC = b"holdfast tail 1\n"
UNKNOWN = SIZE + 1
"""Where a tail ends of which that is not known."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Tells this start of the machine from all others; it stands behind the magic."""
CLOSED_AT, GIVEN_UP_AT = 512, 1024
"""In sectors of their own: the owner writes the one before them."""

_FRAME = struct.Struct("<IQqQQQqIIII")  # size, generation, created_us, epoch, stood, seq, updated_us; sizes of three; number of rows
_ROW = struct.Struct("<QQqIIIIii")  # seq, epoch, at_us; sizes of kind, step id, body, digest, value and args (-1: none)
_SUM = struct.Struct("<I")
_BEFORE = _SUM.size + _FRAME.size
"""Bytes of a frame before what its sizes are of."""

Keep: TypeAlias = Callable[[int, memoryview, int], None]
"""Writes to a file, at a place in it; what was written is on the disk then."""


class Frame(NamedTuple):
    """What one run added at once: `before` is the digest that it stood at, `seq` and `digest` are those of its head afterwards.

    `created_us` is that of its head: of a run that was removed, and whose id was used again, nothing counts.
    """

    run_id: str
    created_us: int
    epoch: int
    stood: int
    before: bytes
    seq: int
    digest: bytes
    updated_us: int
    rows: Sequence[Row]


made: Callable[[tuple[object, ...]], Frame] = partial(tuple.__new__, Frame)
"""A frame of its fields, in their order; a call of the class takes three times as long."""


class Contents(NamedTuple):
    """What can be read of a tail: its frames, and what else stands behind them, which the database must know.

    Each of those comes with the number of gaps before it: places that cannot be read, and changes of the generation.
    """

    frames: list[Frame]
    behind: list[tuple[int, Frame]]
    broken: bool = False
    """Whether a frame that was begun in this start of the machine stands behind the last one, and cannot be read."""


class TailDamaged(Exception):
    """A tail whose first block is not what was written."""


class Tail:
    """The tail of this process: made new, added to, begun anew, and removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = self._past = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._frames: list[Frame] = []
        self._generation, self._at = 1, BLOCK
        try:
            _fill(self._fd, (MAGIC + _boot()).ljust(BLOCK, b"\0"))
            os.fsync(self._fd)
            for folder in (path.parent, path.parent.parent):  # the folder of tails may be as new as this one
                _flush_folder(folder)
            self._shared = mmap.mmap(self._fd, BLOCK, prot=mmap.PROT_READ)
            self._buffer = mmap.mmap(-1, LARGEST)  # begins where a page does, as is asked of what passes the cache by
            self._view = memoryview(self._buffer)
            self._past, self._keep = self._best_way()
        except BaseException:
            self.remove()
            raise

    def _best_way(self) -> tuple[int, Keep]:
        """The file as it is opened for frames, and how they are kept: the first way that can be had. Each part of it saves a tenth."""
        for past, keep in ((os.O_DIRECT, _write_through), (os.O_DIRECT, _write_and_flush), (0, _write_through)):
            if keep is _write_through and not _flushes_what_it_writes(self.path.parent):
                continue
            try:
                fd = os.open(self.path, os.O_RDWR | past)
                try:
                    keep(fd, self._view[:BLOCK], BLOCK)
                except BaseException:
                    os.close(fd)
                    raise
            except OSError as error:
                if error.errno is None:
                    raise  # not the system's: a signal handler's TimeoutError is one, too
            except NotImplementedError:  # this Python was built without it
                pass
            else:
                return fd, keep
        return self._fd, _write_and_flush

    def is_used(self) -> bool:
        """Whether there is something in it, or may be."""
        return self._at > BLOCK

    def add(self, frame: Frame) -> bool:
        """Write and flush a frame; False, with nothing written, where there is no room for it, or it is too large.

        After an error, or when it is interrupted in between, nobody knows whether the frame is there: then there is room for no other.
        """
        data = encoded(frame, self._generation)
        at, size = self._at, len(data)
        behind = at + size + -size % BLOCK
        if behind > SIZE or size > LARGEST:
            return False
        self._at = UNKNOWN
        self._buffer[:size] = data
        try:
            self._keep(self._past, self._view[: behind - at], at)
        except OSError:
            self._give_up()
            raise
        self._frames.append(frame)
        self._at = behind
        return True

    def _give_up(self) -> None:
        """A write that failed may have written a part: whoever reads the tail must not take that for damage."""
        with suppress(OSError):
            _write_and_flush(self._fd, b"\1", GIVEN_UP_AT)

    def is_closed(self) -> bool:
        """Whether somebody has closed it."""
        return self._shared[CLOSED_AT] != 0

    def is_let_go(self) -> bool:
        """Whether nothing more can be added to it."""
        return self._fd < 0

    def is_removed(self) -> bool:
        """Whether somebody has removed the file."""
        return not self.is_let_go() and os.fstat(self._fd).st_nlink == 0

    def begin_anew(self) -> None:
        """The database has everything. Until there is another frame, what is read a second time is known there."""
        self._generation += 1
        self._frames = []
        self._at = BLOCK

    def contents(self) -> Contents:
        """What is in it; where the last frame may be there or not, the file tells."""
        return contents(self.path) if self._at == UNKNOWN else Contents(self._frames, [])

    def remove(self) -> None:
        """Let go of the file, and remove it."""
        self.let_go()
        self.path.unlink(missing_ok=True)

    def let_go(self) -> None:
        """Leave the file as it is. After a failed flush this comes first: nobody may believe in a later one."""
        held, self._fd, self._past, self._at = {self._fd, self._past}, -1, -1, UNKNOWN
        for fd in held - {-1}:
            with suppress(OSError):
                os.close(fd)


def contents(path: Path) -> Contents:
    """What is in the tail of somebody else."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return _contents(fd)
    finally:
        os.close(fd)


def close(path: Path) -> None:
    """From now on its owner acknowledges nothing that it adds to it. The flush is for the order: whoever looks later sees it."""
    fd = os.open(path, os.O_RDWR)
    try:
        _write_and_flush(fd, b"\1", CLOSED_AT)
    finally:
        os.close(fd)


def encoded(frame: Frame, generation: int) -> bytes:
    """A frame as it stands in the file."""
    run_id, created_us, epoch, stood, before, seq, digest, updated_us, rows = frame
    name = run_id.encode()
    parts = [name, before, digest]
    for row_seq, row_epoch, at_us, kind, step_id, body, value, args, row_digest in rows:
        what, where = kind.encode(), step_id.encode()
        kept, given = -1 if value is None else len(value), -1 if args is None else len(args)
        sizes = _ROW.pack(row_seq, row_epoch, at_us, len(what), len(where), len(body), len(row_digest), kept, given)
        parts += (sizes, what, where, body, row_digest, value or b"", args or b"")
    data = b"".join(parts)
    size = _BEFORE + len(data)
    header = _FRAME.pack(size, generation, created_us, epoch, stood, seq, updated_us, len(name), len(before), len(digest), len(rows))
    return b"".join((_SUM.pack(zlib.crc32(data, zlib.crc32(header))), header, data))


def _contents(fd: int) -> Contents:
    data = _read(fd)
    found = list(_all_frames(data))
    if not data.startswith(MAGIC) and not found:
        raise TailDamaged("its first block is not what was written")
    first = [one for one in found if not one.gaps]
    end, generation = (first[-1].end, first[-1].generation) if first else (BLOCK, max((one.generation for one in found), default=0) + 1)
    is_last = all(one.generation != generation for one in found if one.gaps)
    boot = _boot()
    torn = not boot or not data.startswith(MAGIC + boot) or data[GIVEN_UP_AT] != 0
    broken = is_last and not torn and _is_begun(data, end, generation)
    return Contents([one.frame for one in first], [(one.gaps, one.frame) for one in found if one.gaps], broken)


def _boot() -> bytes:
    try:
        return BOOT.read_bytes()
    except OSError:
        return b""  # the system does not tell


def _is_begun(data: bytearray, at: int, generation: int) -> bool:
    """Whether a frame of this generation was written there, which cannot be read: it says so, or would if only that were not damaged.

    Only of one block: a process that is killed in the middle of writing more than that may leave a part of it.
    """
    start = at + _SUM.size
    if start + _FRAME.size > len(data):
        return False
    size, said, *_ = _FRAME.unpack_from(data, start)
    mended = data[start : start + 4] + generation.to_bytes(8, "little") + data[start + 12 : at + size]
    return bool(0 < size <= BLOCK and (said == generation or zlib.crc32(mended) == _SUM.unpack_from(data, at)[0]))


def _read(fd: int) -> bytearray:
    """All of a file to which somebody may add meanwhile: from the end to the start, so that no block is older than one behind it."""
    data = bytearray(SIZE)
    view = memoryview(data)
    for at in range(SIZE - BLOCK, -BLOCK, -BLOCK):
        if os.preadv(fd, [view[at : at + BLOCK]], at) != BLOCK:
            raise TailDamaged("it is shorter than it was made")
    return data


class _Found(NamedTuple):
    """A frame in the file: how many gaps are before it, its generation, and where the next one begins."""

    frame: Frame
    gaps: int
    generation: int
    end: int


def _all_frames(data: bytearray) -> Iterator[_Found]:
    """The frames in their order; a gap is a place that cannot be read, or a change of the generation."""
    at, gaps, last = BLOCK, 0, 0
    while at < len(data):
        found = _decoded(data, at)
        if found is None:
            gaps, at = gaps + 1, at + BLOCK
            continue
        frame, generation, at = found
        gaps, last = gaps + (generation != (last or generation)), generation
        yield _Found(frame, gaps, generation, at)


def _decoded(data: bytearray, at: int) -> tuple[Frame, int, int] | None:
    """The frame at a place, its generation, and where the next one begins; None where there is none."""
    start = at + _SUM.size
    if start + _FRAME.size > len(data):
        return None
    size, generation, created_us, epoch, stood, seq, updated_us, *sizes, count = _FRAME.unpack_from(data, start)
    end = at + size
    if not start + _FRAME.size <= end <= len(data) or zlib.crc32(data[start:end]) != _SUM.unpack_from(data, at)[0]:
        return None
    reader = _Reader(data, start + _FRAME.size)
    name, before, digest = (reader.take(each) for each in sizes)
    rows = [reader.row() for _ in range(count)]
    return Frame(name.decode(), created_us, epoch, stood, before, seq, digest, updated_us, rows), generation, end + -end % BLOCK


class _Reader:
    """The parts of a frame, one after the other."""

    def __init__(self, data: bytearray, at: int) -> None:
        self._data, self._at = data, at

    def take(self, size: int) -> bytes:
        part = bytes(self._data[self._at : self._at + size])
        self._at += size
        return part

    def row(self) -> Row:
        seq, epoch, at_us, *sizes, value, args = _ROW.unpack(self.take(_ROW.size))
        kind, step_id, body, digest = (self.take(size) for size in sizes)
        rest = [None if size < 0 else self.take(size) for size in (value, args)]
        return Row(seq, epoch, at_us, kind.decode(), step_id.decode(), body, rest[0], rest[1], digest)


def _flushes_what_it_writes(folder: Path) -> bool:
    """Whether the system knows of writes that flush, and the file system carries them out: in user space some pass the word on unheard."""
    return hasattr(os, "RWF_DSYNC") and not file_system(folder).startswith("fuse")


def _write_through(fd: int, data: bytes | memoryview, at: int) -> None:
    """Write and flush in one call: the flush comes right behind the write, without a way back to Python between them."""
    _whole(os.pwritev(fd, (data,), at, os.RWF_DSYNC), len(data))


def _write_and_flush(fd: int, data: bytes | memoryview, at: int) -> None:
    """The same in two calls, which every system has."""
    _whole(os.pwrite(fd, data, at), len(data))
    os.fdatasync(fd)


def _fill(fd: int, first: bytes) -> None:
    """Write the whole file: its first block and nothing behind it, without so much memory."""
    _whole(os.pwritev(fd, [first, *[bytes(BLOCK)] * (SIZE // BLOCK - 1)], 0), SIZE)


def _whole(written: int, size: int) -> None:
    if written != size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _flush_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
