"""Plain rows over a store that keeps packed ones: nobody above notices, and below there is little."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._clock import SystemClock
from holdfast.errors import StoreBusy, StoreDamaged, StoreFailed
from holdfast.large import packed as packed_room
from holdfast.large.packed import packed
from holdfast.large.packing import BLOB_FROM, is_packed
from holdfast.store import Append, Head, Live, Prunable, Repair, Repairable, Row, Shedding, Shelf, Stale, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import StoreConformance
from holdfast.testing.sample import head, row
from test_packing import words

ABILITIES = (Repairable, Live, Prunable, Shelf)


class TestPackedSqlite(StoreConformance):
    def open(self, folder: Path) -> Store:
        return packed(SqliteStore(folder / "runs.db"), SystemClock())


class TestPackedMemory(StoreConformance):
    lasting = False

    def open(self, folder: Path) -> Store:
        return packed(MemoryStore(), SystemClock())


def over(store: Store) -> Any:
    """The store as another process would open it."""
    return packed(store, SystemClock())


def grown(seq: int, *, size: int = 1200) -> Row:
    return row(seq, body=b'{"name":"think"}', args=words(size) + words(100 * seq, seed=2))


def written(store: Any, *rows: Row, run_id: str = "r", owner: str | None = "me") -> None:
    """Append these rows behind what is there."""
    found = store.head(run_id)
    epoch, seq = (found.epoch, found.seq) if found else (0, 0)
    kept = head(run_id, rows[-1].seq, owner=owner)._replace(digest=rows[-1].digest)
    assert store.append([Append(run_id, epoch, seq, rows, kept)]) == [None]


def rows_of(store: Store, run_id: str = "r") -> list[Row]:
    found = store.load(run_id)
    assert found is not None
    return list(found[1])


class Bare:
    """A store that can do no more than every store must."""

    def __init__(self) -> None:
        inner = MemoryStore()
        self.url, self.inline = inner.url, inner.inline
        for name in vars(Store):
            if not name.startswith("_") and callable(getattr(inner, name)):
                setattr(self, name, getattr(inner, name))


# --- what it can do -------------------------------------------------------------------------------------------------


def test_it_can_do_what_the_store_below_can_and_no_more(tmp_path: Path) -> None:
    for store in (MemoryStore(), SqliteStore(tmp_path / "runs.db"), cast("Store", Bare())):
        above = over(store)
        assert isinstance(above, Store)
        assert [isinstance(above, each) for each in ABILITIES] == [isinstance(store, each) for each in ABILITIES]
        assert packed(above, SystemClock()) is above
        store.close()


def test_without_a_shelf_large_values_are_compressed_where_they_are() -> None:
    store = cast("Store", Bare())
    large = row(1, value=b'"' + b"abc" * BLOB_FROM + b'"')
    written(over(store), large)
    (stored,) = rows_of(store)
    assert len(stored.value or b"") < BLOB_FROM / 20
    assert rows_of(over(store)) == [large]


# --- what is stored -------------------------------------------------------------------------------------------------


def test_a_second_process_goes_on_with_differences_where_the_first_stopped() -> None:
    store = MemoryStore()
    written(over(store), *map(grown, range(1, 4)))
    second = over(store)
    assert rows_of(second) == [*map(grown, range(1, 4))]
    written(second, grown(4))
    assert [is_packed(each) for each in rows_of(store)] == [False, True, True, True]
    assert rows_of(over(store)) == [*map(grown, range(1, 5))]


def test_who_has_not_read_the_run_or_was_overtaken_writes_a_whole_value() -> None:
    store = MemoryStore()
    first, second = over(store), over(store)
    written(first, grown(1))
    written(second, grown(2))
    written(first, grown(3))
    assert [is_packed(each) for each in rows_of(store)] == [False, False, False]
    written(first, grown(4))
    assert [is_packed(each) for each in rows_of(store)] == [False, False, False, True]


def test_the_same_content_is_kept_once_for_all_runs(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    for run_id in ("a", "b"):
        written(over(store), row(1, value=words(2 * BLOB_FROM)), run_id=run_id)
    assert len([path for path in (tmp_path / "runs.db.blobs").rglob("*") if path.is_file()]) == 1
    assert store.blob_refs("a") == store.blob_refs("b") != []
    store.close()


def test_a_store_of_plain_rows_is_read_and_gone_on_with() -> None:
    store = MemoryStore()
    written(store, grown(1), grown(2, size=2 * BLOB_FROM))
    above = over(store)
    written(above, grown(3), grown(4))
    assert rows_of(above) == [grown(1), grown(2, size=2 * BLOB_FROM), grown(3), grown(4)]


def test_what_is_remembered_of_all_runs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_room, "KEPT_BYTES", 5300)
    store, above = MemoryStore(), over(MemoryStore())
    for run_id in "abcde":
        written(above, grown(1), run_id=run_id)
    assert [run_id for run_id in "abcde" if run_id in above.trails.runs] == ["b", "c", "d", "e"]
    written(above, row(2), run_id="e", owner=None)
    assert "e" not in above.trails.runs
    assert store.load("a") is None


# --- blobs that go before their append ------------------------------------------------------------------------------


class Swept(MemoryStore):
    """Somebody sweeps between the keeping of a blob and its append, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        if self.times:
            self.times -= 1
            self.sweep_blobs(1 << 60)
        return super().append(batch, wait=wait)


def test_a_blob_that_was_swept_before_its_append_is_kept_again() -> None:
    store = Swept(2)
    written(over(store), row(1, value=words(2 * BLOB_FROM)))
    assert rows_of(over(store)) == [row(1, value=words(2 * BLOB_FROM))]


def test_a_blob_that_is_always_swept_is_told_as_missing_and_so_is_an_artifact() -> None:
    store = Swept(100)
    large = row(1, value=words(2 * BLOB_FROM))
    (stale,) = over(store).append([Append("r", 0, 0, [large], head("r", 1))])
    assert len(stale.missing) == 1
    (stale,) = over(MemoryStore()).append([Append("r", 0, 0, [large], head("r", 1), (), ["artifact"])])
    assert stale == Stale(None, ["artifact"])


def test_who_does_not_wait_for_a_lock_does_not_wait_for_a_blob_either() -> None:
    store, large = MemoryStore(), row(1, value=words(2 * BLOB_FROM))
    created = Append("r", 0, 0, [large], head("r", 1))
    with pytest.raises(StoreBusy):
        over(store).append([created], wait=False)
    assert (store.load("r"), store._blobs) == (None, {})
    assert over(store).append([created]) == [None]
    above = over(store)
    assert rows_of(above) == [large]
    written(above, grown(2))
    assert above.append([Append("r", 1, 2, [grown(3)], head("r", 3))], wait=False) == [None]


# --- following ------------------------------------------------------------------------------------------------------


class Counting(MemoryStore):
    """Counts how often a whole run is read."""

    loads = 0

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        self.loads += 1
        return super().load(run_id)


def test_who_follows_a_run_reads_all_of_it_once_and_then_only_what_is_new() -> None:
    store, seen = Counting(), list[Row]()
    writer, reader = over(store), over(store)
    written(writer, *map(grown, range(1, 4)))
    for seq in range(4, 30):
        written(writer, grown(seq))
        seen += reader.rows_after("r", seq - 1)[1]
    assert seen == [*map(grown, range(4, 30))]
    assert store.loads == 1
    assert list(reader.rows_after("r", 0)[1]) == [*map(grown, range(1, 30))]
    assert reader.rows_after("r", 29)[1] == []


def test_what_was_read_before_a_repair_is_not_taken_for_what_stands_now() -> None:
    store = MemoryStore()
    writer, reader = over(store), over(store)
    written(writer, *map(grown, range(1, 6)))
    assert list(reader.rows_after("r", 3)[1]) == [grown(4), grown(5)]
    other = [grown(seq, size=1300)._replace(digest=b"other-%d" % seq) for seq in (3, 4, 5, 6)]
    store._rows["r"] = store._rows["r"][:2]
    store._heads["r"] = head("r", 2)
    written(over(store), *other)
    assert list(reader.rows_after("r", 5)[1]) == other[3:]


def test_who_follows_a_run_that_was_shed_meanwhile_reads_what_stands_there_now() -> None:
    store = MemoryStore()
    reader = over(store)
    written(over(store), *map(grown, range(1, 6)), owner=None)
    assert list(reader.rows_after("r", 4)[1]) == [grown(5)]
    found = store.head("r")
    assert found is not None
    assert over(store).shed(Shedding(found, [grown(5)._replace(args=None)], Append("r", 1, 5, [row(6)], head("r", 6))))
    second = over(store)
    rows_of(second)
    written(second, grown(7))
    assert b'"like":4' in (rows_of(store)[-1].args or b"")
    assert list(reader.rows_after("r", 5)[1]) == [row(6), grown(7)]


def test_what_a_repair_puts_in_place_is_packed_too() -> None:
    store = MemoryStore()
    written(over(store), row(1), owner=None)
    back = [*(grown(seq, size=2000) for seq in range(2, 40)), grown(40, size=2 * BLOB_FROM)]
    found = store.head("r")
    assert found is not None
    ahead = head("r", 40)._replace(digest=back[-1].digest)
    assert over(store).set_aside(Repair("r", found, [row(1)], back, ahead, 9, "ann", "it came back"))
    assert rows_of(over(store)) == [row(1), *back]
    assert sum(map(is_packed, rows_of(store))) > len(back) / 2
    assert store.blob_refs("r") == []


def test_what_is_known_of_a_run_that_was_removed_is_not_used_for_another_one_of_its_id() -> None:
    store = MemoryStore()
    above = over(store)
    written(above, *map(grown, range(1, 4)))
    del store._rows["r"], store._heads["r"]
    for seq in range(1, 5):
        written(above, grown(seq, size=2000))
    assert rows_of(over(store)) == [grown(seq, size=2000) for seq in range(1, 5)]


def test_what_was_read_of_a_run_is_not_used_for_another_one_of_its_id_that_stands_at_the_same_place() -> None:
    store = MemoryStore()
    reader = over(store)
    written(over(store), *map(grown, range(1, 4)))
    assert rows_of(reader) == [grown(seq) for seq in range(1, 4)]
    del store._rows["r"], store._heads["r"]
    small = [row(seq)._replace(digest=b"other-%d" % seq) for seq in range(1, 4)]
    written(over(store), *small)
    assert rows_of(reader) == small
    written(reader, grown(4))
    assert rows_of(over(store)) == [*small, grown(4)]


# --- damage ---------------------------------------------------------------------------------------------------------


def damaged(store: MemoryStore, index: int, args: bytes | None) -> None:
    store._rows["r"][index] = store._rows["r"][index]._replace(args=args)


@pytest.mark.parametrize("args", [b"other", None, b'={"like":1,"start":0,"end":0,"text":'])
def test_what_is_like_a_damaged_record_stands_as_it_is_and_never_as_something_else(args: bytes | None) -> None:
    store = MemoryStore()
    written(over(store), *map(grown, range(1, 5)))
    stored = rows_of(store)
    damaged(store, 1, args)
    found = rows_of(over(store))
    assert found[0] == grown(1)
    assert [each.args for each in found[1:]] == [args, stored[2].args, stored[3].args]
    assert list(over(store).found("r")[1]) == found


def test_a_row_whose_fields_are_anything_is_read_as_it_stands() -> None:
    store = MemoryStore()
    written(over(store), *map(grown, range(1, 6)))
    store._rows["r"][2] = store._rows["r"][2]._replace(body=cast("bytes", 7))
    store._rows["r"][3] = store._rows["r"][3]._replace(seq=cast("int", "four"))
    stored = rows_of(store)
    found = rows_of(over(store))
    assert found[:2] == [grown(1), grown(2)]
    assert found[2:4] == stored[2:4]
    assert [each.seq for each in over(store)._from_all("r", 2)[1]] == [3, 5]


def test_a_run_that_cannot_be_put_together_is_not_shed() -> None:
    store = MemoryStore()
    written(over(store), *map(grown, range(1, 5)), owner=None)
    damaged(store, 1, b"other")
    before = rows_of(store)
    found = store.head("r")
    assert found is not None
    shedding = Shedding(found, [grown(1)._replace(args=None)], Append("r", 1, 4, [row(5)], head("r", 5)))
    with pytest.raises(StoreDamaged, match="record 3"):
        over(store).shed(shedding)
    assert rows_of(store) == before


def test_after_an_append_of_which_nothing_is_known_the_next_value_is_whole() -> None:
    class Failing(MemoryStore):
        fails = False

        def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
            if self.fails:
                raise StoreFailed(self.url, "gone")
            return super().append(batch, wait=wait)

    store = Failing()
    above = over(store)
    written(above, grown(1))
    store.fails = True
    with pytest.raises(StoreFailed):
        written(above, grown(2))
    store.fails = False
    written(above, grown(2))
    assert [is_packed(each) for each in rows_of(store)] == [False, False]


# --- anything, in any order -----------------------------------------------------------------------------------------

Sizes = st.sampled_from([0, 1500, 3000, 70_000])
Texts = st.builds(lambda size, seed, end: words(size, seed=seed) + end, Sizes, st.integers(0, 2), st.binary(max_size=9))
Acts = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.tuples(Texts, Texts, st.booleans()), min_size=1, max_size=4)),
        st.tuples(st.sampled_from(["shed", "drop", "repair", "reopen"]), st.integers(0, 20)),
    ),
    min_size=1, max_size=10,
)  # fmt: skip


class Machine:
    """A packed store and what must be in it."""

    def __init__(self, store: Store) -> None:
        self.store, self.above, self.rows, self.head = store, over(store), list[Row](), head("r", 0, epoch=0)

    def next(self, seq: int, args: bytes | None = None, value: bytes | None = None, *, state: bool = False, epoch: int = 1) -> Row:
        kind = "state.saved" if state else "step.done"
        return Row(seq, epoch, seq, kind, "1", b'{"name":"think"}', value, args, b"%d-%d" % (epoch, seq))

    def act(self, name: str, what: Any) -> None:
        if name == "append":
            seq, epoch = self.head.seq, max(1, self.head.epoch)
            self.append([self.next(seq + n, args, value, state=state, epoch=epoch) for n, (args, value, state) in enumerate(what, 1)])
        elif name == "reopen":
            self.above = over(self.store)
        elif self.rows:
            getattr(self, name)(what)
        found = self.above.load("r")
        assert (None if found is None else (found[0], list(found[1]))) == ((self.head, self.rows) if self.rows else None)

    def standing(self, rows: Iterable[Row]) -> Head:
        last = list(rows)[-1]
        return head("r", last.seq, epoch=last.epoch)._replace(digest=last.digest)

    def append(self, rows: list[Row]) -> None:
        now = self.standing(rows)
        assert self.above.append([Append("r", self.head.epoch, self.head.seq, rows, now)]) == [None]
        self.rows, self.head = [*self.rows, *rows], now

    def shed(self, what: int, drops: tuple[int, int] = (0, 0)) -> None:
        """The arguments of one row go, and rows between the first and the last."""
        index = what % len(self.rows)
        light = self.rows[index]._replace(args=None)
        pruned = self.next(self.head.seq + 1, epoch=self.head.epoch)
        now = self.standing([pruned])
        shedding = Shedding(self.head, [light], Append("r", self.head.epoch, self.head.seq, [pruned], now), drops)
        assert self.above.shed(shedding)
        kept = [*self.rows[:index], light, *self.rows[index + 1 :], pruned]
        self.rows, self.head = [each for each in kept if not drops[0] <= each.seq <= drops[1]], now

    def drop(self, what: int) -> None:
        if len(self.rows) == self.head.seq and len(self.rows) > 2:
            first = 2 + what % (len(self.rows) - 2)
            self.shed(0, (first, len(self.rows) - 1))

    def repair(self, what: int) -> None:
        good = self.rows[: 1 + what % len(self.rows)]
        added = self.next(good[-1].seq + 1, b"=", epoch=self.head.epoch + 1)
        now = self.standing([added])
        assert self.above.set_aside(Repair("r", self.head, good, [added], now, 1, "ann", "why"))
        self.rows, self.head = [*good, added], now


@settings(max_examples=25, deadline=None)
@given(Acts, st.booleans())
def test_whatever_is_done_what_was_written_is_read(acts: list[tuple[str, Any]], lasting: bool) -> None:  # noqa: FBT001
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(SqliteStore(Path(folder) / "runs.db") if lasting else MemoryStore())
        for name, what in acts:
            machine.act(name, what)
        machine.act("reopen", 0)
        copies = [each._replace(epoch=1) for each in machine.rows]
        if copies:  # a fork
            assert machine.above.append([Append("fork", 0, 0, copies, machine.standing(copies)._replace(run_id="fork"))]) == [None]
            assert rows_of(over(machine.store), "fork") == copies
        machine.store.close()


def test_the_machine_notices_a_shedding_that_leaves_differences_without_what_they_are_like(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(MemoryStore())
    text = words(3000)
    machine.act("append", [(text + b"%d" % n, None, False) for n in range(5)])
    kind = type(machine.above)
    monkeypatch.setattr(kind, "shed", lambda self, shedding: self.inner.shed(shedding))
    with pytest.raises(AssertionError):
        machine.act("shed", 1)


def test_packed_values_are_json_behind_their_first_byte() -> None:
    store = MemoryStore()
    written(over(store), *map(grown, range(1, 4)), row(4, value=words(2 * BLOB_FROM)))
    forms = [json.loads(part[1:]) for each in rows_of(store) for part in (each.value, each.args) if part and part[:1] == b"="]
    assert [sorted(form) for form in forms] == [["end", "like", "start", "text"]] * 2 + [["blob", "size", "zlib"]]
