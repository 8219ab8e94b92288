"""The stores, held to the conformance suite; and the suite, held to stores that break one promise each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.errors import StoreBusy, StoreError
from holdfast.store import Append, Aside, Head, Letter, Pulse, Query, Repair, Row, Stale, Store, Swept
from holdfast.stores.memory import MemoryStore
from holdfast.stores.opening import open_store
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import StoreConformance
from holdfast.testing.sample import create


class TestSqlite(StoreConformance):
    def open(self, folder: Path) -> Store:
        return SqliteStore(folder / "runs.db")


class TestMemory(StoreConformance):
    lasting = False

    def open(self, folder: Path) -> Store:
        return MemoryStore()


def test_memory_does_not_wait_for_another_thread_when_told_so() -> None:
    store = MemoryStore()
    with store._lock, pytest.raises(StoreBusy):
        store.append([create("run")], wait=False)
    assert store.load("run") is None


# --- negative controls: one broken promise each, and the test that must notice -------------------------------------


class IgnoresEpoch(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        now = self._heads.get(one.run_id)
        return super()._append(one._replace(epoch=now.epoch) if now else one)


class IgnoresSeq(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        now = self._heads.get(one.run_id)
        return super()._append(one._replace(seq=now.seq) if now else one)


class CreatesTwice(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        if one.seq == 0:
            self._heads.pop(one.run_id, None)
        return super()._append(one)


class DropsARow(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        return super()._append(one._replace(rows=one.rows[:1]))


class DropsARun(MemoryStore):
    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        return super().append(batch[:2], wait=wait) + [None] * len(batch[2:])


class FailsTheWholeBatch(MemoryStore):
    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        heads = dict(self._heads)
        answers = super().append(batch, wait=wait)
        if any(answers):
            self._heads = heads
        return answers


class TakesBeforeTheFence(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        for letter_id in one.takes:
            self._letters.pop(letter_id, None)
        return super()._append(one)


class NeverTakes(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        return super()._append(one._replace(takes=()))


class SaysNothingOfTheHead(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        return Stale(None) if super()._append(one) else None


class KeepsTheOldOwner(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        now = self._heads.get(one.run_id)
        return super()._append(one._replace(head=one.head._replace(owner=now.owner)) if now else one)


class LoadsBackwards(MemoryStore):
    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        loaded = super().load(run_id)
        return (loaded[0], loaded[1][::-1]) if loaded else None


class LoadsTwoMoments(MemoryStore):
    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        loaded, later = super().load(run_id), super().load(run_id)
        return (loaded[0], [*later[1], later[1][-1]]) if loaded and later else None


class ListsOldestFirst(MemoryStore):
    def heads(self, query: Query) -> list[Head]:
        return super().heads(query)[::-1]


class ListsByPartOfATag(MemoryStore):
    def heads(self, query: Query) -> list[Head]:
        return [head for head in super().heads(query._replace(tags=())) if all(value in head.tags for _, value in query.tags)]


class ForgetsTheOffset(MemoryStore):
    def heads(self, query: Query) -> list[Head]:
        return super().heads(query._replace(offset=0))


class NumbersLettersAgain(MemoryStore):
    def post(self, run_id: str, kind: str, body: bytes, at_us: int) -> int:
        self._posted = len(self._letters)
        return super().post(run_id, kind, body, at_us)


class ListsLettersOfOthers(MemoryStore):
    def letters(self, run_ids: Sequence[str]) -> list[Letter]:
        return list(self._letters.values())


class CutsAtNul(MemoryStore):
    def post(self, run_id: str, kind: str, body: bytes, at_us: int) -> int:
        return super().post(run_id, kind, body.split(b"\0")[0], at_us)

    def _append(self, one: Append) -> Stale | None:
        return super()._append(one._replace(rows=[row._replace(body=row.body.split(b"\0")[0]) for row in one.rows]))


class CallsTheLivingDead(MemoryStore):
    def pulse(self, owner: str) -> Pulse | None:
        pulse = super().pulse(owner)
        return pulse and Pulse(pulse.beat, dead=True)


class RenewsTheRetired(MemoryStore):
    def renew(self, owner: str) -> None:
        self._beats[owner] = self._beats.get(owner, 0) + 1


class DeletesWhatIsDamaged(MemoryStore):
    def aside(self, run_id: str) -> list[Aside]:
        return []


class RepairsWhatHasMoved(MemoryStore):
    def set_aside(self, repair: Repair) -> bool:
        return super().set_aside(repair._replace(found=self._heads.get(repair.run_id)))


class RepairsUnderTheOldEpoch(MemoryStore):
    def set_aside(self, repair: Repair) -> bool:
        return super().set_aside(repair._replace(head=repair.head._replace(epoch=1, seq=4)))


class ShowsEverythingToEverybody(MemoryStore):
    def published(self, run_id: str, after: int) -> list[tuple[int, bytes]]:
        return [(number, payload) for number, _, payload in self._live if number > after]


class ForgetsThePosition(MemoryStore):
    def published(self, run_id: str, after: int) -> list[tuple[int, bytes]]:
        return super().published(run_id, 0)


class KeepsAllThatWasPublished(MemoryStore):
    def publish(self, run_id: str, payload: bytes) -> None:
        self._live.append((len(self._live) + 1, run_id, payload))


class LoadsOneRowTooMany(MemoryStore):
    def rows_after(self, run_id: str, seq: int) -> tuple[Head, list[Row]] | None:
        return super().rows_after(run_id, max(seq - 1, 0))


class RefersToNothing(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        return super()._append(one._replace(refs=()))


class DoesNotLookForBlobs(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        return super()._append(one._replace(refs=[digest for digest in one.refs if digest in self._blobs]))


class RefersBeforeTheFence(MemoryStore):
    def _append(self, one: Append) -> Stale | None:
        self._refs.setdefault(one.run_id, set()).update(one.refs)
        return super()._append(one)


class ForgetsParts(MemoryStore):
    def sweep_blobs(self, before_us: int, *, dry_run: bool = False) -> Swept:
        self._parts.clear()
        return super().sweep_blobs(before_us, dry_run=dry_run)


class SweepsWhatIsNew(MemoryStore):
    def sweep_blobs(self, before_us: int, *, dry_run: bool = False) -> Swept:
        return super().sweep_blobs(1 << 62, dry_run=dry_run)


class HasNoLock(MemoryStore):
    """Looks at the head and then writes, with room for another thread in between."""

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        return [None if self._writes(one) else Stale(self._heads[one.run_id]) for one in batch]

    def _writes(self, one: Append) -> bool:
        now = self._heads.get(one.run_id)
        fits = (one.epoch, one.seq) == ((now.epoch, now.seq) if now else (0, 0))
        if fits and now and now.seq % 2:
            self._rows[one.run_id].append(one.rows[0])
        return fits and super()._append(one) is None


@dataclasses.dataclass(frozen=True)
class Control:
    """A broken store and the test that must notice."""

    broken: type[MemoryStore]
    noticed_by: Callable[..., None]
    arguments: dict[str, object] = dataclasses.field(default_factory=dict)


SUITE = TestMemory()
CONTROLS = [
    Control(IgnoresEpoch, SUITE.test_another_epoch_is_stale, {"epoch": 1}),
    Control(IgnoresEpoch, SUITE.test_a_claim_raises_the_epoch_and_shuts_the_old_owner_out),
    Control(IgnoresSeq, SUITE.test_another_seq_is_stale, {"seq": 1}),
    Control(CreatesTwice, SUITE.test_a_run_is_created_once),
    Control(DropsARow, SUITE.test_all_rows_of_an_append_are_kept),
    Control(DropsARow, SUITE.test_what_was_appended_is_loaded),
    Control(DropsARun, SUITE.test_a_stale_append_fails_alone),
    Control(FailsTheWholeBatch, SUITE.test_a_stale_append_fails_alone),
    Control(TakesBeforeTheFence, SUITE.test_a_stale_append_takes_nothing),
    Control(NeverTakes, SUITE.test_taking_removes_a_letter_with_the_append),
    Control(SaysNothingOfTheHead, SUITE.test_a_run_is_created_once),
    Control(KeepsTheOldOwner, SUITE.test_the_owner_of_a_head_comes_and_goes),
    Control(LoadsBackwards, SUITE.test_rows_come_back_by_seq),
    Control(LoadsTwoMoments, SUITE.test_a_load_sees_one_moment),
    Control(ListsOldestFirst, SUITE.test_heads_are_listed_newest_change_first),
    Control(ListsByPartOfATag, SUITE.test_tags_match_only_when_equal, {"tag": "plain"}),
    Control(ForgetsTheOffset, SUITE.test_limit_and_offset_page_through_the_heads, {"owner": None}),
    Control(NumbersLettersAgain, SUITE.test_a_letter_number_is_never_given_twice),
    Control(ListsLettersOfOthers, SUITE.test_letters_are_numbered_and_ordered),
    Control(CutsAtNul, SUITE.test_any_text_and_bytes_come_back),
    Control(CutsAtNul, SUITE.test_any_letter_comes_back),
    Control(CallsTheLivingDead, SUITE.test_an_owner_beats_from_one),
    Control(RenewsTheRetired, SUITE.test_renewing_does_not_bring_a_retired_owner_back),
    Control(DeletesWhatIsDamaged, SUITE.test_what_is_not_good_is_moved_aside_and_kept),
    Control(RepairsWhatHasMoved, SUITE.test_a_repair_of_a_run_that_moved_changes_nothing),
    Control(RepairsUnderTheOldEpoch, SUITE.test_a_repair_shuts_out_who_wrote_before),
    Control(ShowsEverythingToEverybody, SUITE.test_what_is_published_is_read_from_a_position_on),
    Control(ForgetsThePosition, SUITE.test_what_is_published_is_read_from_a_position_on),
    Control(KeepsAllThatWasPublished, SUITE.test_of_what_was_published_the_oldest_makes_way),
    Control(LoadsOneRowTooMany, SUITE.test_rows_behind_a_seq_come_with_the_head),
    Control(RefersToNothing, SUITE.test_a_sweep_takes_what_nobody_refers_to),
    Control(DoesNotLookForBlobs, SUITE.test_an_append_that_refers_to_what_is_not_there_is_refused),
    Control(RefersBeforeTheFence, SUITE.test_an_append_that_is_stale_refers_to_nothing),
    Control(ForgetsParts, SUITE.test_parts_stay_as_long_as_the_whole),
    Control(SweepsWhatIsNew, SUITE.test_a_sweep_leaves_what_was_kept_since),
    Control(HasNoLock, SUITE.test_many_threads_lose_and_double_nothing),
]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: f"{control.broken.__name__}-{control.noticed_by.__name__}")
def test_the_suite_notices_a_broken_store(control: Control) -> None:
    control.noticed_by(MemoryStore(), **control.arguments)
    with pytest.raises(AssertionError):
        control.noticed_by(control.broken(), **control.arguments)


# --- opening -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [str, Path, lambda path: f"sqlite:///{path}"])
def test_a_sqlite_store_is_opened_by_path_or_url(tmp_path: Path, form: Callable[[Path], str | Path]) -> None:
    store = open_store(form(tmp_path / "runs.db"))
    store.append([create("run")])
    again = open_store(store.url)
    assert again.url == store.url == f"sqlite:///{tmp_path}/runs.db"
    assert again.load("run") == store.load("run")
    again.close()
    store.close()


def test_a_memory_store_is_opened_by_url() -> None:
    assert isinstance(open_store("memory:"), MemoryStore)


@pytest.mark.parametrize("url", ["oracle://me:secret@host/runs.db", "runs", "", "sqlite:///", "mysql:x"])
def test_an_unknown_store_is_refused_with_what_is_known(url: str) -> None:
    with pytest.raises(StoreError, match=r"sqlite:///PATH, a path that ends in \.db, .*or memory:") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
