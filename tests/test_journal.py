"""One run's records: the chain, the head that can be computed again, and damage that is found where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from crashing import Crash, FailingStore, crashing, dies_at, lines, loaded, play, status
from holdfast.errors import Damaged, Stopped, StoreFailed
from holdfast.records import kinds as rec
from holdfast.records.chain import GENESIS, chain, record_of, verified
from holdfast.records.journal import Journal
from holdfast.store import Append, Head, Row
from holdfast.stores.memory import MemoryStore


@hf.step
async def think(text: str) -> str:
    hf.usage(model="m", usd=0.5)
    return text.upper()


@hf.effect(in_doubt="ask")
async def pay(cents: int) -> int:
    return cents


@hf.agent
async def buying(text: str) -> str:
    notes = hf.state({"n": 0})
    hf.now()
    notes["n"] = await pay(len(text))
    return await think(text)


@pytest.fixture(scope="session")
def recorded() -> tuple[Head, list[Row]]:
    store = MemoryStore()
    play(store, buying, "ab")
    head, rows = loaded(store)
    return head, list(rows)


def test_what_was_written_verifies(recorded: tuple[Head, list[Row]]) -> None:
    head, rows = recorded
    assert [row.seq for row, _ in verified(head, rows)] == list(range(1, head.seq + 1))
    assert rows[0].digest == chain(GENESIS, "r", rows[0])


def test_the_head_is_what_its_records_say(recorded: tuple[Head, list[Row]]) -> None:
    head, _ = recorded
    assert (head.status, head.owner, head.usd, head.epoch) == ("done", None, 0.5, 1)


OTHERS: dict[str, Any] = {
    "seq": 99, "epoch": 9, "at_us": 1, "kind": "run.released", "step_id": "77", "body": b'{"reason":"x"}', "value": b"0",
    "digest": b"\1" * 32,
}  # fmt: skip
"""Another value for every column; for `args` see below."""


def changes(row: Row) -> Iterator[Row]:
    for column, other in OTHERS.items():
        yield row._replace(**{column: other})
    yield row._replace(args=b'{"text":"another"}')
    yield row._replace(value=None if row.value is not None else b"")
    yield row._replace(body=row.body[:-1] + b" }")
    yield row._replace(body=b"\xff")
    yield row._replace(digest=bytes(row.digest[:-1]) + bytes([row.digest[-1] ^ 1]))


def test_any_changed_column_of_any_row_is_damage_at_that_record(recorded: tuple[Head, list[Row]]) -> None:
    head, rows = recorded
    tried = 0
    for index, row in enumerate(rows):
        for changed in changes(row):
            if changed == row:
                continue
            with pytest.raises(hf.Damaged) as found:
                Journal.load(head, [*rows[:index], changed, *rows[index + 1 :]])
            assert (found.value.seq, found.value.run_id) == (index + 1, "r"), changed
            tried += 1
    assert tried >= len(rows) * len(OTHERS)


@pytest.mark.parametrize("column", [name for name in Head._fields if name != "run_id"])
def test_any_changed_column_of_the_head_is_damage(recorded: tuple[Head, list[Row]], column: str) -> None:
    head, rows = recorded
    others: dict[type, Any] = {int: 77, str: "other", bytes: b"\2" * 32, float: 0.75, type(None): "x"}
    with pytest.raises(hf.Damaged, match=f"the head says {column}=") as found:
        Journal.load(head._replace(**{column: others[type(getattr(head, column))]}), rows)
    assert found.value.seq in (head.seq, head.seq + 1)


def test_the_rows_of_another_run_are_damage_from_the_first_record_on(recorded: tuple[Head, list[Row]]) -> None:
    head, rows = recorded
    with pytest.raises(hf.Damaged) as found:
        Journal.load(head._replace(run_id="s"), rows)
    assert found.value.seq == 1


def test_a_missing_row_and_a_cut_off_tail_are_damage(recorded: tuple[Head, list[Row]]) -> None:
    head, rows = recorded
    for kept, seq in ((rows[:2] + rows[3:], 3), (rows[1:], 1), (rows[:-1], head.seq), ([], 1)):
        with pytest.raises(hf.Damaged) as found:
            Journal.load(head, kept)
        assert found.value.seq == seq


def test_a_row_written_twice_or_swapped_is_damage(recorded: tuple[Head, list[Row]]) -> None:
    head, rows = recorded
    for wrong, seq in (([*rows, rows[-1]], head.seq + 1), ([rows[1], rows[0], *rows[2:]], 1)):
        with pytest.raises(hf.Damaged) as found:
            Journal.load(head, wrong)
        assert found.value.seq == seq


def test_pruned_arguments_keep_the_chain(recorded: tuple[Head, list[Row]]) -> None:
    head, rows = recorded
    bare = [row._replace(args=None) if row.kind == "step.done" else row for row in rows]
    assert bare != rows
    assert Journal.load(head, bare).head == head


@pytest.mark.parametrize("kind", ["run.started", "step.started"])
def test_missing_arguments_of_an_agent_or_an_effect_are_damage(recorded: tuple[Head, list[Row]], kind: str) -> None:
    head, rows = recorded
    bare = [row._replace(args=None) if row.kind == kind else row for row in rows]
    with pytest.raises(Damaged, match="its arguments are missing") as found:
        Journal.load(head, bare)
    assert found.value.seq == next(row.seq for row in rows if row.kind == kind)


def test_a_damaged_run_is_refused_and_nothing_is_executed() -> None:
    calls: list[int] = []

    @hf.step
    async def count() -> int:
        calls.append(1)
        return 1

    @hf.agent
    async def counting() -> int:
        await count()
        if len(calls) == 1:
            raise Crash
        return await count()

    store = MemoryStore()
    crashing(lambda: play(store, counting))
    head, rows = loaded(store)
    store._rows["r"][1] = rows[1]._replace(value=b"2")
    with pytest.raises(hf.Damaged, match="damaged at record 2"):
        play(store, counting)
    assert calls == [1]
    assert len(loaded(store)[1]) == head.seq


def test_sealing_numbers_and_chains_behind_the_last_stored_record() -> None:
    journal = Journal("r")
    first = journal.seal([rec.RunStarted(agent="a", fingerprint="f", origin="r", owner="o"), rec.TimeoutFired(step_id="1")], at_us=5)
    assert ([row.seq for row in first.rows], first.epoch, first.seq, first.head.epoch) == ([1, 2], 0, 0, 1)
    assert first.rows[1].digest == chain(first.rows[0].digest, "r", first.rows[1]) == first.head.digest
    journal.stored(first, [record_of(row) for row in first.rows])
    second = journal.seal([rec.RunDone(value=b"1")], at_us=6)
    assert (second.rows[0].seq, second.epoch, second.seq) == (3, 1, 2)
    assert Journal.load(second.head, [*first.rows, *second.rows]).verdict == rec.RunDone(value=b"1")


def test_what_was_sealed_but_not_stored_takes_no_number() -> None:
    journal = Journal("r")
    started = rec.RunStarted(agent="a", fingerprint="f", origin="r")
    journal.seal([started, rec.TimeoutFired(step_id="1")], at_us=5)
    assert journal.seal([started], at_us=6).rows[0].seq == 1


def test_after_a_failed_commit_nothing_more_is_sealed() -> None:
    journal = Journal("r")
    journal.broken = Stopped(StoreFailed("memory:", "gone"))
    with pytest.raises(Stopped, match="gone"):
        journal.seal([rec.RunDone()], at_us=1)


def test_after_a_refused_append_the_lease_is_lost_for_good() -> None:
    journal = Journal("r")
    lost = journal.refused()
    with pytest.raises(hf.LeaseLost) as found:
        journal.seal([rec.RunDone()], at_us=1)
    assert found.value is lost


@pytest.mark.parametrize("written", [False, True])
def test_a_commit_of_which_nothing_is_known_is_looked_up_not_repeated(*, written: bool) -> None:
    calls: list[int] = []

    @hf.step
    async def count() -> int:
        calls.append(1)
        return len(calls)

    @hf.agent
    async def counting() -> int:
        return await count()

    store = dies_at("step.done", written=written)
    with pytest.raises(StoreFailed):
        play(store, counting)
    store.mend()
    assert play(store, counting) == (1 if written else 2)
    assert len(calls) == (1 if written else 2)
    assert lines(store).count("step.done 1") == 1
    assert status(store) == "done"


def test_an_append_that_expects_another_epoch_or_seq_writes_nothing() -> None:
    store = FailingStore()
    play(store, buying, "ab")
    head, rows = loaded(store)
    for epoch, seq in ((head.epoch - 1, head.seq), (head.epoch, head.seq - 1)):
        (stale,) = store.append([Append("r", epoch, seq, [rows[-1]], head)])
        assert stale is not None
    assert loaded(store) == (head, rows)
