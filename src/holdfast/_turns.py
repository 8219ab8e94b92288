"""Where a run stands in line: its queue, and its turn there as text that sorts."""

from __future__ import annotations

from typing import Any

QUEUE = "default"
"""Where runs are that were put into no queue."""

PRIORITIES = 10_000
"""A priority is below this, and not below its negative."""


def turn_of(priority: int, at_us: int) -> str:
    """A place in line: a higher priority first, then whoever came first."""
    return f"{PRIORITIES - priority:05d} {at_us:017d}"


def priority_of(turn: str) -> int:
    """The priority of a place in line; that of most runs where there is no such place."""
    return PRIORITIES - int(turn[:5]) if turn[:5].isdecimal() else 0


def turn_since(turn: str, at_us: int) -> str:
    """The same, of one that comes at another time."""
    return f"{turn[:5]} {at_us:017d}"


def in_line_as_ever(head: dict[str, Any]) -> dict[str, Any]:
    """The fields of a head, with the place of one that was written before there were queues."""
    return {"queue": QUEUE, "turn": turn_of(0, head["created_us"]), "lane": ""} | head
