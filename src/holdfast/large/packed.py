"""A store that is given plain rows and keeps packed ones, in any other store: large values as blobs, growing ones as differences.

Everything above sees plain rows, so digests and repairs know nothing of it; everything below sees small ones. What later values are like is
remembered for each run (`Trail`), with the place in the run at which it is true. An append that names that very place, and is accepted,
proves that nobody has changed the run since; otherwise the next value is written as a whole. A shedding packs the run anew, so nothing is
like a record that has gone. A repair keeps the beginning of a run, and a record is only like an earlier one.

A blob is durable before the append that refers to it, and the append says so: a store that does not have it any more refuses, and
it is kept again. Where a value cannot be put together, its row is given as it stands: the chain finds that it is not what was written.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

from holdfast._clock import Clock
from holdfast._failpoints import reach
from holdfast.errors import StoreBusy, StoreDamaged
from holdfast.large.packing import Key, Known, Packer, Rows, TakesLong, Unpacker, is_packed, is_worth_it, needed_from, verified_blob
from holdfast.store import Append, Head, Live, Prunable, Repair, Repairable, Row, Shedding, Shelf, Stale, Store, Transaction

KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of values that later ones may be like, of all runs together; what is forgotten beyond that is next written as a whole."""
TRIES = 3
"""How often a blob that was swept between its keeping and its append is kept again."""

Loaded = tuple[Head, Sequence[Row]]


class Trail(NamedTuple):
    """What values of a run may be like as long as it stands at this place."""

    epoch: int
    seq: int
    digest: bytes
    known: Mapping[Key, Known]

    def size(self) -> int:
        return sum(len(each.plain) for each in self.known.values())


class Trails:
    """The trails of the runs that were written or read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.runs: OrderedDict[str, Trail] = OrderedDict()
        self._bytes = 0

    def forget(self, run_id: str) -> None:
        with self._lock:
            self._drop(run_id)

    def doubt(self, head: Head) -> None:
        """Forget what is known of another run that had this id, and stood at the same place: a fence tells the two apart no more."""
        found = self.runs.get(head.run_id)
        if found is not None and (found.epoch, found.seq) == (head.epoch, head.seq) and found.digest != head.digest:
            self.forget(head.run_id)

    def remember(self, head: Head, known: Mapping[Key, Known]) -> None:
        """What is known at this place; whoever reads an earlier one must not set back who writes, and who writes forgets first."""
        trail = Trail(head.epoch, head.seq, head.digest, known)
        with self._lock:
            found = self.runs.get(head.run_id)
            if found is not None and (found.epoch, found.seq) > (trail.epoch, trail.seq):
                return
            self._drop(head.run_id)
            self.runs[head.run_id] = trail
            self._bytes += trail.size()
            while self._bytes > KEPT_BYTES:
                self._drop(next(iter(self.runs)))

    def _drop(self, run_id: str) -> None:
        trail = self.runs.pop(run_id, None)
        self._bytes -= trail.size() if trail is not None else 0


class PackedStore:
    """Plain rows over a store that keeps packed ones; every other method of that store is passed on to it (`packed`)."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.inner, self.url, self.inline = store, store.url, store.inline
        self._able: Any = store
        self._clock, self.trails = clock, Trails()
        self._shelf = store if isinstance(store, Shelf) else None

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        runs = self.trails.runs
        for one in batch:
            if one.run_id in runs:
                return self._append(batch, wait=wait)
            for row in one.rows:
                if is_worth_it(row):
                    return self._append(batch, wait=wait)
        return self.inner.append(batch, wait=wait)

    def _append(self, batch: Sequence[Append], *, wait: bool, tries: int = TRIES) -> list[Stale | None]:
        packers = [self.packer(one, brief=not wait) for one in batch]
        try:
            answers = self.inner.append([_packed(one, packer) for one, packer in zip(batch, packers, strict=True)], wait=wait)
        except TakesLong:  # who does not wait for a lock, on an event loop, does not wait for a blob either
            raise StoreBusy(self.url, "a large value has to be kept first; nothing was written. Try again, and wait") from None
        except StoreBusy:
            raise
        except BaseException:
            for one in batch:
                self.trails.forget(one.run_id)
            raise
        for index, (one, packer, stale) in enumerate(zip(batch, packers, list(answers), strict=True)):
            self.trails.forget(one.run_id)
            if stale is None and one.head.owner is not None and packer.known:
                self.trails.remember(one.head, packer.known)
            if stale is not None and set(stale.missing) & set(packer.blobs) and tries:
                (answers[index],) = self._append([one], wait=wait, tries=tries - 1)
        return answers

    def packer(self, one: Append, *, brief: bool) -> Packer:
        """What packs an append, like what is known where the run stands."""
        trail = self.trails.runs.get(one.run_id)
        fits = trail is not None and (trail.epoch, trail.seq) == (one.epoch, one.seq)
        return self._anew(trail.known if trail is not None and fits else {}, brief=brief)

    def _anew(self, known: Mapping[Key, Known], *, brief: bool = False) -> Packer:
        return Packer(known, None if self._shelf is None else partial(self._keep, self._shelf), brief=brief)

    def _keep(self, shelf: Shelf, data: bytes) -> str:
        reach("pack.before_blob")
        digest = shelf.keep_blob((data,), at_us=self._clock.now_us())
        reach("pack.after_blob")
        return digest

    def load(self, run_id: str) -> Loaded | None:
        found = self.inner.load(run_id)
        return found and self._loaded(*found)

    def _loaded(self, head: Head, rows: Sequence[Row]) -> Loaded:
        self.trails.doubt(head)
        if not any(map(is_packed, rows)):
            return head, rows
        return head, Rows(rows, partial(Unpacker, rows, self._fetch), partial(self.trails.remember, head))

    def _fetch(self, digest: str) -> bytes:
        file = None if self._shelf is None else self._shelf.open_blob(digest)
        if file is None:
            raise ValueError(f"the blob {digest[:12]} is not there")
        try:
            with file:
                return verified_blob(digest, file.read())
        except OSError as error:
            raise ValueError(f"the blob {digest[:12]} cannot be read ({error.strerror})") from error

    def _rows_after(self, run_id: str, seq: int) -> Loaded | None:
        found: Loaded | None = self._able.rows_after(run_id, seq)
        if found is None or not any(map(is_packed, found[1])):
            return found
        if not needed_from(found[1], seq):
            return self._loaded(*found)
        return self._from_the_trail(run_id, seq) or self._from_all(run_id, seq)

    def _from_the_trail(self, run_id: str, seq: int) -> Loaded | None:
        """The same with what is known of earlier records, if the run still holds what it did then."""
        trail = self.trails.runs.get(run_id)
        found = None if trail is None or trail.seq > seq else self._able.rows_after(run_id, trail.seq - 1)
        if trail is None or not found or not found[1] or (found[1][0].seq, found[1][0].digest) != (trail.seq, trail.digest):
            return None
        head, rows = found
        unpacker = Unpacker(rows, self._fetch, trail.known)
        try:
            plain = [row for row in map(unpacker.certain, rows[1:]) if row.seq > seq]
        except (ValueError, TypeError):  # they were packed anew, and are like other records than those of the trail
            return None
        self.trails.remember(head, unpacker.known)
        return head, plain

    def _from_all(self, run_id: str, seq: int) -> Loaded | None:
        found = self.load(run_id)
        return found and (found[0], [row for row in found[1] if _number(row.seq) > seq])

    def _found(self, run_id: str) -> tuple[Head | None, Sequence[Row]]:
        head, rows = self._able.found(run_id)
        if not any(map(is_packed, rows)):
            return head, rows
        return head, Rows(rows, partial(Unpacker, rows, self._fetch), lambda _: None)

    def _set_aside(self, repair: Repair) -> bool:
        """The good rows as they are stored: what they are like is before them, and stays. What follows them is like none of them.

        A run that comes back from another store comes so, whole: nothing of it becomes a blob, since a repair cannot refer to any.
        """
        self.trails.forget(repair.run_id)
        _, raw = self._able.found(repair.run_id)
        unpacker, packer, good, kept = Unpacker(raw, self._fetch), Packer({}, None), iter(repair.good), list[Row]()
        wanted = next(good, None)
        for row in raw:
            if wanted is not None and unpacker.plain(row) == wanted:
                kept.append(row)
                wanted = next(good, None)
        answer: bool = wanted is None and self._able.set_aside(repair._replace(good=kept, rows=[packer.pack(row) for row in repair.rows]))
        return answer

    def _shed(self, shedding: Shedding) -> bool:
        """Pack the run anew as it will be, and write those rows that are stored in another way."""
        run_id, (first, last) = shedding.found.run_id, shedding.drops
        found = self.inner.load(run_id)
        if found is None or found[0] != shedding.found:
            return False
        self.trails.forget(run_id)
        new = {row.seq: row for row in shedding.rows}
        unpacker, packer, changed = Unpacker(found[1], self._fetch), self._anew({}), list[Row]()
        for raw in found[1]:
            plain = self._certain(unpacker, raw)
            packed = raw if first <= raw.seq <= last else packer.pack(new.get(raw.seq, plain))
            if packed != raw:
                changed.append(packed)
        answer: bool = self._able.shed(shedding._replace(rows=changed, append=_packed(shedding.append, packer)))
        return answer

    def _certain(self, unpacker: Unpacker, row: Row) -> Row:
        try:
            return unpacker.certain(row)
        except (ValueError, TypeError) as error:
            raise StoreDamaged(self.url, f"record {row.seq} cannot be put together, so nothing was changed: {error}") from error


    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        with self._able.transaction() as inner:
            yield PackedTransaction(self, inner)


class PackedTransaction:
    """A transaction of the user's whose append is packed too, but without blobs: one that is kept meanwhile it may not see."""

    def __init__(self, store: PackedStore, inner: Transaction) -> None:
        self._store, self._inner = store, inner
        self.connection, self.again = inner.connection, inner.again

    def commit(self, append: Append) -> Stale | None:
        store = self._store
        packer = Packer(store.packer(append, brief=False).known, None)
        store.trails.forget(append.run_id)
        stale = self._inner.commit(_packed(append, packer))
        if stale is None and packer.known:
            store.trails.remember(append.head, packer.known)
        return stale


OWN_WAY = ("rows_after", "found", "set_aside", "shed", "transaction")
"""What only some stores can do, and is done in another way over packed rows."""
ABILITIES = (Repairable, Live, Prunable, Shelf)


def packed(store: Store, clock: Clock) -> Store:
    """The store as the engine uses it; it can do what the one below can, no less and no more."""
    if isinstance(store, PackedStore):
        return store
    names = {*dir(store), *(name for each in (Store, *ABILITIES) for name in vars(each))} - {"url", "inline"}
    able = (name for name in names if not name.startswith("_") and getattr(store, name, None) is not None)
    told = frozenset((name, callable(getattr(store, name))) for name in able if name not in vars(PackedStore))
    return cast("Store", _kind(told)(store, clock))


def below(store: Store) -> Store:
    """The store that keeps what this one is given."""
    return store.inner if isinstance(store, PackedStore) else store


@lru_cache
def _kind(told: frozenset[tuple[str, bool]]) -> Callable[[Store, Clock], PackedStore]:
    """A packed store that has these methods and attributes besides, as those who look for an ability ask the class."""
    members = {name: _passed_on(name) if is_method else _looked_up(name) for name, is_method in told}
    return type("PackedStore", (PackedStore,), members | {name: getattr(PackedStore, f"_{name}") for name in OWN_WAY if name in members})


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: PackedStore, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    return method


def _number(seq: object) -> int:
    """A seq, or 0 where damage made something else of it."""
    return seq if isinstance(seq, int) else 0


def _looked_up(name: str) -> property:
    return property(lambda self: getattr(self.inner, name))


def _packed(one: Append, packer: Packer) -> Append:
    rows = [packer.pack(row) for row in one.rows]
    return one._replace(rows=rows, refs=tuple(dict.fromkeys((*one.refs, *packer.blobs))))
