"""State objects: their changes are saved with each commit, and replay sets them in place to what they were.

What was saved of a state that grows is held as it is stored, as what is new each time: replay goes through it once, in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from pydantic import BaseModel

from holdfast.codec.values import STATE, ValueCodec, codec_for
from holdfast.errors import Misuse, NotKept
from holdfast.large.packing import GROWS_FROM, applied, difference


class Saved:
    """The values that a state had at its commits, each with its seq, in the order in which they were recorded."""

    __slots__ = ("_parts", "last")

    def __init__(self, values: Iterable[tuple[int, bytes]] = ()) -> None:
        self._parts: list[tuple[int, bytes, bool]] = []
        self.last: bytes | None = None
        for seq, value in values:
            self.add(seq, value)

    def add(self, seq: int, value: bytes) -> None:
        """One more value."""
        new = difference(seq, self.last, value) if self.last is not None and len(value) > GROWS_FROM else None
        self._parts.append((seq, value if new is None else new, new is not None))
        self.last = value

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        value = b""
        for seq, part, is_new in self._parts:
            value = applied(part, value) if is_new else part
            yield seq, value

    def __len__(self) -> int:
        return len(self._parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Saved) and self._parts == other._parts

    __hash__ = None  # type: ignore[assignment]

    def at(self, seq: int) -> bytes | None:
        """The last value that was recorded up to there."""
        found = None
        for recorded, value in self:
            found = value if recorded <= seq else found
        return found


class Tracked:
    """One state object of a run. `recorded` are the values of earlier commits, by seq; the one at `edited` is a person's."""

    __slots__ = ("_ahead", "_next", "codec", "edited", "last", "target")

    def __init__(self, target: object, recorded: Iterable[tuple[int, bytes]], edited: int = 0) -> None:
        if not isinstance(target, dict | list | BaseModel) and not dataclasses.is_dataclass(target):
            raise Misuse(f"hf.state takes a model, dataclass, dict or list, not {type(target).__name__}; nothing was recorded")
        self.target = target
        self.codec: ValueCodec = codec_for(_annotation(target), STATE)
        self.last = self.codec.keep(target)[0]
        self._ahead = iter(recorded)
        self._next = next(self._ahead, None)
        self.edited = edited

    def changed(self) -> bytes | None:
        """The encoded value if it differs from the one saved last, which an earlier life may have done behind its last outcome."""
        if self._next is not None:
            for seq, value in chain((self._next,), self._ahead):
                if seq == self.edited:
                    self._next = seq, value
                    raise NotKept(STATE, "it was edited at a step at which the code has no such state", "Edit it at a later step")
                self.last = value
            self._next = None
        data, _ = self.codec.keep(self.target)
        if data == self.last:
            return None
        self.last = data
        return data

    def set_to(self, seq: int) -> None:
        """Set the object in place to what it was at the boundary `seq`, if something was recorded until then."""
        data = None
        while self._next is not None and self._next[0] <= seq:
            data, self._next = self._next[1], next(self._ahead, None)
        if data is not None:
            self.last = data
            if self.differs(data):
                value = self.codec.give_back(data)
                if not isinstance(value, dict if isinstance(self.target, dict) else list if isinstance(self.target, list) else object):
                    raise ValueError(f"the state is a {type(self.target).__name__}, not a {type(value).__name__}")
                overwrite(self.target, value)

    def differs(self, data: bytes) -> bool:
        """Whether the object is not what these bytes hold; where the code does the same again, it is."""
        try:
            return self.codec.keep(self.target)[0] != data
        except NotKept:
            return True


def _annotation(target: object) -> object:
    return Any if isinstance(target, dict | list) else type(target)


def overwrite(target: Any, value: Any) -> None:
    """Give `target` the contents of `value`, keeping its identity and that of what is in it: code may hold on to a list inside."""
    match target:
        case dict():
            kept = {key: _kept(target.get(key), item) for key, item in value.items()}
            target.clear()
            target.update(kept)
        case list():
            before = [*target, *[None] * (len(value) - len(target))]
            target[:] = [_kept(old, item) for old, item in zip(before, value, strict=False)]
        case set():
            target.clear()
            target.update(value)
        case BaseModel():
            kept = {name: _kept(target.__dict__.get(name), item) for name, item in value.__dict__.items()}
            object.__setattr__(target, "__dict__", kept)
            object.__setattr__(target, "__pydantic_fields_set__", set(value.__pydantic_fields_set__))
        case _:
            for field in dataclasses.fields(target):
                object.__setattr__(target, field.name, _kept(getattr(target, field.name, None), getattr(value, field.name)))


def _kept(old: Any, new: Any) -> Any:
    """The old object with the new contents, where it can take them."""
    if type(old) is not type(new) or not (isinstance(new, dict | list | set | BaseModel) or dataclasses.is_dataclass(new)):
        return new
    overwrite(old, new)
    return old
