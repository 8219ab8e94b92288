"""Blobs as files of one folder, each named by the SHA-256 of what it holds: whole and flushed, or not there at all.

What is being written has a temporary name and is locked by its writer, so that what a crash left can be told from what is under way.
The time of a file is when it was kept last. The file is all there is: no list of blobs that it could disagree with.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import BinaryIO, Self

from holdfast._failpoints import reach

NAME = re.compile(r"[0-9a-f]{64}")
HALF_WRITTEN = "half-written"
"""The folder of what has no name yet."""
NEW_TRIES = 5
"""How often a temporary file is made anew when a sweep took it for what a crash had left."""


class BlobFiles:
    """The files of one folder, which is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, chunks: Iterable[bytes]) -> HalfWritten:
        """Write and flush the bytes under a temporary name."""
        self._make(self._folder / HALF_WRITTEN)
        for _ in range(NEW_TRIES):
            fresh = _locked_file(self._folder / HALF_WRITTEN / secrets.token_hex(8))
            if fresh is not None:
                return self._filled(*fresh, chunks)
        raise OSError("a temporary file was removed again and again while it was made")

    def place(self, written: HalfWritten, at_us: int) -> None:
        """Give what was written its name; from here on it is there, whatever happens."""
        path = self.path(written.digest)
        os.utime(written.path, ns=(at_us * 1000, at_us * 1000))
        reach("blob.before")
        self._make(path.parent)
        written.path.replace(path)
        _flush(path.parent)
        reach("blob.after")

    def touch(self, digest: str, at_us: int, size: int | None = None) -> bool:
        """Whether the blob is there, of this size; it counts as kept now."""
        path = self.path(digest)
        try:
            if size is not None and path.stat().st_size != size:
                return False
            os.utime(path, ns=(at_us * 1000, at_us * 1000))
        except FileNotFoundError:
            return False
        return True

    def has(self, digest: str) -> bool:
        """Whether the blob is there."""
        return self.path(digest).exists()

    def open(self, digest: str) -> BinaryIO | None:
        """The bytes as they stand there."""
        try:
            return self.path(digest).open("rb")
        except FileNotFoundError:
            return None

    def older(self, before_us: int) -> dict[str, int]:
        """The blobs that were kept before then, with their sizes."""
        return {
            path.parent.name + path.name: stat.st_size
            for path, stat in self._files()
            if NAME.fullmatch(path.parent.name + path.name) and stat.st_mtime_ns < before_us * 1000
        }

    def remove(self, digest: str) -> None:
        """Take a blob away."""
        self.path(digest).unlink(missing_ok=True)

    def leftovers(self, *, dry_run: bool) -> list[int]:
        """The sizes of what crashes left half-written, removed unless this is a dry run."""
        sizes = []
        for path in _listed(self._folder / HALF_WRITTEN):
            with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                sizes.append(os.fstat(file.fileno()).st_size)
                if not dry_run:
                    path.unlink(missing_ok=True)
        return sizes

    def path(self, digest: str) -> Path:
        """Where a blob stands, or would."""
        if NAME.fullmatch(digest) is None:
            raise ValueError(f"{digest!r} is no SHA-256 in hexadecimal")
        return self._folder / digest[:2] / digest[2:]

    def _filled(self, fd: int, path: Path, chunks: Iterable[bytes]) -> HalfWritten:
        hashed, size = hashlib.sha256(), 0
        try:
            for chunk in chunks:
                hashed.update(chunk)
                size += len(chunk)
                _write_all(fd, chunk)
            os.fchmod(fd, 0o400)
            os.fsync(fd)
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        return HalfWritten(fd, path, hashed.hexdigest(), size)

    def _make(self, folder: Path) -> None:
        """A folder below ours, or ours, which survives power loss as what is put into it does."""
        if folder.is_dir():
            return
        if folder != self._folder:
            self._make(self._folder)
        folder.mkdir(mode=0o700, exist_ok=True)
        _flush(folder.parent)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder in _listed(self._folder):
            for path in _listed(folder) if folder.name != HALF_WRITTEN else ():
                with contextlib.suppress(FileNotFoundError):
                    yield path, path.stat()


class HalfWritten:
    """Bytes on the disk that have no name yet; `with` it, and what was not placed by then is gone."""

    def __init__(self, fd: int, path: Path, digest: str, size: int) -> None:
        self._fd, self.path, self.digest, self.size = fd, path, digest, size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        self.path.unlink(missing_ok=True)


def condemned(unreferred: AbstractSet[str], parts: Collection[tuple[str, str]]) -> set[str]:
    """Which of the blobs that nobody refers to can go: not the parts of one that stays. `parts` are pairs of a whole and its part."""
    gone = set(unreferred)
    while needed := {part for whole, part in parts if whole not in gone and part in gone}:
        gone -= needed
    return gone


def _locked_file(path: Path) -> tuple[int, Path] | None:
    """A new file that its writer has locked; None where a sweep came between the two."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd, path
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _write_all(fd: int, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(fd, left) :]


def _flush(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _listed(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
