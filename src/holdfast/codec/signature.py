"""A call, seen through the function's signature: arguments by parameter name, and the type of the result."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from inspect import Parameter
from typing import Any

from holdfast.codec.values import equal
from holdfast.errors import Misuse

_ORDINARY = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_MISSING = object()


class Arguments:
    """Binds calls of one function; what equals its parameter's default, and what is ignored, is left out.

    So a parameter that is added with a default leaves recorded calls what they were.
    """

    __slots__ = (
        "_defaults", "_fewest", "_ignored", "_most", "_name", "_names", "_ordinary", "_positional", "_required", "_signature",
        "_tells_all",
    )  # fmt: skip

    def __init__(self, fn: Callable[..., object], ignore: tuple[str, ...] = ()) -> None:
        self._name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self._signature = inspect.signature(fn)
        parameters = self._signature.parameters
        unknown = [name for name in ignore if name not in parameters]
        if unknown:
            known = ", ".join(parameters) or "none"
            raise Misuse(f"ignore= of {self._name!r} names {unknown[0]!r}, which is none of its parameters ({known}); nothing was executed")
        self._ignored = frozenset(ignore)
        self._names = tuple(parameters)
        self._tells_all = not ignore and all(parameter.default is Parameter.empty for parameter in parameters.values())
        self._positional = tuple(name for name, parameter in parameters.items() if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD)
        self._defaults = tuple((name, p.default) for name, p in parameters.items() if p.default is not Parameter.empty)
        self._required = frozenset(parameters).difference(name for name, _ in self._defaults)
        self._ordinary = all(parameter.kind in _ORDINARY for parameter in parameters.values())
        quick = self._ordinary and self._required <= set(self._positional)
        self._fewest, self._most = len(self._required), len(self._positional) if quick else -1

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
        """The arguments by name, however they were spelled; raises the TypeError that the function itself would."""
        if kwargs or not self._fewest <= len(args) <= self._most:
            return self._bound_by_name(args, kwargs)
        given = {self._positional[0]: args[0]} if len(args) == 1 else dict(zip(self._positional, args, strict=False))
        return given if self._tells_all else self._told(given)

    def value_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """What a parameter is in a call, ignored or not: as given, else its default, else None."""
        if name in kwargs:
            return kwargs[name]
        if name in self._positional and self._names.index(name) < len(args):
            return args[self._names.index(name)]
        return next((default for known, default in self._defaults if known == name), None)

    def _bound_by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
        given = {**dict(zip(self._positional, args, strict=False)), **kwargs}
        ordered: dict[str, object] = {name: given[name] for name in self._names if name in given}
        # Too many, given twice, or unknown: the count is wrong. Missing: a required one is.
        if not self._ordinary or len(ordered) != len(args) + len(kwargs) or not ordered.keys() >= self._required:
            ordered = self._bound(args, kwargs)
        return self._told(ordered)

    def _told(self, given: dict[str, object]) -> dict[str, object]:
        for name, default in self._defaults:
            if name in given and (given[name] is default or equal(given[name], default)):
                del given[name]
        for name in self._ignored:
            given.pop(name, None)
        return given

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            self._complain(args, kwargs)
            raise TypeError(f"{self._name}() {error}") from None

    def _complain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Python's own words for a wrong call, from an empty function with the same parameters: the real one must not run."""
        bare = [
            parameter.replace(annotation=Parameter.empty, default=Parameter.empty if parameter.default is Parameter.empty else None)
            for parameter in self._signature.parameters.values()
        ]
        shown = str(inspect.Signature(bare))[1:-1]
        stub = eval(f"lambda {shown}: None", {})  # noqa: S307 - parameter names, which inspect has checked to be identifiers
        stub.__qualname__ = self._name
        stub(*args, **kwargs)


def return_annotation(fn: Callable[..., object]) -> object:
    """The type a call gives (of a coroutine function: what awaiting it gives); Any where none is written.

    An annotation that names nothing the function can see comes back as it is written, for `codec_for` to complain about.
    """
    function = _function(fn)
    written = getattr(function, "__annotations__", {}).get("return", _MISSING)
    if written is _MISSING:
        return Any
    return _awaited(_resolved(written, function))


def _function(fn: Callable[..., object]) -> object:
    while isinstance(fn, functools.partial | types.MethodType):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    fn = inspect.unwrap(fn)
    if isinstance(fn, types.FunctionType | types.BuiltinFunctionType):
        return fn
    return fn if isinstance(fn, type) else inspect.unwrap(type(fn).__call__)


def _resolved(written: object, function: object) -> object:
    """Only the result's annotation: one of a parameter, imported for the type checker alone, does not matter here."""
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    local: dict[str, object] = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=True):
        with suppress(ValueError):
            local[name] = cell.cell_contents
    holder = types.SimpleNamespace(__annotations__={"return": written})
    with suppress(Exception):
        return typing.get_type_hints(holder, getattr(function, "__globals__", {}), local, include_extras=True)["return"]
    return written


def _awaited(annotation: object) -> object:
    if typing.get_origin(annotation) in (Awaitable, Coroutine):
        return typing.get_args(annotation)[-1]
    return annotation
