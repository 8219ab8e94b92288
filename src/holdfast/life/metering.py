"""Resources that all who share a store use together: when there is enough for whom, and whose turn it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from holdfast._clock import Clock
from holdfast.errors import Misuse
from holdfast.limits import PER, Limit, is_amount
from holdfast.store import Draft, Metered, Store

TURN_US = 1_000_000
"""By how much each further run of one key comes later in line: in that time those of others come before it."""

MOST_STRANGE = 100
"""Resources without a limit that are told of."""

log = logging.getLogger("holdfast")


class Supply(NamedTuple):
    """What is left to be drawn, how many seconds to wait before that, and how to give back what was drawn if it is not waited for."""

    left: Mapping[str, float]
    wait_s: float
    give_back: Callable[[], object] = lambda: None


class Meter:
    """The limits that were declared, and the store that keeps count; with `tells` it warns of resources that have none."""

    def __init__(self, store: Store, clock: Clock, limits: Sequence[Limit]) -> None:
        if limits and not isinstance(store, Metered):
            remedy = "Use SQLite or PostgreSQL, or take the limits away"
            raise Misuse(f"limits= needs a store that counts for all who share it; {store.url} does not, and nothing was opened. {remedy}")
        resources = [limit.resource for limit in limits if limit.resource]
        if len(set(resources)) < len(resources):
            raise Misuse(f"limits= has two for one resource among {', '.join(resources)}; nothing was opened")
        self.limits = tuple(limits)
        self._clock, self._store = clock, store if isinstance(store, Metered) else None
        self.tells, self._strange = False, set[str]()
        self._rates = {limit.resource: limit for limit in limits if limit.resource}

    def draw(self, amounts: Mapping[str, float], what: str) -> Supply:
        """Draw so much of each resource, as far as it can be now."""
        for resource, amount in amounts.items():
            self._refuse_unusable(resource, amount, what)
            self._tell_of(resource, what)
        rates = {resource: self._rates[resource] for resource, amount in amounts.items() if amount and resource in self._rates}
        drafts = {Draft(f"resource {name}", rate.step_us(amounts[name]), rate.per_us()): name for name, rate in rates.items()}
        store = self._store
        if not drafts or store is None:
            return Supply({}, 0.0)
        drawn = store.draw([*drafts], at_us=self._clock.now_us())
        supply = Supply({drafts[draft]: amounts[drafts[draft]] for draft in drawn.left}, drawn.wait_us / 1e6)
        booked = [draft for draft in drafts if draft not in drawn.left]
        return supply._replace(give_back=partial(store.give_back, booked[0], drawn.at_us)) if booked and drawn.wait_us else supply

    def _refuse_unusable(self, resource: str, amount: object, what: str) -> None:
        if not is_amount(amount):
            raise Misuse(f"{what} uses {amount!r:.40} of {resource!r:.80}; it did not begin. An amount is a number from 0 on")
        rate = self._rates.get(resource)
        if rate is not None and amount > (rate.amount or 0):  # type: ignore[operator]  # it is a number
            most = f"Limit(resource={resource!r}) allows {rate.amount:g} per {rate.per or PER} at the most"
            raise Misuse(f"{what} uses {amount!r:.40} of {resource!r}, which there never is: {most}. It did not begin; let it use less")

    def _tell_of(self, resource: str, what: str) -> None:
        """In a worker, once, of a resource that nobody has limited here: its name may be misspelt."""
        if self.tells and resource not in self._rates and resource not in self._strange and len(self._strange) < MOST_STRANGE:
            self._strange.add(resource)
            known = f"there are limits of {', '.join(sorted(self._rates))}" if self._rates else "there is none of any resource"
            log.warning("%s uses %r, of which no Limit here says how much there is, so it does not wait; %s", what, resource, known)

    def turn_us(self, queue: str, lane: str) -> int:
        """The place in line of one more run of a key: behind its others, and among those of the rest."""
        if not lane or self._store is None:
            return 0
        return self._store.turn(queue, lane, step_us=TURN_US, at_us=self._clock.now_us())
