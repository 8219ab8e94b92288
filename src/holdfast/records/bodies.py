"""The JSON bodies of records: what a row holds of them beside their columns, and the way back.

Fields that hold their default are left out, so that a field can be added without changing what older rows mean.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from holdfast._json import encoder
from holdfast.records.kinds import COLUMNS, KINDS, Json, Record

Fields: TypeAlias = Callable[[Record], Json]


def _fields_that_say_something(cls: type[Record]) -> Fields:
    """A function from a record of this kind to the fields of its body, written out: a loop over all of them takes three times as long."""
    shown = [spec for spec in dataclasses.fields(cls) if spec.name not in COLUMNS]
    given = [spec.name for spec in shown if spec.default is spec.default_factory is dataclasses.MISSING]
    usual = [spec.name for spec in shown if spec.name not in given]
    lines = ["def fields(record):", f" body = {{{', '.join(f'{name!r}: record.{name}' for name in given)}}}"]
    lines += [f" if record.{name} != usual_{name}: body[{name!r}] = record.{name}" for name in usual]
    written: dict[str, Any] = {f"usual_{spec.name}": _default(spec) for spec in shown}
    exec("\n".join([*lines, " return body"]), written)  # noqa: S102 (names of fields alone, as in a dataclass)
    return cast("Fields", written["fields"])


def _default(spec: dataclasses.Field[Any]) -> object:
    return spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()


_FIELDS: dict[type[Record], Fields] = {}
_decode = json.JSONDecoder().decode
_encode = encoder(ensure_ascii=False)


def to_body(record: Record) -> bytes:
    """The JSON body of the row that will hold this record."""
    fields = _FIELDS.get(type(record))
    if fields is None:
        fields = _FIELDS[type(record)] = _fields_that_say_something(type(record))
    body = fields(record)
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
