"""The store over any place of names that are created once: all logic of the stores of readable files and of objects (see `_place.py`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast._clock import Clock
from holdfast.errors import StoreError
from holdfast.store import Append, Aside, Finding, Head, Letter, Pulse, Query, Removal, Repair, Room, Row, Shedding, Stale, Tombstone
from holdfast.stores import _journal_turns as turns
from holdfast.stores._journal_letters import DAMAGED, LetterFiles
from holdfast.stores._journal_runs import Holds, Runs, Views
from holdfast.stores._matching import listed, matches
from holdfast.stores._os_errors import os_errors
from holdfast.stores._owners import OwnerLocks
from holdfast.stores._place import Place
from holdfast.stores._place_examined import examined
from holdfast.stores._safe_names import safe, unsafe
from holdfast.stores._sealed import Unreadable, with_seal, without_seal

OWNERS = "owners/"
AT_ONCE = 16
"""Runs of one batch that are written at the same time: their flushes then share what a flush costs."""
CLOSED = "the store is closed. Open it anew"
FORKED = "the store was opened before os.fork and belongs to the parent process; nothing was done. Open it anew in the child"


class JournalStore:
    """Runs in a place. `locks` prove the death of owners where the place is on this machine."""

    runs_of: type[Runs] = Runs

    def __init__(
        self, place: Place, *, inline: bool, views: Views | None = None, holds: Holds | None = None, locks: OwnerLocks | None = None
    ) -> None:
        self.url, self.inline = place.url, inline
        self._place, self._locks = place, locks
        self._runs = self.runs_of(place, views, holds)
        self._letters = LetterFiles(place, self._runs)
        self._runs.letters = self._letters
        self._pool: ThreadPoolExecutor | None = None
        self._pid, self._closed = os.getpid(), False

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:  # noqa: ARG002 (nobody waits)
        """Each append is fenced and flushed by itself, several at the same time. There is no lock to wait for."""
        self._refuse_if_gone()
        if len(batch) < 2:  # noqa: PLR2004 (one alone needs no other thread)
            return [self._runs.append(one) for one in batch]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-append")
        waiting = [self._pool.submit(self._runs.append, one) for one in batch]
        failed = [error for one in waiting if (error := one.exception()) is not None]
        if failed:
            raise failed[0]
        return [one.result() for one in waiting]

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        self._refuse_if_gone()
        return self._runs.load(run_id)

    def rows_after(self, run_id: str, seq: int) -> tuple[Head, list[Row]] | None:
        self._refuse_if_gone()
        return self._runs.rows_after(run_id, seq)

    def head(self, run_id: str) -> Head | None:
        self._refuse_if_gone()
        standing = self._runs.standing(run_id)
        return standing and standing.head

    def heads(self, query: Query) -> list[Head]:
        """One look per run: the names of all are listed, and of each it is looked whether it still stands where it stood."""
        self._refuse_if_gone()
        if query.after is not None and not query.addressed:
            return self._behind(query, query.after)
        keys = self._letters.addressed() if query.addressed else self._runs.all_keys()
        heads = self._heads(keys)
        if query.addressed:
            heads = (head for head in heads if self._letters.letters([head.run_id]))
        return listed(heads, query)

    def _heads(self, keys: Sequence[str]) -> Iterator[Head]:
        found = ((key, self._runs.standing_of(key)) for key in keys)
        return (standing.head for key, standing in found if standing is not None and _is_its_own(key, standing.head))

    def _behind(self, query: Query, after: str) -> list[Head]:
        """In the order of their ids, and no more of them are read than are asked for."""
        ids = ((unsafe(key) or self._runs.run_id(key), key) for key in self._runs.all_keys())
        behind = sorted((run_id, key) for run_id, key in ids if run_id is not None and run_id > after)
        found: list[Head] = []
        for _, key in behind:
            standing = self._runs.standing_of(key)
            if standing is not None and _is_its_own(key, standing.head) and matches(standing.head, query):
                found.append(standing.head)
            if len(found) >= query.offset + query.limit:
                break
        return found[query.offset :]

    def post(self, run_id: str, kind: str, body: bytes, at_us: int) -> int:
        self._refuse_if_gone()
        return self._letters.post(run_id, kind, body, at_us)

    def letters(self, run_ids: Sequence[str]) -> list[Letter]:
        self._refuse_if_gone()
        return self._letters.letters(run_ids)

    def enroll(self, owner: str) -> None:
        self._refuse_if_gone()
        if self._locks is not None:
            with os_errors(self.url):
                self._locks.hold(owner)
        try:
            self._place.make(OWNERS)
            self._place.create(owner_name(owner), beating(owner, 1))
        except StoreError:
            if self._locks is not None:
                self._locks.release(owner)
            raise

    def renew(self, owner: str) -> None:
        self._refuse_if_gone()
        beat = self._beat(owner)
        if beat is not None:
            self._place.replace(owner_name(owner), beating(owner, beat + 1))

    def retire(self, owner: str) -> None:
        self._refuse_if_gone()
        self._place.remove(owner_name(owner))
        if self._locks is not None:
            with os_errors(self.url):
                self._locks.release(owner)

    def pulse(self, owner: str) -> Pulse | None:
        self._refuse_if_gone()
        beat = self._beat(owner)
        with os_errors(self.url):
            return None if beat is None else Pulse(beat, dead=self._locks is not None and self._locks.proves_dead(owner))

    def _beat(self, owner: str) -> int | None:
        """What the owner's file says; one that says nothing readable counts as silent, not as gone."""
        data = self._place.read(owner_name(owner))
        if data is None:
            return None
        try:
            return int(without_seal(data)["beat"])
        except (Unreadable, LookupError, TypeError, ValueError):
            return 0

    def check(self) -> list[str]:
        """What is wrong, in plain words; every commit of every run is read."""
        self._refuse_if_gone()
        return [*self._wrong_runs(), *self._wrong_letters()]

    def _wrong_runs(self) -> Iterator[str]:
        for head in self._heads(self._runs.all_keys()):
            pieces = self._runs.pieces(head.run_id)
            yield from (f"run {head.run_id}: {self._runs.path(piece.name)}: {piece.why}" for piece in pieces if piece.commit is None)
            if all(piece.commit for piece in pieces) and not turns.is_whole(pieces, head):
                yield f"run {head.run_id}: a commit is missing among those that are there"
            if head.owner is not None and self._beat(head.owner) is None:
                yield f"run {head.run_id} belongs to {head.owner}, which is not enrolled"

    def _wrong_letters(self) -> Iterator[str]:
        for key in self._letters.addressed():
            run_id = self._runs.run_id(key)
            for letter in self._letters.letters([run_id]) if run_id is not None else ():
                if letter.kind == DAMAGED:
                    yield f"letter {letter.letter_id} to run {run_id} is damaged; it will be ignored"
                elif self._runs.standing_of(key) is None:
                    yield f"letter {letter.letter_id} is addressed to run {run_id}, which is not there"

    def examine(self, clock: Clock) -> list[Finding]:
        self._refuse_if_gone()
        return examined(self._place, clock)

    def found(self, run_id: str) -> tuple[Head | None, list[Row]]:
        self._refuse_if_gone()
        return turns.found(self._runs, run_id)

    def set_aside(self, repair: Repair) -> bool:
        self._refuse_if_gone()
        return turns.set_aside(self._runs, repair)

    def aside(self, run_id: str) -> list[Aside]:
        self._refuse_if_gone()
        return turns.aside(self._runs, run_id)

    def remove(self, removals: Sequence[Removal]) -> list[bool]:
        """One after the other, each fenced and flushed by itself."""
        self._refuse_if_gone()
        return [turns.remove(self._runs, one) for one in removals]

    def shed(self, shedding: Shedding) -> bool:
        self._refuse_if_gone()
        return turns.shed(self._runs, shedding)

    def tombstone(self, run_id: str) -> Tombstone | None:
        self._refuse_if_gone()
        return turns.tombstone(self._runs, run_id)

    def forget(self, before_us: int) -> int:
        self._refuse_if_gone()
        return turns.forget(self._runs, before_us)

    def room(self) -> Room:
        self._refuse_if_gone()
        return Room(self._place.room(), 0)

    def compact(self) -> None:
        """Nothing is held that is not used."""
        self._refuse_if_gone()

    def close(self) -> None:
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown()
        self._place.close()
        if self._locks is not None:
            self._locks.close()

    def _refuse_if_gone(self) -> None:
        if self._closed or self._pid != os.getpid():
            raise StoreError(self.url, CLOSED if self._closed else FORKED)


def _is_its_own(key: str, head: Head) -> bool:
    """Whether a folder is that of the run in it, and no copy that a person has made beside it; a run that cannot be read is listed."""
    return safe(head.run_id) == key or not head.digest


def owner_name(owner: str) -> str:
    """Where an owner and its beat are."""
    return f"{OWNERS}{safe(owner)}.json"


def beating(owner: str, beat: int) -> bytes:
    """What stands there."""
    return with_seal({"owner": owner, "beat": beat})
