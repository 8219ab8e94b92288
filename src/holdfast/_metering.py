"""Resources that all who share a store use together: when there is enough for whom, and whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ._clock import Clock
from .errors import Misuse
from .limits import Limit, is_amount
from .store import Draft, Metered, Store

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

    def draw(self, amounts: Mapping[str, float], what: str) -> tuple[Mapping[str, float], float]:
        """Draw so much of each resource, as far as it can be now: what is left to be drawn, and how many seconds to wait first."""
        for resource, amount in amounts.items():
            self._refuse_unusable(resource, amount, what)
        rates = [(self._rates[resource], amount) for resource, amount in amounts.items() if resource in self._rates]
        drafts = {Draft(rate.resource, rate.step_us(amount), rate.per_us()): amount for rate, amount in rates if amount}
        if not drafts or self._store is None:
            return {}, 0.0
        drawn = self._store.draw([_of_all(draft) for draft in drafts], at_us=self._clock.now_us())
        return {draft.meter: amount for draft, amount in drafts.items() if _of_all(draft) in drawn.left}, drawn.wait_us / 1e6

    def _refuse_unusable(self, resource: str, amount: object, what: str) -> None:
        if not is_amount(amount):
            raise Misuse(f"{what} uses {amount!r:.40} of {resource!r:.80}; it did not begin. An amount is a number from 0 on")
        rate = self._rates.get(resource)
        if rate is not None and amount > (rate.amount or 0):  # type: ignore[operator]  # it is a number
            most = f"Limit(resource={resource!r}) allows {rate.amount:g} per {rate.per} at the most"
            raise Misuse(f"{what} uses {amount!r:.40} of {resource!r}, which there never is: {most}. It did not begin; let it use less")

    def turn_us(self, queue: str, lane: str) -> int:
        """The place in line of one more run of a key: behind its others, and among those of the rest."""
        if not lane or self._store is None:
            return 0
        return self._store.turn(queue, lane, step_us=TURN_US, at_us=self._clock.now_us())


def _of_all(draft: Draft) -> Draft:
    return draft._replace(meter=f"resource {draft.meter}")
