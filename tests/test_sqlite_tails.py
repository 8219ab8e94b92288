"""Tails of a SQLite store: what they hold is read by everybody, survives its owner, and is never acknowledged to who has lost its run."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.errors import StoreError, StoreFailed, StoreFull
from holdfast.store import Append, Query, Removal, Stale, Store, Tombstone
from holdfast.stores import _sqlite_tails, _tail_file
from holdfast.stores._tail_file import Tail
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import StoreConformance
from holdfast.testing.sample import create, head, repair, row
from tailing import ME, appended, in_database, mine, named, on, other, path, seqs, tails, taking

__all__ = ["mine", "other", "path"]

ENROLLING = threading.Lock()


# --- what is in a tail is in the store -------------------------------------------------------------------------------


def test_a_run_that_goes_on_alone_is_written_to_the_tail_and_read_by_everybody(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    assert in_database(mine) == 3
    assert named(mine) == {ME: 1}
    for store in (mine, other):
        assert seqs(store) == list(range(1, 10))
        assert store.head("run") == head("run", 9, updated_us=9)
        assert store.heads(Query()) == store.heads(Query(after="")) == [head("run", 9, updated_us=9)]
        assert store.rows_after("run", 7) == (head("run", 9, updated_us=9), [row(8), row(9)])
        assert store.found("run") == (head("run", 9, updated_us=9), [row(seq) for seq in range(1, 10)])
        assert store.check() == []
    assert in_database(mine) == 3, "reading writes nothing"


@pytest.mark.parametrize(
    "does",
    [
        lambda store: store.append([on("run", 9)._replace(goes_on=False)]),
        lambda store: store.append([on("run", 9), create("more")]),
        lambda store: store.append([create("more")]),
        lambda store: store.retire(ME),
        lambda store: store.heads(Query(idle_before_us=1)),
    ],
    ids=["another append", "a group", "another run", "leaving", "asking who is idle"],
)
def test_every_transaction_brings_it_into_the_database(mine: SqliteStore, does: Callable[[SqliteStore], object]) -> None:
    appended(mine, "run", 9)
    does(mine)
    assert in_database(mine) >= 9
    assert seqs(mine)[:9] == list(range(1, 10))
    assert [text for text in mine.check() if "not enrolled" not in text] == []


def test_a_tail_that_is_full_is_brought_in_and_written_over(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 700)
    assert 500 < in_database(mine) < 700
    assert seqs(other) == list(range(1, 701))
    assert len(tails(mine)) == 1
    assert mine.check() == []


def test_runs_that_take_turns_share_a_tail(mine: SqliteStore, other: SqliteStore) -> None:
    for run_id in ("a", "b"):
        appended(mine, run_id, 4)
    for seq in range(4, 20):
        for run_id in ("a", "b"):
            assert mine.append([on(run_id, seq)]) == [None]
    assert in_database(mine, "a") < 8
    assert seqs(other, "a") == seqs(other, "b") == list(range(1, 21))
    assert other.append([taking("a", 20)]) == [None]
    assert (in_database(mine, "a"), in_database(mine, "b")) == (21, 20), "all of it was brought in"
    assert mine.append([on("b", 20)]) == [None]
    assert mine.append([on("a", 20)]) == [Stale(head("a", 21, epoch=2, owner="you"))]


def test_what_is_large_goes_into_the_database_at_once(mine: SqliteStore) -> None:
    appended(mine, "run", 5)
    assert mine.append([on("run", 5, value=bytes(100_000))]) == [None]
    assert in_database(mine) == 6


def test_a_letter_that_is_taken_and_a_ceiling_are_for_the_database(mine: SqliteStore) -> None:
    appended(mine, "run", 5)
    letter = mine.post("run", "cancel", b"{}", 1)
    assert mine.append([on("run", 5)._replace(takes=[letter])]) == [None]
    assert (in_database(mine), mine.letters(["run"])) == (6, [])


def test_an_owner_that_is_idle_by_the_database_is_not_by_its_tail(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    assert other.heads(Query(idle_before_us=9)) == []
    assert [found.seq for found in other.heads(Query(idle_before_us=10))] == [9]


def test_a_short_run_has_no_tail(mine: SqliteStore) -> None:
    appended(mine, "run", 2)
    assert (tails(mine), named(mine)) == ([], {})


def test_who_leaves_or_closes_leaves_no_file(mine: SqliteStore, path: Path) -> None:
    appended(mine, "run", 9)
    mine.close()
    assert tails(mine) == []
    with closing(SqliteStore(path)) as again:
        assert (seqs(again), named(again)) == (list(range(1, 10)), {})
        assert again.append([taking("run", 9)]) == [None]


class Tailed(SqliteStore):
    """A store that writes to a tail what it can, for an owner that its tests need not enroll."""

    def enroll(self, owner: str) -> None:
        with ENROLLING:
            if owner != self._tails.owner:
                super().enroll(owner)

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        return super().append([self._going_on(one) for one in batch], wait=wait)

    def _going_on(self, one: Append) -> Append:
        now = self.head(one.run_id)
        same = now is not None and one.head == now._replace(seq=one.head.seq, digest=one.head.digest, updated_us=one.head.updated_us)
        if same and self.pulse(ME) is None:
            self.enroll(ME)
        return one._replace(goes_on=same)


class TestTailed(StoreConformance):
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_sqlite_tails, "WANTED_AFTER", 1)

    def open(self, folder: Path) -> Store:
        return Tailed(folder / "runs.db")


# --- owners that are gone, and owners that come back -----------------------------------------------------------------


def test_who_takes_a_run_over_brings_in_what_its_owner_had_acknowledged(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    assert other.append([taking("run", 3)]) == [Stale(head("run", 9, updated_us=9))], "what the database knew is not where it stands"
    assert other.append([taking("run", 9)]) == [None]
    assert seqs(other) == list(range(1, 11))
    assert mine.append([on("run", 9)]) == [Stale(head("run", 10, epoch=2, owner="you"))]
    assert (seqs(other), named(other), tails(other)) == (list(range(1, 11)), {}, [])
    assert other.check() == []


def test_an_owner_that_lost_one_run_goes_on_with_its_others_and_has_a_tail_again(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "lost", 9)
    appended(mine, "kept", 9)
    assert other.append([taking("lost", 9)]) == [None]
    for seq in range(9, 20):
        assert mine.append([on("kept", seq)]) == [None]
    assert in_database(mine, "kept") < 15
    assert seqs(other, "kept") == list(range(1, 21))
    assert named(mine) == {ME: 2}
    assert mine.append([on("lost", 9)]) == [Stale(head("lost", 10, epoch=2, owner="you"))]


def test_who_lost_its_run_before_it_had_a_tail_adds_nothing_to_it(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "lost", 2)
    assert other.append([taking("lost", 2)]) == [None]
    appended(mine, "kept", 9)
    assert named(mine) == {ME: 1}
    assert mine.append([on("lost", 2)]) == [Stale(head("lost", 3, epoch=2, owner="you"))]
    assert seqs(other, "lost") == [1, 2, 3]


def interrupts(*_: object) -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


MOMENTS = ("before it writes", "after it has written", "after it has flushed")


class Meddling:
    """`os`, in which something happens once, at one of these moments."""

    def __init__(self, moment: str, does: Callable[[], object]) -> None:
        self._moment, self._does = moment, does

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwritev(self, fd: int, parts: Sequence[bytes], at: int, flags: int = 0) -> int:
        does, self._does = self._does, lambda: None
        happens = {moment: does if moment == self._moment else lambda: None for moment in MOMENTS}
        happens["before it writes"]()
        written = os.pwritev(fd, parts, at)
        happens["after it has written"]()
        if flags & os.RWF_DSYNC:
            os.fdatasync(fd)
        happens["after it has flushed"]()
        return written


def meddled(store: SqliteStore, moment: str, does: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[Stale | None]:
    """The append of row 10, in the middle of which something happens."""
    with monkeypatch.context() as patch:
        patch.setattr(_tail_file, "os", Meddling(moment, does))
        return store.append([on("run", 9)])


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_is_taken_in_the_middle_of_an_append_is_not_acknowledged(
    mine: SqliteStore, other: SqliteStore, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(mine, "run", 9)
    taken: list[int] = []

    def takes() -> None:
        taken.extend(seq for seq in (9, 10) if other.append([taking("run", seq)]) == [None])  # whichever row the other one has seen

    (stale,) = meddled(mine, moment, takes, monkeypatch)
    assert stale == Stale(head("run", taken[0] + 1, epoch=2, owner="you"))
    assert taken == [9 if moment == "before it writes" else 10]
    assert seqs(other) == list(range(1, taken[0] + 2))
    assert other.append([on("run", taken[0] + 1, epoch=2, owner="you")]) == [None]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_tail_that_is_closed_in_the_middle_by_who_gives_up_costs_nothing(
    mine: SqliteStore, other: SqliteStore, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(mine, "run", 9)

    def gives_up() -> None:
        with suppress(ZeroDivisionError), other._moving("run"):
            raise ZeroDivisionError

    assert meddled(mine, moment, gives_up, monkeypatch) == [None]
    assert seqs(other) == list(range(1, 11))
    for seq in range(10, 20):
        assert mine.append([on("run", seq)]) == [None]
    assert seqs(other) == list(range(1, 21))
    assert (named(mine), len(tails(mine))) == ({ME: 2}, 1)
    assert mine.check() == []


@pytest.mark.parametrize("moment", ["before it writes"])
def test_without_a_look_at_the_tail_what_was_acknowledged_is_lost(
    mine: SqliteStore, other: SqliteStore, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the fence."""
    monkeypatch.setattr(Tail, "is_closed", lambda _: False)
    with pytest.raises(AssertionError):
        test_a_run_that_is_taken_in_the_middle_of_an_append_is_not_acknowledged(mine, other, moment, monkeypatch)
    assert seqs(other) == list(range(1, 11))


def test_without_closing_the_tail_of_who_is_taken_from_both_go_on(
    mine: SqliteStore, other: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of who takes over."""
    monkeypatch.setattr(_tail_file, "close", lambda _: None)
    with pytest.raises(AssertionError):
        test_who_takes_a_run_over_brings_in_what_its_owner_had_acknowledged(mine, other)


def test_with_heads_that_were_known_before_the_tail_was_named_both_go_on(
    mine: SqliteStore, other: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of what an owner may add: it remembers a run from before."""
    settled = _sqlite_tails.Tails.settled

    def remembering(self: _sqlite_tails.Tails, appended: Sequence[Append] = ()) -> None:
        before = dict(self._known)
        settled(self, appended)
        self._known.update({one.run_id: one.head for one in appended}, **before)

    monkeypatch.setattr(_sqlite_tails.Tails, "settled", remembering)
    with pytest.raises(AssertionError):
        test_who_lost_its_run_before_it_had_a_tail_adds_nothing_to_it(mine, other)


@pytest.mark.parametrize("does", ["remove", "set_aside"])
def test_whoever_else_changes_a_run_brings_its_tail_in(mine: SqliteStore, other: SqliteStore, does: str) -> None:
    appended(mine, "run", 9)
    found = other.head("run")
    assert found is not None
    if does == "remove":
        assert other.remove([Removal(found, Tombstone("run", "agent", "", "done", 1, 2, "ann", "old"))]) == [True]
        assert mine.append([on("run", 9)]) == [Stale(None)]
    else:
        assert other.set_aside(repair("run", rows=9, good=9)._replace(found=found)) is True
        assert mine.append([on("run", 9)]) == [Stale(head("run", 10, epoch=2, owner=None))]
    assert other.check() == []


def test_two_owners_each_have_a_tail(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "a", 9)
    assert other.append([Append("b", 0, 0, [row(1)], head("b", 1, owner="you"))]) == [None]
    for seq in range(1, 9):
        assert other.append([on("b", seq, owner="you")]) == [None]
    assert named(mine) == {ME: 1, "you": 1}
    assert [(found.run_id, found.seq) for found in mine.heads(Query(after=""))] == [("a", 9), ("b", 9)]


# --- a disk that refuses ---------------------------------------------------------------------------------------------


class Refusing:
    """`os`, whose calls of one name fail; flushes are counted by their handle."""

    def __init__(self, call: str, error: int) -> None:
        self.call, self.error = call, error
        self.flushed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return self._refuse if name == self.call else getattr(os, name)

    def _refuse(self, fd: int, *_: object) -> None:
        self.flushed.append(fd)
        raise OSError(self.error, os.strerror(self.error))


class Unflushed(Refusing):
    """`os`, in which what is to be flushed with its write is written, and its flush fails."""

    def _refuse(self, fd: int, *written: Any) -> None:
        os.pwritev(fd, *written[:2])
        super()._refuse(fd)


REFUSALS = {
    "a write, since there is no room": (Refusing("pwritev", errno.ENOSPC), StoreFull),
    "a write": (Refusing("pwritev", errno.EIO), StoreFailed),
    "its flush": (Unflushed("pwritev", errno.EIO), StoreFailed),
}


@pytest.mark.parametrize("refused", REFUSALS)
def test_what_the_disk_refuses_is_said_and_the_store_goes_on_without_that_file(
    mine: SqliteStore, other: SqliteStore, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    appended(mine, "run", 9)
    refusing, kind = REFUSALS[refused]
    with monkeypatch.context() as patch:
        patch.setattr(_tail_file, "os", refusing)
        with pytest.raises(kind, match="what was acknowledged before is safe"):
            mine.append([on("run", 9)])
    assert len(refusing.flushed) == 1
    there = seqs(other)
    assert there in (list(range(1, 10)), list(range(1, 11)))
    assert mine.append([taking("run", there[-1], owner=ME)]) == [None]
    for seq in range(there[-1] + 1, there[-1] + 8):
        assert mine.append([on("run", seq, epoch=2)]) == [None]
    assert seqs(other) == list(range(1, there[-1] + 9))
    assert (named(mine), len(tails(mine))) == ({ME: 2}, 1)


def test_where_no_tail_can_be_made_everything_is_a_transaction(mine: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_tail_file, "os", Refusing("fsync", errno.ENOSPC))
        appended(mine, "run", 9)
    assert (in_database(mine), tails(mine), named(mine)) == (9, [], {})


def test_a_tail_whose_naming_may_not_have_been_committed_is_there_until_that_is_known(
    mine: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(mine, "run", 2)
    with monkeypatch.context() as patch:
        patch.setattr(mine._writer, "commit", lambda: mine._writer.end(apsw.IOError("lost")))
        with suppress(StoreError, AssertionError):
            mine.append([on("run", 2)])
    assert len(tails(mine)) == 1
    assert seqs(mine) == [1, 2]
    for seq in range(2, 9):
        assert mine.append([on("run", seq)]) == [None]
    assert (seqs(mine), named(mine), [file.name for file in tails(mine)]) == (list(range(1, 10)), {ME: 2}, ["me.2.tail"])


def test_an_owner_whose_tail_somebody_removes_has_another_one_after_the_next_transaction(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    tails(mine)[0].unlink()
    assert mine.append([on("run", 9)]) == [None]
    assert mine.append([create("more")]) == [None]
    for seq in range(10, 15):
        assert mine.append([on("run", seq)]) == [None]
    assert (seqs(other), named(mine), [file.name for file in tails(mine)]) == (list(range(1, 16)), {ME: 2}, ["me.2.tail"])


def test_files_that_nobody_names_are_removed_when_they_are_old(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    (live,) = tails(mine)
    old, new = live.with_name("gone.1.tail"), live.with_name("new.1.tail")
    for file in (old, new):
        file.write_bytes(b"")
    for file in (old, live):
        os.utime(file, (time.time() - 90_000,) * 2)
    other.enroll("third")
    assert tails(mine) == [live, new]


def test_the_tail_of_a_dead_owner_that_has_no_run_is_removed(path: Path) -> None:
    with closing(SqliteStore(path)) as other:
        for ends in (False, True):
            store = SqliteStore(path)
            store.enroll(ME)
            appended(store, f"run-{ends}", 9)
            if ends:
                assert store.append([taking("run-True", 9, owner=None)]) == [None]
            store._locks.close()  # as a process does that dies
            other.enroll(f"after-{ends}")
            assert (named(other), len(tails(other))) == (({}, 0) if ends else ({ME: 1}, 1))
            assert seqs(other, f"run-{ends}") == list(range(1, 11 if ends else 10))
            if not ends:
                assert other.append([taking("run-False", 9)]) == [None]
                other.retire(ME)


def test_a_forked_child_leaves_the_tail_alone(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    pid = os.fork()
    if pid == 0:
        code = 1
        with suppress(BaseException):
            with pytest.raises(StoreError, match=re.escape("Open it anew in the child")):
                mine.append([on("run", 9)])
            mine.close()
            code = 0
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert mine.append([on("run", 9)]) == [None]
    assert seqs(other) == list(range(1, 11))


def test_an_append_that_was_interrupted_is_found_out_before_anything_follows_it(
    mine: SqliteStore, other: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(mine, "run", 9)
    appended(mine, "more", 4)

    with pytest.raises(KeyboardInterrupt):
        meddled(mine, "after it has written", interrupts, monkeypatch)
    assert mine.append([on("more", 4)]) == [None]
    assert in_database(mine, "more") == 5, "not over what nobody knows"
    assert seqs(other) == seqs(mine) == list(range(1, 11))


@pytest.mark.parametrize("moment", ["after it has written", "after it has flushed", "when it is there"])
def test_what_was_interrupted_is_not_acknowledged_a_second_time_as_something_else(
    mine: SqliteStore, other: SqliteStore, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(mine, "run", 9)

    with pytest.raises(KeyboardInterrupt):
        if moment == "when it is there":
            with monkeypatch.context() as patch:
                patch.setattr(_sqlite_tails, "reach", interrupts)
                mine.append([on("run", 9)])
        else:
            meddled(mine, moment, interrupts, monkeypatch)
    another = on("run", 9, value=b"another")
    assert mine.append([another._replace(head=another.head._replace(digest=b"another"))]) == [Stale(head("run", 10, updated_us=10))]
    assert mine.append([on("run", 10)]) == [None]
    assert seqs(other) == list(range(1, 12))
    assert mine.check() == []


def test_a_thread_that_was_interrupted_in_a_transaction_does_not_keep_the_lock(
    mine: SqliteStore, other: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(mine, "run", 9)

    with monkeypatch.context() as patch:
        for name in ("commit", "end"):
            patch.setattr(mine._writer, name, interrupts)
        with pytest.raises(KeyboardInterrupt):
            mine.append([create("more")])
    assert mine.append([on("run", 9)]) == [None]
    assert other.append([create("theirs")], wait=False) == [None]
    assert seqs(other) == list(range(1, 11))


# --- owners that somebody has forgotten ------------------------------------------------------------------------------


def test_an_owner_that_another_process_has_forgotten_goes_on_without_a_tail(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    other.retire(ME)
    for seq in range(9, 20):
        assert mine.append([on("run", seq)]) == [None]
    assert (in_database(mine), named(mine), tails(mine)) == (20, {}, [])
    assert other.append([taking("run", 20)]) == [None]
    assert mine.append([on("run", 20)]) == [Stale(head("run", 21, epoch=2, owner="you"))]


def test_an_owner_that_is_forgotten_while_it_has_no_run_adds_nothing_to_a_file_that_is_gone(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    assert mine.append([taking("run", 9, owner=None)]) == [None]
    other.retire(ME)
    appended(mine, "next", 9)
    assert seqs(other, "next") == list(range(1, 10))
    assert other.append([taking("next", 9)]) == [None]
    assert mine.append([on("next", 9)]) == [Stale(head("next", 10, epoch=2, owner="you"))]


@pytest.mark.parametrize("leaving", ["close", "retire"])
def test_who_was_interrupted_while_it_left_adds_to_no_tail_that_nobody_names(
    mine: SqliteStore, other: SqliteStore, leaving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(mine, "run", 9)

    with monkeypatch.context() as patch:
        patch.setattr(_sqlite_tails.Tails, "settled", interrupts)
        with pytest.raises(KeyboardInterrupt):
            mine.close() if leaving == "close" else mine.retire(ME)
    for seq in range(9, 15):
        assert mine.append([on("run", seq)]) == [None]
    assert seqs(other) == list(range(1, 16))
    assert other.append([taking("run", 15)]) == [None]
    assert mine.append([on("run", 15)]) == [Stale(head("run", 16, epoch=2, owner="you"))]


def test_what_an_earlier_life_of_an_id_left_in_a_tail_is_not_of_the_next_one(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    found = mine.head("run")
    assert found is not None
    assert mine.remove([Removal(found, Tombstone("run", "agent", "", "done", 1, 2, "ann", "old"))]) == [True]
    assert mine.forget(3) == 1
    anew = head("run", 1)._replace(created_us=50)
    assert mine.append([Append("run", 0, 0, [row(1)], anew)]) == [None]
    assert other.load("run") == mine.load("run") == (anew, [row(1)])
    assert other.append([Append("run", 1, 1, [row(2, epoch=2)], anew._replace(seq=2, epoch=2, digest=b"digest-2"))]) == [None]


def test_a_run_that_comes_into_a_list_while_it_is_made_is_shown_as_it_stands(
    mine: SqliteStore, other: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a1", "a2"):
        assert other.append([Append(name, 0, 0, [row(1)], head(name, 1, owner="you"))]) == [None]
        for seq in range(1, 5):
            assert other.append([on(name, seq, owner="you")]) == [None]
    appended(mine, "b", 9)
    kept = _sqlite_tails.Tails.kept

    found = other.head("a1")
    assert found is not None

    def removing(self: _sqlite_tails.Tails, one: _sqlite_tails.Named) -> _sqlite_tails.Kept:
        if not removed:
            removed.append(one)
            assert other.remove([Removal(found, Tombstone("a1", "agent", "", "done", 1, 2, "ann", "old"))]) == [True]
        return kept(self, one)

    removed: list[object] = []
    monkeypatch.setattr(_sqlite_tails.Tails, "kept", removing)
    with closing(SqliteStore(mine.path)) as third:
        assert [(one.run_id, one.seq) for one in third.heads(Query(after="", limit=2))] == [("a2", 5), ("b", 9)]
    assert removed


def test_who_is_refused_is_told_where_the_run_stands_by_its_tail_too(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    assert other.append([create("run")]) == [Stale(head("run", 9, updated_us=9))]
