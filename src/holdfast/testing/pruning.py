"""The part of the conformance suite for stores that give room back: every promise of `holdfast.store.Prunable` as a test."""

from __future__ import annotations

import pytest

from holdfast.store import Append, Head, Prunable, Query, Removal, Repair, Repairable, Shedding, Stale, Store, Tombstone
from holdfast.testing.sample import create, head, listed, onward, repair, repaired, row


def removal(found: Head, pruned_us: int = 9) -> Removal:
    """The removal of a run that stands there."""
    return Removal(found, Tombstone(found.run_id, found.agent, "1:f", found.status, found.updated_us, pruned_us, "ann", "because"))


def prunable(store: Store) -> Prunable:
    """The store, if it can be pruned; one that cannot is none the worse for it."""
    if not isinstance(store, Prunable):
        pytest.skip("this store cannot be pruned")
    return store


class PrunableConformance:
    """Mixed into `StoreConformance`."""

    def test_a_removed_run_is_gone_with_its_letters_and_leaves_others_alone(self, store: Store) -> None:
        pruned = prunable(store)
        store.enroll("me")
        store.append([create("a", rows=3), create("b", rows=2)])
        store.append([onward("a", 3), onward("b", 2)])
        store.post("a", "k", b"", 1)
        kept = store.post("b", "k", b"", 1)
        assert pruned.remove([removal(head("a", 4))]) == [True]
        assert (store.load("a"), store.head("a")) == (None, None)
        assert listed(store, Query()) == ["b"]
        assert [letter.letter_id for letter in store.letters(["a", "b"])] == [kept]
        assert store.load("b") == (head("b", 3), [row(1), row(2), row(3)])
        assert store.append([onward("b", 3)]) == [None]
        assert store.check() == []

    def test_the_id_of_a_removed_run_stays_taken_until_it_is_forgotten(self, store: Store) -> None:
        pruned = prunable(store)
        store.append([create("run")])
        grave = removal(head("run", 1), pruned_us=9)
        pruned.remove([grave])
        assert pruned.tombstone("run") == grave.grave
        assert store.append([create("run"), create("other")]) == [Stale(None), None]
        assert (pruned.forget(9), pruned.tombstone("run")) == (0, grave.grave)
        assert (pruned.forget(10), pruned.tombstone("run")) == (1, None)
        assert store.append([create("run")]) == [None]

    def test_a_run_that_moved_is_not_removed_and_does_not_hinder_others(self, store: Store) -> None:
        pruned = prunable(store)
        store.append([create("a"), create("b")])
        store.append([onward("a", 1)])
        assert pruned.remove([removal(head("a", 1)), removal(head("b", 1)), removal(head("c", 1))]) == [False, True, False]
        assert store.load("a") == (head("a", 2), [row(1), row(2)])
        assert (pruned.tombstone("a"), pruned.tombstone("c")) == (None, None)

    def test_removing_takes_what_repairs_moved_aside(self, store: Store) -> None:
        mended, pruned = repaired(store, "run", rows=4, good=2), prunable(store)
        first = repair("run", rows=4, good=2)
        mended.set_aside(first)
        assert pruned.remove([removal(first.head)]) == [True]
        assert mended.aside("run") == []

    def test_rows_are_rewritten_where_they_stand_and_one_is_added(self, store: Store) -> None:
        pruned = prunable(store)
        store.append([create("run", rows=3), create("other", rows=2)])
        store.append([onward("run", 3)])
        light = row(2, body=b"[]")._replace(digest=b"new")
        assert pruned.shed(Shedding(head("run", 4), [light], onward("run", 4))) is True
        assert store.load("run") == (head("run", 5), [row(1), light, row(3), row(4), row(5)])
        assert store.load("other") == (head("other", 2), [row(1), row(2)])
        assert store.append([onward("run", 4)]) == [Stale(head("run", 5))]
        assert store.append([onward("run", 5)]) == [None]

    def test_rows_are_dropped_from_the_middle_and_the_others_keep_their_seqs(self, store: Store) -> None:
        pruned = prunable(store)
        store.enroll("me")
        store.append([create("run", rows=5), create("other", rows=2)])
        light = row(4, body=b"[]")._replace(digest=b"new")
        assert pruned.shed(Shedding(head("run", 5), [light], onward("run", 5), (2, 3))) is True
        assert store.load("run") == (head("run", 6), [row(1), light, row(5), row(6)])
        assert store.load("other") == (head("other", 2), [row(1), row(2)])
        assert store.append([onward("run", 6)]) == [None]
        assert pruned.shed(Shedding(head("run", 7), [], onward("run", 7), (2, 5))) is True
        assert store.load("run") == (head("run", 8), [row(1), row(6), row(7), row(8)])
        assert store.check() == []
        assert pruned.remove([removal(head("run", 8))]) == [True]
        assert store.load("run") is None

    def test_a_run_that_lacks_rows_in_its_middle_is_put_in_place_as_a_whole(self, store: Store) -> None:
        pruned, kept = prunable(store), [row(1), row(4), row(5)]
        ordered = Repair("run", None, (), kept, head("run", 5), 7, "ann", "from elsewhere")
        store.enroll("me")
        if not (isinstance(store, Repairable) and store.set_aside(ordered)):
            assert store.append([Append("run", 0, 0, kept, head("run", 5))]) == [None]
        assert not (isinstance(store, Repairable) and store.set_aside(ordered))
        assert store.load("run") == (head("run", 5), kept)
        assert store.append([onward("run", 5)]) == [None]
        assert store.check() == []
        assert pruned.remove([removal(head("run", 6))]) == [True]

    def test_rows_of_a_run_that_moved_are_not_rewritten(self, store: Store) -> None:
        pruned = prunable(store)
        store.append([create("run", rows=3)])
        store.append([onward("run", 3)])
        assert pruned.shed(Shedding(head("run", 3), [row(2, body=b"[]")], onward("run", 3))) is False
        assert store.load("run") == (head("run", 4), [row(1), row(2), row(3), row(4)])

    def test_compacting_changes_nothing_but_the_room(self, store: Store) -> None:
        pruned = prunable(store)
        store.append([Append("big", 0, 0, [row(1, value=b"x" * 200_000)], head("big", 1)), create("run", rows=3)])
        pruned.remove([removal(head("big", 1))])
        pruned.compact()
        assert pruned.room().free_bytes == 0
        assert store.load("run") == (head("run", 3), [row(1), row(2), row(3)])
        assert store.append([onward("run", 3), create("big")]) == [None, Stale(None)]
