"""Words for people: what agents wrote, made harmless, and times as one says them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from holdfast._duration import in_words

SPACES = frozenset("\u00a0\u202f\u3000\u200d")
"""Not printable by Python's reckoning, but harmless and common in text: spaces, and the joiner inside emoji."""

SECOND_US = 1_000_000


def clean(text: str) -> str:
    """The text with everything escaped that a terminal could obey: control characters, direction marks, line ends."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in SPACES else one.encode("unicode_escape").decode() for one in text)


def lines_of(text: str) -> list[str]:
    """A text of several lines, each made harmless."""
    return [clean(line) for line in text.split("\n")]


def ago(at_us: int, now_us: int) -> str:
    """How long ago, in the words of a person who looks at a clock."""
    seconds = (now_us - at_us) / SECOND_US
    if seconds < 0:
        return f"in {in_words(-seconds)}"
    return "just now" if seconds < 1 else f"{in_words(int(seconds))} ago" if seconds >= 10 else f"{int(seconds)} s ago"  # noqa: PLR2004


def local(at_us: int) -> str:
    """A moment in this machine's time."""
    return datetime.fromtimestamp(at_us / SECOND_US, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def moment(at_us: int, now_us: int) -> str:
    """A moment, local and relative."""
    return f"{local(at_us)} ({ago(at_us, now_us)})"


def iso(at_us: int) -> str:
    """A moment for machines: ISO 8601 in UTC."""
    return datetime.fromtimestamp(at_us / SECOND_US, tz=UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def as_json(value: Any) -> tuple[str, ...]:
    """A value as lines of JSON; one line where it is short."""
    line = json.dumps(value, ensure_ascii=False)
    return (line,) if len(line) <= 60 else tuple(json.dumps(value, ensure_ascii=False, indent=2).split("\n"))  # noqa: PLR2004


def shortened(value: Any, limit: int) -> str:
    """A value as one line of JSON, cut where it is too long, and marked then."""
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 step, 2 steps."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
