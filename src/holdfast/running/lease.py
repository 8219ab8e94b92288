"""Ownership: who may write a run, and how a process tells that another one is dead.

An owner is one opened store in one process. On the same host (or the same volume) its death is proven by obtaining the lock that it
held for its life; elsewhere it counts as gone when its beat stood still for the lease time on the observer's own clock. `Keeper` is the
thread that beats, takes the letters of the runs that execute here, and lets steps that take long be seen.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Literal, TypeGuard

from holdfast._clock import Clock
from holdfast._ids import new_owner
from holdfast.budget import read_limits
from holdfast.errors import Cancelled, HoldfastError, Unwinding
from holdfast.life.bell import Bell
from holdfast.life.commit import Ticket
from holdfast.life.outcomes import started
from holdfast.life.run import MESSAGE, Run
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.records.ledger import BUDGET
from holdfast.store import Distant, Enrolled, Letter, Store

LEASE_S = 15.0
TICK_S = 0.1
LETTERS_S = 0.5
LONG_STEP_S = 0.1
HELD_S = 1.0
"""How long the outcome of a safe step is held back at the most."""


log = logging.getLogger("holdfast")

CHILD = "child"
"""The kind of a letter that says where to look: a child run was moved by somebody else."""

Life = Literal["alive", "dead", "expired"]


class Observer:
    """Watches other owners; what it has seen of their beats is measured on this process's own clock."""

    def __init__(self, store: Store, clock: Clock, lease_s: float) -> None:
        self._store, self._clock, self._lease_s = store, clock, lease_s
        self._seen: dict[str, tuple[int, float]] = {}

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """A look at the store. One that fails or takes long says that the store was away: who was silent meanwhile was so without fault."""
        began_s, whole = self._clock.monotonic_s(), False
        try:
            yield
            whole = self._clock.monotonic_s() - began_s < self._lease_s / 3
        finally:
            if not whole:
                self._seen.clear()

    def back_since(self, last_s: float) -> None:
        """Nobody has looked since then: if that is long ago, the store may have been away, and who was silent was so without fault."""
        if self._clock.monotonic_s() - last_s >= self._lease_s / 3:
            self._seen.clear()

    def life_of(self, owner: str) -> Life:
        """Whether `owner` is proven dead, has been silent for the lease time, or must be taken for alive."""
        with self.looking():
            pulse = self._store.pulse(owner)
        if pulse is not None and pulse.dead:
            return "dead"
        return "expired" if self._is_silent(owner, pulse.beat if pulse else 0) else "alive"

    def counts_as_gone(self, one: Enrolled) -> bool:
        """Whether an owner that was just read with all others is proven dead, or has been silent for the lease time."""
        return one.dead or self._is_silent(one.owner, one.beat)

    def _is_silent(self, owner: str, beat: int) -> bool:
        """Whether the beat stood still for the lease time, as far as was seen here."""
        now_s = self._clock.monotonic_s()
        last_beat, since_s = self._seen.setdefault(owner, (beat, now_s))
        if beat != last_beat:
            self._seen[owner] = (beat, now_s)
            return False
        return now_s - since_s >= self._lease_s


class Keeper:
    """This process as an owner: enrolled with its first run, beating on a thread of its own until it is closed."""

    def __init__(self, store: Store, clock: Clock, lease_s: float, bell: Bell) -> None:
        self.owner = new_owner()
        self.runs: dict[str, Run] = {}
        self.orphans: set[str] = set()
        self._taken: dict[str, object] = {}
        self._held_s: dict[tuple[str, int], float] = {}
        self._store, self._clock, self._lease_s, self._bell = store, clock, lease_s, bell
        self._letters_s = store.letters_every_s if isinstance(store, Distant) else LETTERS_S
        self._thread: threading.Thread | None = None
        self._closing, self._called = False, threading.Event()
        bell.tell(self._hear)
        self._lock = threading.Lock()

    def enroll(self) -> None:
        """Become an owner, before the first claim."""
        with self._lock:
            if self._thread is None:
                try:
                    self._store.enroll(self.owner)
                    thread = threading.Thread(target=self._loop, name="holdfast-keeper", daemon=True)
                    thread.start()
                except BaseException:
                    self.owner = new_owner()  # that one may be enrolled, and nobody is twice
                    raise
                self._thread = thread  # only now: one that Ctrl-C kept from starting cannot be joined

    def takes(self, run_id: str, by: object) -> bool:
        """Whether `by` is the one in this process that may claim the run: all share one owner, so the fence alone would let them all in."""
        return self._taken.setdefault(run_id, by) is by

    def let_go(self, run_id: str, by: object) -> None:
        """Let somebody else in this process claim the run."""
        if self._taken.get(run_id) is by:
            del self._taken[run_id]

    def close(self) -> None:
        """Stop beating; an owner that holds nothing is forgotten, one that left a run behind stays to be found dead."""
        self._closing = True
        self._called.set()
        if self._thread is not None:
            self._thread.join()
            with contextlib.suppress(HoldfastError):
                self.orphans = {run_id for run_id in self.orphans if self._has(run_id)}
            if not self.runs and not self.orphans:
                self._store.retire(self.owner)

    def _has(self, run_id: str) -> bool:
        head = self._store.head(run_id)
        return head is not None and head.owner == self.owner

    def _loop(self) -> None:
        beat_s = letters_s = self._clock.monotonic_s()
        while True:
            called = self._called.wait(TICK_S)
            self._called.clear()
            if self._closing:
                return
            now_s = self._clock.monotonic_s()
            try:
                if now_s - beat_s >= self._lease_s / 3:
                    beat_s = now_s
                    self._store.renew(self.owner)
                if self.runs:
                    self._bell.listen()
                self._show_long_steps()
                self._write_held()
                if (self.runs or self.orphans) and (called or now_s - letters_s >= self._letters_s):
                    letters_s = now_s
                    self.take_letters()
                    self.release_orphans()
            except BaseException as error:  # noqa: BLE001 (whatever it is, the beat must go on)
                log.warning("the lease could not be renewed or letters not be read, trying again: %s: %s", type(error).__name__, error)

    def _hear(self, run_id: str) -> None:
        """There is news of a run: letters to one that executes here are read at once, and who waits for a child run looks at it."""
        if not run_id or run_id in self.runs:
            self._called.set()
        for run in list(self.runs.values()):
            for waiter in list(run.waiters):
                if waiter.step_id == f"child:{run_id}":
                    waiter.wake()

    def _show_long_steps(self) -> None:
        began_us = self._clock.now_us() - LONG_STEP_S * 1e6
        for run in list(self.runs.values()):
            for step_id, (call, attempt) in list(run.long_steps.items()):
                if attempt and call.started_at_us <= began_us and not run.turnstile.replaying:
                    run.long_steps[step_id] = (call, 0)
                    run.committer.post(run.journal, [started(call, attempt)], _still(run, step_id))

    def _write_held(self) -> None:
        """Let what is held back be seen, and be safe, after a while; a while is not what a clock says that may have been set back."""
        now_s, seen_s = self._clock.monotonic_s(), self._held_s
        runs = [run for run in list(self.runs.values()) if run.journal.held]
        self._held_s = {first: seen_s.get(first, now_s) for first in (_first_held(run) for run in runs)}
        for run in runs:
            if now_s - self._held_s.get(_first_held(run), now_s) >= HELD_S:
                run.committer.flush_soon(run.journal)

    def release_orphans(self) -> None:
        """Let go of runs that a failing store left in the name of this owner, which nobody executes any more."""
        for run_id in list(self.orphans):
            found = self._store.load(run_id)
            if found is None or found[0].owner != self.owner or run_id in self._taken:
                self.orphans.discard(run_id)
                continue
            journal = Journal.load(*found)
            released = journal.seal([rec.RunReleased(reason="its end could not be recorded")], at_us=self._clock.now_us())
            self._store.append([released])

    def take_letters(self) -> None:
        """Read what others want of the runs that execute here."""
        for letter in self._store.letters(list(self.runs)):
            run = self.runs.get(letter.run_id)
            if run is not None and letter.letter_id not in run.heard and letter.kind != CHILD:
                deliver(run, letter)


def _first_held(run: Run) -> tuple[str, int]:
    """Where that begins which a run holds back; 0 where it was written a moment ago."""
    held = run.journal.held[:1]
    return run.id, held[0].seq if held else 0


def _still(run: Run, step_id: str) -> Callable[[], bool]:
    return lambda: step_id in run.long_steps


def deliver(run: Run, letter: Letter) -> None:
    """Act on a letter; the record of what was taken is written with what follows from it."""
    body = _read(letter)
    with run.lock:
        undoing = letter.kind == "pause" and run.journal.undoing is not None  # which takes its time, and can be paused
        if (run.concluding and not undoing) or letter.letter_id in run.heard:
            return  # what is to be recorded of its end is decided; whoever takes the run next reads the letter
        run.heard.add(letter.letter_id)
        if letter.kind == "cancel" and body:
            _ask_to_end(run, body, letter)
        word = _word(run, body, letter) if body else None
        ticket = run.committer.submit(run.journal, [word], [letter.letter_id]) if word is not None else None
        run.telling += ticket is not None  # who decides meanwhile that the run parks does not find it in the journal yet
        named = run.mail.put(letter.letter_id, body) if letter.kind == "message" and _is_message(body) else ""
    if ticket is not None:
        _told(run, ticket)
        return
    match letter.kind:
        case "cancel" if body:
            _cancel(run, run.cancelling)
        case "pause" if body:
            run.leave(rec.RunPaused(by=body["by"], reason=body.get("reason", "")), at_once=bool(body.get("now")))
            run.stale.append(letter.letter_id)  # behind it: should the run end in between, whoever takes it next reads the letter
        case "settle" | "answer" if body:
            run.stale.append(letter.letter_id)
            what = f"doubt at step {body['step']}" if letter.kind == "settle" else f"question {body['ask']}"
            log.warning("run %s has no open %s any more; the word of %s changes nothing", run.id, what, body["by"])
        case "message" if _is_message(body):
            if named:  # and was not taken before
                _wake(run, f"{MESSAGE}{named}")
        case kind if kind == CHILD and body:
            run.taking.append(letter.letter_id)  # the step that waits looks by itself; if the run parks, it may have looked before
        case _:
            run.stale.append(letter.letter_id)
            log.warning("run %s got a letter of kind %r that cannot be read; it is taken and ignored", run.id, letter.kind)


def _read(letter: Letter) -> rec.Json | None:
    try:
        body = json.loads(letter.body)
    except ValueError:
        return None
    return body if isinstance(body, dict) and "by" in body else None


def _ask_to_end(run: Run, body: rec.Json, letter: Letter) -> None:
    """The run is to be cancelled; where it is to be undone, not before it has been replayed to its live edge and knows what it did."""
    undo, by, reason = bool(body.get("undo")), body["by"], body.get("reason", "")
    undoing, parent = run.journal.undoing, run.started.parent.get("run", "")
    had_dropped = undoing is not None and by == undoing.by == f"run {parent}"  # before it was undone itself, and its child with it
    if undoing is not None and (undo or had_dropped):
        run.stale.append(letter.letter_id)  # the run goes on with that undo anyway, and may park at a doubt in it
        return
    run.taking.append(letter.letter_id)
    run.undo.asked = rec.RunUndoing(by=by, reason=reason) if undo else None
    if not undo or run.at_live_edge():
        run.cancelling = Cancelled(by, reason)


def _limits(body: rec.Json) -> dict[str, float]:
    try:
        return read_limits(dict(body["limits"]))
    except (HoldfastError, KeyError, TypeError, ValueError):
        return {}


def _cancel(run: Run, cancelled: Cancelled | None) -> None:
    """Cancel a run that executes here: an async one at once, a blocking one at its next step."""
    root = run.root
    with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
        if root is not None:
            root.get_loop().call_soon_threadsafe(run.end_when_known if cancelled is None else run.cancel_root, root)
        for waiter in list(run.waiters) if cancelled is not None else ():
            waiter.wake(cancelled)
    for child in list(run.children.values()) if cancelled is not None else ():
        if child.blocking and not child.concluding:
            child.cancelling = child.cancelling or child.cancelled_from_above()
            _cancel(child, child.cancelling)


def _word(run: Run, body: rec.Json, letter: Letter) -> rec.Record | None:
    """What somebody said, to be recorded; None where a letter is of another kind, or changes nothing any more."""
    match letter.kind:
        case "settle":
            return _settled(run, body)
        case "answer":
            return _answered(run, body, letter)
        case "budget" if _limits(body):
            return rec.BudgetSet(step_id=BUDGET, limits=_limits(body), by=body["by"], reason=body.get("reason", ""))
    return None


def _settled(run: Run, body: rec.Json) -> rec.Record | None:
    history = run.journal.histories.get(body["step"])
    if history is None or not history.open_doubt(run.journal.head.epoch) or not history.put_to_a_person():
        return None
    value = body["value"].encode() if body.get("value") is not None else None
    return rec.DoubtSettled(step_id=body["step"], verdict=body["verdict"], by=body["by"], reason=body.get("reason", ""), value=value)


def _answered(run: Run, body: rec.Json, letter: Letter) -> rec.Record | None:
    question = run.journal.asks.get(body["ask"])
    if question is None or not question.is_open() or question.too_late(letter.at_us) or body.get("about", question.seq) != question.seq:
        return None
    value = body["value"].encode() if body.get("value") is not None else None
    said: rec.Json = {"yes": bool(body["yes"]), "by": body["by"], "reason": body.get("reason", "")}
    return rec.AskAnswered(step_id=body["ask"], **said, value=value, letter=letter.letter_id)


def _is_message(body: rec.Json | None) -> TypeGuard[rec.Json]:
    return body is not None and "name" in body and "value" in body


def _told(run: Run, ticket: Ticket) -> None:
    """Have recorded what a person said, in the same transaction as the letter is taken, and wake whoever waits for it."""
    try:
        run.committer.settle(ticket)
    except Unwinding as ended:
        run.unwind(ended)
        return
    finally:
        with run.lock:
            run.telling -= 1
    _wake(run, *(record.step_id for record in ticket.records))


def _wake(run: Run, *names: str) -> None:
    """Let those go on that wait for one of these."""
    for waiter in list(run.waiters):
        if waiter.step_id in names:
            waiter.wake()
