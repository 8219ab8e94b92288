"""How large and growing values are written: as a difference from an earlier one, as a blob, or as they are; pure.

A packed value begins with `=`, as no JSON does, and goes on as JSON text:

| written | the value is |
|---|---|
| `={"like":12,"start":900,"end":2,"text":"..."}` | the first 900 and the last 2 bytes of this field in record 12, with that between |
| `={"blob":SHA-256,"size":70000,"zlib":true}` | in a blob, compressed, so many bytes once it is not |
| `={"zlib":BASE64,"size":70000}` | here, compressed, where there can be no blob: by its store, in a repair, in a user's transaction |
| `==...` | what follows the first `=`: a value that begins with one itself |

`base64` stands in the place of `text` where that is no text. What is not packed stands as it is. A record is only ever like an earlier one
of its run, so whoever reads them in order holds one value for each thing that grows. Where the differences have outgrown the last whole
copy, the next one is whole again.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, overload

from pydantic_core import from_json

from holdfast._json import encoder
from holdfast.store import Row

MARK = b"="
BLOB_FROM = 64 * 1024
"""Larger values are blobs, unless little of them is new."""
GROWS_FROM = 1024
"""Smaller values are not compared with earlier ones."""
LEVEL = 1
"""How hard zlib tries: the highest level takes twice as long for a tenth less."""

CLOSING = 64
"""Bytes at the end of a value that are there again, as brackets, behind what was added."""

VALUE, ARGS = 6, 7
"""What may be packed, by its place in a row."""
STATES = frozenset({"state.saved", "state.edited"})
"""The kinds of records whose value is what the one before held, and more."""
NAMED = re.compile(rb'"name":"([^"\\]{1,100})"')
LIKE = re.compile(rb'={"like":([0-9]{1,18}),')
INSIDE = range(0x80, 0xC0)
"""Bytes with which a character of UTF-8 goes on."""

Key: TypeAlias = tuple[int, bytes | str]
Fetch: TypeAlias = Callable[[str], bytes]
Keep: TypeAlias = Callable[[bytes], str]

_written = encoder(ensure_ascii=False)


class Known(NamedTuple):
    """A value that later ones may be like: its record, its bytes, and how many bytes of differences may follow until one is whole."""

    seq: int
    plain: bytes
    room: int


def is_packed(row: Row) -> bool:
    """Whether something of a row is not as it stands there; of a damaged row anything can be asked."""
    return _begins(row.value) or _begins(row.args)


def is_worth_it(row: Row) -> bool:
    """Whether a row has to be looked at before it is written."""
    value, args = row.value, row.args
    if args is not None and (len(args) > GROWS_FROM or args[:1] == MARK):
        return True
    return value is not None and (value[:1] == MARK or (len(value) > GROWS_FROM and (row.kind in STATES or len(value) > BLOB_FROM)))


def escaped_bytes(plain: bytes) -> bytes:
    """A value as it is written where it is not packed."""
    return MARK + plain if plain[:1] == MARK else plain


class TakesLong(Exception):
    """A value would have to be compressed, and perhaps kept as a blob, and there is no time for that."""


class Packer:
    """Packs the rows of one run, in order. `known` are values that stand before them; `blobs` are those that were kept on the way.

    A packer that is `brief` raises `TakesLong` where a value cannot be packed in no time.
    """

    def __init__(self, known: Mapping[Key, Known], keep: Keep | None, *, brief: bool = False) -> None:
        self.known, self.blobs = dict(known), list[str]()
        self._keep, self._brief = keep, brief

    def pack(self, row: Row) -> Row:
        """The row as it is written."""
        for place in (VALUE, ARGS):
            plain = _held(row, place)
            if plain is not None and (len(plain) > GROWS_FROM or plain[:1] == MARK):
                row = _with(row, place, self._packed(row, place, plain))
        return row

    def _packed(self, row: Row, place: int, plain: bytes) -> bytes:
        key = _key(row, place)
        if key is None or len(plain) <= GROWS_FROM:
            return self._whole(plain)
        like = self.known.get(key)
        found = None if like is None else difference(like.seq, like.plain, plain)
        if like is None or found is None or len(found) > like.room:
            self.known[key] = Known(row.seq, plain, len(plain))
            return self._whole(plain)
        self.known[key] = Known(row.seq, plain, like.room - len(found))
        return found

    def _whole(self, plain: bytes) -> bytes:
        if len(plain) <= BLOB_FROM:
            return escaped_bytes(plain)
        if self._brief:
            raise TakesLong
        pressed = zlib.compress(plain, LEVEL)
        if self._keep is None:
            text = _form({"zlib": base64.b64encode(pressed).decode(), "size": len(plain)})
            return text if len(text) < len(plain) else escaped_bytes(plain)
        smaller = len(pressed) < len(plain)
        digest = self._keep(pressed if smaller else plain)
        self.blobs.append(digest)
        return _form({"blob": digest, "size": len(plain), **({"zlib": True} if smaller else {})})


def difference(seq: int, before: bytes, plain: bytes) -> bytes | None:
    """A value as what is new in it; None where that is not worth it."""
    start = _alike_before(before, plain)
    end = _alike_behind(before, plain, min(len(before), len(plain)) - start)
    while start and _is_inside(plain, start):
        start -= 1
    while end and _is_inside(plain, len(plain) - end):
        end -= 1
    new = plain[start : len(plain) - end]
    if len(new) > min(len(plain) // 2, BLOB_FROM):
        return None
    try:
        told = {"text": new.decode()}
    except UnicodeDecodeError:
        told = {"base64": base64.b64encode(new).decode()}
    return _form({"like": seq, "start": start, "end": end, **told})


class Unpacker:
    """Gives rows of one run as they were before they were packed; quick for who reads them in order.

    `known` are values that stand before the rows, and in the end those that may come to stand before others.
    """

    def __init__(self, rows: Sequence[Row], fetch: Fetch, known: Mapping[Key, Known] | None = None) -> None:
        self.known = dict(known or {})
        self._rows, self._fetch = rows, fetch
        self._by_seq: dict[int, Row] | None = None

    def plain(self, row: Row) -> Row:
        """The row as it was; what cannot be put together, because something else is damaged or gone, stays as it stands."""
        try:
            return self.certain(row)
        except (ValueError, TypeError):  # of a damaged row every field can be anything
            return row

    def certain(self, row: Row) -> Row:
        """The row as it was; ValueError where it cannot be put together."""
        for place in (VALUE, ARGS):
            data = _held(row, place)
            if isinstance(data, bytes) and (len(data) > GROWS_FROM or data[:1] == MARK):
                plain = self._unpacked(row, place, data)
                row = row if plain is data else _with(row, place, plain)
        return row

    def _unpacked(self, row: Row, place: int, data: bytes) -> bytes:
        key, like = _key(row, place), _like(row.seq, data)
        if like is None:
            plain = self._whole(data)
            room = len(plain)
        else:
            before = self.known.get(key) if key is not None else None
            if before is None or before.seq != like:
                before = self._walked(like, place)
            plain, room = applied(data, before.plain), before.room - len(data)
        if key is not None and len(plain) > GROWS_FROM:
            self.known[key] = Known(row.seq, plain, room)
        return plain

    def _walked(self, seq: int, place: int) -> Known:
        """An earlier value, from the last whole copy on."""
        if self._by_seq is None:
            self._by_seq = {row.seq: row for row in self._rows}
        data, chain, at = self._at(seq, place), list[bytes](), seq
        while (like := _like(at, data)) is not None:
            chain.append(data)
            data, at = self._at(like, place), like
        plain = self._whole(data)
        room = len(plain) - sum(map(len, chain))
        for each in reversed(chain):
            plain = applied(each, plain)
        return Known(seq, plain, room)

    def _at(self, seq: int, place: int) -> bytes:
        row = (self._by_seq or {}).get(seq)
        data = None if row is None else _held(row, place)
        if isinstance(data, bytes):
            return data
        raise ValueError(f"record {seq}, which it is like, does not hold that")

    def _whole(self, data: bytes) -> bytes:
        if data[:1] != MARK:
            return data
        if data[:2] == MARK + MARK:
            return data[1:]
        form = _read(data)
        try:
            size, pressed = int(form["size"]), form.get("zlib")
            stored = self._fetch(form["blob"]) if "blob" in form else base64.b64decode(form["zlib"], validate=True)
            plain = zlib.decompressobj().decompress(stored, size + 1) if pressed else stored
        except (KeyError, TypeError, zlib.error) as error:
            raise ValueError(f"it is packed in no way that is known ({error})") from error
        if len(plain) != size:
            raise ValueError(f"it has {len(plain)} bytes in the place of {size}")
        return plain


def applied(data: bytes, before: bytes) -> bytes:
    """A value, given what is new in it and the one that it is like."""
    form = _read(data)
    try:
        start, end = form["start"], form["end"]
        new = form["text"].encode() if "text" in form else base64.b64decode(form["base64"], validate=True)
        if min(start, end) < 0 or start + end > len(before):
            raise ValueError("what it is like is too short")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is packed in no way that is known ({error})") from error
    whole = memoryview(before)
    return b"".join((whole[:start], new, whole[len(before) - end :]))


class Rows(Sequence[Row]):
    """The rows of a run, each unpacked when it is asked for: in order, only what grows last is in memory as a whole."""

    __slots__ = ("_last", "_met", "_unpacker", "raw")

    def __init__(self, raw: Sequence[Row], unpacker: Callable[[], Unpacker], met: Callable[[Mapping[Key, Known]], None]) -> None:
        self.raw = raw
        self._unpacker, self._met = unpacker, met
        self._last: Row | None = None

    def __len__(self) -> int:
        return len(self.raw)

    def __iter__(self) -> Iterator[Row]:
        unpacker, row = self._unpacker(), None
        for each in self.raw:
            row = unpacker.plain(each)
            yield row
        self._last = row
        self._met(unpacker.known)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """One row, for which the differences up to it are put together; of a slice all rows before it."""
        if isinstance(index, slice):
            wanted = range(*index.indices(len(self)))
            found = {at: row for at, row in enumerate(self) if at in wanted}
            return [found[at] for at in wanted]
        if self._last is not None and index in (-1, len(self) - 1):
            return self._last
        return self._unpacker().plain(self.raw[index])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rows) and self.raw == other.raw:
            return True
        return isinstance(other, Rows | list) and len(self) == len(other) and all(map(Row.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


def bare(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows for who does not look at their values and arguments: these may be packed."""
    return rows.raw if isinstance(rows, Rows) else rows


def verified_blob(digest: str, data: bytes) -> bytes:
    """The bytes of a blob, if they are what was kept under this digest."""
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("the blob does not hold what was kept")
    return data


def needed_from(rows: Sequence[Row], seq: int) -> bool:
    """Whether some of these rows are like a record up to `seq`, which is not among them."""
    return any(like <= seq for row in rows for data in (row.value, row.args) if (like := _told_like(data)))


def _begins(data: object) -> bool:
    return isinstance(data, bytes) and data[:1] == MARK


def _held(row: Row, place: int) -> bytes | None:
    return row.value if place == VALUE else row.args


def _with(row: Row, place: int, data: bytes) -> Row:
    return row._replace(value=data) if place == VALUE else row._replace(args=data)


def _key(row: Row, place: int) -> Key | None:
    """What a value may be like: the last of this key. None where values of its kind do not grow; a wrong guess only costs bytes."""
    if place == VALUE:
        return (place, row.step_id) if row.kind in STATES else None
    found = NAMED.search(row.body)
    return place, (row.kind if found is None else found[1])


def _like(seq: int, data: bytes) -> int | None:
    """The record that a value is a difference from, or None; a damaged one could be like itself."""
    like = _told_like(data)
    if like is not None and not like < seq:
        raise ValueError("it is like no earlier record")
    return like


def _told_like(data: bytes | None) -> int | None:
    found = LIKE.match(data) if isinstance(data, bytes) else None
    return None if found is None else int(found[1])


def _form(form: dict[str, Any]) -> bytes:
    return MARK + _written(form).encode()


def _read(data: bytes) -> dict[str, Any]:
    form = from_json(data[1:])
    if not isinstance(form, dict):
        raise ValueError("it is packed in no way that is known")  # noqa: TRY004 (what is stored is wrong, not who calls)
    return form


def _is_inside(data: bytes, at: int) -> bool:
    """Whether a character of UTF-8 goes on there: a cut would leave no text."""
    return at < len(data) and data[at] in INSIDE


def _alike_before(one: bytes, other: bytes) -> int:
    """How many bytes both begin with. Each look halves what is left, and compares as fast as memory is read.

    Where something was added at the end, the first look, which copies nothing, finds that.
    """
    low, high = 0, min(len(one), len(other)) + 1
    almost = len(one) - CLOSING
    if 0 < almost < high and other.removeprefix(memoryview(one)[:almost]) is not other:
        low = almost
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if other.startswith(one[low:middle], low) else (low, middle)
    return low


def _alike_behind(one: bytes, other: bytes, most: int) -> int:
    """How many bytes both end with, `most` at the most."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        same = other.endswith(one[len(one) - middle : len(one) - low], 0, len(other) - low)
        low, high = (middle, high) if same else (low, middle)
    return low
