"""A byte of what is stored is changed, at every place of every row: `check` names the record, and `run` refuses and executes nothing."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.errors import Damaged, HoldfastError, StoreError
from holdfast.records import chain
from holdfast.store import Head, Row
from holdfast.stores.sqlite import SqliteStore

RUN_ID = "damaged"
OTHER_ID = "other"
RANDOM_FLIPS = 150

executed: list[str] = []


@hf.step
def look(what: str) -> str:
    executed.append(what)
    return f"seen {what}"


@hf.step(raises=(LookupError,))
def miss(what: str) -> str:
    executed.append(what)
    raise LookupError(what)


@hf.effect(in_doubt="ask")
def pay(what: str) -> str:
    executed.append(what)
    return hf.key()


@hf.agent
def errand(order: str) -> str:
    found = hf.state([order])
    found.append(look("a"))
    hf.now()
    found.append(pay("b"))
    try:
        miss("c")
    except LookupError:
        found.append("missed")
    look("d")
    raise RuntimeError("not finished")


class Kept:
    """A store with two runs that failed at their end, and a way to have it back as it was."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs.db"
        with hf.Holdfast(self.path) as app:
            for run_id in (RUN_ID, OTHER_ID):
                with pytest.raises(RuntimeError, match="not finished"):
                    app.run(errand, "order", run_id=run_id)
            loaded = app.store.load(RUN_ID)
        assert loaded is not None
        self.head, self.rows = loaded
        self.whole = shutil.copy(self.path, folder / "whole.db")

    def restore(self) -> None:
        for one in self.path.parent.glob("runs.db*"):
            if one.is_file():
                one.unlink()
        shutil.copy(self.whole, self.path)

    def harm(self, sql: str, *values: Any) -> None:
        self.restore()
        with closing(apsw.Connection(str(self.path))) as connection:
            connection.execute(sql, values)
            assert connection.changes() > 0, f"{sql} {values} changed nothing"

    def harm_bytes(self, offsets: Sequence[int], mask: int) -> None:
        self.restore()
        raw = bytearray(self.path.read_bytes())
        for offset in offsets:
            raw[offset] ^= mask
        self.path.write_bytes(raw)


@pytest.fixture(scope="session")
def module_kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def kept(module_kept: Kept) -> Iterator[Kept]:
    executed.clear()
    yield module_kept
    module_kept.restore()


def refused(kept: Kept) -> BaseException | None:
    """What running it again is answered with, if that is a refusal; None where it went on."""
    executed.clear()
    with pytest.raises((Damaged, StoreError, RuntimeError)) as caught, hf.Holdfast(kept.path) as app:
        app.run(errand, "order", run_id=RUN_ID)
    if isinstance(caught.value, RuntimeError):
        return None
    assert executed == [], f"{executed} were executed before {caught.value}"
    return caught.value


def checked(kept: Kept) -> tuple[bool, int, str]:
    with hf.Holdfast(kept.path) as app:
        (verdict,) = app.check(RUN_ID)
    return verdict.good, verdict.seq, verdict.what


def other(value: Any) -> Any:
    """A value that differs from this one by as little as it can."""
    match value:
        case None:
            return b"x"
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:] if value else b"\1"
        case str():
            return chr(ord(value[0]) ^ 1) + value[1:] if value else "x"
        case _:
            return value + 1


def flips(data: bytes) -> Iterator[bytes]:
    """The value with one byte changed: the first, the last, and every eighth."""
    for place in sorted({*range(0, len(data), 8), max(0, len(data) - 1)} if data else ()):
        yield data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def test_the_undamaged_run_is_good_and_goes_on(kept: Kept) -> None:
    assert checked(kept) == (True, 0, "")
    assert refused(kept) is None
    assert len(kept.rows) > 10
    assert {"step.failed", "state.saved", "time.read", "step.started"} <= {row.kind for row in kept.rows}


@pytest.mark.parametrize("column", Row._fields)
def test_a_change_in_a_column_of_any_row_is_noticed(kept: Kept, column: str) -> None:
    for row in kept.rows:
        changed = len(kept.rows) + 7 if column == "seq" else other(getattr(row, column))
        kept.harm(f"UPDATE journal SET {column} = ? WHERE run_id = ? AND seq = ?", changed, RUN_ID, row.seq)
        good, seq, what = checked(kept)
        assert (good, seq) == (False, row.seq), f"{column} of {row}: {what}"
        error = refused(kept)
        assert isinstance(error, Damaged)
        assert f"record {row.seq}" in str(error)


@pytest.mark.parametrize("column", ["body", "value", "args", "digest"])
def test_a_change_of_any_byte_is_noticed(kept: Kept, column: str) -> None:
    tried = 0
    for row in kept.rows:
        for changed in flips(getattr(row, column) or b""):
            kept.harm(f"UPDATE journal SET {column} = ? WHERE run_id = ? AND seq = ?", changed, RUN_ID, row.seq)
            assert checked(kept)[:2] == (False, row.seq), f"{column} of {row} became {changed!r}"
            assert isinstance(refused(kept), Damaged)
            tried += 1
    assert tried > 10


@pytest.mark.parametrize("column", ["body", "value", "digest"])
def test_bytes_that_are_gone_are_noticed(kept: Kept, column: str) -> None:
    for row in kept.rows:
        if getattr(row, column):
            kept.harm(f"UPDATE journal SET {column} = ? WHERE run_id = ? AND seq = ?", b"", RUN_ID, row.seq)
            assert checked(kept)[:2] == (False, row.seq)
            assert isinstance(refused(kept), Damaged)


@pytest.mark.parametrize("column", [name for name in Head._fields if name != "run_id"])
def test_a_change_in_the_head_is_noticed(kept: Kept, column: str) -> None:
    changed = {"owner": "nobody", "wake_us": 7}.get(column, other(getattr(kept.head, column)))
    kept.harm(f"UPDATE runs SET {column} = ? WHERE run_id = ?", changed, RUN_ID)
    good, seq, what = checked(kept)
    assert not good
    assert column in what
    assert seq in (kept.head.seq, kept.head.seq + 1)
    assert isinstance(refused(kept), Damaged)


@pytest.mark.parametrize("status", ["done", "cancelled", "queued", "waiting", "running", "blocked"])
def test_a_head_that_claims_another_status_is_not_believed(kept: Kept, status: str) -> None:
    kept.harm("UPDATE runs SET status = ? WHERE run_id = ?", status, RUN_ID)
    assert not checked(kept)[0]
    assert isinstance(refused(kept), Damaged)


def test_a_row_that_is_gone_is_noticed(kept: Kept) -> None:
    for row in kept.rows:
        kept.harm("DELETE FROM journal WHERE run_id = ? AND seq = ?", RUN_ID, row.seq)
        assert checked(kept)[:2] == (False, row.seq)
        assert isinstance(refused(kept), Damaged)


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_a_tail_that_is_gone_is_noticed(kept: Kept, cut: int) -> None:
    last = kept.head.seq - cut
    kept.harm("DELETE FROM journal WHERE run_id = ? AND seq > ?", RUN_ID, last)
    assert checked(kept)[:2] == (False, last + 1)
    assert isinstance(refused(kept), Damaged)


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_a_tail_that_is_gone_with_the_head_set_back_is_noticed(kept: Kept, cut: int) -> None:
    last = kept.rows[-1 - cut]
    sql = f"DELETE FROM journal WHERE run_id = '{RUN_ID}' AND seq > {last.seq}; UPDATE runs SET seq = ?, digest = ? WHERE run_id = ?"
    kept.harm(sql, last.seq, last.digest, RUN_ID)
    assert not checked(kept)[0]
    assert isinstance(refused(kept), Damaged)


def test_rows_that_changed_places_are_noticed(kept: Kept) -> None:
    for first, second in zip(kept.rows, kept.rows[1:], strict=False):
        swap = "UPDATE journal SET seq = CASE seq WHEN {0} THEN {1} ELSE {0} END + 1000 WHERE run_id = '{2}' AND seq IN ({0}, {1});"
        back = "UPDATE journal SET seq = seq - 1000 WHERE run_id = '{2}' AND seq > 1000"
        kept.harm((swap + back).format(first.seq, second.seq, RUN_ID))
        assert checked(kept)[:2] == (False, first.seq)
        assert isinstance(refused(kept), Damaged)


def test_a_row_of_another_run_is_noticed(kept: Kept) -> None:
    """The other run did the same: only what it is called differs, and when."""
    columns = ", ".join(Row._fields[1:])
    for row in kept.rows:
        theirs = f"SELECT {columns} FROM journal WHERE run_id = '{OTHER_ID}' AND seq = {row.seq}"
        kept.harm(f"UPDATE journal SET ({columns}) = ({theirs}) WHERE run_id = ? AND seq = ?", RUN_ID, row.seq)
        assert checked(kept)[:2] == (False, row.seq)
        assert isinstance(refused(kept), Damaged)


def test_the_whole_journal_of_another_run_is_noticed(kept: Kept) -> None:
    kept.harm(
        f"DELETE FROM journal WHERE run_id = '{RUN_ID}'; DELETE FROM runs WHERE run_id = '{RUN_ID}';"
        f"UPDATE journal SET run_id = '{RUN_ID}'; UPDATE runs SET run_id = '{RUN_ID}'"
    )
    assert checked(kept)[:2] == (False, 1)
    assert isinstance(refused(kept), Damaged)


@pytest.mark.parametrize("sql", ["DELETE FROM runs WHERE run_id = ?", "UPDATE runs SET run_id = 'elsewhere' WHERE run_id = ?"])
def test_a_head_that_is_gone_does_not_start_the_run_anew(kept: Kept, sql: str) -> None:
    kept.harm(sql, RUN_ID)
    with hf.Holdfast(kept.path) as app:
        assert any(RUN_ID in line for line in app.store.check())
    assert isinstance(refused(kept), StoreError)


# --- the raw file ---------------------------------------------------------------------------------------------------


def places(kept: Kept) -> Iterator[tuple[list[int], str]]:
    """Where in the file each row of the run keeps what it holds: a cell has its columns one after the other, and may have left a copy."""
    raw = kept.path.read_bytes()
    for row in kept.rows:
        parts = {"kind": row.kind.encode(), "step_id": row.step_id.encode(), "body": row.body, "value": row.value or b""}
        parts |= {"args": row.args or b"", "digest": row.digest}
        starts = [match.start() for match in re.finditer(re.escape(b"".join(parts.values())), raw)]
        assert starts
        before = 0
        for column, data in parts.items():
            if data:
                yield [start + before + len(data) // 2 for start in starts], f"the {column} of record {row.seq}"
            before += len(data)


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_a_flipped_byte_in_the_file_of_any_row_is_noticed(kept: Kept, mask: int) -> None:
    kept.restore()
    found = list(places(kept))
    assert len(found) > 2 * len(kept.rows)
    for offsets, what in found:
        kept.harm_bytes(offsets, mask)
        good, seq, _ = checked(kept)
        assert not good, what
        assert what.endswith(f" {seq}"), f"{what} was reported as record {seq}"
        assert isinstance(refused(kept), Damaged), what


def same(kept: Kept) -> bool:
    """Whether the store still gives what was written: the byte was in a place that nobody reads."""
    with closing(SqliteStore(kept.path)) as store:
        return store.load(RUN_ID) == (kept.head, kept.rows)


def test_a_flipped_byte_anywhere_is_noticed_or_harmless(kept: Kept) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    noticed = 0
    for _ in range(RANDOM_FLIPS):
        offset, mask = dice.randrange(kept.path.stat().st_size), 1 << dice.randrange(8)
        kept.harm_bytes([offset], mask)
        again = f"seed {seed}: byte {offset} ^ {mask:#x}"
        try:
            if same(kept):
                continue
        except HoldfastError:
            pass
        except Exception as error:
            raise AssertionError(f"{again}: {error!r} instead of an error of ours") from error
        kept.harm_bytes([offset], mask)
        assert refused(kept) is not None, again
        noticed += 1
    assert noticed > 0, f"seed {seed}"


# --- negative control -----------------------------------------------------------------------------------------------


def believing(_before: bytes, _run_id: str, row: tuple[Any, ...]) -> bytes:
    return row.digest if isinstance(row, Row) else b"\0" * 32


def test_without_the_chain_the_damage_goes_unnoticed(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in kept.rows if row.kind == "step.done" and row.value == b'"seen a"')
    sql = "UPDATE journal SET value = ? WHERE run_id = ? AND seq = ?"
    kept.harm(sql, b'"seen b"', RUN_ID, row.seq)
    noticing: list[Callable[[Kept], object]] = [lambda kept: not checked(kept)[0], lambda kept: refused(kept) is not None]
    assert [notices(kept) for notices in noticing] == [True, True]
    monkeypatch.setattr(chain, "chain", believing)
    assert [notices(kept) for notices in noticing] == [False, False]
