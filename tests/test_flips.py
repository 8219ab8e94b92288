"""Every byte of a database file is changed, one at a time: each change is noticed, or nothing that is read has changed.

What is noticed is said by opening the store, by the check of a run, or by the check of the store. What is not noticed must have no meaning:
all heads, rows, letters, owners and what the store says of itself are read back as they were. The gap that SQLite leaves inside a page is
found by the page's own header, proven unread by turning all its bytes at once, and sampled. With the chain switched off the same
test must find changes that nobody notices.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.errors import StoreError
from holdfast.operating import checking
from holdfast.records import chain
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.store import Query, Row
from holdfast.stores._sqlite_check import findings
from holdfast.stores.sqlite import SqliteStore
from places import in_memory

PAGE = 4096
RECORDS = 24
"""Of each kind several, on more than one page."""
PROCESSES = 2
SAMPLED = 64
"""Bytes of each gap that are also changed one by one."""
SEED = 4
GHOST = "host.dead"

OPENING, RUN, STORE, SAME, COUNTER, GAP = (
    "refused at opening", "noticed by the check of its run", "noticed by the check of the store",
    "without meaning: everything is read as it was", "without meaning: a counter that need only grow", "without meaning: the gap in a page",
)  # fmt: skip
UNNOTICED = "UNNOTICED"


@hf.step
def look(number: int) -> str:
    return f"seen {number}"


@hf.effect(in_doubt="ask")
def pay(number: int) -> int:
    return number


@hf.agent
def errand(order: str) -> list[str]:
    found: list[str] = hf.state([order])
    found.append(look(0))
    for number in range(6):
        found.append(look(number))
        pay(number)
    return found


def written(path: Path) -> None:
    """A store with a run that is done, one that a dead process left, and a letter that nobody has read; closed, so that it is one file."""
    with hf.Holdfast(path) as app:
        app.run(errand, "order", run_id="long", tags={"customer": "7"})
        app.store.enroll(GHOST)
        left = Journal("left").seal([rec.RunStarted(agent="errand", fingerprint="1:0", origin="left", owner=GHOST)], at_us=1)
        assert app.store.append([left]) == [None]
        app.store.post("left", "cancel", b'{"by":"ann"}', 2)
        assert sum(len(_rows(app.store, run_id)) for run_id in ("long", "left")) >= RECORDS
        assert app.store.check() == []
    assert [each.name for each in path.parent.iterdir() if each.is_file()] == [path.name]


def _rows(store: object, run_id: str) -> list[Row]:
    assert isinstance(store, SqliteStore)
    found = store.load(run_id)
    assert found is not None
    return found[1]


def read(store: SqliteStore) -> list[object]:
    """Everything that a store gives back, but for counters."""
    heads = store.heads(Query(after="", limit=100))
    with store._reader.transaction() as cursor:
        told = [*cursor.execute("SELECT * FROM meta"), *cursor.execute("SELECT owner FROM owners")]
    ids = [head.run_id for head in heads]
    return [heads, store.heads(Query(limit=100)), [store.load(run_id) for run_id in ids], store.letters(ids), told]


def counters(store: SqliteStore) -> list[object]:
    """What may differ as long as it only grows: how often an owner has beaten, the last number of a letter."""
    with store._reader.transaction() as cursor:
        return [*cursor.execute("SELECT beat FROM owners"), *cursor.execute("SELECT seq FROM sqlite_sequence")]


class Subject:
    """The file, a byte of which is changed and put back, and a store that is kept open over it as long as nothing fails."""

    def __init__(self, path: Path) -> None:
        self.path, self.raw = path, path.read_bytes()
        with closing(SqliteStore(path)) as store:
            self.whole, self.counts = read(store), counters(store)
        self._app: hf.Holdfast | None = None

    def judged(self, changes: Sequence[tuple[int, int]], *, afresh: bool) -> str:
        """What becomes of these changes of bytes, each an offset and a mask."""
        fd = os.open(self.path, os.O_RDWR)
        try:
            for offset, mask in changes:
                os.pwrite(fd, bytes([self.raw[offset] ^ mask]), offset)
            return self._judged(afresh=afresh)
        finally:
            if afresh:
                self.close()
            for offset, _ in changes:
                os.pwrite(fd, self.raw[offset : offset + 1], offset)
            os.close(fd)
            if afresh and self.path.read_bytes() != self.raw:
                self.path.write_bytes(self.raw)

    def close(self) -> None:
        if self._app is not None:
            self._app.close()
            self._app = None

    def _judged(self, *, afresh: bool) -> str:
        if afresh:
            self.close()
        try:
            app = self._opened()
        except StoreError:
            return OPENING
        try:
            if not all(verdict.good for verdict in checking.check(app.engine, None)):
                return RUN
            return self._looked_at(app.store)
        except StoreError:
            return STORE

    def _looked_at(self, store: object) -> str:
        assert isinstance(store, SqliteStore)
        with store._reader.transaction() as cursor:
            if findings(cursor):
                return STORE
        if read(store) != self.whole:
            return UNNOTICED
        return SAME if counters(store) == self.counts else COUNTER

    def _opened(self) -> hf.Holdfast:
        """The open store with nothing of the file in memory, or a new one."""
        if self._app is None:
            self._app = hf.Holdfast(self.path)
        store = self._app.store
        assert isinstance(store, SqliteStore)
        if store._reader._cursor is not None:
            store._reader._cursor.connection.release_memory()
        return self._app


def gap_of(raw: bytes, page: int) -> range:
    """The bytes between the cell pointers of a b-tree page and its first cell, which SQLite has not given to anything."""
    start = page * PAGE + (100 if page == 0 else 0)
    header = 12 if raw[start] in (2, 5) else 8
    assert raw[start] in (2, 5, 10, 13), f"page {page} is not of a b-tree"
    cells = int.from_bytes(raw[start + 3 : start + 5], "big")
    content = int.from_bytes(raw[start + 5 : start + 7], "big") or 65536
    return range(start + header + 2 * cells, page * PAGE + content)


def pages_read_at_opening(path: Path) -> set[int]:
    """The schema with the header of the file, and what the store says of itself: a store that is open has read them already."""
    with closing(apsw.Connection(str(path))) as connection:
        return {0, connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'meta'").get - 1}


def masks(size: int) -> list[int]:
    """One bit for every byte, always the same one."""
    dice = random.Random(SEED)
    return [1 << dice.randrange(8) for _ in range(size)]


def swept(path: Path, pages: Sequence[int]) -> tuple[Counter[str], list[int]]:
    """Change every byte of these pages, in a copy of the file; what became of each, and the offsets of what nobody noticed."""
    folder = Path(tempfile.mkdtemp(dir=path.parent))
    copy = Path(shutil.copy(path, folder / path.name))
    subject, at_opening = Subject(copy), pages_read_at_opening(copy)
    mask, seen = masks(len(subject.raw)), Counter[str]()
    unnoticed: list[int] = []
    for page in pages:
        gap = gap_of(subject.raw, page)
        assert not gap or subject.judged([(offset, 0xFF) for offset in gap], afresh=True) == SAME
        sampled = set(gap[:: max(1, len(gap) // SAMPLED)])
        for offset in range(page * PAGE, (page + 1) * PAGE):
            skipped = offset in gap and offset not in sampled
            fate = GAP if skipped else subject.judged([(offset, mask[offset])], afresh=page in at_opening)
            assert offset not in sampled or fate == SAME
            seen[GAP if offset in sampled else fate] += 1
            unnoticed += [offset] if fate == UNNOTICED else []
    subject.close()
    return seen, unnoticed


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """In memory, where there is such a place: nothing here depends on the disk."""
    made = Path(tempfile.mkdtemp(dir=in_memory()))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="session")
def path(folder: Path) -> Path:
    written(folder / "runs.db")
    return folder / "runs.db"


def all_pages(path: Path) -> list[int]:
    assert path.stat().st_size % PAGE == 0
    return list(range(path.stat().st_size // PAGE))


@pytest.mark.long
def test_every_flipped_byte_is_noticed_or_has_no_meaning(path: Path) -> None:
    pages = all_pages(path)
    shares = [pages[number::PROCESSES] for number in range(PROCESSES)]
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("fork")) as pool:
        found = list(pool.map(partial(swept, path), shares))
    total: Counter[str] = sum((seen for seen, _ in found), Counter())
    print(f"\n{path.stat().st_size} bytes of a store with {RECORDS} records, each changed:")
    for fate, number in total.most_common():
        print(f"  {number:6}  {fate}")
    assert [offset for _, unnoticed in found for offset in unnoticed] == []
    assert total.total() == path.stat().st_size
    assert total[RUN] > 4_000
    assert min(total[fate] for fate in (OPENING, STORE, SAME)) > 50


def test_a_store_that_stays_open_notices_what_one_that_is_opened_notices(path: Path, folder: Path) -> None:
    copy = Path(shutil.copy(path, folder / "copy.db"))
    subject, dice, mask = Subject(copy), random.Random(), masks(path.stat().st_size)
    candidates = [page for page in all_pages(copy) if page not in pages_read_at_opening(copy)]
    for _ in range(150):
        page = dice.choice(candidates)
        places = [offset for offset in range(page * PAGE, (page + 1) * PAGE) if offset not in gap_of(subject.raw, page)]
        change = [(offset, mask[offset]) for offset in [dice.choice(places)]]
        quick, slow = subject.judged(change, afresh=False), subject.judged(change, afresh=True)
        assert (quick == slow) or {quick, slow} <= {OPENING, RUN, STORE}, change
    subject.close()


def believing(_before: bytes, _run_id: str, row: tuple[Any, ...]) -> bytes:
    return bytes(row[-1])


def test_without_the_chain_flips_go_unnoticed(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "chain", believing)
    copy = Path(shutil.copy(path, folder / "control.db"))
    subject = Subject(copy)
    places = [found.start() + len(b'"seen ') for found in re.finditer(rb'"seen \d"', subject.raw)]
    fates = Counter(subject.judged([(place, 1)], afresh=True) for place in places)
    assert fates[UNNOTICED] > 10
