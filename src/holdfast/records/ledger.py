"""What a run has spent and what it may spend, folded from its records: while they are loaded, and as they are stored.

Nothing is counted on replay, because replay stores nothing; a step that is executed again after its outcome was forgotten is paid for
again, and counted again. Time counts from the claim of a life to its last record, so that neither waiting nor being dead does.
What a child run spent is counted to its parent as the usage of the parent's step, and while it runs as what is spent `beyond` the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.budget import Budget, OnLimit, Spent, read_limits, shown
from holdfast.records import kinds as rec
from holdfast.records.replay import CANCEL

BUDGET = "budget"
"""The id of the question about a limit that is reached."""

ENDS = (
    rec.RunDone, rec.RunFailed, rec.RunCancelled, rec.RunWaiting, rec.RunReleased, rec.RunPaused, rec.RunBlocked, rec.RunRepaired,
    rec.RunContinued,
)  # fmt: skip
"""Records after which nobody executes the run."""

CRUMB = 1e-9
"""What sums of cents differ by for being kept as binary fractions: three times 0.30 is 0.8999999999999999."""


class Reached(NamedTuple):
    """A limit that is reached: nothing new begins before it is raised, by `amount` where a person agrees."""

    name: str
    spent: float
    limit: float
    amount: float

    def granted(self) -> float:
        """The limit after a person has agreed: the same amount once more; on top of what is spent, where that is more already."""
        if self.name == "retries":  # of what is spent, the last failure has not been followed by an attempt yet
            return max(self.limit, self.spent - 1) + max(self.amount, 1)
        return self.limit + self.amount if self.limit + self.amount > self.spent else self.spent + self.amount

    def told(self) -> str:
        """How much of what is spent, in words."""
        return f"{shown(self.name, self.spent)} of {shown(self.name, self.limit)} spent"

    def question(self) -> str:
        """What a person is asked."""
        return f"{self.told()}: go on, up to {shown(self.name, self.granted())}?"


class Outlay(NamedTuple):
    """What a child run spent, or a part of it."""

    usd: float = 0.0
    tokens: int = 0
    steps: int = 0
    retries: int = 0

    def plus(self, other: Outlay, sign: int = 1) -> Outlay:
        """Both together; with sign=-1 what is left."""
        tokens, steps, retries = (mine + sign * theirs for mine, theirs in zip(self[1:], other[1:], strict=True))
        return Outlay(self.usd + sign * other.usd, tokens, steps, retries)


class Ledger:
    """The totals of one run, and its limits: those of the code, those an operator has set instead, and what was granted on top."""

    __slots__ = (
        "_amounts", "_last_us", "_since_us", "_time_us", "asking", "changes", "charged", "granted", "limits", "on_limit", "recorded",
        "retries", "set_by_operator", "steps", "tokens", "usd",
    )  # fmt: skip

    def __init__(self) -> None:
        self.usd, self.tokens, self.steps, self.retries = 0.0, 0, 0, 0
        self._time_us = self._since_us = self._last_us = 0
        self.recorded: rec.Json = {}
        self.set_by_operator: dict[str, float] = {}
        self.granted: dict[str, float] = {}
        self._amounts: dict[str, float] = {}
        self.limits: tuple[tuple[str, float], ...] = ()
        self.on_limit: OnLimit = "ask"
        self.changes = 0
        self.asking = ""
        self.charged: dict[str, Outlay] = {}

    def fold(self, record: rec.Record, at_us: int) -> None:
        """Take one more record into account; that a step is done is by far the most frequent, so it is looked at first."""
        if type(record) is rec.StepDone:
            self._last_us = at_us
            if record.fingerprint:  # a race has a winner and no arguments: it is no step
                self.steps += 1
            if record.usage:
                self._charge(record.usage)
        elif type(record) is rec.StepStarted:
            self._last_us = at_us
        else:
            self._fold_other(record, at_us)

    def _fold_other(self, record: rec.Record, at_us: int) -> None:
        match record:
            case rec.StepFailed() | rec.StepBrokenOff() | rec.AttemptFailed():
                self._fold_trouble(record)
            case rec.RunStarted() | rec.RunResumed():
                self._end_of_life(self._last_us)
                self._since_us = at_us if record.owner else 0
                if record.budget:
                    self.recorded = record.budget
                    self._reckon()
            case rec.RunSealed():
                self._end_of_life(self._last_us)
            case _ if type(record) in ENDS:
                self._end_of_life(at_us)
        self._last_us = at_us

    def _end_of_life(self, at_us: int) -> None:
        """Whoever executed the run does so no more; after a crash, its last record was its last word."""
        self._time_us += max(0, at_us - self._since_us) if self._since_us else 0
        self._since_us = 0

    def carried(self, now_us: int) -> rec.Json:
        """What a run that begins anew takes along: its totals, its limits, and what people said of them."""
        totals = {"usd": self.usd, "tokens": self.tokens, "steps": self.steps, "retries": self.retries}
        time_us = int(self._of("time", now_us) * 1e6)
        limits = {"budget": self.recorded, "set": self.set_by_operator, "granted": self.granted, "changes": self.changes}
        return {**totals, "time_us": time_us, **limits}

    def carry(self, carried: rec.Json) -> None:
        """The same, taken over: nothing that was recorded before is needed for it."""
        self.usd, self.tokens = carried.get("usd", 0.0), carried.get("tokens", 0)
        self.steps, self.retries = carried.get("steps", 0), carried.get("retries", 0)
        self._time_us, self._since_us = carried.get("time_us", 0), 0
        self.recorded = carried.get("budget", {})
        self.set_by_operator, self.granted = dict(carried.get("set", {})), dict(carried.get("granted", {}))
        self._reckon()
        self.changes = carried.get("changes", 0)
        self.charged.update({child: Outlay(*spent) for child, spent in carried.get("charged", {}).items()})

    def set(self, limits: Mapping[str, float]) -> None:
        """An operator's limits take the place of the code's, and of what was granted on top of them."""
        self.set_by_operator.update(limits)
        self.granted = {name: limit for name, limit in self.granted.items() if name not in limits}
        self._reckon()

    def grant(self, limits: Mapping[str, float]) -> None:
        """A person agreed to go on up to these limits."""
        self.granted.update(limits)
        self._reckon()

    def outlay(self) -> Outlay:
        """What is recorded as spent."""
        return Outlay(self.usd, self.tokens, self.steps, self.retries)

    def reached(self, now_us: int, *, further: bool, beyond: Outlay | None = None) -> Reached | None:
        """The first limit that keeps a new step, or a `further` attempt at one, from beginning; `beyond` is spent and not recorded yet."""
        for name, limit in self.limits:
            spent = self._of(name, now_us) + (getattr(beyond, name, 0) if beyond else 0)
            if (further and spent > limit) if name == "retries" else spent >= limit - CRUMB:
                return Reached(name, spent, limit, self._amounts[name])
        return None

    def about(self, limit: str) -> str:
        """What a question is about: the limit, by name and amount, as often as limits have changed; every change makes it another."""
        return f"{' '.join(limit.split()[:2])} {self.changes}"

    def spent(self, now_us: int) -> Spent:
        """What was spent until now; `now_us` tells how long this life has lasted, where somebody executes the run."""
        seconds = self._of("time", now_us)
        return Spent(usd=self.usd, tokens=self.tokens, steps=self.steps, retries=self.retries, seconds=seconds)

    def _of(self, name: str, now_us: int) -> float:
        if name != "time":
            return float(getattr(self, name))
        return (self._time_us + (max(0, now_us - self._since_us) if self._since_us else 0)) / 1e6

    def _fold_trouble(self, record: rec.StepFailed | rec.StepBrokenOff | rec.AttemptFailed) -> None:
        match record:
            case rec.AttemptFailed():
                self.retries += 1
            case rec.StepFailed():
                self.steps += 1
            case rec.StepBrokenOff():
                self.steps += bool(record.cause) and record.cause != CANCEL
        if record.usage:
            self._charge(record.usage)

    def _charge(self, usage: Sequence[rec.Json]) -> None:
        self.usd += rec.cost_usd(usage)
        self.tokens += sum(int(entry.get("input_tokens") or 0) + int(entry.get("output_tokens") or 0) for entry in usage)
        for entry in usage:
            if "run" in entry:
                self._charge_child(entry)

    def _charge_child(self, entry: rec.Json) -> None:
        spent = Outlay(float(entry.get("usd") or 0.0), *(int(entry.get(name) or 0) for name in ("tokens", "steps", "retries")))
        self.charged[entry["run"]] = self.charged.get(entry["run"], Outlay()).plus(spent)
        self.tokens, self.steps, self.retries = self.tokens + spent.tokens, self.steps + spent.steps, self.retries + spent.retries

    def _reckon(self) -> None:
        """The limits anew; what was granted is not taken back by code that allows less, nor kept where it allows more."""
        self.changes += 1
        self._amounts = {**read_limits(self.recorded), **self.set_by_operator}
        self.limits = tuple((name, max(amount, self.granted.get(name, amount))) for name, amount in self._amounts.items())
        self.on_limit = self.recorded.get("on_limit", "ask")


def recorded(budget: Budget | None, by: str) -> rec.Json:
    """A budget as it is recorded: its limits, and whether the run or the agent was given it."""
    if budget is None:
        return {"by": by}
    return {"by": by, **budget.limits(), **({"on_limit": "fail"} if budget.on_limit == "fail" else {})}
