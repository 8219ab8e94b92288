"""The file of a tail: what is added comes back, what is torn is the end, what is damaged is seen, and who closes it is heard."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store import Row
from holdfast.stores import _tail_file
from holdfast.stores._tail_file import BLOCK, LARGEST, SIZE, Contents, Frame, Tail, TailDamaged, close, contents
from holdfast.testing.sample import examples

NUMBERS = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
DATA = st.binary(max_size=300)
ROWS = st.builds(Row, NUMBERS, NUMBERS, st.integers(-(2**63), 2**63 - 1), TEXT, TEXT, DATA, st.none() | DATA, st.none() | DATA, DATA)
FRAMES = st.builds(Frame, TEXT, NUMBERS, NUMBERS, NUMBERS, DATA, NUMBERS, DATA, NUMBERS, st.lists(ROWS, min_size=1, max_size=4))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "owners").mkdir()
    return tmp_path / "owners" / "me.1.tail"


def frame(seq: int, run_id: str = "run", size: int = 10) -> Frame:
    row = Row(seq, 1, 1_000 + seq, "step.done", str(seq), b"{}", b"v" * size, None, b"digest-%d" % seq)
    return Frame(run_id, 7, 1, seq - 1, b"digest-%d" % (seq - 1), seq, b"digest-%d" % seq, 1_000 + seq, [row])


def seqs(path: Path) -> tuple[list[int], list[int]]:
    found = contents(path)
    return [one.seq for one in found.frames], [one.seq for _, one in found.behind]


def changed(path: Path, offset: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


@examples
@given(added=st.lists(FRAMES, max_size=5))
def test_what_is_added_comes_back_as_it_was(tmp_path: Path, added: list[Frame]) -> None:
    path = tmp_path / "owners" / "me.1.tail"
    path.parent.mkdir(exist_ok=True)
    tail = Tail(path)
    try:
        assert all(tail.add(one) for one in added)
        assert contents(path) == tail.contents() == Contents(added, [])
    finally:
        tail.remove()
    assert not path.exists()


def test_it_is_made_at_its_full_size_for_its_owner_alone(path: Path) -> None:
    Tail(path)
    assert (path.stat().st_size, stat.S_IMODE(path.stat().st_mode)) == (SIZE, 0o600)
    with pytest.raises(FileExistsError):
        Tail(path)


def test_a_frame_begins_where_no_other_was_written(path: Path) -> None:
    tail = Tail(path)
    for seq, size in enumerate((10, 5000, 10), start=1):
        tail.add(frame(seq, size=size))
    data = bytearray(path.read_bytes())
    places = [place for place in range(0, SIZE, BLOCK) if _tail_file._decoded(data, place)]
    assert places == [BLOCK, 2 * BLOCK, 4 * BLOCK]


def test_what_does_not_fit_is_not_written(path: Path) -> None:
    tail = Tail(path)
    assert not tail.add(frame(1, size=LARGEST))
    assert not tail.is_used()
    while tail.add(frame(len(tail.contents().frames) + 1)):
        pass
    assert seqs(path) == (list(range(1, SIZE // BLOCK)), [])
    assert tail.contents().frames == contents(path).frames


def test_what_is_written_over_counts_no_longer(path: Path) -> None:
    tail = Tail(path)
    for seq in (1, 2, 3):
        tail.add(frame(seq))
    tail.begin_anew()
    assert not tail.is_used()
    assert seqs(path) == ([1, 2, 3], []), "until there is something else; the database knows it"
    tail.add(frame(4))
    assert seqs(path) == ([4], [2, 3])


def test_a_torn_frame_is_the_end(path: Path) -> None:
    tail = Tail(path)
    for seq in (1, 2, 3):
        tail.add(frame(seq))
    changed(path, 3 * BLOCK + 50)
    assert seqs(path) == ([1, 2], [])


@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize("frames", [1, 3])
def test_a_last_frame_that_was_written_since_the_machine_started_and_cannot_be_read_is_told(
    path: Path, generations: int, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = Tail(path)
    for generation in range(generations):
        for seq in range(1, frames + 1):
            tail.add(frame(10 * generation + seq))
        if generation + 1 < generations:
            tail.add(frame(9))
            tail.begin_anew()
    assert not contents(path).broken
    last = frames * BLOCK
    size = int.from_bytes(path.read_bytes()[last + 4 : last + 8], "little")
    unseen = []
    for offset in range(last, last + size):
        changed(path, offset)
        unseen += [] if contents(path).broken else [offset - last]
        changed(path, offset)
    assert unseen == [6, 7], "the frame seems to be of many blocks, a part of which a killed process may have written"
    changed(path, last + 50)
    monkeypatch.setattr(_tail_file, "BOOT", path.with_name("another"))
    _tail_file.BOOT.write_text("another start\n")
    assert not contents(path).broken, "the power may have gone while it was written"


def test_a_frame_of_many_blocks_may_be_left_in_part(path: Path) -> None:
    tail = Tail(path)
    tail.add(frame(1, size=5000))
    changed(path, 2 * BLOCK + 50)
    assert contents(path) == Contents([], [])


def test_what_stands_behind_a_damaged_frame_is_told(path: Path) -> None:
    tail = Tail(path)
    for seq in (1, 2, 3):
        tail.add(frame(seq))
    changed(path, BLOCK + 50)
    assert seqs(path) == ([], [2, 3])


def test_gaps_are_counted(path: Path) -> None:
    tail = Tail(path)
    for seq, size in enumerate((10, 5000, 10, 10, 5000, 10), start=1):
        tail.add(frame(seq, size=size))
    changed(path, BLOCK + 50)
    changed(path, 4 * BLOCK + 50)
    assert [(gaps, one.seq) for gaps, one in contents(path).behind] == [(1, 2), (2, 4), (2, 5), (2, 6)]


def test_a_file_that_is_no_tail_any_more_is_damaged_unless_its_frames_can_be_read(path: Path) -> None:
    tail = Tail(path)
    changed(path, 3)
    with pytest.raises(TailDamaged):
        contents(path)
    tail.add(frame(1))
    assert seqs(path) == ([1], [])
    path.write_bytes(b"")
    with pytest.raises(TailDamaged):
        contents(path)


@pytest.mark.parametrize("size", [BLOCK, 3 * BLOCK, SIZE - 1])
def test_a_file_that_is_shorter_than_it_was_made_is_damaged(path: Path, size: int) -> None:
    tail = Tail(path)
    for seq in (1, 2, 3):
        tail.add(frame(seq))
    os.truncate(path, size)
    with pytest.raises(TailDamaged):
        contents(path)


def test_a_frame_of_an_earlier_generation_in_the_middle_is_a_gap(path: Path) -> None:
    """As a disk leaves it that has lost a write which it acknowledged."""
    tail = Tail(path)
    for seq in (1, 2, 3):
        tail.add(frame(seq))
    lost = path.read_bytes()[2 * BLOCK : 3 * BLOCK]
    tail.begin_anew()
    for seq in (4, 5, 6):
        tail.add(frame(seq))
    path.write_bytes(path.read_bytes()[: 2 * BLOCK] + lost + path.read_bytes()[3 * BLOCK :])
    found = contents(path)
    assert ([one.seq for one in found.frames], [(gaps, one.seq) for gaps, one in found.behind]) == ([4], [(1, 2), (2, 6)])


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_who_reads_while_frames_are_added_sees_no_gap(path: Path, monkeypatch: pytest.MonkeyPatch, block: int, *, anew: bool) -> None:
    tail = Tail(path)
    before = block + 3 if anew else block - 1
    for seq in range(1, before + 1):
        tail.add(frame(seq))

    class Adding:
        """`os`, in which the owner adds frames, to that block and behind it, as soon as somebody has read the block."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def preadv(self, fd: int, buffers: Sequence[memoryview], at: int) -> int:
            size = os.preadv(fd, buffers, at)
            if at == block * BLOCK and not added:
                if anew:
                    tail.begin_anew()
                added.extend(range(before + 1, before + 3 + (block if anew else 0)))
                assert all(tail.add(frame(seq)) for seq in added)
            return size

    added: list[int] = []
    monkeypatch.setattr(_tail_file, "os", Adding())
    found = contents(path)
    seen = [one.seq for one in found.frames]
    assert added
    assert seen == list(range(seen[0], seen[0] + len(seen))) if seen else before == 0
    assert all(one.seq <= before for _, one in found.behind), "what the database has"


def test_the_owner_sees_at_once_that_it_is_closed(path: Path) -> None:
    tail = Tail(path)
    assert not tail.is_closed()
    close(path)
    assert tail.is_closed()
    tail.add(frame(1))
    tail.begin_anew()
    assert tail.is_closed()


class Refusing:
    """`os`, one call of which fails."""

    def __init__(self, name: str, error: int, *, direct: bool = False, short: bool = False) -> None:
        self.name, self.error, self.direct, self.short = name, error, direct, short

    def __getattr__(self, name: str) -> Any:
        return self._refuse if name == self.name else getattr(os, name)

    def _refuse(self, *args: Any) -> Any:
        if self.direct and not args[1] & os.O_DIRECT:
            return os.open(*args)
        if self.short:
            part = args[1][:100] if self.name == "pwrite" else [args[1][0][:100]]
            return getattr(os, self.name)(args[0], part, *args[2:])
        raise OSError(self.error, os.strerror(self.error))


class Refused:
    """`os`, in which files can be opened and written only in some ways."""

    def __init__(self, *, direct: bool = False, direct_writes: bool = False, through: bool = False) -> None:
        self.direct, self.direct_writes, self.through = direct, direct_writes, through
        self.past: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        self._refuse(self.direct and flags & os.O_DIRECT)
        fd = os.open(path, flags, mode)
        self.past |= {fd} if flags & os.O_DIRECT else set()
        return fd

    def pwrite(self, fd: int, data: bytes, at: int) -> int:
        self._refuse(self.direct_writes and fd in self.past)
        return os.pwrite(fd, data, at)

    def pwritev(self, fd: int, parts: Sequence[bytes], at: int, flags: int = 0) -> int:
        self._refuse((self.direct_writes and fd in self.past) or (self.through and flags))
        return os.pwritev(fd, parts, at, flags)

    def close(self, fd: int) -> None:
        self.past.discard(fd)
        os.close(fd)

    def _refuse(self, refused: object) -> None:
        if refused:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


class Unflushed:
    """`os`, in which what is to be flushed with its write is written and not flushed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwritev(self, fd: int, parts: Sequence[bytes], at: int, flags: int) -> int:
        os.pwritev(fd, parts, at)
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class Older(Refused):
    """`os` of a Python that was built where the call is not known."""

    def pwritev(self, fd: int, parts: Sequence[bytes], at: int, flags: int = 0) -> int:
        if flags:
            raise NotImplementedError("pwritev2 is not available")
        return os.pwritev(fd, parts, at)


IN_TWO = Refused(through=True)
FAULTS: dict[str, tuple[Any, Any, list[int]]] = {
    "a write": (os, Refusing("pwritev", errno.EIO), [1]),
    "a part of a write": (os, Refusing("pwritev", errno.EIO, short=True), [1]),
    "its flush": (os, Unflushed(), [1, 2]),
    "a write in two calls": (IN_TWO, Refusing("pwrite", errno.EIO), [1]),
    "a part of one": (IN_TWO, Refusing("pwrite", errno.EIO, short=True), [1]),
    "its flush in a call of its own": (IN_TWO, Refusing("fdatasync", errno.EIO), [1, 2]),
}
"""The disk with which a tail is made, the one that refuses something, and what is there then."""


@pytest.mark.parametrize("refused", FAULTS)
def test_behind_an_error_nothing_more_is_added_and_the_file_tells_what_is_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    made_with, disk, there = FAULTS[refused]
    monkeypatch.setattr(_tail_file, "os", made_with)
    tail = Tail(path)
    tail.add(frame(1))
    monkeypatch.setattr(_tail_file, "os", disk)
    with pytest.raises(OSError):
        tail.add(frame(2))
    monkeypatch.undo()
    assert tail.is_used()
    assert not tail.add(frame(3))
    assert [one.seq for one in tail.contents().frames] == there


WAYS = {
    "everything": (Refused(), True, _tail_file._write_through),
    "no write that flushes": (Refused(through=True), True, _tail_file._write_and_flush),
    "no way past the cache": (Refused(direct=True), False, _tail_file._write_through),
    "a way past the cache by which nothing is written": (Refused(direct_writes=True), False, _tail_file._write_through),
    "neither": (Refused(direct=True, through=True), False, _tail_file._write_and_flush),
    "an older Python": (Older(), True, _tail_file._write_and_flush),
}
"""What can be had of a disk, whether frames pass the cache by then, and how they are kept."""


@pytest.mark.parametrize("had", WAYS)
def test_the_best_way_is_taken_that_can_be_had(path: Path, monkeypatch: pytest.MonkeyPatch, had: str) -> None:
    disk, past, keep = WAYS[had]
    monkeypatch.setattr(_tail_file, "os", disk)
    tail = Tail(path)
    assert (tail._past in disk.past, tail._keep) == (past, keep)
    assert tail.add(frame(1))
    assert seqs(path) == ([1], [])
    tail.remove()
    assert disk.past == set(), "what was only tried is closed"


def test_one_that_cannot_be_made_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tail_file, "os", Refusing("pwritev", errno.ENOSPC))
    with pytest.raises(OSError):
        Tail(path)
    assert list(path.parent.iterdir()) == []


def test_in_user_space_a_write_that_flushes_is_not_relied_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tail_file, "file_system", lambda folder: "fuse.whatever")
    assert Tail(path)._keep is _tail_file._write_and_flush


def test_what_a_signal_handler_raises_is_not_taken_for_the_systems_word(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def alarm(*_: object) -> None:
        raise TimeoutError("the alarm")

    monkeypatch.setattr(_tail_file, "_write_through", alarm)
    with pytest.raises(TimeoutError, match="the alarm"):
        Tail(path)
    assert not path.exists()


class Torn(Unflushed):
    """`os`, in which a write breaks off in the middle of a block."""

    def pwritev(self, fd: int, parts: Sequence[bytes], at: int, flags: int) -> int:
        os.pwrite(fd, bytes(parts[0])[:100], at)
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("said", [True, False])
def test_a_frame_that_a_failed_write_has_torn_is_not_damage_if_its_owner_said_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, said: bool
) -> None:
    monkeypatch.setattr(_tail_file, "os", Refused(direct=True))
    tail = Tail(path)
    tail.add(frame(1))
    monkeypatch.setattr(_tail_file, "os", Torn())
    if not said:
        monkeypatch.setattr(Tail, "_give_up", lambda self: None)
    with pytest.raises(OSError):
        tail.add(frame(2))
    monkeypatch.undo()
    found = contents(path)
    assert [one.seq for one in found.frames] == [1]
    assert found.broken is not said


def test_where_the_system_does_not_tell_its_starts_the_last_frame_may_be_torn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tail_file, "BOOT", path.parent / "nothing")
    tail = Tail(path)
    tail.add(frame(1))
    changed(path, BLOCK + 60)
    assert contents(path) == Contents([], [])
