"""The part of the conformance suite for stores beside tables of the user's: every promise of `holdfast.store.Transactional` as a test."""

from __future__ import annotations

import pytest

from holdfast.store import Stale, Store, Transactional
from holdfast.testing.sample import create, head, onward


def transactional(store: Store) -> Transactional:
    """The store, if it writes in transactions of the user's; one that does not is none the worse for it."""
    if not isinstance(store, Transactional):
        pytest.skip("this store has no tables of the user's beside it")
    return store


class TransactionalConformance:
    """Mixed into `StoreConformance`."""

    def test_an_append_goes_in_with_its_transaction(self, store: Store) -> None:
        store.append([create("run")])
        with transactional(store).transaction() as transaction:
            assert store.head("run") == head("run", 1)
            assert transaction.commit(onward("run", 1)) is None
        assert store.head("run") == head("run", 2)

    def test_a_transaction_that_is_not_committed_leaves_nothing(self, store: Store) -> None:
        store.append([create("run")])
        with transactional(store).transaction():
            pass
        with pytest.raises(ValueError, match="on purpose"), transactional(store).transaction():
            raise ValueError("on purpose")
        assert store.head("run") == head("run", 1)

    @pytest.mark.parametrize(("epoch", "seq"), [(1, 1), (2, 2), (1, 3)])
    def test_a_transaction_with_a_stale_append_is_refused(self, store: Store, epoch: int, seq: int) -> None:
        store.append([create("run", 2)])
        with transactional(store).transaction() as transaction:
            assert transaction.commit(onward("run", seq, epoch=epoch)) == Stale(head("run", 2))
        assert store.head("run") == head("run", 2)

    def test_an_open_transaction_holds_up_nobody(self, store: Store) -> None:
        store.append([create("run")])
        able = transactional(store)
        with able.transaction() as first, able.transaction() as second:
            assert store.append([create("other"), onward("run", 1)]) == [None, None]
            assert second.commit(onward("other", 1)) is None
            assert first.commit(onward("run", 2)) is None
        assert [store.head("run"), store.head("other")] == [head("run", 3), head("other", 2)]
