"""How long runs are kept: a policy, and what it means for the runs that there are; pure.

A run that has ended stays if it is among the last `keep_last` of its agent, or if it ended less than `max_age` ago; otherwise it goes.
With only one of the two set, that one alone decides; with neither, no run goes. What has not ended always stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from holdfast._duration import Duration, seconds
from holdfast._options import refusing_unknown
from holdfast.errors import Misuse
from holdfast.store import Head

FINAL = ("done", "cancelled", "moved")
"""Statuses that no run leaves."""


@refusing_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which runs that have ended are kept, and for how long the details of those that stay.

    `keep_last` counts per agent. A failed run can go on, so it stays; with keep_failed=False it counts as ended. `details` is the age from
    which what replay does not need goes from runs that stay. `keep_ids` is how long the ids of removed runs stay taken; unset, forever.
    """

    keep_last: int | None = None
    max_age: Duration | None = None
    keep_failed: bool = True
    details: Duration | None = None
    keep_ids: Duration | None = None

    def __post_init__(self) -> None:
        if self.keep_last is None and self.max_age is None and self.details is None:
            raise Misuse("a Retention that says nothing keeps everything. Give keep_last=, max_age= or details=, such as max_age='30d'")
        if self.keep_last is not None and (type(self.keep_last) is not int or self.keep_last < 0):
            raise Misuse(f"keep_last of Retention is {self.keep_last!r}; it must be a whole number from 0 on")
        if type(self.keep_failed) is not bool:
            raise Misuse(f"keep_failed of Retention is {self.keep_failed!r}; it must be True or False")
        for name in ("max_age", "details", "keep_ids"):
            if getattr(self, name) is not None:
                seconds(getattr(self, name), f"{name} of Retention")

    def told(self) -> str:
        """The policy as one would write it."""
        said = [f"{name}={value}" for name in ("keep_last", "max_age", "details", "keep_ids") if (value := getattr(self, name)) is not None]
        return ", ".join([*said, *([] if self.keep_failed else ["keep_failed=False"])])

    def ended(self) -> tuple[str, ...]:
        """The statuses in which a run may go."""
        return FINAL if self.keep_failed else (*FINAL, "failed")

    def before_us(self, name: str, now_us: int) -> int | None:
        """The moment before which an age of this policy is reached; None where it says nothing of it."""
        age = getattr(self, name)
        return None if age is None else now_us - int(seconds(age, f"{name} of Retention") * 1e6)


class Sorted(NamedTuple):
    """What a policy says of runs: `goes` are removed, the oldest first, `stays` are not."""

    goes: list[Head]
    stays: list[Head]


def decide(heads: Iterable[Head], retention: Retention, now_us: int) -> Sorted:
    """Which of these runs go; whoever has an owner stays, whatever its head says."""
    oldest_us, seen = retention.before_us("max_age", now_us), Counter[str]()
    goes, stays = list[Head](), list[Head]()
    for head in sorted(heads, key=lambda head: (-head.updated_us, head.run_id)):
        over = head.owner is None and head.status in retention.ended() and not _kept(head, retention.keep_last, oldest_us, seen)
        (goes if over else stays).append(head)
    return Sorted(goes[::-1], stays[::-1])


def _kept(head: Head, keep_last: int | None, oldest_us: int | None, seen: Counter[str]) -> bool:
    """Whether a run that has ended is young enough, or among the last of its agent; each is counted."""
    seen[head.agent] += 1
    if keep_last is None and oldest_us is None:
        return True
    return (keep_last is not None and seen[head.agent] <= keep_last) or (oldest_us is not None and head.updated_us >= oldest_us)
