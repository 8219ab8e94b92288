"""A bucket as a place for named bytes: create-only puts are the fence, and what passes is tried again for a while.

A create is sent with `If-None-Match: *` (or what the provider calls it), so a name is given once. Where the reply was lost, or the server
failed behind the write, the same put is sent again, and if it is refused then, what stands there is read: our own bytes mean that the first
went in. A refusal at the first try is a refusal, whatever stands there.

There are no folders, so none can be taken away from under a writer that has slept for a day. To vacate one means that its names stay taken,
by objects without a byte, which nobody lists or reads. They go when the run's tombstone does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError

from holdfast._clock import SystemClock
from holdfast._ids import jitter
from holdfast.errors import StoreFailed
from holdfast.stores._object_address import Address, Client
from holdfast.stores._object_errors import CONFLICT, NO_BUCKET, from_objects, said_by

if TYPE_CHECKING:
    from obstore import ObjectMeta

T = TypeVar("T")

PATIENCE_S = 20.0
"""How long a server that fails or does not answer is tried again."""
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""What lies between two tries at the most; how much of it is left to chance, so that many do not come back at the same moment."""
AT_ONCE = 16
"""How many requests one call has under way."""
LARGE_BYTES = 1 << 20
PAGE = 1000
"""Names that are listed at once at the most."""
FENCED = "runs/"
"""Below this a name that was given once must stay taken when what it named is gone."""
FORKED = (
    "the store was opened before os.fork and belongs to the parent process; nothing was done. "
    "Its client does not survive a fork: start the process anew instead (multiprocessing: spawn)"
)
IN_THE_WAY = BaseError("status code: 409")
READ_ONLY = "Nothing was changed"
NOT_KNOWN = "It is not known whether the last records were written; whoever takes the runs next looks"


class ObjectPlace:
    """The objects of one bucket whose names begin with one prefix."""

    def __init__(self, address: Address) -> None:
        self.url = address.shown
        self.patience_s = PATIENCE_S
        self._address = address
        self._small: Client = address.client()
        self._large: Client = address.client(large=True)
        self._pid = os.getpid()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-objects")

    def make(self, folder: str) -> None:
        """Nothing: a name is all there is."""

    def create(self, name: str, data: bytes) -> bool:
        assert data, "an object without a byte is a name that was vacated"
        client, lost = self._for(data), False

        def put() -> bool | None:
            nonlocal lost
            try:
                obstore.put(client, name, data, mode="create")
                return True
            except AlreadyExistsError as error:
                if not lost and said_by(error).status != CONFLICT:
                    return False
                return self._taken_by(name, data if lost else None)
            except BaseError:
                lost = True
                raise

        return self._tried(put, NOT_KNOWN)

    def _taken_by(self, name: str, ours: bytes | None) -> bool | None:
        """Behind a refusal: whether our bytes stand there; None where nothing does, so that it can be tried again."""
        found = self._get(name)
        return None if found is None else found == ours

    def read(self, name: str) -> bytes | None:
        return self._tried(lambda: (self._get(name),), READ_ONLY)[0] or None

    def has(self, name: str) -> bool:
        return self._tried(lambda: (self._size(name) > 0,), READ_ONLY)[0]

    def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        return self.side_by_side(self.read, names)

    def names(self, folder: str, *, after: str = "") -> list[str]:
        """What is in folders is gone through too: only so it is seen whether all of it was vacated."""
        inside = (name.partition("/") for name in self.below(folder, after))
        return [name for name in dict.fromkeys(first + slash for first, slash, _ in inside) if name > after]

    def below(self, folder: str, after: str = "") -> Iterator[str]:
        """All names below the folder, in the folders in it too, in order."""
        return (name for name, size in self.sizes(folder, after) if size)

    def replace(self, name: str, data: bytes) -> None:
        self._tried(lambda: (obstore.put(self._for(data), name, data, use_multipart=False),), "Whether it was written is not known")

    def remove(self, name: str) -> None:
        self._tried(lambda: self._deleted(name), "Whether it was removed is not known")

    def confirm(self, name: str) -> None:
        """Nothing: what a server shows it keeps."""

    def settle(self, folder: str) -> None:
        """Nothing: what a server has removed is removed."""

    def upload(self, name: str, file: Path) -> None:
        """Put what the file holds there, in pieces where it is large; the name must be one that nobody else has."""
        self._tried(lambda: (obstore.put(self._large, name, file, max_concurrency=2),), "Whether it was written is not known")

    def piece(self, name: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`."""
        if start >= end:
            return b""
        return self._tried(lambda: (bytes(obstore.get_range(self._small, name, start=start, end=end)),), READ_ONLY)[0]

    def vacate(self, folder: str) -> None:
        names = [f"{folder}{name}" for name, size in self.sizes(folder) if size]
        drop = self._emptied if folder.startswith(FENCED) else self.remove
        self.side_by_side(drop, names[:-1])
        self.side_by_side(drop, names[-1:])

    def purge(self, folder: str) -> None:
        self.side_by_side(self.remove, [f"{folder}{name}" for name, _ in self.sizes(folder)])

    def room(self) -> int:
        return sum(size for _, size in self.sizes(""))

    def side_by_side(self, work: Callable[[str], T], names: Sequence[str]) -> list[T]:
        """Do the same for each name, some of them at a time; the first error is raised when all have come to an end."""
        if len(names) < 2 or self._is_forked():  # noqa: PLR2004
            return [work(name) for name in names]
        futures = [self._pool.submit(work, name) for name in names]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def close(self) -> None:
        self._pool.shutdown(wait=not self._is_forked())

    def _get(self, name: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._small, name).bytes())
        except FileNotFoundError as error:
            if said_by(error).code in NO_BUCKET:
                raise from_objects(error, self._address, READ_ONLY) from None
            return None

    def _size(self, name: str) -> int:
        try:
            return obstore.head(self._small, name)["size"]
        except FileNotFoundError:
            return 0

    def _deleted(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            obstore.delete(self._small, name)
        return True

    def _emptied(self, name: str) -> None:
        self.replace(name, b"")

    def sizes(self, folder: str, after: str = "") -> Iterator[tuple[str, int]]:
        """All names below the folder and their sizes, those that were vacated too, in order.

        A page that fails is asked for again, not those before it.
        """
        listing = _Listing(self._small, folder, after)
        while page := self._tried(listing.page, READ_ONLY):
            yield from page

    def _for(self, data: bytes) -> Client:
        return self._large if len(data) > LARGE_BYTES else self._small

    def _tried(self, act: Callable[[], T | None], now: str) -> T:
        """Do it; while it gives None, or an error that may pass, do it again, until the patience is used up."""
        if self._is_forked():
            raise StoreFailed(self.url, FORKED)
        clock = SystemClock()
        until_s = clock.monotonic_s() + self.patience_s
        for pause_s in _pauses():
            done, failed = self._attempt(act)
            if done is not None:
                return done
            if failed is not None and not said_by(failed).may_pass:
                raise from_objects(failed, self._address, now) from None
            if clock.monotonic_s() + pause_s >= until_s:
                raise from_objects(failed or IN_THE_WAY, self._address, now) from None
            clock.sleep(pause_s)
        raise AssertionError("there is always another pause")

    @staticmethod
    def _attempt(act: Callable[[], T | None]) -> tuple[T | None, Exception | None]:
        try:
            return act(), None
        except (BaseError, FileNotFoundError) as error:
            return None, error

    def _is_forked(self) -> bool:
        return os.getpid() != self._pid


class _Listing:
    """The names below a folder; where a page fails, it goes on behind the last that was seen, also with a server that begins anew."""

    def __init__(self, client: Client, folder: str, after: str) -> None:
        self._client, self._folder, self._last = client, folder, after
        self._stream: Iterator[Sequence[ObjectMeta]] | None = None

    def page(self) -> list[tuple[str, int]]:
        """The next names and their sizes; none at the end."""
        self._stream = self._stream or self._opened()
        stream, self._stream = self._stream, None
        for found in stream:
            names = [(one["path"][len(self._folder) :], one["size"]) for one in found]
            new = [(name, size) for name, size in names if name > self._last]
            if new:
                self._last, self._stream = new[-1][0], stream
                return new
        return []

    def _opened(self) -> Iterator[Sequence[ObjectMeta]]:
        offset = f"{self._folder}{self._last}" if self._last else None
        return iter(obstore.list(self._client, self._folder.rstrip("/") or None, offset=offset, chunk_size=PAGE))


def _pauses() -> Iterator[float]:
    for most_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
        yield most_s * (0.5 + jitter() / 2)
