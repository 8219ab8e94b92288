"""The part of the conformance suite for stores through which runs are followed: every promise of `holdfast.store.Live` as a test."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given

from holdfast.store import Live, Store
from holdfast.testing.sample import WRITERS, WRITES, Words, create, examples, head, onward, row

LIVE_LINES, LIVE_LIMIT = 40, 10 * 1024 * 1024


def live(store: Store) -> Live:
    """The store, if runs in it can be followed; one that cannot do that is none the worse for it."""
    if not isinstance(store, Live):
        pytest.skip("this store carries nothing to followers")
    return store


class LiveConformance:
    """Mixed into `StoreConformance`."""

    lasting: bool

    def open(self, folder: Path) -> Store:
        """Open the store that lives in `folder`."""
        raise NotImplementedError

    def test_what_is_published_is_read_from_a_position_on(self, store: Store) -> None:
        carrier = live(store)
        carrier.publish("run", b'["a"]')
        (first,) = carrier.published("run", 0)
        carrier.publish("run", b'["b"]')
        carrier.publish("other", b'["c"]')
        assert [payload for _, payload in carrier.published("run", 0)] == [b'["a"]', b'["b"]']
        behind = carrier.published("run", first[0])
        assert [payload for _, payload in behind] == [b'["b"]']
        assert carrier.published("run", behind[-1][0]) == carrier.published("nobody", 0) == []

    def test_of_what_was_published_the_oldest_makes_way(self, store: Store) -> None:
        carrier, position, seen = live(store), 0, list[bytes]()
        for number in range(3 * LIVE_LINES):
            carrier.publish("run", b"%d %s" % (number, b"x" * (LIVE_LIMIT // LIVE_LINES)))
            new = carrier.published("run", position)
            position = new[-1][0]
            seen += [payload.split()[0] for _, payload in new]
        kept = [payload for _, payload in carrier.published("run", 0)]
        assert seen == [b"%d" % number for number in range(3 * LIVE_LINES)]
        assert kept[-1].startswith(b"%d " % (3 * LIVE_LINES - 1))
        assert sum(map(len, kept)) <= LIVE_LIMIT

    def test_whoever_opens_the_store_as_well_reads_what_is_published(self, tmp_path: Path) -> None:
        if not self.lasting:
            pytest.skip("nobody else can open this store")
        store, reader = self.open(tmp_path), self.open(tmp_path)
        live(store).publish("run", b"1")
        assert [payload for _, payload in live(reader).published("run", 0)] == [b"1"]
        live(reader).publish("run", b"2")
        assert [payload for _, payload in live(store).published("run", 0)] == [b"1", b"2"]
        store.close()
        reader.close()

    def test_lines_of_several_threads_are_whole(self, store: Store) -> None:
        carrier, words = live(store), [b"%d" % number * 500 for number in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(carrier.publish, ["run"] * WRITERS * WRITES, words * WRITES))
        assert sorted(payload for _, payload in carrier.published("run", 0)) == sorted(words * WRITES)

    @examples
    @given(run_id=Words)
    def test_publishing_never_raises_whatever_the_run_is_called(self, store: Store, *, run_id: str) -> None:
        carrier, others = live(store), live(store).published("another", 0)
        carrier.publish(run_id, b"1")
        assert {payload for _, payload in carrier.published(run_id, 0)} <= {b"1"}
        assert carrier.published("another", 0) == others

    def test_rows_behind_a_seq_come_with_the_head(self, store: Store) -> None:
        store.append([create("other", rows=2), create("run", rows=3)])
        store.append([onward("run", 3, rows=2)])
        assert [live(store).rows_after("run", seq) for seq in (0, 3, 5)] == [
            (head("run", 5), [row(number) for number in range(seq + 1, 6)]) for seq in (0, 3, 5)
        ]
        assert live(store).rows_after("nobody", 0) is None
