"""An agent's arguments, kept by the types of its parameters so that another process can call it with them."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable
from typing import Any

from holdfast.codec.values import ValueCodec, annotation_of, codec_for, has_form
from holdfast.errors import NotKept

REMEDY = (
    "Give what the parameter is annotated with; clients and settings are handed over: Holdfast(store, resources=[...]), hf.resource(Type)"
)
NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class OrderCodec:
    """Keeps calls of one function."""

    __slots__ = ("_codecs", "_fn", "_signature")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn, self._signature = fn, inspect.signature(fn)
        self._codecs: dict[str, ValueCodec] | None = None

    def keep(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments by name as JSON; `NotKept` where one would not come back equal."""
        bound = self._signature.bind(*args, **kwargs).arguments
        parts = [f"{json.dumps(name)}:{self._kept(name, value)}" for name, value in bound.items()]
        return f"{{{','.join(parts)}}}".encode()

    def give_back(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of the recorded call; ValueError where they no longer fit."""
        bound = self._signature.bind_partial()
        for name, value in json.loads(data).items():
            if name not in self._by_name():
                raise ValueError(f"there is no parameter {name!r} any more")
            bound.arguments[name] = self._by_name()[name].give_back(json.dumps(value).encode())
        return bound.args, bound.kwargs

    def _kept(self, name: str, value: Any) -> str:
        parameter = self._signature.parameters[name]
        collected = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        try:
            return self._by_name()[name].keep(list(value) if collected else value)[0].decode()
        except NotKept as error:
            missing = parameter.annotation is parameter.empty and parameter.kind in NAMED and has_form(value)
            remedy = f"Annotate the parameter: `{name}: {annotation_of(value)}`" if missing else REMEDY
            raise NotKept(error.what, error.reason, remedy) from None

    def _by_name(self) -> dict[str, ValueCodec]:
        if self._codecs is None:
            try:
                self._codecs = {name: codec_for(kind, f"argument {name!r}") for name, kind in self._annotations().items()}
            except NotKept as error:
                raise NotKept(error.what, error.reason, REMEDY) from None
        return self._codecs

    def _annotations(self) -> dict[str, object]:
        try:
            hints = typing.get_type_hints(self._fn, include_extras=True)
        except (NameError, TypeError, AttributeError):
            hints = {}
        return {name: _whole(parameter, hints.get(name, Any)) for name, parameter in self._signature.parameters.items()}


def _whole(parameter: inspect.Parameter, annotation: Any) -> object:
    """The type of everything that goes into a parameter: `*args: int` is a list of them."""
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL:
            return list[annotation]
        case inspect.Parameter.VAR_KEYWORD:
            return dict[str, annotation]
    return annotation
