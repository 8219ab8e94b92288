"""Differences, blobs and plain values: whatever goes in comes out, and what cannot be put together says so."""

from __future__ import annotations

import hashlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.large.packing import ARGS, BLOB_FROM, GROWS_FROM, MARK, Packer, Rows, Unpacker, applied, difference, is_packed, verified_blob
from holdfast.store import Row
from holdfast.testing.sample import row

Part = st.one_of(st.binary(max_size=40), st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")), st.just(MARK))
Value = st.builds(lambda part, times, end: part * times + end, Part, st.sampled_from([0, 1, 30, 3000]), Part)
Change = st.tuples(st.sampled_from(["grow", "cut", "insert", "replace", "drop"]), st.integers(0, 10_000), Part)


class Shelf:
    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def keep(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return digest

    def fetch(self, digest: str) -> bytes:
        if digest not in self.blobs:
            raise ValueError("the blob is not there")
        return verified_blob(digest, self.blobs[digest])


def changed(value: bytes, how: str, at: int, part: bytes) -> bytes | None:
    at %= len(value) + 1
    match how:
        case "grow":
            return value + part
        case "cut":
            return value[:at]
        case "insert":
            return value[:at] + part + value[at:]
        case "replace":
            return part
    return None


def series(first: bytes, changes: list[tuple[str, int, bytes]]) -> list[Row]:
    """Rows whose arguments, and the state in every other of them, change from one to the next."""
    rows, value = list[Row](), first
    for seq, (how, at, part) in enumerate(changes, 1):
        made = changed(value, how, at, part)
        value = value if made is None else made
        kind = "state.saved" if seq % 2 else "step.done"
        rows.append(row(seq, body=b'{"name":"think"}', value=made, args=made)._replace(kind=kind, step_id="1"))
    return rows


def words(size: int, *, seed: int = 1) -> bytes:
    """Text that hardly repeats itself."""
    return random.Random(seed).randbytes(size // 2).hex().encode()


@settings(max_examples=60, deadline=None)
@given(Value, st.lists(Change, min_size=1, max_size=12), st.booleans())
def test_whatever_goes_in_comes_out_in_order_and_one_by_one(first: bytes, changes: list[tuple[str, int, bytes]], shelved: bool) -> None:  # noqa: FBT001
    rows, shelf = series(first, changes), Shelf()
    packer = Packer({}, shelf.keep if shelved else None)
    stored = [packer.pack(each) for each in rows]
    assert list(map(Unpacker(stored, shelf.fetch).certain, stored)) == rows
    assert [Unpacker(stored, shelf.fetch).certain(each) for each in stored] == rows


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=30), st.binary(max_size=300))
def test_a_difference_applied_to_what_it_was_taken_from_gives_the_value(before: bytes, new: bytes, after: bytes) -> None:
    plain = before + new + after
    found = difference(1, before + after, plain)
    assert found is None or applied(found, before + after) == plain


def test_a_list_that_grows_is_stored_as_what_is_new_in_it() -> None:
    lists = [json.dumps({"messages": [words(1000, seed=n).decode() for n in range(length)]}).encode() for length in range(1, 60)]
    rows = [row(seq, body=b'{"name":"think"}', args=args) for seq, args in enumerate(lists, 1)]
    packer = Packer({}, Shelf().keep)
    sizes = [len(packer.pack(each).args or b"") for each in rows]
    assert sum(sizes) < 4 * len(lists[-1])
    assert sum(size < 1200 for size in sizes) > 50  # the others are whole: a chain ends where its differences have outgrown that


def test_text_is_shown_as_text_though_a_character_is_cut_in_two() -> None:
    before, plain = ("ä" * 400 + "ö").encode(), ("ä" * 400 + "ü").encode()  # the same first byte, another second one
    found = difference(7, before, plain)
    assert found is not None
    assert json.loads(found[1:]) == {"like": 7, "start": 800, "end": 0, "text": "ü"}


def test_a_large_value_is_a_blob_and_a_small_one_stands_as_it_is() -> None:
    shelf = Shelf()
    large, small = b'"' + b"a" * BLOB_FROM + b'"', b'"' + b"a" * GROWS_FROM + b'"'
    stored = Packer({}, shelf.keep).pack(row(1, value=large, args=small))
    ((digest, blob),) = shelf.blobs.items()
    assert json.loads((stored.value or b"")[1:]) == {"blob": digest, "size": len(large), "zlib": True}
    assert len(blob) < len(large) / 50
    assert stored.args == small


def test_what_does_not_get_smaller_is_kept_as_it_is() -> None:
    shelf, noise = Shelf(), random.Random(1).randbytes(BLOB_FROM + 1)
    stored = Packer({}, shelf.keep).pack(row(1, value=noise))
    assert list(shelf.blobs.values()) == [noise]
    assert Unpacker([stored], shelf.fetch).certain(stored).value == noise


@pytest.mark.parametrize(
    "damaged",
    [b"=", b"={", b"=[]", b'={"like":1}', b'={"like":1,"start":9,"end":9,"text":"x"}', b'={"like":2,"start":0,"end":0,"text":"x"}',
     b'={"like":9,"start":0,"end":0,"text":"x"}', b'={"like":1,"start":-1,"end":0,"text":"x"}', b'={"like":1,"start":0,"end":0,"text":3}',
     b'={"blob":"00","size":3}', b'={"zlib":"AAAA","size":3}', b'={"zlib":"?","size":3}', b'={"size":3}',
     b'={"zlib":"eJwDAAAAAAE=","size":2}'],
)  # fmt: skip
def test_what_cannot_be_put_together_stays_as_it_stands_or_is_an_error_for_who_must_know(damaged: bytes) -> None:
    stored = [row(1, args=b"short"), row(2, args=damaged)]
    assert Unpacker(stored, Shelf().fetch).plain(stored[1]) == stored[1]
    with pytest.raises(ValueError):
        Unpacker(stored, Shelf().fetch).certain(stored[1])


def test_rows_are_a_sequence_like_any_other() -> None:
    shelf, met = Shelf(), list[object]()
    packer = Packer({}, shelf.keep)
    plain = [row(seq, body=b'{"name":"think"}', args=words(1200) + words(100 * seq, seed=2)) for seq in range(1, 9)]
    stored = [packer.pack(each) for each in plain]
    rows = Rows(stored, lambda: Unpacker(stored, shelf.fetch), met.append)
    assert sum(map(is_packed, stored)) >= 5
    assert (rows[-1], rows[3], rows[2:5], rows[::-2], len(rows), list(rows)) == (plain[-1], plain[3], plain[2:5], plain[::-2], 8, plain)
    assert rows == plain
    assert rows != plain[:-1]
    assert rows != [*plain[:-1], plain[0]]
    assert met[-1] == packer.known
    assert (ARGS, b"think") in packer.known
