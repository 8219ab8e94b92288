"""One run's records: load, verify, index, encode, chain, append.

The chain: the digest of a row is SHA-256 over the digest before it, the row's header and its body and value. Argument bytes enter through
`args_sha` in the body. The head repeats the last seq and digest, so that a tail that was cut off is noticed too, and every other field of
the head can be computed again from the rows. Seq and digest are assigned when the rows are sealed for the commit, not before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from . import _records as rec
from ._ledger import BUDGET, Ledger
from ._lineage import Pair, Unread, happened, heard, named, standing, unread
from ._models import Models
from ._replay import QUESTION, UNDO, History, Question
from .errors import Damaged, LeaseLost, Unwinding
from .store import Append, Head, Row

GENESIS = b"\0" * 32
EDITS = (rec.StepEdited, rec.StateEdited)
FORK_OF = "fork_of"
"""The tag that names the run which another one branches from."""
STEP_KINDS = (
    rec.StepStarted, rec.AttemptFailed, rec.StepDone, rec.StepFailed, rec.StepBrokenOff,
    rec.DoubtOpened, rec.DoubtSettled, rec.TimeoutFired,
)  # fmt: skip


_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)
_head: Callable[[tuple[Any, ...]], Head] = partial(tuple.__new__, Head)


def chain(before: bytes, run_id: str, row: tuple[Any, ...]) -> bytes:
    """The digest of a row (its own is not looked at and may be missing) after the digest `before`."""
    seq, epoch, at_us, kind, step_id, body, value = row[:7]
    size = -1 if value is None else len(value)
    header = f"{run_id}\0{seq}\0{epoch}\0{at_us}\0{kind}\0{step_id}\0{len(body)}\0{size}\0"
    return hashlib.sha256(before + header.encode("utf-8", "surrogatepass") + body + (value or b"")).digest()


def args_digest(args: bytes) -> str:
    """What stands for argument bytes in the chain."""
    return hashlib.sha256(args).hexdigest()


def empty_head(run_id: str) -> Head:
    """The head of a run before its first record."""
    return Head(run_id, "", "", None, 0, 0, GENESIS, None, 0, 0, "{}", 0.0, "")


def fold_head(head: Head, record: rec.Record, at_us: int) -> Head:
    """The head after one more record, but for its position; the only place that says which record changes which field."""
    match record:
        case rec.StepDone() | rec.StepFailed() | rec.AttemptFailed() | rec.StepBrokenOff():
            spent = rec.cost_usd(record.usage) if record.usage else 0.0
            return head._replace(usd=head.usd + spent) if spent else head
        case rec.RunStarted():
            lineage = {FORK_OF: record.fork_of} if record.fork_of else {}
            tags = json.dumps({**record.tags, **lineage}, sort_keys=True, ensure_ascii=False)
            status = "running" if record.owner else "queued"
            return head._replace(agent=record.agent, status=status, owner=record.owner or None, created_us=at_us, tags=tags)
        case rec.RunResumed():
            return head._replace(status="running" if record.owner else "queued", owner=record.owner or None, note="", wake_us=None)
        case rec.RunDone() | rec.RunCancelled():
            return head._replace(status=record.kind.removeprefix("run."), owner=None, note=getattr(record, "reason", ""))
        case rec.RunFailed():
            return head._replace(status="failed", owner=None, note=_short(record.error))
        case rec.RunWaiting():
            return head._replace(status="waiting", owner=None, note=record.waits, wake_us=record.wake_us or None)
        case rec.RunReleased() | rec.RunForked():
            return _let_go(head, record, at_us)
        case rec.RunUndoing():
            return head._replace(note=f"to be undone by {record.by}{': ' + record.reason if record.reason else ''}")
        case rec.RunBlocked() | rec.RunRepaired():
            note = _short(record.error) if isinstance(record, rec.RunBlocked) else _repaired(head.run_id, record)
            return head._replace(status="blocked", owner=None, note=note, wake_us=None)
    return head


def _let_go(head: Head, record: rec.RunReleased | rec.RunForked, at_us: int) -> Head:
    """Nobody has the run: its owner left it, or it has just been made of another one."""
    if isinstance(record, rec.RunReleased):
        return head._replace(status="queued", owner=None, note=record.reason)
    told = f"a fork of {record.source} at step {record.at}"
    return head._replace(status="queued", owner=None, note=told, wake_us=None, created_us=at_us)


def at_position(head: Head, row: Row) -> Head:
    """The head, standing behind `row`."""
    return _head((*head[:4], row[1], row[0], row[8], *head[7:9], row[2], *head[10:]))


def _short(error: rec.Json) -> str:
    return f"{error.get('type', 'error')}: {error.get('message', '')}"[:300]


def _repaired(run_id: str, record: rec.RunRepaired) -> str:
    unknown = f"; {record.unreadable} could not be read: an effect may have happened that is not known" if record.unreadable else ""
    return f"repaired: its records from {record.bad_seq} on were lost{unknown}. Look, then: holdfast resume {run_id}"


def record_of(row: Row) -> rec.Record:
    """The record that a row holds; ValueError where this version cannot read it."""
    return rec.from_parts(kind=row.kind, step_id=row.step_id, body=row.body, value=row.value, args=row.args)


def verified(head: Head, rows: Sequence[Row]) -> Iterator[tuple[Row, rec.Record]]:
    """The rows with their records, one by one; raises `Damaged` at the first that is not what was written."""
    run_id, computed, digest = head.run_id, empty_head(head.run_id), GENESIS
    for expected, row in enumerate(rows, 1):
        if row.seq != expected:
            raise Damaged(run_id, expected, f"record {expected} is missing (the next one there is {row.seq})")
        try:
            digest = chain(digest, run_id, row)
            record = record_of(row)
            args_are_whole = row.args is None or args_digest(row.args) == getattr(record, "args_sha", "")
        except (ValueError, TypeError, AttributeError) as error:
            raise Damaged(run_id, expected, f"it cannot be read ({error})") from error
        if digest != row.digest:
            raise Damaged(run_id, expected, "its digest does not match what it holds")
        if not args_are_whole:
            raise Damaged(run_id, expected, "its arguments do not match their digest")
        computed = fold_head(computed, record, row.at_us)
        yield row, record
    _compare_heads(head, at_position(computed, rows[-1]) if rows else computed)


def _compare_heads(stored: Head, computed: Head) -> None:
    if _number(stored.seq) > computed.seq:
        missing = f"the head says seq={stored.seq}, its records end at {computed.seq}: the others are missing"
        raise Damaged(stored.run_id, computed.seq + 1, missing)
    for name, kept, expected in zip(Head._fields, stored, computed, strict=True):
        if kept != expected:
            seq = computed.seq + 1 if name in ("seq", "digest") else computed.seq
            raise Damaged(stored.run_id, seq, f"the head says {name}={_shown(kept)}, its records say {_shown(expected)}")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _shown(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else repr(value)[:80]


def _called_after(step_id: str, failed: str, called: int) -> bool:
    """Whether a step belongs to the line of execution of one that failed, and was called after the first `called` of it."""
    line = failed.partition(":")[0].split(".")[:-1]
    path = step_id.partition(":")[0].split(".")
    return len(path) > len(line) and path[: len(line)] == line and path[len(line)].isdigit() and int(path[len(line)]) > called


def _groups_above(step_id: str) -> Iterator[str]:
    """The gathers and races that a step is in: "12" for "12.1.3"."""
    path = step_id.partition(":")[0].split(".")
    for depth in range(len(path) - 2, 0, -2):
        yield ".".join(path[:depth])


class Behind(NamedTuple):
    """A failure that was gone behind, and the steps that were forgotten with it."""

    failure: rec.StepFailed
    seq: int
    forgotten: dict[str, History]


class Journal:
    """The records of one run that this process knows, and the place where the next ones are sealed."""

    __slots__ = (
        "_unsettled", "asks", "behind", "broken", "claims", "forked", "generation", "groups", "head", "histories", "keeps", "ledger",
        "looks", "models", "prints", "silences", "started", "states", "superseded", "taken", "times", "turned", "undoing", "unread",
        "verdict", "waits",
    )  # fmt: skip

    def __init__(self, run_id: str) -> None:
        self.head = empty_head(run_id)
        self.histories: dict[str, History] = {}
        self.keeps: set[str] = set()
        self._unsettled: dict[str, History] = {}
        self.superseded: list[tuple[str, History]] = []
        self.behind: dict[str, Behind] = {}
        self.turned: rec.StepEdited | rec.StateEdited | rec.RunForked | None = None
        self.forked: rec.RunForked | None = None
        self.unread: dict[str, Unread] = {}
        self.ledger = Ledger()
        self.generation = 0
        self.groups: set[str] = set()
        self.claims = 0
        self.asks: dict[str, Question] = {}
        self.prints: dict[str, rec.Json] = {}
        self.looks: dict[str, int] = {}
        self.models = Models()
        self.waits: dict[str, rec.WaitBegun] = {}
        self.taken: set[str] = set()
        self.silences: list[tuple[int, int]] = []
        self.states: dict[str, list[tuple[int, bytes]]] = {}
        self.times: dict[str, list[int]] = {}
        self.started: rec.RunStarted | None = None
        self.undoing: rec.RunUndoing | None = None
        self.verdict: rec.RunDone | rec.RunFailed | rec.RunCancelled | rec.RunBlocked | rec.RunRepaired | rec.RunWaiting | None = None
        self.broken: Unwinding | None = None

    @classmethod
    def load(cls, head: Head, rows: Sequence[Row]) -> Journal:
        """Verify and index everything that was recorded."""
        journal, pairs = cls(head.run_id), list[Pair]()
        for row, record in verified(head, rows):
            if isinstance(record, EDITS) and not record.in_fork:
                journal, pairs = journal._gone_back(record, pairs)
            journal.ledger.fold(record, row.at_us)
            journal._index(record, row)  # noqa: SLF001 (one of its own, which going back may have put in its place)
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
        fresh.ledger, fresh.forked, fresh.generation = self.ledger, self.forked, self.generation + 1
        fresh.superseded = [*self.superseded, *happened(self.histories.items(), after)]
        fresh.unread = {**self.unread, **{each.mark: each for each in unread(run_id, pairs, after, self.histories)}}
        if BUDGET in self.asks:
            fresh.asks[BUDGET] = self.asks[BUDGET]
        return fresh, kept

    def outcomes(self) -> list[int]:
        """The seqs of all outcomes that replay will give back, in order; an undo's is not asked for by the code."""
        found = [(step_id, history.outcome_seq) for step_id, history in self.histories.items() if history.outcome is not None]
        return sorted(seq for step_id, seq in found if self.undoing is None or not step_id.startswith(UNDO))

    def seal(self, records: Sequence[rec.Record], *, at_us: int, takes: Sequence[int] = ()) -> Append:
        """Number, date and chain the records behind the last one that is known to be stored."""
        if self.broken is not None:
            raise self.broken
        head, rows = self.head, []
        epoch, seq, digest = head.epoch, head.seq, head.digest
        for record in records:
            epoch += isinstance(record, (rec.RunStarted, rec.RunResumed, rec.RunRepaired))
            seq += 1
            parts = (seq, epoch, at_us, record.kind, record.step_id, rec.to_body(record), record.value, record.args)
            digest = chain(digest, head.run_id, parts)
            rows.append(_row((*parts, digest)))
            head = fold_head(head, record, at_us)
        return Append(head.run_id, self.head.epoch, self.head.seq, rows, at_position(head, rows[-1]), tuple(takes))

    def stored(self, append: Append, records: Sequence[rec.Record]) -> None:
        """The append went in: take it over."""
        self.head = append.head
        for row, record in zip(append.rows, records, strict=True):
            self.ledger.fold(record, row.at_us)
            match record:  # nobody asks for these again in this process: do not keep their values
                case rec.StateSaved():
                    pass
                case rec.StepDone() if record.step_id not in self.keeps:
                    if record.reused:
                        self._take_over(record.reused, record.fingerprint)
                    found = self.histories.pop(record.step_id, None)
                    if found is not None:
                        self._make_way(found, record)
                    self.waits.pop(record.step_id, None)
                    self._unsettled.pop(record.step_id, None)
                case _:
                    self._index(record, row)

    def refused(self) -> LeaseLost:
        """The run belongs to somebody else: nothing more can be written here."""
        self.broken = LeaseLost(self.head.run_id)
        return self.broken

    def open_doubts(self, *, ended: bool = False) -> list[tuple[str, History]]:
        """The effects of which it is not known whether they happened; once the run has ended, what still runs is among them."""
        epoch = self.head.epoch + 1 if ended else self.head.epoch
        return [(step_id, history) for step_id, history in list(self._unsettled.items()) if history.open_doubt(epoch)]

    def spoken(self, step_id: str) -> bool:
        """Whether a person has said what was to be said about `step_id`."""
        question, history = self.asks.get(step_id), self.histories.get(step_id)
        return (question is not None and question.answer is not None) or (history is not None and history.settled is not None)

    def open_asks(self) -> list[tuple[str, Question]]:
        """The questions that nobody has answered; once the run is undone, nobody needs to know what its steps had asked."""
        asked = [(ask_id, question) for ask_id, question in self.asks.items() if question.is_open()]
        return asked if self.undoing is None else [(ask_id, question) for ask_id, question in asked if f":{UNDO}" in ask_id]

    def _index(self, record: rec.Record, row: Row) -> None:
        match record:
            case rec.RunStarted():
                self.started = record
                self.claims += bool(record.owner)
            case rec.RunResumed():
                self.models.begin_life()
                self.claims += bool(record.owner)
                if record.silent:
                    self.silences.append((row.epoch, row.at_us))
                if record.budget:
                    self._settle_budget("the code", "it allows something else now")
                self._go_behind(record.cleared)
            case rec.RunDone() | rec.RunFailed() | rec.RunCancelled() | rec.RunBlocked() | rec.RunRepaired() | rec.RunWaiting():
                self.verdict = record
                self._index_verdict(record)
            case _ if isinstance(record, STEP_KINDS):
                self._fold_step(record, row)
            case rec.RunUndoing():
                self.undoing = record
                self.retrace()
            case rec.RunAccepted():
                self.turned = None
                self._accept(record.step_id, row.epoch)
            case rec.RunForked() | rec.StepEdited() | rec.StateEdited():
                self._turn(record)
            case _:
                self._index_beside(record, row)

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

    def _go_behind(self, cleared: Sequence[str]) -> None:
        """Decide anew what had ended the run: failed steps, and what a person had said no to."""
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

        Where one of them was an effect, nothing is forgotten: what it did in answer to the failure is for a person to weigh.
        """
        if not failure.called:
            return {}
        later = [found for found in self.histories if _called_after(found, step_id, failure.called)]
        if any(self.histories[found].effect for found in later):
            return {}
        return {found: self.histories.pop(found) for found in later}

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
                self._unsettled.pop(undo_id, None)

    def _supersede(self, seq: int) -> None:
        """Go on as if nothing had been recorded from there on, but for effects that are not undone: those are not forgotten."""
        self.behind.clear()
        for step_id, history in self.from_seq(seq):
            del self.histories[step_id]
            self._unsettled.pop(step_id, None)
            undo = self.histories.get(f"{UNDO}{step_id}")  # as yet it can only be that of this very effect
            if history.effect and not (undo is not None and undo.landed()):
                self.superseded.append((step_id, history))
        own = {ask_id for ask_id, asked in self.asks.items() if asked.opened.topic == QUESTION and asked.seq >= seq}
        self.asks = {ask_id: asked for ask_id, asked in self.asks.items() if ask_id not in own}
        self.groups = {group for found in self.histories for group in _groups_above(found)}
        self.states = {name: [saved for saved in values if saved[0] < seq] for name, values in self.states.items()}

    def _turn(self, record: rec.RunForked | rec.StepEdited | rec.StateEdited) -> None:
        """Somebody went back to an earlier step: from here on the run takes another path."""
        if not (isinstance(record, rec.StepEdited) and record.in_fork):
            self.turned = record
        match record:
            case rec.RunForked():
                self.forked = record
                self.superseded, self.unread = heard(record.value)
            case rec.StepEdited():
                self.histories[record.step_id].edit(record)
                self._unsettled.pop(record.step_id, None)
            case rec.StateEdited():
                self.states.setdefault(record.step_id, []).append((record.after, record.value or b"null"))

    def _take_over(self, reused: str, fingerprint: str) -> None:
        """The result of an effect that was superseded has become that of a call: it stands for no other one."""
        found = named(self.superseded, reused, fingerprint)
        if found is not None:
            self.superseded.remove(found)

    def _index_beside(self, record: rec.Record, row: Row) -> None:
        """What is recorded beside the steps: states, times, waits, prints, models."""
        match record:
            case rec.StateSaved():
                self.states.setdefault(record.step_id, []).append((row.seq, record.value or b"null"))
            case rec.TimeRead():
                self.times.setdefault(record.step_id, []).extend(record.times_us)
            case rec.WaitBegun():
                self.waits[record.step_id] = record
            case rec.MessageTaken():
                self.taken.add(record.key)
                self.unread.pop(record.again, None)
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
            if not getattr(record, "lost", False):
                self.groups.update(_groups_above(record.step_id))
        if isinstance(record, rec.StepDone):
            self._take_over(record.reused, record.fingerprint)
        elif isinstance(record, rec.DoubtSettled) and record.verdict == "landed" and history.doubt is not None:
            self._take_over(history.doubt.same_as, history.fingerprint)
        history.fold(record, seq=row.seq, at_us=row.at_us, epoch=row.epoch)
        if history.outcome is not None:
            self.waits.pop(record.step_id, None)
        if isinstance(record, (rec.StepDone, rec.StepFailed)):
            self.models.fold(record)
        if history.effect and not isinstance(record, rec.StepDone):
            self._unsettled[record.step_id] = history
        elif self._unsettled:
            self._unsettled.pop(record.step_id, None)
