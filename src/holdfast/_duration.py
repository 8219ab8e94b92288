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

SCALE = ((60, 1, "s"), (3_600, 60, "min"), (86_400, 3_600, "h"), (math.inf, 86_400, "d"))
"""Below this many seconds a duration is told in units of so many seconds."""

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


def in_words(duration_s: float) -> str:
    """A length of time, in one unit: 1.2 ms, 3.4 s, 12 min, 5 h, 9 d."""
    if duration_s < 1:
        return f"{duration_s * 1000:.1f} ms" if duration_s < 0.1 else f"{duration_s * 1000:.0f} ms"  # noqa: PLR2004 (a tenth says it itself)
    if duration_s < 10:  # noqa: PLR2004 (one digit more while there is only one)
        return f"{duration_s:.1f} s"
    size, unit = next((size, unit) for below, size, unit in SCALE if duration_s < below)
    return f"{int(duration_s // size)} {unit}"


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
