"""A duration as people write it, in seconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from holdfast.errors import Misuse

Duration: TypeAlias = float | int | str | timedelta

LONGEST_S = 100 * 365 * 86_400
"""A hundred years: what is longer is a mistake in the unit."""

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*", re.ASCII)
_WHOLE = re.compile(rf"\s*(?:{_PART.pattern})+", re.ASCII)


def seconds(duration: Duration, what: str) -> float:
    """The seconds of a duration; `what` names it in the error ("timeout of step 'search'")."""
    found = _parsed(duration)
    if found is None or not 0 <= found <= LONGEST_S:
        raise Misuse(
            f"{what} is {_shown(duration)}, which is no duration; nothing was executed. "
            f'Give seconds as a number (2.5), a text such as "250ms", "0.5s", "1h30m", "24h", "3d" or "2w", or a timedelta'
        )
    return found


def _shown(duration: object) -> str:
    return repr(duration)[:60] if isinstance(duration, int | float | str | timedelta) else f"a {type(duration).__qualname__}"


def _parsed(duration: object) -> float | None:
    match duration:
        case bool():
            return None
        case timedelta():
            return duration.total_seconds()
        case int() | float():
            return float(duration) if abs(duration) <= LONGEST_S and math.isfinite(duration) else None
        case str() if _WHOLE.fullmatch(duration):
            return math.fsum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(duration))
        case _:
            return None
