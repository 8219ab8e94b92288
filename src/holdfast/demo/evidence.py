"""What was seen of the two lives of the agent, and what must be true of it: facts in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from signal import SIGKILL
from typing import Any, Literal, TypeAlias

from holdfast.operating.checkpoints import Checkpoint

from .agent import ORDERS, STEPS_PER_ORDER

STEPS = ORDERS * STEPS_PER_ORDER
KILL_STEP = 47
KILL_ORDER = (KILL_STEP - 1) // STEPS_PER_ORDER + 1
"""Step 47 is the charge of the 16th order."""

How: TypeAlias = Literal["executed", "given back", "looked up"]
"""How a step came to its end: its body was executed, its result was in the journal, or a probe found it."""

BEGUN = ("started", "in doubt")
"""The states of an effect that has an intent and no outcome."""

CALLS = ("model", "charge", "look-up", "mail")
"""What the agent does outside itself; all but the model are requests to the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What the service has in its books: one entry per charge, mail and kind of request."""

    charges: Sequence[Mapping[str, Any]] = ()
    mails: Sequence[Mapping[str, Any]] = ()
    requests: Mapping[str, int]

    def per_order(self) -> Iterator[tuple[str, int, int, int]]:
        """Order, cents, number of charges and number of mails."""
        charges, mails = Counter(charge["order"] for charge in self.charges), Counter(mail["order"] for mail in self.mails)
        cents: Counter[str] = Counter()
        for charge in self.charges:
            cents[charge["order"]] += charge["cents"]
        for order in sorted({*charges, *mails}):
            yield order, cents[order], charges[order], mails[order]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process of the agent: what it said it did, and what the service had been asked for when it ended."""

    exit_code: int
    did: Sequence[tuple[str, str]]
    steps: Sequence[tuple[int, How]]
    first_new_s: float
    ledger: Ledger
    history: Sequence[Checkpoint]
    status: str

    def those(self, how: How) -> list[int]:
        """The numbers of the steps that came to their end like this."""
        return [number for number, ended in self.steps if ended == how]

    def count(self, call: str) -> int:
        """How often the process says that it made this call."""
        return sum(what == call for what, _ in self.did)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Both lives, and whether the journal is whole."""

    first: Life
    second: Life
    whole: bool

    def requests(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """What the service was asked for in each life, counted by the service."""
        before, after = Counter(self.first.ledger.requests), Counter(self.second.ledger.requests)
        return before, after - before


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim, and what was seen where it does not hold."""

    claim: str
    holds: bool
    seen: str


def findings(evidence: Evidence) -> list[Finding]:
    """Everything that the demo promises, each with its verdict."""
    return [check(evidence) for check in CHECKS]


def _killed(evidence: Evidence) -> Finding:
    life = evidence.first
    open_steps = [line.step_id for line in life.history if line.state in BEGUN]
    found = (life.exit_code, open_steps, _numbers(life.those("executed")))
    return Finding(
        f"SIGKILL ended the first life in the middle of step {KILL_STEP}: an intent, no outcome",
        found == (-SIGKILL, [str(KILL_STEP)], f"1-{KILL_STEP - 1}"),
        f"exit code {life.exit_code}, steps begun without an outcome: {', '.join(open_steps) or 'none'}, steps finished: {found[2]}",
    )


def _booked_before_the_kill(evidence: Evidence) -> Finding:
    ledger = evidence.first.ledger
    return Finding(
        f"the bank had booked that charge, number {KILL_ORDER}, before the agent was killed",
        len(ledger.charges) == KILL_ORDER and len(ledger.mails) == KILL_ORDER - 1,
        f"{len(ledger.charges)} charges and {len(ledger.mails)} mails at the kill",
    )


def _given_back(evidence: Evidence) -> Finding:
    given_back, executed = (_numbers(evidence.second.those(how)) for how in ("given back", "executed"))
    return Finding(
        f"steps 1 to {KILL_STEP - 1} were given back from the journal, only {KILL_STEP + 1} to {STEPS} were executed",
        (given_back, executed) == (f"1-{KILL_STEP - 1}", f"{KILL_STEP + 1}-{STEPS}"),
        f"given back: {given_back}; executed: {executed}",
    )


def _settled(evidence: Evidence) -> Finding:
    verdicts = [line.note for line in evidence.second.history if line.state == "doubt settled"]
    looked_up = _numbers(evidence.second.those("looked up"))
    return Finding(
        f"step {KILL_STEP} was looked up at the bank, found, and not charged again",
        verdicts == ["probe: landed"] and looked_up == str(KILL_STEP),
        f"verdicts: {', '.join(verdicts) or 'none'}; looked up: {looked_up}",
    )


def _same_counts(evidence: Evidence) -> Finding:
    lives = zip((evidence.first, evidence.second), evidence.requests(), strict=True)
    said = [(call, life.count(call), requests.get(call, 0)) for life, requests in lives for call in CALLS if call != "model"]
    return Finding(
        "service and agent count the same number of requests in each life",
        all(agent == service for _, agent, service in said),
        "; ".join(f"{call}: agent {agent}, service {service}" for call, agent, service in said),
    )


def _model_calls(evidence: Evidence) -> Finding:
    counts = (evidence.first.count("model"), evidence.second.count("model"))
    return Finding(
        f"the model was asked once per order: {KILL_ORDER} times before the kill, {ORDERS - KILL_ORDER} times after",
        counts == (KILL_ORDER, ORDERS - KILL_ORDER),
        f"{counts[0]} times before, {counts[1]} times after",
    )


def _one_each(evidence: Evidence) -> Finding:
    ledger = evidence.second.ledger
    wrong = [f"{order}: {charges} charges, {mails} mails" for order, _, charges, mails in ledger.per_order() if (charges, mails) != (1, 1)]
    keys = {entry["key"] for entry in chain(ledger.charges, ledger.mails)}
    return Finding(
        f"the ledger has {ORDERS} charges and {ORDERS} mails, one of each per order",
        not wrong and len(ledger.charges) == len(ledger.mails) == ORDERS and len(keys) == 2 * ORDERS,
        f"{len(ledger.charges)} charges, {len(ledger.mails)} mails, {len(keys)} keys; {', '.join(wrong) or 'one of each per order'}",
    )


def _finished(evidence: Evidence) -> Finding:
    life = evidence.second
    return Finding(
        "the run is done and its journal is whole",
        (life.exit_code, life.status, evidence.whole) == (0, "done", True),
        f"exit code {life.exit_code}, the run is {life.status}, the journal is {'whole' if evidence.whole else 'not whole'}",
    )


CHECKS: tuple[Callable[[Evidence], Finding], ...] = (
    _killed, _booked_before_the_kill, _given_back, _settled, _model_calls, _same_counts, _one_each, _finished,
)  # fmt: skip


def _numbers(steps: Sequence[int]) -> str:
    """Steps as a person would write them."""
    if len(steps) > 1 and list(steps) == [*range(steps[0], steps[-1] + 1)]:
        return f"{steps[0]}-{steps[-1]}"
    return ", ".join(map(str, steps)) or "none"
