"""A commit as a readable document: the very same bytes come back, JSON is shown as JSON, and any change is noticed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store import Tombstone
from holdfast.stores._sealed import Commit, Unreadable, opened, sealed, shown
from holdfast.testing.sample import head, row

Json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ODD = [
    b"", b" 1", b"NaN", b"1e400", b"1E5", b"1e16", b"-0", b"-0.0", b'{"a":1,"a":2}', b'{"a": 1}', b'"\\u00e4"', b'"\\ud800"', b'"\\/"',
    b"\xff", b'={"packed":1}', b"1" * 5000, b"[" * 100_000, b"\xed\xa0\x80", b'"\x00"', "\ufeff1".encode(), b"1234567890123456789012345",
]  # fmt: skip


def back(body: bytes, value: bytes | None, args: bytes | None) -> None:
    commit = Commit([row(1, body=body, value=value, args=args)], head("run", 1), "token", (7,), ("ab",))
    assert opened(sealed(commit)) == commit


@pytest.mark.parametrize("data", ODD)
def test_bytes_that_are_no_plain_json_come_back_the_same(data: bytes) -> None:
    back(data, data, data)


@given(Json, st.booleans())
def test_json_comes_back_the_same(value: Any, ascii_only: bool) -> None:  # noqa: FBT001
    try:
        data = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return
    back(data, data, None)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_any_bytes_come_back_the_same(body: bytes, value: bytes | None) -> None:
    back(body, value, value)


def test_json_is_shown_as_json_and_packed_text_as_text() -> None:
    found = shown(row(1, body=b'{"name":"charge"}', value='{"text":"süß"}'.encode(), args=b'={"x":1}'))
    assert (found["body"], found["value"], found["args_text"]) == ({"name": "charge"}, {"text": "süß"}, '={"x":1}')
    assert "süß" in sealed(Commit([row(1, value='"süß"'.encode())], head("run", 1), "t")).decode()


def test_a_change_of_any_byte_is_noticed() -> None:
    data = sealed(Commit([row(1, value=b'{"a":1}')], head("run", 1), "token"))
    for at in range(len(data)):
        with pytest.raises(Unreadable):
            opened(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for short in (b"", data[:-1], data[: len(data) // 2], data + b"\n"):
        with pytest.raises(Unreadable):
            opened(short)


def test_a_turn_comes_back_with_what_it_says() -> None:
    grave = Tombstone("run", "agent", "1:f", "done", 1, 2, "ann", "because")
    for commit in (
        Commit([], head("run", 1), "t", turn=True, aside=[], grave=grave),
        Commit([row(1)], head("run", 1), "t", turn=True, onward="sealed-0002-x", aside=[{"what": "row"}]),
    ):
        assert opened(sealed(commit)) == commit
