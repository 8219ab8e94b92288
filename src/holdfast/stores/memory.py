"""Runs in the memory of this process, for tests and trials: gone when the process is."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from holdfast._clock import Clock
from holdfast.errors import StoreBusy
from holdfast.store import (
    INSIDE,
    Append,
    Aside,
    Ceiling,
    Draft,
    Drawn,
    Enrolled,
    Finding,
    Head,
    Hold,
    Letter,
    Pulse,
    Query,
    Removal,
    Repair,
    Room,
    Row,
    Shedding,
    Stale,
    Swept,
    Tombstone,
)
from holdfast.stores._blob_files import condemned
from holdfast.stores._matching import listed
from holdfast.stores._meters import moved_on, turn_meter

LIVE_LINES, LIVE_BYTES = 10_000, 8 * 1024 * 1024
"""What is kept at the most of all that runs emitted."""


class MemoryStore:
    """The shortest store that keeps the promises of the seam, but for the one about power loss."""

    url = "memory:"
    inline = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads: dict[str, Head] = {}
        self._rows: dict[str, list[Row]] = {}
        self._letters: dict[int, Letter] = {}
        self._beats: dict[str, int] = {}
        self._posted = 0
        self._aside: list[Aside] = []
        self._live: deque[tuple[int, str, bytes]] = deque()
        self._live_bytes = self._live_lines = 0
        self._about: dict[str, bytes] = {}
        self._meters: dict[str, int] = {}
        self._held: dict[str, bytes] = {}
        self._graves: dict[str, Tombstone] = {}
        self._blobs: dict[str, tuple[bytes, int]] = {}
        self._parts: dict[str, list[str]] = {}
        self._refs: dict[str, set[str]] = {}

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        if not wait and self._lock.locked():
            raise StoreBusy(self.url, "another thread is writing; nothing was written. Try again")
        with self._lock:
            return [self._append(one) for one in batch]

    def _append(self, one: Append) -> Stale | None:
        head = self._heads.get(one.run_id)
        if (one.epoch, one.seq) != ((head.epoch, head.seq) if head else (0, 0)):
            return Stale(head)
        if head is None and one.run_id in self._graves:
            return Stale(None)
        missing = [digest for digest in one.refs if digest not in self._blobs]
        if missing:
            return Stale(head, missing)
        full = [ceiling for ceiling in one.ceilings if self._owned(ceiling, one.run_id) >= ceiling.most]
        if full:
            return Stale(head, full=full)
        if one.refs:
            self._refs.setdefault(one.run_id, set()).update(one.refs)
        self._heads[one.run_id] = one.head
        self._rows.setdefault(one.run_id, []).extend(one.rows)
        for letter_id in one.takes:
            self._letters.pop(letter_id, None)
        return None

    def _owned(self, ceiling: Ceiling, but: str) -> int:
        others = (head for head in self._heads.values() if head.owner is not None and head.run_id != but and INSIDE not in head.tags)
        return sum(getattr(head, ceiling.field) == ceiling.value for head in others)

    def draw(self, drafts: Sequence[Draft], *, at_us: int) -> Drawn:
        names = [draft.meter for draft in drafts]
        with self._lock:
            drawn, stand = moved_on([self._meters.get(name, 0) for name in names], drafts, at_us)
            self._meters.update(zip(names, stand, strict=True))
            return drawn

    def give_back(self, draft: Draft, at_us: int) -> None:
        with self._lock:
            if self._meters.get(draft.meter) == at_us + draft.within_us:
                self._meters[draft.meter] -= draft.step_us

    def turn(self, queue: str, lane: str, *, step_us: int, at_us: int) -> int:
        meter = turn_meter(queue, lane)
        with self._lock:
            in_line = any((one.lane, one.queue, one.status) == (lane, queue, "queued") for one in self._heads.values())
            turn_us = max(self._meters.get(meter, 0), at_us) if in_line else at_us
            self._meters[meter] = turn_us + step_us
            return turn_us

    def stands(self, meter: str, at_us: int) -> int:
        with self._lock:
            return self._meters.setdefault(meter, at_us)

    def advance(self, meter: str, to_us: int) -> None:
        with self._lock:
            self._meters[meter] = max(self._meters.get(meter, to_us), to_us)

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        with self._lock:
            head = self._heads.get(run_id)
            return (head, list(self._rows[run_id])) if head else None

    def head(self, run_id: str) -> Head | None:
        return self._heads.get(run_id)

    def heads(self, query: Query) -> list[Head]:
        with self._lock:
            addressed = {letter.run_id for letter in self._letters.values()}
            return listed([head for head in self._heads.values() if not query.addressed or head.run_id in addressed], query)

    def post(self, run_id: str, kind: str, body: bytes, at_us: int) -> int:
        with self._lock:
            self._posted += 1
            self._letters[self._posted] = Letter(self._posted, run_id, at_us, kind, body)
            return self._posted

    def letters(self, run_ids: Sequence[str]) -> list[Letter]:
        wanted = set(run_ids)
        with self._lock:
            return [letter for letter in self._letters.values() if letter.run_id in wanted]

    def enroll(self, owner: str) -> None:
        self._beats[owner] = 1

    def renew(self, owner: str) -> None:
        with self._lock:
            if owner in self._beats:
                self._beats[owner] += 1

    def retire(self, owner: str) -> None:
        self._beats.pop(owner, None)
        self._about.pop(owner, None)

    def introduce(self, owner: str, about: bytes) -> None:
        self._about[owner] = about

    def owners(self) -> list[Enrolled]:
        return [Enrolled(owner, beat, self._about.get(owner, b"")) for owner, beat in sorted(self._beats.items())]

    def hold_back(self, what: str, about: bytes) -> None:
        self._held[what] = about

    def release(self, what: str) -> bool:
        return self._held.pop(what, None) is not None

    def held_back(self) -> list[Hold]:
        return [Hold(what, about) for what, about in sorted(self._held.copy().items())]

    def pulse(self, owner: str) -> Pulse | None:
        beat = self._beats.get(owner)
        return None if beat is None else Pulse(beat, dead=False)

    def check(self) -> list[str]:
        return []

    def examine(self, clock: Clock) -> list[Finding]:
        del clock
        gone = "it is for tests and trials; name a file, such as runs.db"
        return [
            Finding(topic="durability", what="kept in", value="the memory of one process", grade="bad", advice=gone),
            Finding(topic="crash", what="a process is killed", value="everything", grade="bad", meaning="nothing is ever on a disk"),
        ]

    def found(self, run_id: str) -> tuple[Head | None, list[Row]]:
        with self._lock:
            return self._heads.get(run_id), sorted(self._rows.get(run_id, ()), key=lambda row: row.seq)

    def set_aside(self, repair: Repair) -> bool:
        run_id, why = repair.run_id, (repair.run_id, repair.at_us, repair.by, repair.why)
        with self._lock:
            if self._heads.get(run_id) != repair.found or not self._blobs.keys() >= set(repair.refs):
                return False
            self._refs.setdefault(run_id, set()).update(repair.refs)
            good = set(repair.good)
            bad = [row for row in self._rows.get(run_id, ()) if row not in good]
            self._aside += [Aside(*why, "row", tuple(row)) for row in bad]
            self._aside += [Aside(*why, "head", tuple(repair.found))] if repair.found else []
            self._rows[run_id] = [*repair.good, *repair.rows]
            self._heads[run_id] = repair.head
            return True

    def aside(self, run_id: str) -> list[Aside]:
        return [one for one in self._aside if one.run_id == run_id]

    def publish(self, run_id: str, payload: bytes) -> None:
        with self._lock:
            self._live_lines += 1
            self._live_bytes += len(payload)
            self._live.append((self._live_lines, run_id, payload))
            while len(self._live) > LIVE_LINES or self._live_bytes > LIVE_BYTES:
                self._live_bytes -= len(self._live.popleft()[2])

    def published(self, run_id: str, after: int) -> list[tuple[int, bytes]]:
        with self._lock:
            return [(number, payload) for number, of_run, payload in self._live if of_run == run_id and number > after]

    def rows_after(self, run_id: str, seq: int) -> tuple[Head, list[Row]] | None:
        with self._lock:
            head = self._heads.get(run_id)
            return (head, [row for row in self._rows[run_id] if row.seq > seq]) if head else None

    def remove(self, removals: Sequence[Removal]) -> list[bool]:
        with self._lock:
            return [self._remove(*one) for one in removals]

    def _remove(self, found: Head, grave: Tombstone) -> bool:
        run_id = found.run_id
        if self._heads.get(run_id) != found:
            return False
        del self._heads[run_id], self._rows[run_id]
        self._letters = {number: letter for number, letter in self._letters.items() if letter.run_id != run_id}
        self._aside = [one for one in self._aside if one.run_id != run_id]
        self._refs.pop(run_id, None)
        self._graves[run_id] = grave
        return True

    def shed(self, shedding: Shedding) -> bool:
        run_id = shedding.found.run_id
        with self._lock:
            if self._heads.get(run_id) != shedding.found:
                return False
            new = {row.seq: row for row in shedding.rows}
            first, last = shedding.drops
            self._rows[run_id] = [new.get(row.seq, row) for row in self._rows[run_id] if not first <= row.seq <= last]
            return self._append(shedding.append) is None

    def tombstone(self, run_id: str) -> Tombstone | None:
        return self._graves.get(run_id)

    def forget(self, before_us: int) -> int:
        with self._lock:
            old = [grave.run_id for grave in self._graves.values() if grave.pruned_us < before_us]
            for run_id in old:
                del self._graves[run_id]
            return len(old)

    def room(self) -> Room:
        with self._lock:
            data = (len(part) for rows in self._rows.values() for row in rows for part in (row.body, row.value, row.args) if part)
            return Room(sum(data), 0)

    def compact(self) -> None:
        """Nothing is held that is not used."""

    def keep_blob(self, chunks: Iterable[bytes], *, at_us: int, parts: Sequence[str] = ()) -> str:
        data = b"".join(chunks)
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            for part in parts:
                if part not in self._blobs:
                    raise KeyError(part)
            self._blobs[digest] = (data, at_us)
            if parts:
                self._parts[digest] = list(dict.fromkeys(parts))
        return digest

    def touch_blob(self, digest: str, *, at_us: int) -> bool:
        with self._lock:
            kept = self._blobs.get(digest)
            if kept is not None:
                self._blobs[digest] = (kept[0], at_us)
            return kept is not None

    def open_blob(self, digest: str) -> BinaryIO | None:
        kept = self._blobs.get(digest)
        return None if kept is None else io.BytesIO(kept[0])

    def blob_refs(self, run_id: str) -> list[str]:
        with self._lock:
            return sorted(self._refs.get(run_id, ()))

    def blob_parts(self, digest: str) -> list[str]:
        return sorted(self._parts.get(digest, ()))

    def sweep_blobs(self, before_us: int, *, dry_run: bool = False) -> Swept:
        with self._lock:
            old = {digest: len(data) for digest, (data, at_us) in self._blobs.items() if at_us < before_us}
            referred = {digest for refs in self._refs.values() for digest in refs}
            gone = condemned(old.keys() - referred, [(whole, part) for whole, parts in self._parts.items() for part in parts])
            for digest in () if dry_run else gone:
                del self._blobs[digest]
                self._parts.pop(digest, None)
            return Swept(len(gone), sum(old[digest] for digest in gone))

    def close(self) -> None:
        """Nothing to let go of: what was kept stays readable for whoever still holds this object."""
