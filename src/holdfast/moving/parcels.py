"""What goes along with a run's records: the artifacts that it refers to, copied from one store to another, streamed and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Protocol, runtime_checkable

from holdfast._failpoints import reach
from holdfast.errors import Refusal
from holdfast.large.artifact import CHUNK
from holdfast.store import Append, Repair, Repairable, Shelf, Store

MEMORY = "memory:"

Watch = Callable[[Iterable[str], int, str], Iterable[str]]
"""Shows how far the work is: what is done, of how much, and its name in; the same out."""


@runtime_checkable
class Blobs(Protocol):
    """Where blobs are read: a store that keeps some, or an archive."""

    def open_blob(self, digest: str) -> BinaryIO | None:
        """The bytes as a stream."""

    def blob_refs(self, run_id: str) -> list[str]:
        """The blobs that a run refers to."""

    def blob_parts(self, digest: str) -> list[str]:
        """The parts of a blob."""


def is_same(one: Store, other: Store) -> bool:
    """Whether two names are of one store; those in memory all have the same name. What this misses is noticed by the run itself."""
    return one is other or (one.url == other.url and one.url != MEMORY)


def needed(source: Store | Blobs, run_id: str) -> dict[str, int]:
    """The blobs that a run refers to, those that they are made of before them, with their sizes."""
    if not isinstance(source, Blobs):
        return {}
    return {digest: _size(source, digest) for digest in _in_order(source, run_id)}


def carried(source: Store | Blobs, target: Store, run_id: str, *, at_us: int) -> Iterator[str]:
    """Copy the blobs of a run, parts before what they are parts of; each is named. One that is not what it should be is refused."""
    if not isinstance(source, Blobs) or not isinstance(target, Shelf):
        return
    for digest in _in_order(source, run_id):
        parts = source.blob_parts(digest)
        if parts or not target.touch_blob(digest, at_us=at_us):
            reach("carry.before")
            kept = target.keep_blob(checked_chunks(source, digest, run_id), at_us=at_us, parts=parts)
            assert kept == digest, "what was read was checked"
            reach("carry.after")
        yield digest


def put_in_place(target: Store, repair: Repair) -> bool:
    """A run that follows on what is there, or whose records have a gap that a prune left; False where somebody else was faster.

    Some stores repair only what is there, and create a run that lacks records like any other.
    """
    if isinstance(target, Repairable) and target.set_aside(repair):
        return True
    if repair.found is not None:
        return False
    (stale,) = target.append([Append(repair.run_id, 0, 0, repair.rows, repair.head, (), repair.refs)])
    return stale is None


def checked_chunks(source: Blobs, digest: str, run_id: str) -> Iterator[bytes]:
    """The bytes of a blob; at its end they are what their digest says, or it is refused."""
    file = source.open_blob(digest)
    if file is None:
        raise _damaged(run_id, digest, "it is not there")
    found = hashlib.sha256()
    with file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
            yield chunk
    if found.hexdigest() != digest:
        raise _damaged(run_id, digest, "it is not what was kept")


def _damaged(run_id: str, digest: str, what: str) -> Refusal:
    return Refusal(f"artifact {digest[:12]} of run {run_id!r} is damaged: {what}; nothing was changed. See: holdfast check {run_id}")


def _in_order(source: Blobs, run_id: str) -> list[str]:
    """All blobs that a run needs, each once, parts first."""
    found: dict[str, None] = {}

    def visit(digests: Iterable[str]) -> None:
        for digest in digests:
            if digest not in found:
                visit(source.blob_parts(digest))
                found[digest] = None

    visit(source.blob_refs(run_id))
    return list(found)


def _size(source: Blobs, digest: str) -> int:
    file = source.open_blob(digest)
    if file is None:
        return 0
    with file:
        return file.seek(0, 2)
