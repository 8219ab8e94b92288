"""What runs say while they execute, in unflushed files beside the database: followers of other processes read it there.

A run that speaks has a folder of its own with one or two files of lines. A file that is full makes way for the next, whose number is
higher, and the one before that goes. Lines are appended with one write each, so that several processes do not mix theirs; one that was
torn (a crash, a full disk) is ended by whoever writes next, and is not JSON. Nothing here is flushed, and nothing that goes
wrong here concerns a run: what cannot be written is lost.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from urllib.parse import quote, unquote

from holdfast._clock import SystemClock
from holdfast.errors import StoreError
from holdfast.stores._seat import Seat

FILE_BYTES = 4 * 1024 * 1024
"""From here on a file is full; a run has two at the most."""

SPAN = 1 << 23
"""A position is the number of a file times this, and the place in it: no file becomes as long."""

OPEN_FILES = 64
"""Files that are kept open for writing."""

PATIENCE_S = 0.05
"""How long one thread waits for another; then its word is lost rather than late."""

LINGER_S = 10.0
"""How long the last words of a run that nobody executes any more stay, for followers that have not read them yet."""

STALE_S = 86_400.0
"""After so long without a word, the files go even if the run still belongs to somebody."""

FIRST_S = 1_577_836_800
"""Files are numbered by the second in which they were begun, reckoned from 2020: a folder that was removed does not begin anew."""

SUFFIX = ".run"

log = logging.getLogger("holdfast")


class LiveFiles:
    """The files of one store; `rests` tells of a run whether nobody executes it."""

    def __init__(self, folder: Path, rests: Callable[[str], bool]) -> None:
        self._folder, self._rests = folder, rests
        self._open: dict[str, tuple[int, int]] = {}
        self._seat = Seat()
        self._complained = False

    def publish(self, run_id: str, payload: bytes) -> None:
        """Append a line, or lose it; never an error."""
        if not self._seat.take(PATIENCE_S):
            return
        try:
            self._write(run_id, payload + b"\n")
        except OSError as error:
            self._let_go(run_id)
            self._complain(error)
        finally:
            self._seat.leave()

    def published(self, run_id: str, after: int) -> list[tuple[int, bytes]]:
        """The whole lines behind a position, each with the position behind it."""
        folder, found = self._folder_of(run_id), list[tuple[int, bytes]]()
        number, offset = divmod(after, SPAN)
        numbers = _numbers(folder)
        if numbers and numbers[-1] < number:
            number = offset = 0
        for each in numbers:
            if each >= number:
                found += _lines(folder / str(each), each, offset if each == number else 0)
        return found

    def sweep(self) -> None:
        """Remove what runs said that nobody executes any more, and what is very old."""
        with contextlib.suppress(OSError, StoreError):
            for folder in self._folder.iterdir():
                silent_s = SystemClock().now_us() / 1e6 - max(each.stat().st_mtime for each in [folder, *folder.iterdir()])
                if silent_s > STALE_S or (silent_s > LINGER_S and self._rests(unquote(folder.name.removesuffix(SUFFIX)))):
                    shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Let go of the files; what is in them stays for followers."""
        self._seat.take(inf)
        try:
            for run_id in list(self._open):
                self._let_go(run_id)
        finally:
            self._seat.leave()

    def _write(self, run_id: str, line: bytes) -> None:
        fd, number = self._open.get(run_id) or self._begin(run_id)
        found = os.fstat(fd)
        if found.st_nlink == 0:  # it was swept away
            self._let_go(run_id)
            fd, _ = self._begin(run_id)
        elif found.st_size >= FILE_BYTES:
            self._let_go(run_id)
            fd, _ = self._begin(run_id, behind=number)
        if os.write(fd, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _begin(self, run_id: str, *, behind: int = 0) -> tuple[int, int]:
        """Open the newest file of the run, or one behind that which is full."""
        folder = self._folder_of(run_id)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        numbers = _numbers(folder)
        number = numbers[-1] if numbers and numbers[-1] > behind else max(behind + 1, SystemClock().now_us() // 1_000_000 - FIRST_S)
        fd = os.open(folder / str(number), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if len(self._open) >= OPEN_FILES:
            self._let_go(next(iter(self._open)))
        self._open[run_id] = fd, number
        for old in numbers:
            if old < behind:
                (folder / str(old)).unlink(missing_ok=True)
        if os.fstat(fd).st_size:
            os.write(fd, b"\n")  # whatever came before may be torn
        return fd, number

    def _let_go(self, run_id: str) -> None:
        fd, _ = self._open.pop(run_id, (-1, 0))
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            log.warning("what runs emit cannot be written to %s and is lost to their followers; the runs go on: %s", self._folder, error)

    def _folder_of(self, run_id: str) -> Path:
        return self._folder / f"{quote(run_id, safe='')}{SUFFIX}"


def _numbers(folder: Path) -> list[int]:
    """The numbers of the files in a folder, upwards; none where there is no such folder."""
    with contextlib.suppress(OSError):
        return sorted(int(name) for name in os.listdir(folder) if name.isdecimal())  # noqa: PTH208 (a path each would cost more than the rest)
    return []


def _lines(path: Path, number: int, offset: int) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a file from `offset` on; what is being written is left for the next time."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(SPAN)
    except OSError:  # it has made way, or was swept away
        return
    for line in data.split(b"\n")[:-1]:
        offset += len(line) + 1
        if line:
            yield number * SPAN + offset, line
