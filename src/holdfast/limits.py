"""What all who share a store may do together: so many runs at a time, or so much of a named resource per time; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast._duration import Duration, seconds
from holdfast._ids import checked_name, checked_text
from holdfast._options import refusing_unknown
from holdfast.errors import Misuse
from holdfast.store import Ceiling, Head

PER: Duration = "1s"
"""The time in which the amount of a limit may be used, where nothing else is said."""


@refusing_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit: `running` runs at a time of a queue, of an agent or of each key, or an `amount` of a resource `per` time.

    `Limit(queue="mail", running=5)`, `Limit(agent="buy", running=20)`, `Limit(each_key=True, running=1)`,
    `Limit(resource="tokens", amount=90_000, per="1m")`.
    """

    queue: str = ""
    agent: str = ""
    each_key: bool = False
    resource: str = ""
    running: int | None = None
    amount: float | None = None
    per: Duration | None = None

    def __post_init__(self) -> None:
        if sum(map(bool, (self.queue, self.agent, self.each_key, self.resource))) != 1:
            raise Misuse("a Limit is of one thing: queue=, agent=, each_key=True or resource=. Write several for several things")
        for name in ("queue", "resource"):
            checked_name(getattr(self, name), f"{name} of Limit")
        checked_text(self.agent, "agent of Limit")
        if self.resource:
            self._refuse_wrong_rate()
        elif self.per is not None:
            raise Misuse(f"per of Limit is {self.per!r:.40}, without resource=: `running` says how many runs may execute at a time")
        elif not (self.amount is None and _is_count(self.running)):
            how = "how many runs may execute at a time: a whole number from 1 on. To let none execute, pause them"
            raise Misuse(f"running of Limit is {self.running!r}; it says {how}")

    def _refuse_wrong_rate(self) -> None:
        if self.running is not None or not is_amount(self.amount) or not (self.amount or 0) > 0:
            raise Misuse(f"amount of Limit(resource={self.resource!r}) is {self.amount!r}; it says how much of it may be used `per` time")
        if self.per_us() == 0:
            raise Misuse(f"per of Limit(resource={self.resource!r}) is 0; write the time in which the amount may be used, such as '1m'")

    def ceiling(self, head: Head) -> Ceiling | None:
        """What this limit means for a run that is to be taken; None where it is of others."""
        field, value = ("queue", self.queue) if self.queue else ("agent", self.agent) if self.agent else ("lane", head.lane)
        concerned = not self.resource and value and getattr(head, field) == value
        return Ceiling(field, value, self.running or 0) if concerned else None

    def step_us(self, amount: float) -> int:
        """By how much a meter moves when so much is used."""
        return math.ceil(amount * self.per_us() / (self.amount or 1))  # rounded down, the smallest amounts would be free

    def per_us(self) -> int:
        """The time in which the amount may be used."""
        return int(seconds(PER if self.per is None else self.per, "per of Limit") * 1e6)


def is_amount(number: object) -> bool:
    """Whether so much can be used: a number from 0 on."""
    return type(number) in (int, float) and 0 <= number < math.inf  # type: ignore[operator]  # its type was looked at


def _is_count(number: object) -> bool:
    return type(number) is int and number >= 1


def ceilings(limits: Sequence[Limit], head: Head) -> tuple[Ceiling, ...]:
    """What must not be exceeded when this run is taken."""
    return tuple(ceiling for limit in limits if (ceiling := limit.ceiling(head)) is not None)
