"""What a SQLite store finds when it is asked whether it is whole, beside the chain of every run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import holdfast as hf
from holdfast.errors import StoreDamaged
from holdfast.stores._sqlite_check import SEAL_BYTES
from holdfast.stores.sqlite import DAMAGED, SqliteStore
from holdfast.testing.sample import create, repair


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "runs.db")
    store.enroll("me")
    store.append([create("run", rows=4)])
    store.post("run", "cancel", b'{"by":"ann"}', 5)
    assert store.check() == []
    yield store
    store.close()


def harm(store: SqliteStore, sql: str) -> None:
    with closing(apsw.Connection(str(store.path))) as connection:
        connection.execute(sql)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("UPDATE letters SET run_id = 'gone'", "letter 1 is addressed to run gone, which is not there"),
        ("UPDATE owners SET owner = 'you'", "run run belongs to me, which is not enrolled"),
        ("UPDATE sqlite_sequence SET seq = 0", "the numbering of letters is damaged: a number could be given twice"),
        ("UPDATE sqlite_sequence SET name = 'lettert'", "the numbering of letters is damaged: a number could be given twice"),
        ("UPDATE meta SET value = 'z' || substr(value, 2) WHERE key = 'store_id'", "what the store says of itself"),
        ("UPDATE meta SET key = 'tore_id' WHERE key = 'store_id'", "what the store says of itself"),
        ("UPDATE meta SET key = 'sea' WHERE key = 'seal'", "what the store says of itself"),
        ("ALTER TABLE runs RENAME note TO nose", "the schema is damaged: runs is not as it was declared"),
        ("DROP INDEX letters_run", "the schema is damaged: letters_run is not as it was declared"),
        ("CREATE TABLE guest (x)", "the schema is damaged: guest is not as it was declared"),
        ("UPDATE letters SET kind = 'cancem'", "letter 1 to run run is damaged; it will be ignored"),
        ("UPDATE letters SET at_us = 6", "letter 1 to run run is damaged; it will be ignored"),
        ("UPDATE letters SET body = CAST(body || x'20' AS BLOB)", "letter 1 to run run is damaged; it will be ignored"),
        ("UPDATE letters SET body = x''", "letter 1 to run run is damaged; it will be ignored"),
    ],
)
def test_a_change_beside_the_runs_is_found(store: SqliteStore, sql: str, found: str) -> None:
    harm(store, sql)
    assert any(line.startswith(found) for line in store.check()), store.check()


def test_a_damaged_letter_is_of_a_kind_that_nobody_acts_on(store: SqliteStore) -> None:
    (whole,) = store.letters(["run"])
    assert (whole.kind, whole.body) == ("cancel", b'{"by":"ann"}')
    harm(store, f"UPDATE letters SET body = CAST(substr(body, 1, {SEAL_BYTES}) || '{{\"by\":\"bob\"}}' AS BLOB)")
    (changed,) = store.letters(["run"])
    assert changed.kind == DAMAGED


def test_a_store_from_before_there_was_a_seal_is_whole(store: SqliteStore) -> None:
    harm(store, "DELETE FROM meta WHERE key = 'seal'")
    assert store.check() == []


@pytest.mark.parametrize("value", ["0", "-1", "x", ""])
def test_a_format_that_there_never_was_is_damage(store: SqliteStore, value: str) -> None:
    store.close()
    harm(store, f"UPDATE meta SET value = '{value}' WHERE key = 'format'")
    with pytest.raises(StoreDamaged, match="format"):
        SqliteStore(store.path)


def test_rows_that_are_no_text_any_more_are_kept_aside_as_they_were(store: SqliteStore) -> None:
    harm(store, "UPDATE journal SET kind = CAST(x'ff41' AS TEXT) WHERE seq = 3")
    head, rows = store.found("run")
    assert (head is not None, [row.kind for row in rows][2]) == (True, "\ufffdA")
    assert store.set_aside(repair("run", rows=4, good=2))
    with closing(apsw.Connection(str(store.path))) as connection:
        assert connection.execute("SELECT hex(kind) FROM aside_rows WHERE seq = 3").get == "FF41"
    assert [one.fields[3] for one in store.aside("run") if one.what == "row"] == ["\ufffdA", "step.done"]


def test_a_record_whose_number_is_none_any_more_is_named(tmp_path: Path) -> None:
    @hf.agent(name="short")
    async def short() -> int:
        return 1

    strict = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, {}) WHERE name = 'journal'"
    with hf.Holdfast(tmp_path / "short.db") as app:
        app.run(short, run_id="r")
        assert isinstance(app.store, SqliteStore)
        harm(app.store, strict.format("') STRICT', ')'"))
        harm(app.store, "UPDATE journal SET seq = 'x' WHERE seq = 1")
        (verdict,) = app.check("r")
        assert (verdict.good, verdict.records, verdict.seq) == (False, 0, 1)
