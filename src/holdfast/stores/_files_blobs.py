"""Blobs in a folder of files: each once by content, in `blobs/`, and in the folder of every run that refers to it under the same name.

What a run refers to is what is in its `artifacts/`: hard links, so that a person finds the content there and it is stored once; where a
copy of the store has made files of their own of them, or a link was not possible, the names still say it. A sweep has the lock alone,
and whoever keeps or refers to something shares it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from holdfast._failpoints import reach
from holdfast.store import Swept
from holdfast.stores._blob_files import NAME, BlobFiles, condemned
from holdfast.stores._files_place import FilesPlace
from holdfast.stores._journal_runs import RUNS
from holdfast.stores._os_errors import os_errors
from holdfast.stores._safe_names import safe

PARTS = "parts/"
LOCK = ".sweep-lock"


class FileShelf:
    """The blobs of one place."""

    def __init__(self, place: FilesPlace) -> None:
        self._place, self._url = place, place.url
        self._blobs = BlobFiles(place.root / "blobs")
        self._lock = place.root / LOCK

    def hold(self, key: str, refs: Sequence[str]) -> list[str]:
        folder = f"{RUNS}{key}/artifacts/"
        with self._guarded(fcntl.LOCK_SH):
            new = [digest for digest in dict.fromkeys(refs) if not self._place.has(folder + digest)]
            missing = [digest for digest in new if not self._blobs.has(digest)]
            if missing or not new:
                return missing
            self._place.make(folder)
            for digest in new:
                _link(self._blobs.path(digest), Path(self._place.path(folder + digest)))
            self._place.settle(folder)
        return []

    def keep_blob(self, chunks: Iterable[bytes], *, at_us: int, parts: Sequence[str] = ()) -> str:
        with os_errors(self._url), self._blobs.write(chunks) as written, self._guarded(fcntl.LOCK_SH):
            for part in parts:
                if not self._blobs.has(part):
                    raise KeyError(part)
            if parts:
                self._place.make(PARTS)
                self._place.create(f"{PARTS}{written.digest}.json", json.dumps(sorted(set(parts)), indent=0).encode())
            if not self._blobs.touch(written.digest, at_us, written.size):
                self._blobs.place(written, at_us)
            return written.digest

    def touch_blob(self, digest: str, *, at_us: int) -> bool:
        with self._guarded(fcntl.LOCK_SH):
            return self._blobs.touch(digest, at_us)

    def open_blob(self, digest: str) -> BinaryIO | None:
        with os_errors(self._url):
            return self._blobs.open(digest)

    def fetched(self, digest: str) -> bytes:
        """All of a blob; ValueError where it is not there."""
        file = self.open_blob(digest)
        if file is None:
            raise ValueError(f"the blob {digest[:12]} is not there")
        with file:
            return file.read()

    def blob_refs(self, run_id: str) -> list[str]:
        return [name for name in self._place.names(f"{RUNS}{safe(run_id)}/artifacts/") if NAME.fullmatch(name)]

    def blob_parts(self, digest: str) -> list[str]:
        return [str(part) for part in json.loads(self._place.read(f"{PARTS}{digest}.json") or b"[]")]

    def sweep_blobs(self, before_us: int, *, dry_run: bool = False) -> Swept:
        with self._guarded(fcntl.LOCK_EX):
            old = self._blobs.older(before_us)
            runs = self._place.names(RUNS)
            referred = {digest for run in runs if run.endswith("/") for digest in self._place.names(f"{RUNS}{run}artifacts/")}
            wholes = [name.removesuffix(".json") for name in self._place.names(PARTS)]
            pairs = [(whole, part) for whole in wholes if self._blobs.has(whole) for part in self.blob_parts(whole)]
            gone = condemned(old.keys() - referred, pairs)
            reach("sweep.before")
            for digest in () if dry_run else gone:
                self._blobs.remove(digest)
                self._place.remove(f"{PARTS}{digest}.json")
            reach("sweep.after")
            left = self._blobs.leftovers(dry_run=dry_run)
            return Swept(len(gone) + len(left), sum(old[digest] for digest in gone) + sum(left))

    @contextlib.contextmanager
    def _guarded(self, how: int) -> Iterator[None]:
        with os_errors(self._url), self._lock.open("ab") as file:
            fcntl.flock(file, how)
            yield


def _link(source: Path, target: Path) -> None:
    """A second name, or where there can be none, an empty file under it: the name is what counts."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise
    except OSError:
        target.touch(mode=0o400)
