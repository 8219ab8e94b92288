"""Parallel branches for `def` agents: the same verbs, in threads.

A thread cannot be cancelled: the losers of a race end at their next step, and are waited for.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, overload

from holdfast.errors import BranchLost, Misuse, Parked, RunInterrupted
from holdfast.life.drive import drive_blocking
from holdfast.life.run import Group, Run, Scope, place
from holdfast.verbs.branches import (
    Errors,
    Outcome,
    blocking_scope,
    checked_limit,
    collected,
    lose,
    raise_unwinding,
    record_winner,
    recorded_winner,
    refuse_too_many,
    reserved_group,
)  # fmt: skip

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
T = TypeVar("T")

MAX_THREADS = 32
"""Threads of one map at the most."""

BEGINS_S = 1.0
"""How long it takes at the most until a thread that was started begins."""

ANY_TIME_S = -1.0
"""However long it takes."""

Branch: TypeAlias = tuple[threading.Lock, threading.Lock]
"""Free once a branch has begun, and once it has ended. No events: they wait in Python, which Ctrl-C can leave locked for ever."""


@overload
def gather(a: Callable[[], A], b: Callable[[], B], /, *, errors: Literal["raise"] = ...) -> tuple[A, B]: ...
@overload
def gather(a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], /, *, errors: Literal["raise"] = ...) -> tuple[A, B, C]: ...
@overload
def gather(
    a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], d: Callable[[], D], /, *, errors: Literal["raise"] = ...
) -> tuple[A, B, C, D]: ...
@overload
def gather(
    a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], d: Callable[[], D], e: Callable[[], E], /, *, errors: Literal["raise"] = ...
) -> tuple[A, B, C, D, E]: ...
@overload
def gather(*branches: Callable[[], T], errors: Literal["raise"] = ...) -> tuple[T, ...]: ...
@overload
def gather(a: Callable[[], A], b: Callable[[], B], /, *, errors: Literal["return"]) -> tuple[A | Exception, B | Exception]: ...
@overload
def gather(
    a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], /, *, errors: Literal["return"]
) -> tuple[A | Exception, B | Exception, C | Exception]: ...
@overload
def gather(*branches: Callable[[], T], errors: Literal["return"]) -> tuple[T | Exception, ...]: ...
def gather(*branches: Callable[[], Any], errors: Errors = "raise") -> tuple[Any, ...]:
    """Call all branches, each in a thread of its own; give their results in order, or raise the error of the lowest."""
    scope = blocking_scope("gather")
    return collected(_run_threads(scope, reserved_group(scope, "gather"), branches, limit=len(branches) or 1), errors)


@overload
def map(fn: Callable[[A], B], items: Iterable[A], /, *, limit: int | None = ..., errors: Literal["raise"] = ...) -> list[B]: ...
@overload
def map(fn: Callable[[A], B], items: Iterable[A], /, *, limit: int | None = ..., errors: Literal["return"]) -> list[B | Exception]: ...
def map(
    fn: Callable[[Any], Any], items: Iterable[Any], /, *, limit: int | None = None, errors: Errors = "raise"
) -> list[Any]:
    """Call `fn` for each item in a branch of its own, at most `limit` at a time."""
    scope = blocking_scope("map")
    threads = min(checked_limit(limit), MAX_THREADS)
    return list(collected(_run_threads(scope, reserved_group(scope, "map"), [_bound(fn, item) for item in items], limit=threads), errors))


@overload
def first(a: Callable[[], A], b: Callable[[], B], /) -> A | B: ...
@overload
def first(a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], /) -> A | B | C: ...
@overload
def first(*branches: Callable[[], T]) -> T: ...
def first(*branches: Callable[[], Any]) -> Any:
    """The result of the branch that finishes first; the others end at their next step, and are waited for."""
    scope = blocking_scope("first")
    if not branches:
        raise Misuse("hf.first needs at least one branch")
    race = _Race(scope, scope.reserve())
    outcomes = _run_threads(scope, race.step_id, branches, limit=len(branches), race=race)
    raise_unwinding(error for _, error in outcomes)
    assert race.winner is not None
    value, error = outcomes[race.winner]
    if error is not None:
        raise error
    return value


class _Race:
    """Who comes first among threads: decided under a lock, and recorded before those who are at work are told."""

    def __init__(self, scope: Scope, step_id: str) -> None:
        self.scope, self.step_id = scope, step_id
        self.winner, self.seq = recorded_winner(scope, step_id)
        self.recorded = self.winner
        self._over = False
        self._lock = threading.Lock()

    def entered(self, index: int, branch: Scope) -> None:
        """A branch begins; where the race is over already, it has lost before its first step."""
        with self._lock:
            if self._over and self.winner != index:
                branch.lost = self.step_id

    def finished(self, index: int, branch: Scope) -> None:
        """A branch has come to its end, with a result or an error."""
        with self._lock:
            if self._over or self.recorded not in (None, index):
                return
            self._over, self.winner = True, index
        # without the lock: on replay a branch that has yet to enter may have its turn before this
        drive_blocking(record_winner(branch, self.step_id, index, self.seq), self.scope.run, branch)
        lose(self.scope.run, self.step_id, index)


def _bound(fn: Callable[[Any], Any], item: Any) -> Callable[[], Any]:
    return lambda: fn(item)


def _run_threads(
    scope: Scope, step_id: str, branches: Sequence[Callable[[], Any]], *, limit: int, race: _Race | None = None
) -> list[Outcome]:
    """Run every branch in a thread with a scope of its own, at most `limit` at a time, and wait for all."""
    refuse_too_many(len(branches))
    if not all(callable(branch) for branch in branches):
        raise Misuse("the branches of a blocking gather or first are functions, not results: hf.gather(lambda: one(1), lambda: one(2))")
    outcomes: list[Outcome] = [(None, None)] * len(branches)
    marks = [(_taken(), _taken()) for _ in branches]
    gate = threading.Semaphore(limit)
    won = race.recorded if race else None

    def body(index: int) -> None:
        begun, ended = marks[index]
        begun.release()
        inner = Scope(scope.run, f"{step_id}.{index + 1}", scope, doomed=won not in (None, index))
        group.begun += 1
        place.set(inner)
        try:
            if race:
                race.entered(index, inner)
            outcomes[index] = _called(branches[index])
            if race and not isinstance(outcomes[index][1], BranchLost):
                race.finished(index, inner)
        except BaseException as error:  # noqa: BLE001 (carried to the thread that gathers)
            outcomes[index] = (None, error)
        finally:
            group.ended += 1
            inner.close()
            ended.release()
            gate.release()

    with Group(scope, len(branches), limit) as group:
        started: list[Branch] = []
        try:
            for index, mark in enumerate(marks):
                gate.acquire()  # as soon as there is room for it
                run = contextvars.copy_context().run
                thread = threading.Thread(target=run, args=(body, index), name=f"holdfast-{step_id}.{index + 1}", daemon=True)
                started.append(mark)  # before it begins: a Ctrl-C may come before `start` returns
                thread.start()
            _wait_for(started)
        except BaseException as error:
            why = _taken_down(scope.run, step_id, error)
            _wait_for(started, BEGINS_S)
            if why is error:
                raise
            raise why from error
    return outcomes


def _taken_down(run: Run, step_id: str, error: BaseException) -> BaseException:
    """What ends a run whose branches could not be begun or waited for; those that have begun end at their next step."""
    if isinstance(error, RuntimeError) and isinstance(error.__context__, KeyboardInterrupt):
        error = error.__context__  # inside a lock of Python's own, Ctrl-C comes out as an error of that lock
    if isinstance(error, Exception):
        return run.stop(RunInterrupted(run.id, step_id, f"its branches could not be executed ({type(error).__name__}: {error})"))
    run.left_by = run.left_by or error
    run.unwind(Parked())
    return error


def _wait_for(started: Sequence[Branch], begin_within_s: float = ANY_TIME_S) -> None:
    """Wait for branches to end; not by joining their threads, because a join that is interrupted takes its thread for ended.

    One whose thread was interrupted before it began never ends.
    """
    for begun, ended in started:
        if begun.acquire(timeout=begin_within_s):
            begun.release()
            with ended:
                pass


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _called(branch: Callable[[], Any]) -> Outcome:
    try:
        return branch(), None
    except BaseException as error:  # noqa: BLE001 (an outcome of the branch)
        return None, error
