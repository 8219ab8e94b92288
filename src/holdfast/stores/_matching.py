"""Which heads a query means, and in which order, for stores that look at one head after the other; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from holdfast.store import Head, Query


def listed(heads: Iterable[Head], query: Query) -> list[Head]:
    """The page of those that match. Which of them have letters (`addressed`) the store has looked up itself."""
    order, behind = _order(query), query.behind
    found = sorted((head for head in heads if matches(head, query)), key=order)
    found = found if behind is None else [head for head in found if order(head) > behind]
    return found[query.offset : query.offset + query.limit]


def matches(head: Head, query: Query) -> bool:
    return (
        (not query.statuses or head.status in query.statuses)
        and (query.agent is None or head.agent == query.agent)
        and (query.owner is None or head.owner == query.owner)
        and (query.idle_before_us is None or head.updated_us < query.idle_before_us)
        and (query.after is None or head.run_id > query.after)
        and (query.due_by_us is None or (head.owner is None and head.wake_us is not None and head.wake_us <= query.due_by_us))
        and (not query.addressed or head.owner is None)
        and (query.queue is None or (head.owner is None and head.queue == query.queue))
        and head.lane not in query.not_lanes
        and (not query.tags or _has_tags(head, query.tags))
    )


def _order(query: Query) -> Callable[[Head], tuple[int | str, str]]:
    if query.due_by_us is not None:
        return lambda head: (head.wake_us or 0, head.run_id)
    if query.queue is not None:
        return lambda head: (head.turn, head.run_id)
    if query.addressed or query.after is not None:
        return lambda head: (0, head.run_id)
    return lambda head: (-head.updated_us, head.run_id)


def _has_tags(head: Head, wanted: Sequence[tuple[str, str]]) -> bool:
    tags = json.loads(head.tags)
    return all(tags.get(key) == value for key, value in wanted)
