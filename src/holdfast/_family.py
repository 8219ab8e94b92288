"""Which run a child run goes on with, and so whose queue it is in: the topmost above it that has not ended."""

from __future__ import annotations

import json
from contextlib import suppress

from ._chain import CHILD_OF
from .store import Head, Store

MAX_DEPTH = 100
"""How deep runs may be inside runs."""


def parent_of(head: Head) -> str | None:
    """The run that called it."""
    with suppress(ValueError, AttributeError):  # a head that is damaged
        return json.loads(head.tags).get(CHILD_OF)  # type: ignore[no-any-return]
    return None


def top_of(store: Store, head: Head) -> Head:
    """The run that it goes on with; itself where nobody called it, or whoever did has ended."""
    for _ in range(MAX_DEPTH):
        parent = parent_of(head)
        above = store.head(parent) if parent else None
        if above is None or above.status in ("done", "cancelled"):
            break
        head = above
    return head
