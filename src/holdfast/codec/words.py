"""A person's word in Python, such as an answer: written as JSON, in the form in which typed values are kept.

Whoever gives it has no annotation at hand, so the type of each value is the annotation. Plain JSON stays as it is.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.codec.values import codec_for
from holdfast.errors import NotKept

REMEDY = "Give plain JSON, a pydantic model, a dataclass, or a standard type that has a JSON form"


def written(value: object) -> str:
    """The value as JSON; raises NotKept where it has no JSON form, or one that does not say all of it."""
    try:
        text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode().decode()
    except (TypeError, ValueError) as error:
        raise NotKept(type(value).__qualname__, str(error), REMEDY) from error


def _plain(value: object) -> Any:
    name = type(value).__qualname__
    try:
        return json.loads(codec_for(type(value), name).keep(value)[0])
    except NotKept as error:
        raise NotKept(name, error.reason, REMEDY) from None
