"""The part of the conformance suite for stores that keep blobs: every promise of `holdfast.store.Shelf` as a test."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import pytest

from holdfast.store import Append, Head, Prunable, Repair, Repairable, Row, Shedding, Shelf, Stale, Store

LATE = 9_000_000_000_000_000
"""Later than whatever a test keeps."""


def on_shelf(store: Store) -> Shelf:
    """The store, if it keeps blobs; one that does not is none the worse for it."""
    if not isinstance(store, Shelf):
        pytest.skip("this store keeps no blobs")
    return store


def referring(run_id: str, seq: int, refs: Sequence[str]) -> Append:
    """The append behind `seq` (0: the first) that refers to these blobs."""
    row = Row(seq + 1, 1, 1, "step.done", "", b"{}", None, None, b"digest")
    head = Head(run_id, "agent", "done", None, 1, seq + 1, b"digest", None, 1, 1, "{}", 0.0, "")
    return Append(run_id, 1 if seq else 0, seq, [row], head, (), refs)


def content(shelf: Shelf, digest: str) -> bytes | None:
    """What the shelf has under a digest."""
    stream = shelf.open_blob(digest)
    if stream is None:
        return None
    with stream:
        return stream.read()


class ShelfConformance:
    """Mixed into `StoreConformance`."""

    def test_a_blob_comes_back_by_its_digest(self, store: Store) -> None:
        shelf = on_shelf(store)
        chunks = [b"one", b"", b"two" * 100_000]
        digest = shelf.keep_blob(iter(chunks), at_us=1)
        assert digest == hashlib.sha256(b"".join(chunks)).hexdigest()
        assert content(shelf, digest) == b"".join(chunks)
        assert content(shelf, hashlib.sha256(b"another").hexdigest()) is None
        empty = shelf.keep_blob([], at_us=1)
        assert content(shelf, empty) == b""

    def test_what_breaks_off_is_not_kept(self, store: Store) -> None:
        shelf = on_shelf(store)

        def breaking() -> Iterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            shelf.keep_blob(breaking(), at_us=1)
        assert content(shelf, hashlib.sha256(b"half").hexdigest()) is None
        assert shelf.sweep_blobs(LATE) == (0, 0)

    def test_a_sweep_takes_what_nobody_refers_to(self, store: Store) -> None:
        shelf = on_shelf(store)
        stays, goes = shelf.keep_blob([b"stays"], at_us=1), shelf.keep_blob([b"goes"], at_us=1)
        assert store.append([referring("run", 0, [stays])]) == [None]
        assert shelf.blob_refs("run") == [stays]
        assert shelf.sweep_blobs(LATE, dry_run=True) == (1, 4)
        assert content(shelf, goes) == b"goes"
        assert shelf.sweep_blobs(LATE) == (1, 4)
        assert (content(shelf, stays), content(shelf, goes)) == (b"stays", None)
        assert shelf.sweep_blobs(LATE) == (0, 0)

    def test_a_sweep_leaves_what_was_kept_since(self, store: Store) -> None:
        shelf = on_shelf(store)
        new, renewed, again = (shelf.keep_blob([text], at_us=at_us) for text, at_us in ((b"new", 50), (b"renewed", 1), (b"again", 1)))
        assert shelf.touch_blob(renewed, at_us=50)
        assert shelf.keep_blob([b"again"], at_us=50) == again
        assert shelf.sweep_blobs(50) == (0, 0)
        assert shelf.sweep_blobs(51) == (3, 15)
        assert not shelf.touch_blob(new, at_us=60)

    def test_an_append_that_refers_to_what_is_not_there_is_refused(self, store: Store) -> None:
        shelf = on_shelf(store)
        kept, swept = shelf.keep_blob([b"kept"], at_us=50), shelf.keep_blob([b"swept"], at_us=1)
        assert shelf.sweep_blobs(50) == (1, 5)
        first = referring("run", 0, [kept])
        assert store.append([first, referring("other", 0, [kept, swept])]) == [None, Stale(None, [swept])]
        assert store.load("other") is None
        assert shelf.blob_refs("other") == []
        assert store.append([referring("run", 1, [swept])]) == [Stale(first.head, [swept])]
        assert store.load("run") == (first.head, list(first.rows))

    def test_a_run_that_is_made_smaller_keeps_what_it_refers_to(self, store: Store) -> None:
        shelf = on_shelf(store)
        if not isinstance(store, Prunable):
            pytest.skip("this store cannot be pruned")
        before, since = shelf.keep_blob([b"before"], at_us=1), shelf.keep_blob([b"since"], at_us=1)
        first = referring("run", 0, [before])
        assert store.append([first]) == [None]
        assert store.shed(Shedding(first.head, [first.rows[0]._replace(body=b"[]")], referring("run", 1, [since]))) is True
        assert sorted(shelf.blob_refs("run")) == sorted([before, since])
        assert shelf.sweep_blobs(LATE) == (0, 0)

    def test_a_repair_refers_to_what_its_rows_need_or_changes_nothing(self, store: Store) -> None:
        shelf = on_shelf(store)
        if not isinstance(store, Repairable):
            pytest.skip("this store cannot move rows aside")
        before, since = shelf.keep_blob([b"before"], at_us=1), shelf.keep_blob([b"since"], at_us=1)
        first, other = referring("run", 0, [before]), referring("run", 1, [])
        assert store.append([first]) == [None]
        repair = Repair("run", first.head, first.rows, other.rows, other.head, 1, "ann", "because", [since])
        assert store.set_aside(repair._replace(refs=["0" * 64])) is False
        assert store.load("run") == (first.head, list(first.rows))
        assert store.set_aside(repair) is True
        assert sorted(shelf.blob_refs("run")) == sorted([before, since])
        assert shelf.sweep_blobs(LATE) == (0, 0)

    def test_an_append_that_is_stale_refers_to_nothing(self, store: Store) -> None:
        shelf = on_shelf(store)
        first, second = shelf.keep_blob([b"first"], at_us=1), shelf.keep_blob([b"second"], at_us=1)
        assert store.append([referring("run", 0, [first])]) == [None]
        (stale,) = store.append([referring("run", 5, [second])])
        assert stale is not None
        assert list(stale.missing) == []
        assert shelf.blob_refs("run") == [first]

    def test_parts_stay_as_long_as_the_whole(self, store: Store) -> None:
        shelf = on_shelf(store)
        parts = [shelf.keep_blob([text], at_us=1) for text in (b"a", b"b", b"shared")]
        whole = shelf.keep_blob([b"whole"], at_us=1, parts=parts)
        other = shelf.keep_blob([b"other"], at_us=1, parts=parts[2:])
        assert shelf.blob_parts(whole) == sorted(parts)
        assert store.append([referring("run", 0, [other])]) == [None]
        assert shelf.sweep_blobs(LATE) == (3, 7)
        assert [content(shelf, digest) for digest in (*parts, whole, other)] == [None, None, b"shared", None, b"other"]

    def test_a_whole_without_a_part_is_not_kept(self, store: Store) -> None:
        shelf = on_shelf(store)
        absent = hashlib.sha256(b"absent").hexdigest()
        with pytest.raises(KeyError, match=absent):
            shelf.keep_blob([b"whole"], at_us=1, parts=[absent])
        assert content(shelf, hashlib.sha256(b"whole").hexdigest()) is None

    def test_blobs_can_be_read_when_the_store_is_closed(self, store: Store) -> None:
        digest = on_shelf(store).keep_blob([b"kept"], at_us=1)
        store.close()
        assert content(on_shelf(store), digest) == b"kept"
