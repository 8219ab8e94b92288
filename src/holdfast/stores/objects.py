"""Runs in a bucket (Amazon S3 and what speaks like it, Google Cloud Storage, Azure): for machines that share nothing else.

The layout and all logic are those of the files store (`_place.py`); a commit is one put that creates an object, and that put is the fence.
What asks for all runs goes through the names once, a thousand in a request, and reads only what has changed since it was seen last.

A bucket proves no death. On one machine the proof is a file lock, as it is for PostgreSQL, in a folder of that machine; owners elsewhere
are judged by their beat, which is one put. What runs emit is for followers on the same machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from holdfast._clock import Clock
from holdfast._ids import new_owner
from holdfast.errors import StoreError, StoreFailed, StoreForeign, StoreNewer
from holdfast.store import FORMAT, Finding, Head, Letter, Query, Swept
from holdfast.stores._examining import NOTHING
from holdfast.stores._journal_letters import LETTERS
from holdfast.stores._journal_store import JournalStore, beating, owner_name
from holdfast.stores._live_files import LiveFiles
from holdfast.stores._machine_folder import machine_folder
from holdfast.stores._matching import listed
from holdfast.stores._object_address import address_of
from holdfast.stores._object_blobs import ObjectShelf
from holdfast.stores._object_place import FORKED, PATIENCE_S, ObjectPlace
from holdfast.stores._object_runs import ObjectRuns
from holdfast.stores._os_errors import os_errors
from holdfast.stores._owners import OwnerLocks
from holdfast.stores._safe_names import safe
from holdfast.stores._sealed import Unreadable, with_seal, without_seal

MARKER = "holdfast.json"
OVERWRITES = "this server overwrites what it was told only to create (If-None-Match), so that two processes could write the same run"
CUT = Finding(topic="crash", what="a connection is cut", value=NOTHING, meaning="what became of the last put is looked up")
LOST = Finding(topic="crash", what="the bucket is lost", value="all runs since the last copy", meaning="versions and replication are yours")
LATE_US = int(3 * PATIENCE_S * 1e6)
"""A put whose reply was lost is sent again for a third of that; the rest is for clocks that do not agree."""
OPENING_S = 5.0
"""How long a server that does not answer is tried when the store is opened."""


def planned(url: str) -> str:
    """The URL of the store that opening would make; empty where there is one."""
    place = ObjectPlace(address_of(url))
    place.patience_s = OPENING_S
    try:
        if place.has(MARKER):
            return ""
        next(place.below(""), None)  # a bucket that is not there is said by a list only
        return place.url
    finally:
        place.close()


class ObjectStore(JournalStore):
    """Runs in the bucket that the URL names, below its prefix."""

    letters_every_s = 2.0
    looks_every_s = 0.5
    runs_of = ObjectRuns
    _runs: ObjectRuns

    def __init__(self, url: str) -> None:
        self._objects = ObjectPlace(address_of(url))
        try:
            _prepare(self._objects)
        except BaseException:
            self._objects.close()
            raise
        self._shelf = ObjectShelf(self._objects)
        with os_errors(self._objects.url):
            folder = machine_folder(self._objects.url)
        super().__init__(self._objects, inline=False, holds=self._shelf, locks=OwnerLocks(folder.with_suffix(".owners")))
        self._live = LiveFiles(folder.with_suffix(".live"), self._rests)
        self._letters.late_us = LATE_US
        self._beats: dict[str, int] = {}

    def _refuse_if_gone(self) -> None:
        if self._pid != os.getpid():
            raise StoreFailed(self.url, FORKED)
        super()._refuse_if_gone()

    def examine(self, clock: Clock) -> list[Finding]:
        return [*super().examine(clock), CUT, LOST]

    def heads(self, query: Query) -> list[Head]:
        """The names of all commits are gone through, and of runs that have moved since they were seen the last one is read."""
        self._refuse_if_gone()
        keys = self._addressed() if query.addressed else None
        if keys is not None and not keys:
            return []
        heads = [standing.head for standing in self._runs.standings(keys, next_page=bool(query.after))]
        if query.addressed:
            there = {letter.run_id for letter in super().letters([head.run_id for head in heads])}
            heads = [head for head in heads if head.run_id in there]
        return listed(heads, query)

    def letters(self, run_ids: Sequence[str]) -> list[Letter]:
        """One list for all of them, and as a rule there is nothing in it."""
        self._refuse_if_gone()
        if len(run_ids) > 1:
            addressed = self._addressed()
            run_ids = [run_id for run_id in run_ids if safe(run_id) in addressed]
        return super().letters(run_ids)

    def _addressed(self) -> set[str]:
        return {name.partition("/")[0] for name in self._objects.below(LETTERS)}

    def renew(self, owner: str) -> None:
        """One put: nobody else writes the beat, so that it need not be read."""
        self._refuse_if_gone()
        beat = self._beats.get(owner) or self._beat(owner)
        if beat is not None:
            self._objects.replace(owner_name(owner), beating(owner, beat + 1))
            self._beats[owner] = beat + 1
        self._live.sweep()

    def retire(self, owner: str) -> None:
        self._beats.pop(owner, None)
        super().retire(owner)

    def publish(self, run_id: str, payload: bytes) -> None:
        """To followers on this machine; a put for every word would be slow and dear."""
        self._live.publish(run_id, payload)

    def published(self, run_id: str, after: int) -> list[tuple[int, bytes]]:
        return self._live.published(run_id, after)

    def _rests(self, run_id: str) -> bool:
        head = self.head(run_id)
        return head is None or head.owner is None

    def keep_blob(self, chunks: Iterable[bytes], *, at_us: int, parts: Sequence[str] = ()) -> str:
        self._refuse_if_gone()
        return self._shelf.keep_blob(chunks, at_us=at_us, parts=parts)

    def touch_blob(self, digest: str, *, at_us: int) -> bool:
        self._refuse_if_gone()
        return self._shelf.touch_blob(digest, at_us=at_us)

    def open_blob(self, digest: str) -> BinaryIO | None:
        return self._shelf.open_blob(digest)

    def blob_refs(self, run_id: str) -> list[str]:
        self._refuse_if_gone()
        return self._shelf.blob_refs(run_id)

    def blob_parts(self, digest: str) -> list[str]:
        self._refuse_if_gone()
        return self._shelf.blob_parts(digest)

    def sweep_blobs(self, before_us: int, *, dry_run: bool = False) -> Swept:
        self._refuse_if_gone()
        return self._shelf.sweep_blobs(before_us, dry_run=dry_run)

    def close(self) -> None:
        self._live.close()
        super().close()


def _prepare(place: ObjectPlace) -> None:
    """See that this is a store of ours, or make it one, and that the server gives a name only once: nothing else here is a fence."""
    patience_s, place.patience_s = place.patience_s, OPENING_S
    found = place.read(MARKER)
    if found is None:
        place.create(MARKER, _marker())
    else:
        _refuse_foreign(place.url, found)
    if place.create(MARKER, _marker()):
        raise StoreError(place.url, f"{OVERWRITES}; nothing was opened. Use a server that knows conditional writes, or another store")
    place.patience_s = patience_s


def _refuse_foreign(url: str, found: bytes) -> None:
    try:
        written = without_seal(found)["format"]
    except (Unreadable, LookupError, TypeError, ValueError):
        raise StoreForeign(url, f"{MARKER} there is not what Holdfast writes; nothing was changed. Write another prefix") from None
    if written > FORMAT:
        raise StoreNewer(url, f"format {written} was written by a newer Holdfast. Install that one")


def _marker() -> bytes:
    """What this is, in words that no other process uses: who creates it a second time must be told that it is there."""
    return with_seal({"what": "runs kept by Holdfast", "format": FORMAT, "made_by": new_owner()})
