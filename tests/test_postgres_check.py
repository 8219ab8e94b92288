"""`_postgres_check` and `_postgres_changed`: harm that is done behind the store's back is found, and repairs and removals meet it."""

from __future__ import annotations

import pytest

from holdfast.store import Append, Head, Query, Removal, Stale
from holdfast.stores import _postgres_changed
from holdfast.stores._postgres_line import Connection
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.pruning import removal
from holdfast.testing.sample import create, head, onward, repair, row


def harm(store: PostgresStore, sql: str) -> None:
    store._others.run(lambda connection: connection.execute(sql.encode()))


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("DELETE FROM runs", ["run run has 3 records in its journal but no head"]),
        ("UPDATE runs SET seq = 5", ["the head of run run stands at 5, its journal ends at 3"]),
        ("DELETE FROM journal WHERE seq = 2", ["run run has 2 records, its journal ends at 3"]),
        ("DELETE FROM owners", ["run run belongs to me, which is not enrolled"]),
        ("INSERT INTO letters VALUES (9, 'gone', 1, 'k', '')", ["letter 9 is addressed to run gone, which is not there"]),
        ("SELECT 1", []),
    ],
)
def test_check_compares_heads_journals_letters_and_owners(postgres_store: PostgresStore, sql: str, found: list[str]) -> None:
    postgres_store.enroll("me")
    postgres_store.append([create("run", rows=3)])
    harm(postgres_store, sql)
    assert postgres_store.check() == found


def test_a_run_whose_head_is_gone_does_not_begin_anew_and_can_be_repaired(postgres_store: PostgresStore) -> None:
    postgres_store.append([create("run", rows=4)])
    harm(postgres_store, "DELETE FROM runs")
    assert postgres_store.append([create("run")]) == [Stale(None)]
    assert postgres_store.found("run") == (None, [row(number) for number in range(1, 5)])
    mended = repair("run", rows=4, good=2)._replace(found=None)
    assert postgres_store.set_aside(mended) is True
    assert postgres_store.load("run") == (mended.head, [row(1), row(2), row(3, epoch=2)])


def test_a_run_that_lacks_a_record_is_not_removed(postgres_store: PostgresStore) -> None:
    postgres_store.append([create("run", rows=3)])
    harm(postgres_store, "DELETE FROM journal WHERE seq = 2")
    assert postgres_store.remove([removal(head("run", 3))]) == [False]
    assert postgres_store.head("run") == head("run", 3)


def test_a_run_is_not_created_while_it_is_being_removed(postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who began before the removal was committed sees no tombstone; the id is taken all the same."""
    postgres_store.append([create("run")])
    answers: list[list[Stale | None]] = []
    bury = _postgres_changed._removed

    def removing(connection: Connection, one: Removal) -> bool:
        done = bury(connection, one)
        answers.append(postgres_store.append([create("run")]))
        return done

    monkeypatch.setattr(_postgres_changed, "_removed", removing)
    assert postgres_store.remove([removal(head("run", 1))]) == [True]
    assert answers == [[Stale(head("run", 1))]]
    assert postgres_store.append([create("run")]) == [Stale(None)]


def test_text_that_postgresql_refuses_keeps_its_order(postgres_store: PostgresStore) -> None:
    names = ["a", "a\0", "a\0b", "a\x01", "a\x01\x01", "a\x02", "ab"]
    for name in names[::-1]:
        kept = Head(name, "x\0", "done", None, 1, 1, b"", None, 1, 1, '{"k\\u0000": "v"}', 0.0, "\0\x01\0")
        assert postgres_store.append([Append(name, 0, 0, [row(1)], kept)]) == [None]
        assert postgres_store.head(name) == kept
    assert [found.run_id for found in postgres_store.heads(Query(after="a"))] == names[1:]
    assert len(postgres_store.heads(Query(agent="x\0", tags=[("k\0", "v")]))) == len(names)
    assert postgres_store.append([onward("a\0", 1)]) == [None]
