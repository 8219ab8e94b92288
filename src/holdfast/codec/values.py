"""Typed JSON: a value goes in, bytes come out, and the same value comes back.

The annotation in the code chooses the type; nothing in the stored bytes does. Without an annotation only plain JSON is kept.
What a step returns live is the decoded copy, so that live and replay cannot differ, and that copy must be the same as the original:
`difference` is the judge, because `==` takes True for 1 and a subclass for its base. Two leniencies, both visible live at once:
an int is a float where a float is annotated (as for a type checker), and a time zone becomes its offset.
Values are written by field name, never by alias: an alias may differ between reading and writing.
"""

from __future__ import annotations

import dataclasses
import marshal
import math
import re
import types
import typing
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Container, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import cached_property, lru_cache
from inspect import Parameter
from itertools import islice
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from holdfast.errors import NotKept
from holdfast.large.artifact import trouble

CODECS_LIMIT = 4096
"""Codecs kept ready; beyond that the least used are built again."""
REASON_LIMIT = 300
"""Characters of somebody else's error text that are passed on."""
INT_BITS_LIMIT = 10_000
"""Beyond about this size Python refuses to read or write a number in decimal."""
KEY_LIMIT = 40
"""Characters of a dictionary key that an error shows."""
SHOWN_DEPTH = 4
"""How deep the annotation that an error proposes goes; below that it says Any."""

_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")
UNTYPED = (Any, object, Parameter.empty, typing.NoReturn, typing.Never)
_IMMUTABLE: frozenset[object] = frozenset({str, int, bool, float, type(None)})
# OpenAI's and Anthropic's clients hang the id of the HTTP request on every reply; to refuse all replies for it would help nobody.
_LOST_WITHOUT_HARM = frozenset({"_request_id"})
_SCALARS = (str, int, bool)
_CONTAINERS = (list, set, frozenset, tuple, dict, deque)
_BUILTIN = (dict, list, tuple, bytes, float, str, int)
_HIDDEN: dict[type, str] = {defaultdict: "default_factory", deque: "maxlen"}
_MISSING = object()
_NOT_RETURNED = ("the default", "the partial result")
STATE = "the state"
"""How the errors of a state begin, which has no annotation of its own."""
# Of pydantic's warning only the two types are told; between them it shows the value.
_UNEXPECTED = re.compile(r"Expected `(?P<expected>[^`]*)` - .*input_type=(?P<found>[\w.]+)")


class ValueCodec:
    """Keeps and gives back values of one annotation."""

    __slots__ = ("_adapter", "_immutable", "_what", "annotation")

    def __init__(self, annotation: object, what: str) -> None:
        self.annotation, self._what = annotation, what
        self._immutable = _immutable_types(annotation)
        self._adapter = None if annotation in UNTYPED else _adapter(annotation, what)

    def keep(self, value: object) -> tuple[bytes, object]:
        """The bytes to store, and the value exactly as replay will give it back; raises NotKept."""
        kind = type(value)
        try:
            if kind in self._immutable and (kind is str or _is_certain(value)):
                return to_json(value), value
            data = self._encode(value)
            copy = self.give_back(data)
        except Exception as error:
            raise trouble(error) or self._refused(value, self._told(error, value)) from error
        if kind is not type(copy) or kind not in _BUILTIN or not _same_plain(value, copy):
            lost = difference(value, copy)
            if lost:
                raise self._refused(value, str(lost))
        return data, copy

    def give_back(self, data: bytes) -> Any:
        """The value of these bytes; raises ValueError with a short reason."""
        if self._adapter is None:
            return from_json(data)
        try:
            values = self._adapter.validator.validate_json(b"[" + data + b"]", by_alias=False, by_name=True)
        except ValidationError as error:
            raise ValueError(_reason(error)) from error
        if len(values) != 1:
            raise ValueError("the bytes do not hold exactly one value")
        return values[0]

    def shape(self) -> str:
        """What a person must write as JSON: the type, and its fields where it has some."""
        fields = ", ".join(f"{name}: {_type_name(kind)}" for name, kind in _fields(self.annotation))
        return f"{_type_name(self.annotation)}{' with the fields ' + fields if fields else ''}"[:REASON_LIMIT]

    def _encode(self, value: object) -> bytes:
        if self._adapter is None:
            return to_json(value, bytes_mode="base64", inf_nan_mode="constants")
        # In a list, because only there pydantic lets our settings reach a dataclass or TypedDict.
        return self._adapter.serializer.to_json([value], by_alias=False, round_trip=True, warnings="error")[1:-1]

    def _told(self, error: Exception, value: object) -> str:
        """Why it cannot be kept; where pydantic names no types, the ones that were declared and found."""
        reason = _reason(error)
        nameless = reason.startswith("Pydantic serializer warnings")
        return f"{_type_name(self.annotation)} was expected and {_name(value)} found" if nameless else reason

    def _refused(self, value: object, reason: str) -> NotKept:
        remedy = _remedy(value, reason, self.annotation)
        if self._what in _NOT_RETURNED and remedy.startswith("Annotate"):
            remedy = f"Give what was declared: {_type_name(self.annotation)}"
        if self._what == STATE and remedy.startswith("Annotate"):
            remedy = "A dict or list as a state holds what JSON has; give hf.state a dataclass or a pydantic model, whose fields say more"
        return NotKept(self._what, reason, remedy)


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """A place in a value that does not survive, and what becomes of it; the values themselves are not told."""

    place: str
    what: str

    def under(self, place: str) -> Lost:
        return Lost(place + self.place, self.what)

    def __str__(self) -> str:
        return f"{'it' + self.place if self.place else 'it'} {self.what}"


def codec_for(annotation: object, what: str) -> ValueCodec:
    """The codec of an annotation; `what` ("the result of step 'search'") begins its errors. Raises NotKept where there can be none."""
    try:
        hash(annotation)
    except TypeError:
        return ValueCodec(annotation, what)
    return _cached_codec(annotation, repr(annotation), what)


def equal(a: object, b: object) -> bool:
    """Same type and `==`; what cannot be compared (an array) is not equal."""
    with suppress(Exception):
        return type(a) is type(b) and bool(a == b)
    return False


def same(a: object, b: object) -> bool:
    """Whether `b` is what `a` was: identical types all the way down, equal values, NaN equal to NaN."""
    return difference(a, b) is None


def difference(a: object, b: object) -> Lost | None:
    """The first place where `b` is not what `a` was."""
    kind = type(a)
    if kind is type(b):
        if kind in _SCALARS:
            return None if a == b else Lost("", "came back changed")
        return None if a is b else _comparison(kind)(a, b)  # type: ignore[arg-type]
    if isinstance(a, BaseModel) and isinstance(b, BaseModel) and b.__pydantic_generic_metadata__["origin"] is kind:
        return _compare_models(a, b)  # Page(...) where Page[Row] is declared: equal to pydantic, and right to type checkers
    promoted = kind is int and type(b) is float and a == b
    return None if promoted else Lost("", f"is {_name(a)} and came back as {_name(b)}")


# The representation stands in the key because `A | B == B | A`, while decoding may depend on the order.
@lru_cache(maxsize=CODECS_LIMIT)
def _cached_codec(annotation: object, _shown: str, what: str) -> ValueCodec:
    return ValueCodec(annotation, what)


def _adapter(annotation: object, what: str) -> TypeAdapter[list[Any]]:
    if isinstance(annotation, str | typing.ForwardRef):
        raise NotKept(what, f"its annotation {annotation!r} names nothing the function can see", "Give the type itself: returns=TheType")
    shown = getattr(annotation, "__qualname__", None) or str(annotation)
    try:
        adapter = TypeAdapter(list[annotation], config=_CONFIG)  # type: ignore[valid-type]
    except Exception as error:
        remedy = "Annotate a pydantic model, a dataclass or standard types, or return plain JSON data and annotate that"
        raise NotKept(what, f"there is no JSON form for its type {shown} ({_reason(error)})", remedy) from error
    if not adapter.pydantic_complete:
        raise NotKept(what, f"its type {shown} names a type that is not defined yet", "Define it before the step is called")
    return adapter


def _immutable_types(annotation: object) -> frozenset[object]:
    """The types that come back as they are, by the annotation alone."""
    if annotation in UNTYPED:
        return _IMMUTABLE
    members = typing.get_args(annotation) if _is_union(annotation) else (type(None) if annotation is None else annotation,)
    return frozenset(members) if all(any(member is kind for kind in _IMMUTABLE) for member in members) else frozenset()


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_certain(value: object) -> bool:
    """Whether a number is one that every reader of JSON takes back."""
    if isinstance(value, int):
        return value.bit_length() <= INT_BITS_LIMIT
    return not isinstance(value, float) or math.isfinite(value)


def _same_plain(a: object, b: object) -> bool:
    """A test at C speed for builtin types: marshal tells all of them apart, and its version 2 has no references. Nothing is ever loaded."""
    try:
        return marshal.dumps(a, 2) == marshal.dumps(b, 2)  # type: ignore[arg-type]
    except ValueError:
        return False


@lru_cache(maxsize=CODECS_LIMIT)
def _comparison(kind: type) -> Callable[[Any, Any], Lost | None]:
    for kinds, compare in _COMPARISONS:
        if issubclass(kind, kinds):
            return compare
    return _compare_dataclasses if dataclasses.is_dataclass(kind) else _compare_values


def _compare_values(a: object, b: object) -> Lost | None:
    return None if equal(a, b) else Lost("", "came back changed")


def _compare_floats(a: float, b: float) -> Lost | None:
    return None if a == b or (math.isnan(a) and math.isnan(b)) else Lost("", "came back changed")


def _compare_models(a: BaseModel, b: BaseModel) -> Lost | None:
    before, after = a.__dict__, b.__dict__
    for name in type(a).__pydantic_fields__:
        lost = difference(before.get(name, _MISSING), after.get(name, _MISSING))
        if lost:
            return lost.under(f".{name}")
    return difference(a.__pydantic_extra__, b.__pydantic_extra__) or (
        difference(_hidden(a), _hidden(b)) if a.__pydantic_private__ else None
    )


def _hidden(model: BaseModel) -> dict[str, object]:
    return {name: value for name, value in (model.__pydantic_private__ or {}).items() if name not in _LOST_WITHOUT_HARM}


def _compare_dataclasses(a: Any, b: Any) -> Lost | None:
    names = a.__dataclass_fields__
    for name in names:
        lost = difference(getattr(a, name, _MISSING), getattr(b, name, _MISSING))
        if lost:
            return lost.under(f".{name}")
    lost_beside = (name for name in _beside_fields(a, names) if not same(getattr(a, name), getattr(b, name, _MISSING)))
    return next((Lost(f".{name}", "is not a field and is lost") for name in lost_beside), None)


def _beside_fields(a: object, names: Container[str]) -> list[str]:
    own: Mapping[str, object] = getattr(a, "__dict__", {})
    return [name for name in own if name not in names and not isinstance(getattr(type(a), name, None), cached_property)]


def _compare_mappings(a: dict[Any, Any], b: dict[Any, Any]) -> Lost | None:
    pairs = zip(a.items(), b.items(), strict=False)
    for (key, value), (key_back, value_back) in pairs:
        lost = difference(key, key_back) or difference(value, value_back)
        if lost:
            return lost.under(f"[{_shown_key(key)}]")
    return _compare_outside(a, b)


def _compare_sequences(a: Any, b: Any) -> Lost | None:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        lost = difference(x, y)
        if lost:
            return lost.under(f"[{index}]")
    return _compare_outside(a, b)


def _compare_sets(a: Any, b: Any) -> Lost | None:
    back = {item: item for item in b}
    for item in a:
        lost = difference(item, back.get(item, _MISSING))
        if lost:
            return lost.under("{}")
    return _compare_outside(a, b)


def _compare_outside(a: Any, b: Any) -> Lost | None:
    """What a container says without its items."""
    if len(a) != len(b):
        return Lost("", f"had {len(a)} items and came back with {len(b)}")
    attribute = _HIDDEN.get(type(a))
    lost = attribute is not None and getattr(a, attribute) != getattr(b, attribute)
    return Lost("", f"loses its {attribute}") if lost else None


_COMPARISONS: tuple[tuple[Any, Callable[[Any, Any], Lost | None]], ...] = (
    (BaseModel, _compare_models),
    (Enum, _compare_values),
    (dict, _compare_mappings),
    ((list, tuple, deque), _compare_sequences),
    ((set, frozenset), _compare_sets),
    (float, _compare_floats),
)


def _fields(annotation: object) -> list[tuple[str, object]]:
    """The fields of a model, a dataclass, a named tuple or a TypedDict, with their types."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(name, field.annotation) for name, field in annotation.model_fields.items()]
    if dataclasses.is_dataclass(annotation):
        return [(field.name, field.type) for field in dataclasses.fields(annotation) if field.init]
    is_record = hasattr(annotation, "__required_keys__") or hasattr(annotation, "_fields")
    return list(getattr(annotation, "__annotations__", {}).items()) if is_record else []


def _type_name(annotation: object) -> str:
    if isinstance(annotation, str | typing.ForwardRef):
        return annotation if isinstance(annotation, str) else annotation.__forward_arg__
    if typing.get_origin(annotation) is typing.Annotated:
        return _type_name(typing.get_args(annotation)[0])
    plain = isinstance(annotation, type) and not typing.get_args(annotation)
    return "None" if annotation in (None, type(None)) else annotation.__qualname__ if plain else str(annotation)  # type: ignore[attr-defined]


def _name(value: object) -> str:
    return "nothing" if value is _MISSING else type(value).__qualname__


def _shown_key(key: object) -> str:
    return repr(key)[:KEY_LIMIT] if isinstance(key, str | int) else _name(key)


def _reason(error: Exception) -> str:
    """Somebody else's error in one line, without the values that pydantic's texts show."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return f"{place}: {first['msg']}" if place else first["msg"]
    unexpected = _UNEXPECTED.search(str(error))
    if unexpected:
        return f"{unexpected['expected']} was expected and {unexpected['found']} found"
    return (str(error).partition("\n")[0].partition(" [")[0] or type(error).__name__)[:REASON_LIMIT]


def _remedy(value: object, reason: str, annotation: object) -> str:
    if isinstance(value, Coroutine):
        return "It is a coroutine that nobody awaited: write `await` before the call that made it"
    if isinstance(value, Generator | AsyncGenerator | Iterator):
        return "It is a stream, gone once it is read: collect it, as list(...), and annotate `-> list[...]`"
    if "utf-8" in reason and "surrogates" not in reason:
        return 'Give the model model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"), or use no bytes in it'
    if "surrogates" in reason:
        return "The text holds lone surrogates, which are not Unicode: decode it with errors='replace'"
    if _holds_nan(value):
        return 'NaN and infinity become null in a model: give it model_config = ConfigDict(ser_json_inf_nan="constants")'
    if type(value) is annotation and type(value) not in _CONTAINERS:
        return "Its type does not read back all that it holds: keep no state beside its fields, or return plain data, such as model_dump()"
    if not has_form(value):
        return "No annotation helps here: return plain data instead, such as a dict, a dataclass or a pydantic model"
    if value is None and annotation not in UNTYPED:
        return f"Annotate what it may be: `-> {_type_name(annotation)} | None`"
    apart = "; members of a union that look alike in JSON need a Literal field that tells them apart" if _is_union(annotation) else ""
    return f"Annotate what it is: `-> {annotation_of(value)}`{apart}"


def has_form(value: object, depth: int = 0) -> bool:
    """Whether there is an annotation under which this value, and all that it holds, can be kept."""
    if isinstance(value, _CONTAINERS) and depth < SHOWN_DEPTH:
        items = [*value, *value.values()] if isinstance(value, dict) else value
        return all(has_form(item, depth + 1) for item in islice(items, 100))
    with suppress(NotKept):
        return type(value) is not object and _adapter(type(value), "it") is not None
    return False


def _holds_nan(value: object) -> bool:
    """Whether a model, or a list of models, has a float that its JSON has no word for."""
    items = value if isinstance(value, list | tuple) else (value,)
    fields = (item for model in items if isinstance(model, BaseModel) for item in model.__dict__.values())
    return any(isinstance(item, float) and not math.isfinite(item) for item in fields)


def annotation_of(value: object, depth: int = 0) -> str:
    """The annotation under which this value would be kept, to be proposed in an error."""
    if value is None:
        return "None"
    kind = type(value)
    if depth >= SHOWN_DEPTH or kind not in _CONTAINERS:
        return kind.__qualname__ if depth < SHOWN_DEPTH else "Any"
    if isinstance(value, dict):
        return f"dict[{_united(value, depth)}, {_united(value.values(), depth)}]"
    if isinstance(value, tuple) and 0 < len(value) <= SHOWN_DEPTH:
        return f"tuple[{', '.join(annotation_of(item, depth + 1) for item in value)}]"
    assert isinstance(value, Iterable)
    return f"{kind.__name__}[{_united(value, depth)}{', ...' if kind is tuple else ''}]"


def _united(items: Iterable[object], depth: int) -> str:
    kinds = sorted({annotation_of(item, depth + 1) for item in islice(items, 100)})
    return " | ".join(kinds[:SHOWN_DEPTH]) or "Any"
