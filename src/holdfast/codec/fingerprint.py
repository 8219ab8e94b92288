"""What a call was asked to do: a fingerprint for the machine and readable JSON for people.

The canonical form under the fingerprint is JSON with sorted keys, written by the C encoder; what JSON has no word for becomes an
object with one key that begins with a zero byte. JSON would make the key 1 and the key "1" the same: text that has such a key, and
keys the encoder refuses, go through a slow, exact walk, whose form begins with another letter. Which of the two is taken depends on
the value alone, so equal values always meet. Classes count by name without module: moving one must not strand runs.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import numbers
import re
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_json

from holdfast._json import encoder
from holdfast.codec.values import INT_BITS_LIMIT, equal
from holdfast.errors import NotKept
from holdfast.large.artifact import Artifact, in_short

VERSION = 1
DEPTH_LIMIT = 100
"""How deep the slow walks go."""

CUT, CUT_BYTES = b"...", 400
"""How arguments end that were cut short, as no JSON does, and how much of them is left."""

LARGE = 4096
"""From this size on one form of the arguments serves both the fingerprint and people, where it can."""

_AMBIGUOUS_KEY = re.compile(r'"(?:-?[0-9][0-9.e+-]*|true|false|null|NaN|-?Infinity)":')
_SPECIAL = re.compile(r'"(?:\\u0000|(?:-?[0-9][0-9.e+-]*|true|false|null|NaN|-?Infinity)":)')
"""The same, or a sign that something has no word in JSON."""
_FIRST_NAME = re.compile(r'\{"(\w+)":')
_LONGEST = 1 << 63
_WORDS = frozenset({"true", "false", "null", "NaN", "Infinity"})
_EMPTY_MAKERS: tuple[object, ...] = (list, dict, set, tuple, frozenset, str, int, float, bool)
_MISSING = object()


def fingerprint(arguments: Mapping[str, object]) -> str:
    """The version and 32 hexadecimal digits that stand for these arguments, in every process."""
    digest = hashlib.sha256(_canonical(dict(arguments)).encode()).hexdigest()[:32]
    return f"{VERSION}:{digest}"


def identity(arguments: dict[str, object]) -> tuple[str, bytes | None, str]:
    """The fingerprint, and the arguments as JSON for people where the canonical form happens to be that: one plain argument, as usual.

    Large ones that are readable are such JSON too. The last is what `args_sha` says of both: they are written and hashed only once.
    """
    if len(arguments) == 1:
        ((name, value),) = arguments.items()
        if name.isascii() and name not in _WORDS and _is_plain(value):
            text = to_json(arguments)  # here it writes what `_fast` does, and results are written by it as well
            digest = hashlib.sha256(b"j" + text).hexdigest()
            return f"{VERSION}:{digest[:32]}", text, f"j{digest}"
    form, canonical, readable = _written(dict(arguments))
    data, hashed = canonical.encode(), hashlib.sha256(form)
    hashed.update(data)
    digest = hashed.hexdigest()
    large = readable and len(data) > LARGE
    return f"{VERSION}:{digest[:32]}", data if large else None, f"j{digest}" if large else ""


def _is_plain(value: Any) -> bool:
    """Whether every encoder writes this in the same way."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii() and value.isprintable())
    return bool(-_LONGEST < value < _LONGEST) if kind is int else value is None or kind is bool


def args_match(args: bytes, args_sha: str) -> bool:
    """Whether stored arguments are what `args_sha` says: their SHA-256, or `j` and that of a `j` with them behind it."""
    if args_sha[:1] != "j":
        return hashlib.sha256(args).hexdigest() == args_sha
    hashed = hashlib.sha256(b"j")
    hashed.update(args)
    return hashed.hexdigest() == args_sha[1:]


def encode_arguments(arguments: Mapping[str, object]) -> bytes:
    """The arguments as JSON for people. Never raises, reads no stream, and asks nobody for a repr."""
    text = ""
    with suppress(Exception):
        text = _readable(dict(arguments))
    if not text:
        with suppress(Exception):
            text = _readable({name: _bounded(value, frozenset()) for name, value in arguments.items()})
    if not text:
        text = _readable({name: f"<{type(value).__qualname__}>" for name, value in arguments.items()})
    return text.encode("utf-8", "backslashreplace")


def cut_short(args: bytes) -> bytes:
    """The beginning of arguments, for `as_called`."""
    return args[:CUT_BYTES] + CUT


def as_called(args: bytes) -> str:
    """The arguments as in a call, of large ones the beginning; ValueError where they are none."""
    args = cut_short(args) if len(args) > LARGE else args
    if args.endswith(CUT):
        return _FIRST_NAME.sub(r"\1=", args[: -len(CUT)].decode("utf-8", "ignore"), count=1) + CUT.decode()
    return ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in json.loads(args, object_hook=in_short).items())


def _canonical(value: object) -> str:
    form, text, _ = _written(value)
    return form.decode() + text


def _written(value: object) -> tuple[bytes, str, bool]:
    """The letter and the text of the canonical form, and whether the text is JSON that says to people what it says to us."""
    try:
        text = _fast(value)
        special = _SPECIAL.search(text)
        if special is None or _AMBIGUOUS_KEY.search(text, special.start()) is None:
            return b"j", text, special is None
    except (TypeError, ValueError):
        pass
    except RecursionError as error:
        raise _endless() from error
    return b"x", _exact_text(value), False


def _exact_text(value: object) -> str:
    return json.dumps(_exact(value, 0), separators=(",", ":"))


def _exact(value: object, depth: int) -> object:
    """The same content without JSON objects, so that no key changes its type."""
    if depth > DEPTH_LIMIT:
        raise _endless()
    if isinstance(value, dict):
        pairs = [[_exact(key, depth + 1), _exact(item, depth + 1)] for key, item in value.items()]
        return ["\0dict", sorted(pairs, key=lambda pair: json.dumps(pair[0]))]
    if isinstance(value, list | tuple):
        return [_exact(item, depth + 1) for item in value]
    if isinstance(value, int) and value.bit_length() > INT_BITS_LIMIT:
        return ["\0int", hex(value)]
    if value is None or isinstance(value, str | int | float):
        return value
    return _exact(_tagged(value), depth + 1)


def _endless() -> NotKept:
    return NotKept(
        "an argument", "it contains itself or is nested too deeply", "Pass data that can be written down as a tree of few levels"
    )


def _tagged(value: object) -> object:
    """What the C encoder asks for when it does not know a type."""
    for kinds, name, plain in _TAGGED:
        if isinstance(value, kinds):
            return {f"\0{name}": plain(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return {f"\0of {type(value).__qualname__}": _told_fields(value)}
    kind = value if isinstance(value, type) else type(value)
    return {"\0type" if isinstance(value, type) else "\0a": kind.__qualname__}


def _told_fields(value: object) -> dict[str, object]:
    """The fields that say something: one that is added with a default leaves old fingerprints what they were."""
    return {name: item for name, item, default in _fields(value) if not equal(item, default)}


def _fields(value: object) -> list[tuple[str, object, object]]:
    """Name, value and default of every field of a model or dataclass."""
    if isinstance(value, BaseModel):
        known = type(value).__pydantic_fields__.items()
        found = [(name, value.__dict__.get(name), _default(field.default, field.default_factory)) for name, field in known]
        return found + [(name, item, _MISSING) for name, item in (value.__pydantic_extra__ or {}).items()]
    assert dataclasses.is_dataclass(value)
    return [
        (field.name, getattr(value, field.name, None), _default(field.default, field.default_factory))
        for field in dataclasses.fields(value)
    ]


def _default(default: object, factory: object) -> object:
    """A factory is called only when it is known to make the same empty thing every time."""
    return factory() if callable(factory) and factory in _EMPTY_MAKERS else default


def _base64(value: Any) -> str:
    return base64.b64encode(value).decode()


_TAGGED: tuple[tuple[Any, str, Callable[[Any], object]], ...] = (
    (Enum, "enum", lambda value: [type(value).__qualname__, value.name or value.value]),
    ((set, frozenset), "set", lambda value: sorted(_canonical(item) for item in value)),
    ((bytes, bytearray, memoryview), "bytes", _base64),
    (datetime, "datetime", datetime.isoformat),
    (date, "date", date.isoformat),
    (time, "time", time.isoformat),
    (timedelta, "timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    (Decimal, "decimal", str),
    (Fraction, "fraction", str),
    (UUID, "uuid", str),
    (PurePath, "path", PurePath.as_posix),
    (numbers.Integral, "int", int),
    (numbers.Real, "float", float),
    (complex, "complex", lambda value: [value.real, value.imag]),
    (range, "range", lambda value: [value.start, value.stop, value.step]),
    (deque, "deque", list),
    (Artifact, "artifact", lambda value: [value.kind, value.digest]),
)


def _shown(value: object) -> object:
    """What people see for a value that JSON does not know."""
    if isinstance(value, Artifact):
        return value.told()
    for kinds, _name, plain in _TAGGED[1:]:
        if isinstance(value, kinds):
            return plain(value) if not isinstance(value, set | frozenset) else list(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return {name: item for name, item, _default in _fields(value)}
    return f"<{value.__qualname__ if isinstance(value, type) else type(value).__qualname__}>"


def _bounded(value: object, around: frozenset[int]) -> object:
    """A copy that is certain to be written: keys are text, and what is too deep, contains itself or is too large is cut off."""
    if value is None or isinstance(value, str | float):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= INT_BITS_LIMIT else "<int>"
    if id(value) in around or len(around) > DEPTH_LIMIT:
        return "<...>"
    around |= {id(value)}
    if isinstance(value, Mapping):
        return {_shown_key(key): _bounded(item, around) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(item, around) for item in value]
    return _bounded(_shown(value), around)


def _shown_key(key: object) -> str:
    return key if isinstance(key, str) else _readable(_bounded(key, frozenset()))


_fast = encoder(sort_keys=True, default=_tagged)
_readable = encoder(ensure_ascii=False, default=_shown)
