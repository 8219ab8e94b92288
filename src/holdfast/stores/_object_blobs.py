"""Blobs in a bucket: each by content, in a folder of its own, and a mark in every run that refers to it.

    blobs/DIGEST/COPY              what it holds; as a rule there is one copy
    blobs/DIGEST/AT-TOKEN.kept     that it was kept, or touched, at that time
    blobs/DIGEST/COPY.parts        the blobs that it needs
    blobs/DIGEST/COPY.TOKEN.gone   a sweep is about to remove that copy
    runs/ID/artifacts/DIGEST       that the run refers to it

There is no lock between who refers to a blob and who sweeps it, so each says first what it does and then looks at what the other said: a
mark, then whether a copy is `.gone`; a `.gone`, then whether there are marks. One of the two sees the other. Who finds its copy going
keeps a new one, and a sweep that finds a mark takes its word back. No name is used twice, so a sweep takes away only what it has found.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import BinaryIO, NamedTuple

from holdfast._failpoints import reach
from holdfast.store import Swept
from holdfast.stores._blob_files import condemned
from holdfast.stores._journal_runs import RUNS
from holdfast.stores._object_place import ObjectPlace
from holdfast.stores._os_errors import os_errors
from holdfast.stores._safe_names import safe

BLOBS = "blobs/"
ARTIFACTS = "artifacts/"
KEPT, GONE, PARTS = ".kept", ".gone", ".parts"
OLD_PARTS = "parts.json"
"""The name that what a whole needs had before, for all times that it was kept."""
MARK = b"{}\n"
READ_BYTES = 1 << 20
"""What is fetched at once of a blob that is read."""


class Seen(NamedTuple):
    """What a list says of one blob: its copies and their sizes, which of them are going, when it was kept, and where its parts stand."""

    copies: dict[str, int]
    going: tuple[str, ...]
    marks: tuple[str, ...]
    parts: tuple[str, ...]

    @property
    def living(self) -> list[str]:
        going = {mark.partition(".")[0] for mark in self.going}
        return [copy for copy in self.copies if copy not in going]

    @property
    def kept_us(self) -> int:
        return max((int(mark.partition("-")[0]) for mark in self.marks), default=0)


class ObjectShelf:
    """The blobs of one bucket."""

    def __init__(self, place: ObjectPlace) -> None:
        self._place = place

    def hold(self, key: str, refs: Sequence[str]) -> list[str]:
        marks = [f"{RUNS}{key}/{ARTIFACTS}{digest}" for digest in dict.fromkeys(refs)]
        new = [mark for mark, made in zip(marks, self._place.side_by_side(self._marked, marks), strict=True) if made]
        there = self._place.side_by_side(self._is_whole, [mark.rpartition("/")[2] for mark in new])
        missing = [mark.rpartition("/")[2] for mark, lives in zip(new, there, strict=True) if not lives]
        if missing:
            self._place.side_by_side(self._place.remove, new)
        return missing

    def keep_blob(self, chunks: Iterable[bytes], *, at_us: int, parts: Sequence[str] = ()) -> str:
        with os_errors(self._place.url), tempfile.NamedTemporaryFile(prefix="holdfast-") as spool:
            hashed = hashlib.sha256()
            for chunk in chunks:
                hashed.update(chunk)
                spool.write(chunk)
            spool.flush()
            digest = hashed.hexdigest()
            self._see_to(parts)
            if not self.touch_blob(digest, at_us=at_us):
                reach("blob.before")
                self._mark(digest, at_us, ())
                self._place.upload(f"{BLOBS}{digest}/{secrets.token_hex(8)}", Path(spool.name))
                reach("blob.after")
        if parts:
            self._refer(digest, parts)
        return digest

    def touch_blob(self, digest: str, *, at_us: int) -> bool:
        before = self._seen(digest)
        if not before.living:
            return False
        self._mark(digest, at_us, before.marks)
        return bool(self._seen(digest).living)

    def open_blob(self, digest: str) -> BinaryIO | None:
        seen = self._seen(digest)
        copy = next(iter(seen.living or seen.copies), None)
        if copy is None:
            return None
        return io.BufferedReader(_Reading(self._place, f"{BLOBS}{digest}/{copy}", seen.copies[copy]), READ_BYTES)

    def blob_refs(self, run_id: str) -> list[str]:
        return list(self._place.below(f"{RUNS}{safe(run_id)}/{ARTIFACTS}"))

    def blob_parts(self, digest: str) -> list[str]:
        return self._parts(digest, self._seen(digest))

    def sweep_blobs(self, before_us: int, *, dry_run: bool = False) -> Swept:
        """First say what is going, then look again whether somebody has come for it, and only then remove."""
        found = self._all()
        gone = self._unwanted(found, before_us)
        if dry_run:
            return _swept(found, gone)
        reach("sweep.before")
        ours = f".{secrets.token_hex(8)}{GONE}"
        marks = [f"{BLOBS}{digest}/{copy}{ours}" for digest in gone for copy in found[digest].copies]
        self._place.side_by_side(lambda mark: self._place.replace(mark, MARK), marks)
        now = self._all()
        still = self._unwanted(now, before_us, among={digest for digest in gone & now.keys() if not now[digest].living})
        self._place.side_by_side(self._place.remove, [mark for mark in marks if mark.split("/")[1] not in still])
        self._place.side_by_side(lambda digest: self._remove(digest, found[digest], ours), sorted(still))
        reach("sweep.after")
        return _swept(found, still)

    def _unwanted(self, found: dict[str, Seen], before_us: int, among: AbstractSet[str] | None = None) -> set[str]:
        """What no run refers to, itself or through a whole, and was kept before then; `among` is what may go, all others stay."""
        referred = {name.rpartition("/")[2] for name in self._place.below(RUNS) if f"/{ARTIFACTS}" in name}
        old = {digest for digest, seen in found.items() if seen.kept_us < before_us and (among is None or digest in among)}
        wholes = [digest for digest, seen in found.items() if seen.parts and seen.copies]
        parts = self._place.side_by_side(lambda digest: self._parts(digest, found[digest]), wholes)
        return set(condemned(old - referred, [(whole, part) for whole, each in zip(wholes, parts, strict=True) for part in each]))

    def _parts(self, digest: str, seen: Seen) -> list[str]:
        told = [json.loads(self._place.read(f"{BLOBS}{digest}/{name}") or b"[]") for name in seen.parts]
        return sorted({str(part) for parts in told for part in parts})

    def _refer(self, digest: str, parts: Sequence[str]) -> None:
        """Say what a whole needs of each copy of which that is not said; then look again, since no sweep could know it before."""
        seen = self._seen(digest)
        for copy in seen.living:
            if copy + PARTS not in seen.parts:
                self._place.replace(f"{BLOBS}{digest}/{copy}{PARTS}", json.dumps(sorted(set(parts)), indent=0).encode())
        self._see_to(parts)

    def _see_to(self, parts: Sequence[str]) -> None:
        """See that the parts of a whole are there."""
        for part, lives in zip(parts, self._place.side_by_side(self._lives, list(parts)), strict=True):
            if not lives:
                raise KeyError(part)

    def _marked(self, name: str) -> bool:
        return self._place.create(name, MARK)

    def _lives(self, digest: str) -> bool:
        return bool(self._seen(digest).living)

    def _is_whole(self, digest: str) -> bool:
        """Whether it lives with all that it needs: somebody else may have kept it, and not have found its parts."""
        seen = self._seen(digest)
        return bool(seen.living) and all(self._place.side_by_side(self._is_whole, self._parts(digest, seen)))

    def _mark(self, digest: str, at_us: int, older: Sequence[str]) -> None:
        """Say when it was kept; what was said of earlier times goes behind that."""
        name = f"{at_us:020d}-{secrets.token_hex(4)}{KEPT}"
        self._place.replace(f"{BLOBS}{digest}/{name}", MARK)
        self._place.side_by_side(self._place.remove, [f"{BLOBS}{digest}/{mark}" for mark in older if mark < name])

    def _remove(self, digest: str, found: Seen, ours: str) -> None:
        """What was found goes, the copies first and what is said of them last; not what somebody has kept since."""
        said = (copy + ours for copy in sorted(found.copies))
        for name in (*sorted(found.copies), *found.marks, *found.going, *said, *found.parts):
            self._place.remove(f"{BLOBS}{digest}/{name}")

    def _seen(self, digest: str) -> Seen:
        return _grouped((name, size) for name, size in self._place.sizes(f"{BLOBS}{digest}/"))

    def _all(self) -> dict[str, Seen]:
        found: dict[str, list[tuple[str, int]]] = {}
        for name, size in self._place.sizes(BLOBS):
            digest, _, rest = name.partition("/")
            found.setdefault(digest, []).append((rest, size))
        return {digest: _grouped(names) for digest, names in found.items()}


class _Reading(io.RawIOBase):
    """A copy as it is read, piece by piece; a piece that is lost is asked for again."""

    def __init__(self, place: ObjectPlace, name: str, size: int) -> None:
        self._place, self._name, self._size, self._at = place, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._place.piece(self._name, self._at, min(self._size, self._at + len(buffer)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _grouped(names: Iterable[tuple[str, int]]) -> Seen:
    copies: dict[str, int] = {}
    going, marks, parts = [], [], []
    for name, size in names:
        if name.endswith(GONE):
            going.append(name)
        elif name.endswith(KEPT):
            marks.append(name)
        elif name.endswith(PARTS) or name == OLD_PARTS:
            parts.append(name)
        else:
            copies[name] = size
    return Seen(copies, tuple(going), tuple(marks), tuple(parts))


def _swept(found: dict[str, Seen], gone: Iterable[str]) -> Swept:
    sizes = [max(found[digest].copies.values(), default=0) for digest in gone]
    return Swept(len(sizes), sum(sizes))
