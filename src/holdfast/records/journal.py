"""One run's records: load, index, seal, append.

Seq and digest are assigned when the rows are sealed for the commit, not before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, get_args

from holdfast.codec.fingerprint import cut_short
from holdfast.errors import LeaseLost, Stopped, StoreError, Unwinding
from holdfast.large.artifact import refs_in, vouched
from holdfast.large.packing import bare
from holdfast.records import kinds as rec
from holdfast.records.bodies import to_body
from holdfast.records.chain import at_position, chain, empty_head, fold_head, prunable, verified
from holdfast.records.ledger import BUDGET, Ledger
from holdfast.records.lineage import Pair, Unread, happened, heard, named, standing, unread
from holdfast.records.models import Models
from holdfast.records.replay import CLEANUP, QUESTION, UNDO, History, Question
from holdfast.records.state import Saved
from holdfast.records.unknown import Unknown, folded
from holdfast.store import Append, Ceiling, Head, Row

EDITS = (rec.StepEdited, rec.StateEdited)
EDIT_KINDS = frozenset(each.kind for each in EDITS)

MAX_HELD = 1000
"""Records that are held back at the most before they are written."""

MAX_HELD_BYTES = 1_000_000
"""Bytes of them."""

LONG = 4096
"""Bytes of a safe step's arguments that a journal holds in memory at the most: nothing but messages asks for them."""

STEP_KINDS = (
    rec.StepStarted, rec.AttemptFailed, rec.StepDone, rec.StepFailed, rec.StepBrokenOff,
    rec.DoubtOpened, rec.DoubtSettled, rec.TimeoutFired, rec.ChildStarted,
)  # fmt: skip


_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)
_append: Callable[[tuple[Any, ...]], Append] = partial(tuple.__new__, Append)
CLAIMS = frozenset({rec.RunStarted, rec.RunResumed, rec.RunRepaired, rec.RunSealed})
"""The records that raise the epoch."""


def _called_after(step_id: str, line: Sequence[str], called: int) -> bool:
    """Whether a step belongs to a line of execution, and was called after the first `called` of it."""
    path = step_id.partition(":")[0].split(".")
    return len(path) > len(line) and path[: len(line)] == line and path[len(line)].isdigit() and int(path[len(line)]) > called


def _cut_short(row: Row, record: rec.Record) -> Pair:
    """The same with only the beginning of its arguments."""
    args = cut_short(row.args or b"")
    return row._replace(args=args), record.but(args=args)


def _groups_above(step_id: str) -> Iterator[str]:
    """The gathers and races that a step is in: "12" for "12.1.3"."""
    path = step_id.partition(":")[0].split(".")
    for depth in range(len(path) - 2, 0, -2):
        yield ".".join(path[:depth])


class Crowded(Unwinding):
    """As many runs execute as may; nothing was taken."""

    def __init__(self, full: Sequence[Ceiling]) -> None:
        self.full = tuple(full)
        super().__init__(self.full)


Verdict: TypeAlias = (
    rec.RunDone | rec.RunFailed | rec.RunCancelled | rec.RunBlocked | rec.RunRepaired | rec.RunWaiting | rec.RunPaused
)
VERDICTS = get_args(Verdict)
"""How a run stands once nobody executes it."""

class Behind(NamedTuple):
    """A failure that was gone behind, and the steps that were forgotten with it."""

    failure: rec.StepFailed
    seq: int
    forgotten: dict[str, History]


class Journal:
    """The records of one run that this process knows, and the place where the next ones are sealed."""

    __slots__ = (
        "_held_bytes", "_held_refs", "asks", "began", "behind", "broken", "ceilings", "claims", "continued", "forked", "gate",
        "generation", "groups", "head", "held", "histories", "holds", "keeps", "ledger", "lent", "looks", "milestone", "models",
        "partials", "pending", "prints", "resumed", "silences", "started", "states", "superseded", "taken", "times", "turned", "undoing",
        "unknown", "unread", "unsettled", "verdict", "waits",
    )  # fmt: skip

    def __init__(self, run_id: str) -> None:
        self.head = empty_head(run_id)
        self.histories: dict[str, History] = {}
        self.keeps: set[str] = set()
        self.unsettled: dict[str, History] = {}
        self.superseded: list[tuple[str, History]] = []
        self.behind: dict[str, Behind] = {}
        self.resumed: list[int] = []  # where failures were gone behind
        self.turned: rec.StepEdited | rec.StateEdited | rec.RunForked | None = None
        self.forked: rec.RunForked | None = None
        self.unread: dict[str, Unread] = {}
        self.unknown: Unknown | None = None
        self.ledger = Ledger()
        self.generation = 0
        self.groups: set[str] = set()
        self.claims = 0
        self.asks: dict[str, Question] = {}
        self.prints: dict[str, rec.Json] = {}
        self.looks: dict[str, int] = {}
        self.models = Models()
        self.waits: dict[str, rec.WaitBegun] = {}
        self.taken: dict[str, None] = {}
        self.silences: list[tuple[int, int]] = []
        self.states: dict[str, Saved] = {}
        self.times: dict[str, list[int]] = {}
        self.started: rec.RunStarted | None = None
        self.undoing: rec.RunUndoing | None = None
        self.verdict: Verdict | None = None
        self.ceilings: Sequence[Ceiling] = ()  # of the append that takes the run
        self.broken: Unwinding | None = None
        self.milestone = ""
        self.partials: dict[str, dict[str, rec.StepPartial]] = {}
        self.continued: rec.RunContinued | None = None
        self.began = 1  # where its generation begins
        self.holds = True  # whether outcomes may be held back at all
        self.held: list[Row] = []
        self._held_bytes = self.pending = 0
        self._held_refs: tuple[str, ...] = ()
        self.gate = threading.Lock()
        self.lent = threading.RLock()  # held while a transaction of the user's carries its next append

    @classmethod
    def load(cls, head: Head, rows: Sequence[Row], *, whole: bool = False) -> Journal:
        """Verify and index everything that was recorded; long arguments of safe steps are cut short, unless it is to be `whole`."""
        journal, pairs = cls(head.run_id), list[Pair]()
        goes_back = any(row.kind in EDIT_KINDS for row in bare(rows))
        for row, record in verified(head, rows):
            if not whole and row.args is not None and len(row.args) > LONG and prunable(record):
                row, record = _cut_short(row, record)  # noqa: PLW2901 (what was verified need not stay in memory)
            if isinstance(record, EDITS) and not record.in_fork:
                journal, pairs = journal._gone_back(record, pairs)
            journal.ledger.fold(record, row.at_us)
            journal._index(record, row)  # noqa: SLF001 (one of its own, which going back may have put in its place)
            if goes_back:
                pairs.append((row, record))
        journal.head = head
        return journal

    def _gone_back(self, record: rec.StepEdited | rec.StateEdited, pairs: Sequence[Pair]) -> tuple[Journal, list[Pair]]:
        """The journal of what stands where the run goes back to a step, with what is remembered of the rest; and its records."""
        after, run_id = record.after, self.head.run_id
        kept = standing(pairs, after, {step_id for step_id, history in self.histories.items() if history.first_seq <= after})
        fresh = Journal(run_id)
        for row, each in kept:
            fresh._index(each, row)
        for step_id, history in fresh.histories.items():
            history.elsewhere = self.histories.get(step_id, history).elsewhere
        fresh.ledger, fresh.forked, fresh.generation, fresh.unknown = self.ledger, self.forked, self.generation + 1, self.unknown
        fresh.superseded = [*self.superseded, *happened(self.histories.items(), after)]
        fresh.unread = {**self.unread, **{each.mark: each for each in unread(run_id, pairs, after)}}
        if BUDGET in self.asks:
            fresh.asks[BUDGET] = self.asks[BUDGET]
        return fresh, kept

    def outcomes(self) -> list[int]:
        """The seqs of all outcomes that replay will give back, in order; those of undos, and of cleanups before these, nobody asks for."""
        found = [(step_id, history.outcome_seq) for step_id, history in self.histories.items() if history.outcome is not None]
        return sorted(seq for step_id, seq in found if self.undoing is None or not step_id.startswith((UNDO, CLEANUP)))

    def seal(self, records: Sequence[rec.Record], *, at_us: int, takes: Sequence[int] = ()) -> Append:
        """Number, date and chain the records behind the last one that is known to be stored."""
        if self.broken is not None:
            raise self.broken
        stood = head = self.head
        rows, refs = self.held.copy(), [*self._held_refs]
        run_id, epoch, seq, digest = head.run_id, head.epoch, head.seq, head.digest
        for record in records:
            kind = type(record)
            epoch += kind in CLAIMS
            seq += 1
            parts = (seq, epoch, at_us, record.kind, record.step_id, to_body(record), record.value, record.args)
            digest = chain(digest, run_id, parts)
            rows.append(_row((*parts, digest)))
            if kind is not rec.StepStarted and (type(record) is not rec.StepDone or record.usage):  # nearly all leave it as it was
                head = fold_head(head, record, at_us)
            if vouched:
                refs += refs_in(*parts[5:])
        goes_on = head is stood and epoch == head.epoch and not self.held
        believed = stood.seq - len(self.held) if self.held else stood.seq
        kept = tuple(dict.fromkeys(refs)) if refs else ()
        return _append((run_id, stood.epoch, believed, rows, at_position(head, rows[-1]), takes, kept, self.ceilings, goes_on))

    def begin_write(self) -> None:
        """A write is under way: nothing is held back meanwhile, since it would be numbered before what it came after."""
        with self.gate:
            self.pending += 1

    def end_write(self) -> None:
        """A write has come to its end, whichever."""
        with self.gate:
            self.pending -= 1

    def can_hold(self) -> bool:
        """Whether an outcome may be held back now; what is held must not grow without end."""
        return not self.pending and len(self.held) < MAX_HELD and self._held_bytes < MAX_HELD_BYTES

    def hold(self, records: Sequence[rec.Record], *, at_us: int) -> int | None:
        """Take the records over as if they were stored: they go in before the next append, in one transaction with it.

        Gives the seq of the last one, or None, with nothing done, where they cannot be held back now.
        """
        with self.gate:
            if not self.can_hold():
                return None
            append = self.seal(records, at_us=at_us)
            before, rows = len(self.held), list(append.rows)
            self._take_over(append, records)
            self.held, self._held_refs = rows, tuple(append.refs)
            self._held_bytes += sum(len(row.body) + len(row.value or b"") + len(row.args or b"") for row in rows[before:])
            return append.head.seq

    def stored(self, append: Append, records: Sequence[rec.Record]) -> None:
        """The append went in: take it over."""
        self._take_over(append, records)
        self.ceilings = ()
        if self.held:
            self.held, self._held_bytes, self._held_refs = [], 0, ()

    def _take_over(self, append: Append, records: Sequence[rec.Record]) -> None:
        self.head = append.head
        for row, record in zip(append.rows[len(self.held) :], records, strict=True):
            self.ledger.fold(record, row.at_us)
            if type(record) is rec.StepDone and record.step_id not in self.keeps:
                self._forget(record)
            elif type(record) is not rec.StateSaved:
                self._index(record, row)

    def _forget(self, record: rec.StepDone) -> None:
        """Nobody asks for it again in this process: its value is not kept."""
        step_id = record.step_id
        if record.reused:
            self._take_known(History(), record.reused, record.fingerprint)
        if self.histories and (found := self.histories.pop(step_id, None)) is not None:
            self._make_way(found, record)
        if self.unsettled or self.waits or self.partials:
            self.unsettled.pop(step_id, None)
            self.waits.pop(step_id, None)
            self.partials.pop(step_id, None)
        if self.unknown is not None:
            self.unknown = folded(self.unknown, record, 0)

    def refused(self, gone: StoreError | None = None, full: Sequence[Ceiling] = ()) -> Unwinding:
        """Nothing more can be written here: the run is somebody else's, what a record refers to is gone, or there is no room for it."""
        self.broken = Stopped(gone) if gone is not None else Crowded(full) if full else LeaseLost(self.head.run_id)
        return self.broken

    def open_doubts(self, *, ended: bool = False) -> list[tuple[str, History]]:
        """The effects of which it is not known whether they happened; once the run has ended, what still runs is among them."""
        epoch = self.head.epoch + 1 if ended else self.head.epoch
        return [(step_id, history) for step_id, history in list(self.unsettled.items()) if history.open_doubt(epoch)]

    def spoken(self, step_id: str) -> bool:
        """Whether a person has said what was to be said about `step_id`."""
        question, history = self.asks.get(step_id), self.histories.get(step_id)
        return (question is not None and question.answer is not None) or (history is not None and history.settled is not None)

    def open_asks(self) -> list[tuple[str, Question]]:
        """The questions that nobody has answered; once the run is undone, nobody needs to know what its steps had asked."""
        asked = [(ask_id, question) for ask_id, question in self.asks.items() if question.is_open()]
        return asked if self.undoing is None else [(ask_id, question) for ask_id, question in asked if f":{UNDO}" in ask_id]

    def open_children(self) -> list[str]:
        """The child runs whose results are not recorded here, those of superseded steps among them."""
        found = [*self.histories.values(), *(history for _, history in self.superseded)]
        mine = [history for history in found if history.child and not history.elsewhere]
        return [history.child for history in mine if not isinstance(history.outcome, rec.StepDone)]

    def _index(self, record: rec.Record, row: Row) -> None:
        match record:
            case _ if isinstance(record, STEP_KINDS):  # nearly all are of steps
                self._fold_step(record, row)
            case rec.RunStarted():
                self.started, self.unknown = record, folded(None, record, row.at_us)
                self.claims += bool(record.owner)
            case rec.RunResumed():
                self.models.begin_life()
                self.claims += bool(record.owner)
                if record.silent:
                    self.silences.append((row.epoch, row.at_us))
                if record.budget:
                    self._settle_budget("the code", "it allows something else now")
                self.unknown = folded(self.unknown, record, row.at_us)
                self._go_behind(record.cleared, row.seq)
            case _ if isinstance(record, VERDICTS):
                self.verdict, self.unknown = record, folded(self.unknown, record, row.at_us)
                self._index_verdict(record)
            case rec.RunUndoing():
                self.undoing = record
                self.retrace()
            case rec.RunContinued():
                self._begin_anew(record)
                self.began, self.unknown = row.seq, folded(None, record, row.at_us)
            case rec.RunAccepted() | rec.RunForked() | rec.StepEdited() | rec.StateEdited():
                self._turn(record, row.epoch)
                self.unknown = folded(self.unknown, record, row.at_us)
            case _:
                self._index_beside(record, row)

    def _begin_anew(self, record: rec.RunContinued) -> None:
        """Forget what was recorded before, but for who began the run, what it carries along, who has it, and superseded effects."""
        fresh = Journal(self.head.run_id)
        kept = {"broken", "forked", "gate", "head", "held", "_held_bytes", "_held_refs", "ledger", "lent", "pending", "started", "unread"}
        kept |= {"ceilings", "holds", "superseded", "turned"}
        for name in set(self.__slots__) - kept:
            setattr(self, name, getattr(fresh, name))
        self.continued, self.generation = record, record.generation
        if not self.superseded:
            self.turned = None
        if self.turned is not None and self.turned.effects == "reuse":  # the same call may be meant anew by now: a person says
            self.turned = self.turned.but(effects="ask")
        self.taken = dict.fromkeys(record.carried.get("taken", ()))
        self.ledger.carry(record.carried)

    def _settle_budget(self, by: str, reason: str) -> None:
        """The limits have changed: whoever waits for a word on the old ones looks again."""
        asked = self.asks.get(BUDGET)
        if asked is not None and asked.answer is None:
            asked.answer = rec.AskAnswered(step_id=BUDGET, yes=True, by=by, reason=reason)

    def _forget_no(self) -> None:
        """A no to spending more has ended the run; whoever resumes it is asked anew."""
        asked = self.asks.get(BUDGET)
        if asked is not None and asked.answer is not None and not asked.answer.yes:
            del self.asks[BUDGET]

    def _index_verdict(self, record: rec.Record) -> None:
        """What the way in which the run stopped says of its questions; of those it parked with, whoever is to know has been told."""
        if isinstance(record, rec.RunFailed):
            self._forget_no()
        if isinstance(record, rec.RunWaiting):
            for ask_id in self.asks.keys() & set(record.steps):
                self.asks[ask_id].told = True

    def _go_behind(self, cleared: Sequence[str], seq: int) -> None:
        """Decide anew what had ended the run: failed steps, and what a person had said no to."""
        self.resumed += [seq] if cleared else []
        for step_id in cleared:
            history = self.histories.get(step_id)
            if history is not None and isinstance(history.outcome, rec.StepFailed):
                gone = Behind(history.outcome, history.outcome_seq, self._retire(step_id, history.outcome))
                if self.undoing is None:  # a failed undo is gone behind for good
                    self.behind[step_id] = gone
                history.clear_failure()
        if cleared:
            self.asks = {ask_id: asked for ask_id, asked in self.asks.items() if asked.answer is None or asked.answer.yes}

    def _retire(self, step_id: str, failure: rec.StepFailed) -> dict[str, History]:
        """Forget the safe steps that were called in answer to a failure: once it is gone, the code takes another path.

        A failure in a branch is answered in the branch, and then in the line of execution that the branch is of. Where one of those steps
        was an effect or a run, nothing is forgotten from there on: what it did in answer to the failure is for a person to weigh.
        """
        forgotten: dict[str, History] = {}
        line = step_id.partition(":")[0].split(".")[:-1]
        for called in (failure.called, *failure.above) if failure.called else ():
            later = [found for found in self.histories if _called_after(found, line, called)]
            if any(self.histories[found].effect or self.histories[found].child for found in later):
                break
            forgotten |= {found: self.histories.pop(found) for found in later}
            line = line[:-2]  # without the branch, and the group that it is of
        return forgotten

    def retrace(self) -> bool:
        """Back to the path that was taken, which is the one to undo: failures hold again that nothing has been decided of since.

        The last to be forgotten comes back first: it may bring another one with it. Gives whether anything came back.
        """
        found = False
        for step_id, (failure, seq, forgotten) in reversed(self.behind.items()):
            history = self.histories.get(step_id)
            if history is not None and not self.histories.keys() & forgotten.keys() and history.fail_again(failure, seq):
                self.histories.update(forgotten)
                found = True
        self.behind.clear()
        return found

    def seq_of(self, step_id: str) -> int:
        """Where a step, or the first step of a group of branches, begins in the journal."""
        below = [history.first_seq for found, history in self.histories.items() if found == step_id or found.startswith(f"{step_id}.")]
        return min(below, default=self.head.seq + 1)

    def from_seq(self, seq: int) -> list[tuple[str, History]]:
        """The steps that began there or later; an undo stays what it is, whatever becomes of the code."""
        found = [(step_id, history) for step_id, history in self.histories.items() if history.first_seq >= seq]
        return [(step_id, history) for step_id, history in found if not step_id.startswith(UNDO)]

    def given_up(self, step_id: str) -> list[tuple[str, History]]:
        """What is given up where code is accepted that calls something else at `step_id`: of an undo that one alone."""
        if step_id.startswith(UNDO):
            return [(found, history) for found, history in self.histories.items() if found == step_id]
        return self.from_seq(self.seq_of(step_id))

    def _accept(self, step_id: str, epoch: int) -> None:
        self.generation += 1
        if not step_id.startswith(UNDO):
            self._supersede(self.seq_of(step_id))
            return
        for undo_id, history in self.given_up(step_id):
            if not history.landed() and not history.open_doubt(epoch + 1):
                del self.histories[undo_id]
                self.unsettled.pop(undo_id, None)

    def _supersede(self, seq: int) -> None:
        """Go on as if nothing had been recorded from there on, but for effects that are not undone: those are not forgotten."""
        self.behind.clear()
        for step_id, history in self.from_seq(seq):
            del self.histories[step_id]
            self.unsettled.pop(step_id, None)
            self.partials.pop(step_id, None)
            undo = self.histories.get(f"{UNDO}{step_id}")  # as yet it can only be that of this very effect
            if (history.effect or history.child) and not (undo is not None and undo.landed()):
                self.superseded.append((step_id, history))
        own = {ask_id for ask_id, asked in self.asks.items() if asked.opened.topic == QUESTION and asked.seq >= seq}
        self.asks = {ask_id: asked for ask_id, asked in self.asks.items() if ask_id not in own}
        self.groups = {group for found in self.histories for group in _groups_above(found)}
        self.states = {name: Saved(saved for saved in values if saved[0] < seq) for name, values in self.states.items()}

    def _turn(self, record: rec.RunAccepted | rec.RunForked | rec.StepEdited | rec.StateEdited, epoch: int) -> None:
        """From here on the run takes another path: its code has changed, or somebody went back to an earlier step."""
        if not (isinstance(record, rec.StepEdited) and record.in_fork):
            self.turned = None if isinstance(record, rec.RunAccepted) else record
        match record:
            case rec.RunAccepted():
                self._accept(record.step_id, epoch)
            case rec.RunForked():
                self.forked, self.claims = record, 0  # those were the source's
                self.superseded, self.unread = heard(record.value)
                for history in self.histories.values():
                    if history.child or (history.effect and history.landed()):
                        history.elsewhere = history.elsewhere or record.source
            case rec.StepEdited():
                self.histories[record.step_id].edit(record)
                self.unsettled.pop(record.step_id, None)
            case rec.StateEdited():
                self.states.setdefault(record.step_id, Saved()).add(record.after, record.value or b"null")

    def _take_known(self, history: History, reused: str, fingerprint: str) -> None:
        """The result of an effect that was superseded has become that of a call: it stands for no other one."""
        found = named(self.superseded, reused, fingerprint)
        if found is not None:
            self.superseded.remove(found)
            history.elsewhere, history.sent = found[1].elsewhere or history.elsewhere, found[1].sent or found[1].key

    def _claim_known(self, record: rec.Record, history: History) -> None:
        """Where a record says that something superseded has become part of the path that the run takes now."""
        match record:
            case rec.StepDone():
                if record.reused:
                    self._take_known(history, record.reused, record.fingerprint)
            case rec.ChildStarted():
                self._take_on(record)
            case rec.DoubtSettled(verdict="landed") if history.doubt is not None:
                self._take_known(history, history.doubt.same_as, history.fingerprint)

    def _take_on(self, record: rec.ChildStarted) -> None:
        """The child of a step that was superseded has become that of a call, or another one branches from it."""
        mine = record.child if not record.of else ""
        taken = [pair for pair in self.superseded if pair[1].child and pair[1].child in (mine, record.fork_of)]
        if taken:
            self.superseded.remove(taken[0])

    def _index_beside(self, record: rec.Record, row: Row) -> None:
        """What is recorded beside the steps: states, times, waits, prints, models."""
        match record:
            case rec.StateSaved():
                self.states.setdefault(record.step_id, Saved()).add(row.seq, record.value or b"null")
            case rec.TimeRead():
                self.times.setdefault(record.step_id, []).extend(record.times_us)
            case rec.WaitBegun():
                self.waits[record.step_id] = record
            case rec.MessageTaken():
                self.taken[record.key] = None
                self.unread.pop(record.again, None)
            case rec.StepPartial():
                self.partials.setdefault(record.step_id, {})[record.name] = record
            case rec.MilestoneReached():
                self.milestone = record.name
            case rec.WatchTaken():
                self.prints[record.step_id] = record.found
                self.looks[record.step_id] = self.looks.get(record.step_id, 0) + (not record.accepted)
            case rec.ModelChanged() | rec.ModelAccepted():
                self.models.fold_change(record)
            case _:
                self._index_word(record, row)

    def _index_word(self, record: rec.Record, row: Row) -> None:
        """What people were asked and said."""
        match record:
            case rec.AskOpened():
                self.asks[record.step_id] = Question(record, row.at_us, seq=row.seq)
                if record.step_id == BUDGET and record.about != self.ledger.about(record.about):
                    self._settle_budget("the engine", "the limits changed while it was put")
            case rec.AskAnswered():
                asked = self.asks[record.step_id]
                asked.answer = record
                if record.yes and asked.opened.grants:
                    self.ledger.grant(asked.opened.grants)
            case rec.AskClosed():
                self.asks[record.step_id].closed = record.reason
            case rec.BudgetSet():
                self.ledger.set(record.limits)
                self._settle_budget(record.by, record.reason)
            case rec.RunSealed() if record.silent:
                self.silences.append((row.epoch, row.at_us))
            case rec.RunArrived():
                self.unread.update(heard(record.value)[1])
            case _:
                pass

    def _make_way(self, history: History, record: rec.Record) -> bool:
        """Whether something else is called where a repair had found an effect that happened: this is not forgotten."""
        if not history.lost or not history.landed() or getattr(record, "name", history.name) == history.name:
            return False
        self.superseded.append((record.step_id, history))
        return True

    def _fold_step(self, record: rec.Record, row: Row) -> None:
        history = self.histories.get(record.step_id)
        if history is None or self._make_way(history, record):
            history = self.histories[record.step_id] = History()
            if "." in record.step_id and not getattr(record, "lost", False):
                self.groups.update(_groups_above(record.step_id))
        if type(record) is not rec.StepStarted:
            self._claim_known(record, history)
        history.fold(record, seq=row.seq, at_us=row.at_us, epoch=row.epoch)
        if history.outcome is not None:
            self.waits.pop(record.step_id, None)
        if isinstance(record, rec.StepDone):
            self.partials.pop(record.step_id, None)
        if isinstance(record, (rec.StepDone, rec.StepFailed)):
            self.models.fold(record)
        if history.effect and not isinstance(record, rec.StepDone):
            self.unsettled[record.step_id] = history
        elif self.unsettled:
            self.unsettled.pop(record.step_id, None)
        if self.unknown is not None:
            history.first_us = history.first_us or (self.unknown.since_us if history.unread else 0)
            self.unknown = folded(self.unknown, record, row.at_us)
