"""Runs in the memory of this process, for tests and trials: gone when the process is."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence

from holdfast.errors import StoreBusy
from holdfast.store import Append, Aside, Head, Letter, Pulse, Query, Repair, Row, Stale


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

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        if not self._lock.acquire(blocking=wait):
            raise StoreBusy(self.url, "another thread is writing; nothing was written. Try again")
        try:
            return [self._append(one) for one in batch]
        finally:
            self._lock.release()

    def _append(self, one: Append) -> Stale | None:
        head = self._heads.get(one.run_id)
        if (one.epoch, one.seq) != ((head.epoch, head.seq) if head else (0, 0)):
            return Stale(head)
        self._heads[one.run_id] = one.head
        self._rows.setdefault(one.run_id, []).extend(one.rows)
        for letter_id in one.takes:
            self._letters.pop(letter_id, None)
        return None

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        with self._lock:
            head = self._heads.get(run_id)
            return (head, list(self._rows[run_id])) if head else None

    def head(self, run_id: str) -> Head | None:
        return self._heads.get(run_id)

    def heads(self, query: Query) -> list[Head]:
        with self._lock:
            found = [head for head in self._heads.values() if _matches(head, query)]
            if query.addressed:
                addressed = {letter.run_id for letter in self._letters.values()}
                found = [head for head in found if head.run_id in addressed]
        found.sort(key=_order(query))
        return found[query.offset : query.offset + query.limit]

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

    def pulse(self, owner: str) -> Pulse | None:
        beat = self._beats.get(owner)
        return None if beat is None else Pulse(beat, dead=False)

    def check(self) -> list[str]:
        return []

    def found(self, run_id: str) -> tuple[Head | None, list[Row]]:
        with self._lock:
            return self._heads.get(run_id), sorted(self._rows.get(run_id, ()), key=lambda row: row.seq)

    def set_aside(self, repair: Repair) -> bool:
        run_id, why = repair.run_id, (repair.run_id, repair.at_us, repair.by, repair.why)
        with self._lock:
            if self._heads.get(run_id) != repair.found:
                return False
            good = set(repair.good)
            bad = [row for row in self._rows.get(run_id, ()) if row not in good]
            self._aside += [Aside(*why, "row", tuple(row)) for row in bad]
            self._aside += [Aside(*why, "head", tuple(repair.found))] if repair.found else []
            self._rows[run_id] = [*repair.good, *repair.rows]
            self._heads[run_id] = repair.head
            return True

    def aside(self, run_id: str) -> list[Aside]:
        return [one for one in self._aside if one.run_id == run_id]

    def close(self) -> None:
        """Nothing to let go of: what was kept stays readable for whoever still holds this object."""


def _order(query: Query) -> Callable[[Head], tuple[int, str]]:
    if query.due_by_us is not None:
        return lambda head: (head.wake_us or 0, head.run_id)
    if query.addressed or query.after is not None:
        return lambda head: (0, head.run_id)
    return lambda head: (-head.updated_us, head.run_id)


def _matches(head: Head, query: Query) -> bool:
    return (
        (not query.statuses or head.status in query.statuses)
        and (query.agent is None or head.agent == query.agent)
        and (query.idle_before_us is None or head.updated_us < query.idle_before_us)
        and (query.after is None or head.run_id > query.after)
        and (query.due_by_us is None or (head.owner is None and head.wake_us is not None and head.wake_us <= query.due_by_us))
        and (not query.addressed or head.owner is None)
        and (not query.tags or _has_tags(head, query.tags))
    )


def _has_tags(head: Head, wanted: Sequence[tuple[str, str]]) -> bool:
    tags = json.loads(head.tags)
    return all(tags.get(key) == value for key, value in wanted)
