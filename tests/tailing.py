"""Runs in the tail of one process, and another one that looks at them: what the tests of tails share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.store import Append, Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.sample import create, head, row

ME = "me"


def on(run_id: str, seq: int, *, epoch: int = 1, rows: int = 1, value: bytes | None = None, owner: str = ME) -> Append:
    """An append that only goes on."""
    added = [row(seq + n, epoch=epoch, value=value) for n in range(1, rows + 1)]
    return Append(run_id, epoch, seq, added, head(run_id, seq + rows, epoch=epoch, owner=owner, updated_us=seq + rows), goes_on=True)


def taking(run_id: str, seq: int, *, epoch: int = 1, owner: str | None = "you") -> Append:
    """An append that takes a run over."""
    return Append(run_id, epoch, seq, [row(seq + 1, epoch=epoch + 1)], head(run_id, seq + 1, epoch=epoch + 1, owner=owner))


def appended(store: SqliteStore, run_id: str, last: int) -> None:
    """A run of the owner, up to that row; all but the first few are in its tail."""
    assert store.append([create(run_id)]) == [None]
    for seq in range(1, last):
        assert store.append([on(run_id, seq)]) == [None]


def in_database(store: SqliteStore, run_id: str = "run") -> int:
    """The last row of a run that the database has."""
    with closing(apsw.Connection(str(store.path))) as connection:
        return int(connection.execute("SELECT seq FROM runs WHERE run_id = ?", (run_id,)).get or 0)


def named(store: SqliteStore) -> dict[str, int]:
    with closing(apsw.Connection(str(store.path))) as connection:
        return dict(connection.execute("SELECT owner, tail FROM owners WHERE tail > 0"))


def tails(store: SqliteStore) -> list[Path]:
    return sorted(store.path.with_name(f"{store.path.name}.owners").glob("*.tail"))


def seqs(store: Store, run_id: str = "run") -> list[int]:
    found = store.load(run_id)
    assert found is not None
    assert found[0].seq == found[1][-1].seq
    assert found[0].digest == found[1][-1].digest
    return [one.seq for one in found[1]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def mine(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        store.enroll(ME)
        yield store


@pytest.fixture
def other(path: Path, mine: SqliteStore) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        store.enroll("you")
        yield store
