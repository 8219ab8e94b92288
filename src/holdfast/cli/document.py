"""Machine output: one JSON document, with every time as a number and as ISO text in UTC."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.cli.wording import iso

MICROSECONDS = "_us"


def document(**parts: Any) -> str:
    """The document as text; only ASCII, so that no terminal and no encoding can take offence."""
    return json.dumps(_plain(parts), indent=2)


def line(value: Any) -> str:
    """One of our own views as a document on one line, for output that goes on."""
    return json.dumps(_plain(value))


def error_document(error: BaseException, message: str) -> str:
    """What went wrong, as a document."""
    return document(error={"type": type(error).__name__, "message": message})


def _plain(value: Any) -> Any:
    """Dataclasses as objects, numbers that JSON does not have as text."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case str():
            return value
        case Sequence():
            return [_plain(each) for each in value]
        case _ if dataclasses.is_dataclass(value):
            return _dated({each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)})
        case _:
            return value


def _dated(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of one of our own views, with `at` beside every `at_us`."""
    times = {name: value for name, value in fields.items() if name.endswith(MICROSECONDS)}
    return {**fields, **{name.removesuffix(MICROSECONDS): None if at_us is None else iso(at_us) for name, at_us in times.items()}}
