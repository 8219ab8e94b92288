"""The JSON bodies of records: what a row holds of them beside their columns, and the way back.

Fields that hold their default are left out, so that a field can be added without changing what older rows mean.
"""

from __future__ import annotations

import dataclasses
import json
from typing import NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast._json import encoder
from holdfast.records.kinds import COLUMNS, KINDS, Json, Record


class _Shape(NamedTuple):
    """The body fields of one kind: name and the default that is left out."""

    fields: tuple[tuple[str, object], ...]


def _shape(cls: type[Record]) -> _Shape:
    shown = []
    for spec in dataclasses.fields(cls):
        if spec.name in COLUMNS:
            continue
        default = spec.default_factory() if spec.default_factory is not dataclasses.MISSING else spec.default
        shown.append((spec.name, default))
    return _Shape(tuple(shown))


_SHAPES = {cls: _shape(cls) for cls in KINDS.values()}
_decode = json.JSONDecoder().decode
_encode = encoder(ensure_ascii=False)


def to_body(record: Record) -> bytes:
    """The JSON body of the row that will hold this record."""
    body = {}
    for name, default in _SHAPES[type(record)].fields:
        value = getattr(record, name)
        if value != default:
            body[name] = value
    try:
        return to_json(body)
    except PydanticSerializationError:  # half a character, which JSON can carry and UTF-8 cannot
        return _encode(body).encode("utf-8", "surrogatepass")


def from_parts(*, kind: str, step_id: str, body: bytes, value: bytes | None, args: bytes | None) -> Record:
    """The record that a row holds. Raises ValueError for a kind or a field that this version does not know."""
    cls = KINDS.get(kind)
    if cls is None:
        raise ValueError(f"unknown kind of record {kind!r}")
    try:
        return cls(step_id=step_id, value=value, args=args, **_fields_of(body))
    except TypeError as error:
        raise ValueError(f"a {kind} record with other fields than this version knows: {error}") from error


def _fields_of(body: bytes) -> Json:
    try:
        fields: Json = from_json(body)
    except ValueError:  # half a character, or damage
        fields = _decode(body.decode("utf-8", "surrogatepass"))
    return fields
