"""Resources that all who share a store use together: how long to wait until there is enough, and whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence

from ._clock import Clock
from .errors import Misuse
from .limits import Limit
from .store import Metered, Store

TURN_US = 1_000_000
"""By how much each further run of one key comes later in line: in that time those of others come before it."""


class Meter:
    """The limits that were declared, and the store that keeps count."""

    def __init__(self, store: Store, clock: Clock, limits: Sequence[Limit]) -> None:
        if limits and not isinstance(store, Metered):
            remedy = "Use SQLite or PostgreSQL, or take the limits away"
            raise Misuse(f"limits= needs a store that counts for all who share it; {store.url} does not, and nothing was opened. {remedy}")
        resources = [limit.resource for limit in limits if limit.resource]
        if len(set(resources)) < len(resources):
            raise Misuse(f"limits= has two for one resource among {', '.join(resources)}; nothing was opened")
        self.limits = tuple(limits)
        self._clock, self._store = clock, store if isinstance(store, Metered) else None
        self._rates = {limit.resource: limit for limit in limits if limit.resource}

    def wait_s(self, resource: str, amount: float) -> float:
        """Use so much of a resource, and give 0.0; where there is not enough, use nothing, and give how long to wait."""
        rate = self._rates.get(resource)
        if rate is None or self._store is None:
            return 0.0
        drawn = self._store.draw(f"resource {resource}", step_us=rate.step_us(amount), within_us=rate.per_us(), at_us=self._clock.now_us())
        return 0.0 if drawn.granted else max(drawn.wait_us, 1) / 1e6

    def turn_us(self, queue: str, lane: str) -> int:
        """The place in line of one more run of a key: behind its others, and among those of the rest."""
        if not lane or self._store is None:
            return 0
        return self._store.draw(f"turn {queue} {lane}", step_us=TURN_US, within_us=None, at_us=self._clock.now_us()).at_us
