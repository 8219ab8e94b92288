"""A folder as a place: names that are created once, by a temporary file, its flush, a hard link to the name, and a flush of the folder.

A link fails where the name is taken. A rename would not: a zombie could overwrite what it never saw. It fails too where the folder
has gone, which is how a vacated one refuses: it is renamed away first, in one stroke, and emptied then.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from holdfast._clock import SystemClock
from holdfast._failpoints import reach
from holdfast.stores._os_errors import os_errors

HALF_WRITTEN = ".half-written"
"""The folder of what has no name yet, or has lost it."""

FRESH_S = 60.0
"""What is older than this has been flushed by the system, if not by its creator."""

LEFT_S = 3600.0
"""After so long, what a crash left half-written goes."""


class FilesPlace:
    """The folder at `root`, which is there."""

    def __init__(self, root: Path, url: str) -> None:
        self.url, self.root = url, root
        self._half_written = str(root / HALF_WRITTEN)
        self._prefix = f"{root}/"
        with os_errors(url):
            self._made(HALF_WRITTEN)
            self._tidy()

    def make(self, folder: str) -> None:
        with os_errors(self.url):
            self._made(folder.rstrip("/"))

    def create(self, name: str, data: bytes) -> bool | None:
        with os_errors(self.url):
            half = self._written(data)
            try:
                reach("file.written")
                os.link(half, self._prefix + name)
                reach("file.linked")
                linked = True
            except (FileExistsError, FileNotFoundError):
                linked = False
            finally:
                os.unlink(half)  # noqa: PTH108 (a path object for each would cost more than the call)
            if not linked:
                return False
            return True if self._flushed(name.rpartition("/")[0]) else None

    def read(self, name: str) -> bytes | None:
        try:
            fd = os.open(self._prefix + name, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            with os_errors(self.url):
                raise
        with os_errors(self.url), open(fd, "rb", buffering=0) as file:  # noqa: PTH123 (it is open already)
            return file.read()

    def has(self, name: str) -> bool:
        with os_errors(self.url):
            return os.path.exists(self._prefix + name)  # noqa: PTH110

    def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        return [self.read(name) for name in names]

    def names(self, folder: str, *, after: str = "") -> list[str]:
        with os_errors(self.url):
            try:
                with os.scandir(self._prefix + folder) as entries:
                    found = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return found[bisect_right(found, after) :] if after else found

    def replace(self, name: str, data: bytes) -> None:
        with os_errors(self.url):
            half = self._written(data, flushed=False)
            try:
                os.replace(half, self._prefix + name)  # noqa: PTH105
            except BaseException:
                os.unlink(half)  # noqa: PTH108
                raise

    def remove(self, name: str) -> None:
        with os_errors(self.url), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._prefix + name)  # noqa: PTH108

    def confirm(self, name: str) -> None:
        """What was created a while ago the system has flushed by itself, long since; what is fresh may be of somebody who died."""
        with os_errors(self.url), contextlib.suppress(FileNotFoundError):
            if SystemClock().now_us() / 1e6 - os.stat(self._prefix + name).st_ctime < FRESH_S:  # noqa: PTH116
                self._flush(name.rpartition("/")[0])

    def settle(self, folder: str) -> None:
        with os_errors(self.url), contextlib.suppress(FileNotFoundError):
            self._flush(folder.rstrip("/"))

    def drop(self, folder: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self._prefix + folder)  # noqa: PTH106

    def vacate(self, folder: str) -> None:
        folder = folder.rstrip("/")
        away = f"{self._half_written}/{secrets.token_hex(8)}"
        with os_errors(self.url):
            try:
                os.rename(self._prefix + folder, away)  # noqa: PTH104
            except FileNotFoundError:
                return
            self._flush(folder.rpartition("/")[0])
        shutil.rmtree(away, ignore_errors=True)

    def room(self) -> int:
        with os_errors(self.url):
            found = (entry.lstat() for entry in self.root.rglob("*") if entry.is_file())
            return sum({(each.st_dev, each.st_ino): each.st_size for each in found}.values())

    def purge(self, folder: str) -> None:
        """Nothing: a folder that is not there refuses by that."""

    def path(self, name: str) -> str:
        """Where a name is, for people."""
        return self._prefix + name

    def close(self) -> None:
        """Nothing is kept open."""

    def _written(self, data: bytes, *, flushed: bool = True) -> str:
        """A temporary file with these bytes."""
        half = f"{self._half_written}/{secrets.token_hex(8)}"
        fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            if flushed:
                os.fsync(fd)
        except BaseException:
            os.unlink(half)  # noqa: PTH108
            raise
        finally:
            os.close(fd)
        return half

    def _made(self, folder: str) -> None:
        """Make a folder and flush the one that it is in, from the top down."""
        if os.path.isdir(self._prefix + folder):  # noqa: PTH112
            return
        above = folder.rpartition("/")[0]
        if above:
            self._made(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._prefix + folder, 0o700)  # noqa: PTH102
        self._flush(above)

    def _flushed(self, folder: str) -> bool:
        """Flush a folder; False where it is there no more: what was just linked into it went away with it."""
        try:
            self._flush(folder)
        except FileNotFoundError:
            return False
        return True

    def _flush(self, folder: str) -> None:
        fd = os.open(self._prefix + folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _tidy(self) -> None:
        """Remove what crashes left, once it is so old that nobody can be writing it."""
        now_s = SystemClock().now_us() / 1e6
        for path in (self.root / HALF_WRITTEN).iterdir():
            with contextlib.suppress(OSError):
                if now_s - path.lstat().st_mtime > LEFT_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
