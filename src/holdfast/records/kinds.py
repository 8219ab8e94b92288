"""One frozen class per kind of fact that a journal can hold.

A record's fields become the JSON body of a row. `step_id`, `value` and `args` have columns of their own: `value` is the data that
replay gives back, `args` what a step was called with. Argument bytes enter the chain as `args_sha`, so that they can be pruned later.
Fields that hold their default are left out, so that a field can be added without changing what older rows mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from holdfast._facts import COLUMNS, Json, Record, fact
from holdfast.records.transfers import RunArrived, RunHandedOver, RunMoved, RunSealed, RunUnsealed

__all__ = ["COLUMNS", "KINDS", "Json", "Record", "RunArrived", "RunHandedOver", "RunMoved", "RunSealed", "RunUnsealed", "cost_usd"]
"""What is defined elsewhere, and is looked for here."""


@fact(kw_only=True)
class RunStarted(Record):
    """A run began; `args` are the agent's arguments, `origin` the root of all its idempotency keys.

    `budget` is what the code allows, and `by` in it says whether it was given for the run or for the agent. `parent` names the run and the
    step that called this one, where one did, and `since` when that run is there. In its queue it comes behind those of a higher `priority`
    and an earlier turn; `lane` is what it has in common with others that must not crowd out the rest. `unreadable` records of the run that
    calls it could not be read by a repair: it may have run before, under another id.
    """

    kind = "run.started"
    agent: str
    fingerprint: str
    origin: str
    owner: str = ""
    version: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    args_sha: str = ""
    budget: Json = field(default_factory=dict)
    parent: dict[str, str] = field(default_factory=dict)
    fork_of: str = ""
    queue: str = ""
    priority: int = 0
    lane: str = ""
    turn_us: int = 0
    unreadable: int = 0


@fact(kw_only=True)
class RunResumed(Record):
    """A process, or an operator's verb, took the run; `cleared` are the failures it goes behind.

    `silent` where the owner before was not proven dead: what it had begun may still be under way. `budget` where the code allows
    something else than before. `effects` is "repeat" where effects that are not on record did not happen, as whoever resumes it says.
    """

    kind = "run.resumed"
    owner: str
    why: str
    version: str = ""
    cleared: list[str] = field(default_factory=list)
    silent: bool = False
    budget: Json = field(default_factory=dict)
    effects: str = ""


@fact(kw_only=True)
class RunDone(Record):
    """The agent returned; `value` is its encoded result."""

    kind = "run.done"


@fact(kw_only=True)
class RunFailed(Record):
    """An error escaped the agent; `escaped` are the steps whose failures it carried, `code` the print of code whose child run stopped."""

    kind = "run.failed"
    error: Json
    escaped: list[str] = field(default_factory=list)
    code: str = ""


@fact(kw_only=True)
class RunCancelled(Record):
    """Somebody closed the run for good."""

    kind = "run.cancelled"
    by: str
    reason: str = ""


@fact(kw_only=True)
class RunWaiting(Record):
    """Every branch waits; the run holds nothing until somebody or some time wakes it."""

    kind = "run.waiting"
    waits: str
    steps: list[str] = field(default_factory=list)
    wake_us: int = 0


@fact(kw_only=True)
class RunReleased(Record):
    """The owner let go of an unfinished run, which anybody may take."""

    kind = "run.released"
    reason: str


@fact(kw_only=True)
class RunPaused(Record):
    """Somebody paused the run: nobody takes it until somebody resumes it."""

    kind = "run.paused"
    by: str
    reason: str = ""


@fact(kw_only=True)
class RunBlocked(Record):
    """The run cannot go on with this code; `step_id` is where it stands, `code` the print of code that does not fit."""

    kind = "run.blocked"
    error: Json
    code: str = ""


@fact(kw_only=True)
class RunAccepted(Record):
    """Somebody lets the run go on with code that takes another path from `step_id` on; what was recorded from there is superseded."""

    kind = "run.accepted"
    by: str
    reason: str = ""


@fact(kw_only=True)
class RunForked(Record):
    """The run is a branch of `source`, whose records up to `after` stand before this one; `at` is the step that it branches from.

    `value` tells of the effects that the source did after that point, and of messages that it took; `effects` says what becomes of a call
    that was made there already. `origin` is the root of the keys from here on; `unreadable` records of the source a repair could not read.
    """

    kind = "run.forked"
    source: str
    at: str
    after: int
    origin: str
    by: str
    reason: str = ""
    effects: str = "ask"
    unreadable: int = 0


@fact(kw_only=True)
class RunRepaired(Record):
    """The records from `bad_seq` on were damaged: `moved` of them were moved aside, `unreadable` could not be read or were not there.

    `escaped` are the failures that had ended the run in the part that is good, `since_us` is when that part ended. `same_epoch` where
    surely nobody had taken the run up behind it.
    """

    kind = "run.repaired"
    bad_seq: int
    what: str
    by: str
    reason: str = ""
    moved: int = 0
    unreadable: int = 0
    escaped: list[str] = field(default_factory=list)
    since_us: int = 0
    same_epoch: bool = False


@fact(kw_only=True)
class RunPruned(Record):
    """Details that replay does not need went from `rows` records, `bytes` in all, over all prunes of the run; `was` is the digest before.

    `dropped` of them, of earlier generations, are gone. The row bears the time of the one before it, so that a run looks no younger.
    """

    kind = "run.pruned"
    by: str
    policy: str
    pruned_us: int
    was: str
    rows: int = 0
    bytes: int = 0
    reason: str = ""
    dropped: int = 0


@fact(kw_only=True)
class RunUndoing(Record):
    """From here on no new step begins: what the run did is taken back. `error` where its own failure asked for that, and nobody else."""

    kind = "run.undoing"
    by: str
    reason: str = ""
    error: Json = field(default_factory=dict)


@fact(kw_only=True)
class RunContinued(Record):
    """The run begins anew with `args`; `carried` stays true. A prune removed `dropped` records before it, and `usd` is the cost by then."""

    kind = "run.continued"
    fingerprint: str
    generation: int
    args_sha: str = ""
    carried: Json = field(default_factory=dict)
    dropped: int = 0
    usd: float = 0.0


@fact(kw_only=True)
class MilestoneReached(Record):
    """The code came to the checkpoint that it calls `name`; everything before it is stored with it or was before."""

    kind = "milestone.reached"
    name: str


@fact(kw_only=True)
class StepPartial(Record):
    """A body that has yet to come to its end saved `value` under `name`; `about` is the call it belongs to."""

    kind = "step.partial"
    name: str
    about: str


@fact(kw_only=True)
class StepStarted(Record):
    """A step's body is about to begin. For an effect this is the intent, durable before the body runs."""

    kind = "step.started"
    name: str
    fingerprint: str
    attempt: int = 1
    effect: bool = False
    key: str = ""
    args_sha: str = ""


@fact(kw_only=True)
class AttemptFailed(Record):
    """One attempt ended in `error` and another may follow, after `delay_ms`; `landed` is "no" or "unknown"."""

    kind = "step.attempt_failed"
    name: str
    fingerprint: str
    error: Json
    attempt: int = 1
    landed: str = "no"
    delay_ms: int = 0
    started_us: int = 0
    usage: list[Json] = field(default_factory=list)


@fact(kw_only=True)
class StepDone(Record):
    """A step returned; `value` is its encoded result, or nothing where `not_kept` says why.

    `reused` where the effect was not executed: the step, or run and step, whose result was taken over.
    """

    kind = "step.done"
    name: str
    fingerprint: str
    attempt: int = 1
    effect: bool = False
    started_us: int = 0
    args_sha: str = ""
    usage: list[Json] = field(default_factory=list)
    not_kept: str = ""
    shown: str = ""
    reused: str = ""


@fact(kw_only=True)
class StepFailed(Record):
    """A step failed for good; `doubt`, with the `reason`, where it is not known whether the effect happened.

    `called` is how many steps its scope had called by then: what has a higher number was called in answer to the failure. `above` are the
    same of the scopes that its scope is a branch of, the nearest first.
    """

    kind = "step.failed"
    name: str
    fingerprint: str
    error: Json
    attempt: int = 1
    effect: bool = False
    started_us: int = 0
    args_sha: str = ""
    usage: list[Json] = field(default_factory=list)
    doubt: bool = False
    reason: str = ""
    called: int = 0
    above: list[int] = field(default_factory=list)


@fact(kw_only=True)
class StepBrokenOff(Record):
    """A step's body was cancelled; `cause` is the step id of the time-out or race that did it, or empty."""

    kind = "step.broken_off"
    name: str
    fingerprint: str
    attempt: int = 1
    effect: bool = False
    started_us: int = 0
    cause: str = ""
    usage: list[Json] = field(default_factory=list)


@fact(kw_only=True)
class DoubtOpened(Record):
    """It is not known whether an effect happened; `action` is what in_doubt says, or why it became "ask".

    `lost` where only records that a repair moved aside told of it, or could have; `unread` where nothing is known of it, and records
    that a repair could not read may have told of it. `delay_ms` before it is run again; `same_as` is the step at which the same call was
    made, on a path that was given up. `wants` says what a result must look like that a person gives.
    """

    kind = "doubt.opened"
    name: str
    fingerprint: str
    reason: str
    action: str
    delay_ms: int = 0
    lost: bool = False
    key: str = ""
    args_sha: str = ""
    same_as: str = ""
    wants: Json = field(default_factory=dict)
    unread: bool = False


@fact(kw_only=True)
class DoubtSettled(Record):
    """Somebody said what is true of a doubt: "landed" (with `value`), "not_landed", or "unknown" from a probe.

    `delay_ms` is the wait before an effect that has not landed is run again.
    """

    kind = "doubt.settled"
    verdict: str
    by: str
    reason: str = ""
    delay_ms: int = 0


@fact(kw_only=True)
class AskOpened(Record):
    """Somebody must answer before the run goes on here: a question of the agent's, an approval, a drift, a budget.

    `wants` says what the answer must look like, `who` may give it (nobody named: anybody); of a budget a yes `grants` these limits.
    """

    kind = "ask.opened"
    topic: str
    question: str
    about: str = ""
    until_us: int = 0
    wants: Json = field(default_factory=dict)
    who: list[str] = field(default_factory=list)
    details: Any = None
    grants: dict[str, float] = field(default_factory=dict)


@fact(kw_only=True)
class AskAnswered(Record):
    """The answer to a question, yes or no, or `value`; `timed_out` where nobody gave one in time, `letter` where it came in one."""

    kind = "ask.answered"
    yes: bool
    by: str
    reason: str = ""
    timed_out: bool = False
    letter: int = 0

    def said(self) -> str:
        """The answer in a word, or as JSON."""
        if self.value is None:
            return "yes" if self.yes else "no"
        return {b"true": "yes", b"false": "no"}.get(self.value) or self.value.decode()


@fact(kw_only=True)
class AskClosed(Record):
    """The run went on without an answer: a time-out or a race broke off the step that had asked."""

    kind = "ask.closed"
    reason: str = ""


@fact(kw_only=True)
class WaitBegun(Record):
    """A step waits for `what`, a time or a message, until `until_us` if that is not 0; `about` is the fingerprint of its call."""

    kind = "wait.begun"
    what: str
    until_us: int = 0
    about: str = ""


@fact(kw_only=True)
class MessageTaken(Record):
    """A step took the message `name`, which `by` had sent; `key` tells repetitions of one sending.

    `unfit` says why it was put aside instead, where it is not what the code receives; `again` which message it is, where it had been taken
    before on a path that was given up.
    """

    kind = "message.taken"
    name: str
    by: str
    key: str = ""
    unfit: str = ""
    again: str = ""


@fact(kw_only=True)
class ChildStarted(Record):
    """A step is a run of its own, `child`, of the agent `name`; recorded before that run begins.

    `fork_of` is the child on a path that was given up which it branches from; `of` its parent, where only its result is taken over.
    """

    kind = "child.started"
    child: str
    name: str
    fingerprint: str
    fork_of: str = ""
    of: str = ""


@fact(kw_only=True)
class BudgetSet(Record):
    """An operator set limits of the run, which take the place of the code's; an open question about a limit is settled by it."""

    kind = "budget.set"
    limits: dict[str, float]
    by: str
    reason: str = ""


@fact(kw_only=True)
class WatchTaken(Record):
    """The thing `step_id` was looked at, because the code watches it or because a drift was accepted; `found` is its print."""

    kind = "watch.taken"
    found: Json
    accepted: bool = False


@fact(kw_only=True)
class WatchDrifted(Record):
    """The thing `step_id` was not what it had been when the run went on: gone, changed, unreachable or appeared."""

    kind = "watch.drifted"
    what: str
    old: str
    new: str
    action: str


@fact(kw_only=True)
class ModelChanged(Record):
    """A call of the step `name` was answered by, or asked for, another model than in earlier lives; `before` is what there was."""

    kind = "model.changed"
    name: str
    action: str
    asked: str = ""
    answered: str = ""
    before: str = ""


@fact(kw_only=True)
class ModelAccepted(Record):
    """Somebody lets the run go on with that model."""

    kind = "model.accepted"
    name: str
    by: str
    asked: str = ""
    answered: str = ""
    reason: str = ""


@fact(kw_only=True)
class TimeoutFired(Record):
    """The time-out `step_id` cancelled what ran inside it."""

    kind = "timeout.fired"


@fact(kw_only=True)
class StateSaved(Record):
    """The state object `step_id` had changed by the commit that this row rides on."""

    kind = "state.saved"


@fact(kw_only=True)
class StepEdited(Record):
    """Somebody gave the step another outcome, `value`, in the place of the one at `after`; what was recorded after that is superseded.

    `effects` says what becomes of a call that was made there already; `in_fork` where the run had been put back to its point before.
    """

    kind = "step.edited"
    name: str
    fingerprint: str
    after: int
    by: str
    reason: str = ""
    effects: str = "ask"
    in_fork: bool = False


@fact(kw_only=True)
class StateEdited(Record):
    """Somebody gave the state object `step_id` another `value` at the step `at`, whose outcome is at `after`; as `StepEdited` else."""

    kind = "state.edited"
    at: str
    after: int
    by: str
    reason: str = ""
    effects: str = "ask"
    in_fork: bool = False


@fact(kw_only=True)
class TimeRead(Record):
    """The scope `step_id` read the time; `times_us` are the readings since its last commit."""

    kind = "time.read"
    times_us: list[int]


KINDS: dict[str, type[Record]] = {
    cls.kind: cls
    for cls in (
        RunStarted, RunResumed, RunDone, RunFailed, RunCancelled, RunWaiting, RunReleased, RunPaused, RunBlocked, RunAccepted, RunForked,
        RunRepaired, RunPruned, RunUndoing, RunContinued, RunSealed, RunHandedOver, RunMoved, RunArrived, RunUnsealed, MilestoneReached,
        StepPartial, StepStarted, AttemptFailed, StepDone, StepFailed, StepBrokenOff,
        DoubtOpened, DoubtSettled, AskOpened, AskAnswered, AskClosed, WaitBegun, MessageTaken, BudgetSet, WatchTaken, WatchDrifted,
        ChildStarted, ModelChanged, ModelAccepted, TimeoutFired, StateSaved, StepEdited, StateEdited, TimeRead,
    )
}  # fmt: skip


def cost_usd(usage: Sequence[Json]) -> float:
    """What the entries of a record's usage have cost."""
    return sum(float(entry.get("usd") or 0.0) for entry in usage)
