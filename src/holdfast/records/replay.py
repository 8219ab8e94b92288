"""What a journal says about one step, and what follows from it for the call that the code makes now; pure.

`History` folds the records of one step. `decide` compares it with the call and answers with one of seven decisions:

| the journal holds                                   | decision   |
|-----------------------------------------------------|------------|
| nothing                                             | Execute    |
| another name, other arguments, a group of branches  | Mismatch   |
| a result                                            | Return     |
| a failure that was not cleared                      | Raise      |
| broken off by a recorded time-out or race           | Hang       |
| safe step without outcome; effect known not to have happened | Execute, next attempt |
| effect with an intent and no outcome                | Doubt      |
| a doubt that was settled as landed                  | Landed     |

An effect of which only records that a repair moved aside had told does not bind the code once a person has settled it: something else
may be called there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast._facts import Fact, fact
from holdfast.records import kinds as rec

CANCEL = "cancel"
"""The cause of a step that was broken off because the run was cancelled: if that was never recorded, the step is unfinished."""

CLEANUP = "cleanup."
"""How the id of a cleanup begins."""

UNDO = "undo:"
"""How the id of an undo begins; what follows is the id of the step that it takes back."""

QUESTION = "ask"
"""The topic of what an agent itself asks."""

THE_ENGINE = ("probe", "reset")
"""Who settles doubts without being a person."""

DIED = "the process ended between the intent and the outcome"


@dataclass(init=False)  # each has its defaults from the class: most fields of most steps never differ
class History:
    """What the records of one step say, folded one by one in the order of their seq.

    `attempts` is the number of the latest attempt. What a policy counts is kept apart from it, since the step was last begun on
    somebody's word: `failures` are attempts that ended in an error, `lapsed` are intents that were repeated without a word on what
    became of them, and `pending` says whether that is so of the latest. A crash is no failure. `unsaid` is the outcome of an effect whose
    result was not kept, as it was before somebody said what it had been: where their word does not fit, it is asked for again. `edited`
    is what gave the step its outcome, where a person did; `elsewhere` the run in which it happened, or whose child it is, where that is
    not this one; `wanted_by` the step of this life that is about to take it over, where it was superseded; `sent` the key that was
    really sent, where the result of an earlier call was taken over. `unread` while all that is known of it is that records which a repair
    could not read may have told of it.
    """

    name: str = ""
    fingerprint: str = ""
    effect: bool = False
    key: str = ""
    args: bytes | None = None
    attempts: int = 0
    first_us: int = 0
    started_us: int = 0
    started_epoch: int = 0
    outcome: rec.Record | None = None
    outcome_seq: int = 0
    first_seq: int = 0
    trouble: rec.AttemptFailed | rec.StepBrokenOff | None = None
    doubt: rec.DoubtOpened | None = None
    settled: rec.DoubtSettled | None = None
    unsaid: rec.StepDone | None = None
    answered: bool = False
    unsure: bool = False
    lost: bool = False
    unread: bool = False
    failures: int = 0
    lapsed: int = 0
    pending: bool = False
    began_us: int = 0
    failed_us: int = 0
    usd: float = 0.0
    child: str = ""
    fork_of: str = ""
    edited: rec.StepEdited | None = None
    elsewhere: str = ""
    wanted_by: str = ""
    sent: str = ""

    def fold(self, record: rec.Record, *, seq: int, at_us: int, epoch: int) -> None:
        """Take one more record of this step into account."""
        self.first_seq = self.first_seq or seq
        match record:
            case rec.StepDone() | rec.StepFailed():
                self._identify(record.name, record.fingerprint, effect=record.effect)
                self.attempts, self.outcome, self.outcome_seq = record.attempt, record, seq
                self.args = self.args if record.args is None else record.args
            case rec.StepStarted():
                self._identify(record.name, record.fingerprint, effect=record.effect)
                self.key, self.args = record.key, record.args
                self.unsure = self.may_have_happened()
                self.attempts, self.started_us, self.started_epoch = record.attempt, at_us, epoch
                self.first_us, self.began_us = self.first_us or at_us, self.began_us or at_us
                self.lapsed, self.pending = self.lapsed + self.pending, True
                self.trouble = self.doubt = self.settled = None
                self.answered = self.lost = self.unread = False
            case rec.AttemptFailed():
                self._identify(record.name, record.fingerprint, effect=self.effect)
                self.lapsed += self.pending and record.attempt != self.attempts  # this one never began, the one before had
                self.attempts, self.trouble = record.attempt, record
                self.failures, self.pending, self.failed_us = self.failures + 1, False, at_us
                self.began_us, self.usd = self.began_us or record.started_us or at_us, self.usd + rec.cost_usd(record.usage)
            case rec.StepBrokenOff():
                self._break_off(record, seq)
            case rec.TimeoutFired():
                self.outcome, self.outcome_seq = record, seq
            case rec.ChildStarted():
                self._identify(record.name, record.fingerprint, effect=False)
                self.child, self.fork_of, self.elsewhere = record.child, record.fork_of, record.of
            case rec.DoubtOpened():
                self._open(record)
            case rec.DoubtSettled():
                self._settle(record)
            case _:
                raise AssertionError(f"a {record.kind} record does not belong to a step")

    def _break_off(self, record: rec.StepBrokenOff, seq: int) -> None:
        """An effect that was interrupted while it had yet to begin, again or at all, stands as if its process had died there."""
        for_good = bool(record.cause) and record.cause != CANCEL
        if self.effect and not record.effect and not for_good:
            return
        self._identify(record.name, record.fingerprint, effect=record.effect)
        self.attempts, self.trouble = record.attempt, record
        if for_good:
            self.outcome, self.outcome_seq = record, seq

    def _open(self, record: rec.DoubtOpened) -> None:
        if self.unsaid is not None and not record.lost:
            self.outcome, self.unsaid = self.unsaid.but(not_kept=record.reason), None
            return
        self._identify(record.name, record.fingerprint, effect=True)
        self.doubt = record
        self.settled = None
        self.unread = self.unread or (record.unread and self.started_us == 0)
        self.key, self.args = record.key or self.key, self.args if record.args is None else record.args
        if record.lost:
            self._reopen(record)

    def _settle(self, record: rec.DoubtSettled) -> None:
        if isinstance(self.outcome, rec.StepDone) and self.outcome.not_kept:
            self.unsaid, self.outcome = self.outcome, self.outcome.but(value=record.value, not_kept="", shown="")
            return
        self.settled = record
        if record.verdict != "unknown":
            self.doubt, self.pending = None, False
            if record.by not in THE_ENGINE:
                self._count_anew()

    def edit(self, record: rec.StepEdited) -> None:
        """Somebody says what the outcome is; it is given back in the turn of the one whose place it takes."""
        self.outcome = rec.StepDone(
            step_id=record.step_id, name=self.name, fingerprint=self.fingerprint, attempt=max(1, self.attempts), effect=self.effect,
            value=record.value,
        )  # fmt: skip
        self.outcome_seq, self.edited = record.after, record
        self.doubt = self.settled = self.unsaid = self.trouble = None

    def clear_failure(self) -> None:
        """Go behind a failure that had ended the run: the step is decided anew. A failure without a doubt had said what is true."""
        if isinstance(self.outcome, rec.StepFailed):
            self.answered = not self.outcome.doubt
            self.outcome, self.outcome_seq, self.attempts = None, 0, 0
            self._count_anew()

    def fail_again(self, failure: rec.StepFailed, seq: int) -> bool:
        """Take back that a failure was cleared, where nothing has come of the step since; gives whether it is so."""
        begun = self.effect and self.attempts > 0 and self.may_have_happened()
        if self.outcome is not None or begun or (self.lost and not failure.doubt) or (self.doubt is not None and not failure.doubt):
            return False
        self.outcome, self.outcome_seq = failure, seq
        return True

    def tries(self) -> int:
        """How often this effect was tried in vain: with an error, or without a word on what became of it."""
        return self.failures + self.lapsed + self.pending

    def _count_anew(self) -> None:
        """Somebody wants it tried, whatever was tried before."""
        self.failures = self.lapsed = self.began_us = 0
        self.pending, self.usd = False, 0.0

    def is_of(self, name: str, fingerprint: str) -> bool:
        """Whether this is the history of that very call."""
        return (self.name, self.fingerprint) == (name, fingerprint)

    def open_doubt(self, epoch: int) -> bool:
        """Whether it is not known if this effect happened; an effect running in this very epoch is not a doubt."""
        if not self.effect or self.answered or (self.settled is not None and self.settled.verdict != "unknown"):
            return False
        match self.outcome:
            case rec.StepDone():
                return False
            case rec.StepFailed():
                return self.outcome.doubt
            case rec.StepBrokenOff():
                return True
        if self.doubt is not None:
            return True
        known_not = isinstance(self.trouble, rec.AttemptFailed) and self.trouble.landed == "no"
        return self.started_us > 0 and self.started_epoch < epoch and not known_not

    def says_otherwise(self, epoch: int) -> bool:
        """Whether an error is not what became of this effect: it may have happened in this very epoch, and nothing is recorded of that."""
        begun = self.effect and self.started_us > 0 and self.started_epoch == epoch
        return begun and self.outcome is None and self.doubt is None and self.may_have_happened()

    def unseen(self) -> bool:
        """Whether no life has looked at this doubt yet: whoever takes the run up does as the effect declares before anybody is asked."""
        return self.doubt is None and self.outcome is None

    def result_is_missing(self) -> bool:
        """Whether the effect is known to have happened, but not what it returned."""
        return isinstance(self.outcome, rec.StepDone) and bool(self.outcome.not_kept)

    def has_begun(self) -> bool:
        """Whether an attempt has begun, as far as anybody can know: of a call that a person is asked about first, none has."""
        return self.started_us > 0 or self.lost or self.unread

    def landed(self) -> bool:
        """Whether the effect is known to have happened: it returned, or somebody said so."""
        return isinstance(self.outcome, rec.StepDone) or (self.settled is not None and self.settled.verdict == "landed")

    def put_to_a_person(self) -> bool:
        """Whether nobody but a person is to say what is true; otherwise whoever executes the run is finding out."""
        return self.outcome is not None or self.doubt is None or self.doubt.action in ("ask", "fail")

    def may_have_happened(self) -> bool:
        """Whether an attempt that began may have happened, as far as anybody has found out."""
        if self.answered or (self.settled is not None and self.settled.verdict == "not_landed"):
            return False
        known_not = isinstance(self.trouble, rec.AttemptFailed) and self.trouble.landed == "no"
        return self.unsure or self.unread or (self.started_us > 0 and not known_not)

    def _reopen(self, record: rec.DoubtOpened) -> None:
        """Records that are lost may have gone on from here: whatever was said before, only a person can say what is true."""
        self.outcome, self.unsaid, self.outcome_seq, self.answered = None, None, 0, False
        self.lost = self.started_us == 0
        self.key, self.args = record.key or self.key, record.args or self.args

    def _identify(self, name: str, fingerprint: str, *, effect: bool) -> None:
        self.name, self.fingerprint, self.effect = name, fingerprint, effect


@dataclass(slots=True)
class Question:
    """What a person was asked, and the answer once there is one; or why it is closed without.

    `told` says that the run has parked with it: whoever is to be notified of questions has been.
    """

    opened: rec.AskOpened
    at_us: int
    answer: rec.AskAnswered | None = None
    closed: str = ""
    told: bool = False
    seq: int = 0

    def is_open(self) -> bool:
        """Whether an answer is still wanted."""
        return self.answer is None and not self.closed

    def too_late(self, at_us: int) -> bool:
        """Whether an answer given at that time comes after the end of its time."""
        return bool(self.opened.until_us) and at_us > self.opened.until_us


@fact()
class Execute(Fact):
    """Run the body; `attempt` counts from 1."""

    attempt: int


@fact()
class Return(Fact):
    """The step has returned already."""

    seq: int
    record: rec.StepDone


@fact()
class Raise(Fact):
    """The step has failed already."""

    seq: int
    record: rec.StepFailed


@fact()
class Hang(Fact):
    """The body was cancelled by something recorded, which will cancel it again in its turn."""

    seq: int


@fact()
class Doubt(Fact):
    """An intent without an outcome; `asked` where a person has been asked already."""

    reason: str
    attempt: int
    asked: bool


@fact()
class Landed(Fact):
    """A doubt was settled: it happened, and `value` is its result."""

    value: bytes | None
    attempt: int


@fact()
class Mismatch(Fact):
    """The code calls something else than was recorded here."""

    recorded: str


Decision: TypeAlias = Execute | Return | Raise | Hang | Doubt | Landed | Mismatch


_FIRST = Execute(1)


def decide(history: History | None, *, name: str, fingerprint: str, effect: bool, grouped: bool = False) -> Decision:
    """What to do with a call, given what the journal holds under its step id; `grouped` where branches are recorded below it."""
    if history is None:
        return Mismatch("a group of branches") if grouped else _FIRST
    if isinstance(history.outcome, rec.TimeoutFired):
        return Mismatch("hf.timeout")
    if not history.name:
        return Execute(1)
    if (history.name, history.fingerprint) != (name, fingerprint):
        return Execute(1) if _let_go(history, name) else Mismatch(history.name)
    match history.outcome:
        case rec.StepDone():
            return Return(history.outcome_seq, history.outcome)
        case rec.StepFailed():
            return Raise(history.outcome_seq, history.outcome)
        case rec.StepBrokenOff():
            return Hang(history.outcome_seq)
    if not effect and not history.effect:
        return Execute(history.attempts + 1)
    return _decide_unfinished(history)


def _let_go(history: History, name: str) -> bool:
    """Whether another call may stand here: a repair had only found traces of this one, and a person has said what became of it."""
    if not history.lost or history.settled is None or history.settled.verdict == "unknown":
        return False
    return history.settled.verdict == "not_landed" or history.name != name


def _decide_unfinished(history: History) -> Decision:
    """An effect that began and has no outcome."""
    if history.answered:
        return Execute(history.attempts + 1)
    if history.settled is not None and history.settled.verdict == "landed":
        return Landed(history.settled.value, history.attempts)
    if history.settled is not None and history.settled.verdict == "not_landed":
        return Execute(history.attempts + 1)
    asked = history.doubt is not None and history.doubt.action == "ask"
    match history.trouble:
        case rec.AttemptFailed(landed="no") if history.doubt is None:
            return Execute(history.attempts + 1)
        case rec.AttemptFailed():
            error = history.trouble.error
            return Doubt(f"{error.get('type')}: {error.get('message')}", history.attempts, asked)
        case rec.StepBrokenOff():
            return Doubt("its body was broken off", history.attempts, asked)
    if history.started_us == 0:
        return Execute(1) if history.doubt is None else Doubt(history.doubt.reason, history.attempts, asked)
    return Doubt(DIED, history.attempts, asked)
