"""Errors as data: what a step raised is recorded, and comes back as the same class.

A class is found in two tables only: those the code names in `raises=`, and Python's builtin errors. The record holds the names of the
error's classes, the most specific first, so that an unlisted subclass comes back as the nearest class that is listed.
Live code rebuilds the error too, so that live and replay cannot differ.
"""

from __future__ import annotations

import builtins
from contextlib import suppress
from typing import Any

from holdfast.codec.values import codec_for
from holdfast.errors import NotKept, StepFailed

MESSAGE_LIMIT = 4_000
"""Characters of an error's text that are kept."""
ARGS_LIMIT = 16_000
"""Bytes of an error's arguments, and of its attributes, that are kept."""
CLASSES_LIMIT = 16
"""Classes of an error, the most specific first, that are kept."""

_BUILTIN = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception) and value.__name__ == name
}
_UNREADABLE = ", whose text cannot be read"
_PLAIN = codec_for(Any, "the arguments of an error")


def failure(error: BaseException) -> dict[str, Any]:
    """The error as JSON data: names, text, and its arguments and attributes where they are plain JSON."""
    kind = type(error)
    found: dict[str, Any] = {"type": kind.__qualname__, "classes": _class_names(kind), "message": _message(error)}
    args = _kept(list(_constructor_args(error)))
    if args is not None:
        found["args"] = args
    with suppress(Exception):  # attributes may be anything, and looking at them may raise anything
        state = {name: value for name, value in vars(error).items() if _kept(value) is not None or value is None}
        if state and _kept(state) is not None:
            found["state"] = _kept(state)
    return found


def told(error: BaseException) -> str:
    """What an error says, with its name, whatever its author did to it."""
    return f"{type(error).__name__}: {_message(error)}"


def rebuild(failure: dict[str, Any], *, raises: tuple[type[BaseException], ...], step_id: str, name: str) -> Exception:
    """The error to raise into the agent: itself where its class is known, StepFailed otherwise."""
    message = str(failure.get("message", ""))
    kind = _known_class(failure.get("classes") or [], raises)
    rebuilt = None if kind is None else _rebuilt(kind, failure, message)
    return rebuilt or StepFailed(message, step_id, name, str(failure.get("type", "")))


def _class_names(kind: type[BaseException]) -> list[str]:
    known = [cls for cls in kind.__mro__ if issubclass(cls, Exception)]
    return [f"{cls.__module__}:{cls.__qualname__}" for cls in known[: 1 if kind.__module__ == "builtins" else CLASSES_LIMIT]]


def _message(error: BaseException) -> str:
    text = f"{type(error).__qualname__}{_UNREADABLE}"
    with suppress(Exception, SystemExit):
        text = str(error)
    return text[:MESSAGE_LIMIT].encode("utf-8", "replace").decode()


def _constructor_args(error: BaseException) -> tuple[object, ...]:
    """What the class takes to be built again; more than `error.args` for an OSError with a file name."""
    with suppress(Exception):
        reduced = error.__reduce__()
        if isinstance(reduced, tuple) and reduced[0] is type(error) and isinstance(reduced[1], tuple):
            return reduced[1]
    return error.args


def _kept(value: object) -> Any:
    """A copy of the value if it is plain JSON of bearable size, else None."""
    try:
        data, copy = _PLAIN.keep(value)
    except NotKept:
        return None
    return copy if len(data) <= ARGS_LIMIT else None


def _known_class(names: list[str], raises: tuple[type[BaseException], ...]) -> type[Exception] | None:
    for index, full in enumerate(names):
        module, _, qualname = str(full).partition(":")
        if index == 0 and module == "builtins" and qualname in _BUILTIN:
            return _BUILTIN[qualname]
        listed = [cls for cls in raises if cls.__qualname__ == qualname and (cls.__module__ == "builtins") == (module == "builtins")]
        for cls in sorted(listed, key=lambda cls: cls.__module__ != module):
            if issubclass(cls, Exception):
                return cls
    return None


def _rebuilt(kind: type[Exception], failure: dict[str, Any], message: str) -> Exception | None:
    args = failure.get("args")
    error = _constructed(kind, [message] if args is None else args, message) or _bare(kind, [message] if args is None else args)
    if error is None:
        return None
    with suppress(Exception):
        vars(error).update(failure.get("state") or {})
    text = _message(error)
    if text.endswith(_UNREADABLE) and not message.endswith(_UNREADABLE):
        return None
    if text != message:
        error.add_note(message)
    return error


def _constructed(kind: type[Exception], args: list[Any], message: str) -> Exception | None:
    with suppress(Exception):
        error = kind(*args)
        return error if _message(error) == message else None
    return None


def _bare(kind: type[Exception], args: list[Any]) -> Exception | None:
    """Without its constructor, which takes other arguments than it passes on."""
    with suppress(Exception):
        error = kind.__new__(kind, *args)
        error.args = tuple(args)
        return error
    return None
