"""Parallel branches whose steps keep their numbers, and races whose winner is recorded, on an event loop.

Each branch is a scope of its own: the third step of branch 1 of the gather at 12 is `12.1.3` in every attempt. All branches finish
before an error is raised, and it is always that of the lowest branch. What cancels a branch is recorded before it cancels, so that
replay cancels at the same place.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, overload

from holdfast.errors import Misuse, ReplayMismatch, Unwinding, WrongMode
from holdfast.life.calls import Spec
from holdfast.life.commands import Commit, Hang, Life, Turn
from holdfast.life.drive import drive_async
from holdfast.life.run import Group, Run, Scope, place
from holdfast.records import kinds as rec
from holdfast.verbs.verbs import in_agent

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
T = TypeVar("T")
Errors: TypeAlias = Literal["raise", "return"]
Outcome: TypeAlias = tuple[Any, BaseException | None]
Branch: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]

RACE = "hf.first"

NO_BRANCH = "{0!r} gives hf.map nothing to await; {1}. In an `async def` agent map an `async def` function, which may call it"

MAX_BRANCHES = 10_000
"""Branches of one gather at the most; a longer list is mapped in pieces."""


def async_scope(verb: str) -> Scope:
    """The scope of an async verb; in a `def` agent the forgotten await would be a truthy coroutine."""
    scope = in_agent(verb)
    if scope.run.blocking:
        raise WrongMode(f"hf.{verb}", scope.run.started.agent, "It is a `def` agent: use `import holdfast.sync as hf`")
    return scope


def blocking_scope(verb: str) -> Scope:
    """The scope of a blocking verb, which would stop the event loop in an `async def` agent."""
    scope = in_agent(verb)
    if not scope.run.blocking:
        remedy = "It is an `async def` agent: use `import holdfast as hf` and await"
        raise WrongMode(f"holdfast.sync.{verb}", scope.run.started.agent, remedy)
    return scope


@overload
def gather(a: Awaitable[A], b: Awaitable[B], /, *, errors: Literal["raise"] = ...) -> Coroutine[Any, Any, tuple[A, B]]: ...
@overload
def gather(
    a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /, *, errors: Literal["raise"] = ...
) -> Coroutine[Any, Any, tuple[A, B, C]]: ...
@overload
def gather(
    a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], /, *, errors: Literal["raise"] = ...
) -> Coroutine[Any, Any, tuple[A, B, C, D]]: ...
@overload
def gather(
    a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], e: Awaitable[E], /, *, errors: Literal["raise"] = ...
) -> Coroutine[Any, Any, tuple[A, B, C, D, E]]: ...
@overload
def gather(*branches: Awaitable[T], errors: Literal["raise"] = ...) -> Coroutine[Any, Any, tuple[T, ...]]: ...
@overload
def gather(
    a: Awaitable[A], b: Awaitable[B], /, *, errors: Literal["return"]
) -> Coroutine[Any, Any, tuple[A | Exception, B | Exception]]: ...
@overload
def gather(
    a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /, *, errors: Literal["return"]
) -> Coroutine[Any, Any, tuple[A | Exception, B | Exception, C | Exception]]: ...
@overload
def gather(*branches: Awaitable[T], errors: Literal["return"]) -> Coroutine[Any, Any, tuple[T | Exception, ...]]: ...
def gather(*branches: Awaitable[Any], errors: Errors = "raise") -> Coroutine[Any, Any, tuple[Any, ...]]:
    """Wait for all branches; give their results in order, or raise the error of the lowest."""
    with _closed_where_refused(branches):
        scope = async_scope("gather")
        _refuse_results("gather", branches)
        step_id = reserved_group(scope, "gather")
    return _gathered(scope, step_id, [partial(_awaited, branch) for branch in branches], len(branches), errors)


@overload
def map(
    fn: Callable[[A], Awaitable[B]], items: Iterable[A], /, *, limit: int | None = ..., errors: Literal["raise"] = ...
) -> Coroutine[Any, Any, list[B]]: ...
@overload
def map(
    fn: Callable[[A], Awaitable[B]], items: Iterable[A], /, *, limit: int | None = ..., errors: Literal["return"]
) -> Coroutine[Any, Any, list[B | Exception]]: ...
def map(
    fn: Callable[[Any], Awaitable[Any]], items: Iterable[Any], /, *, limit: int | None = None, errors: Errors = "raise"
) -> Coroutine[Any, Any, list[Any]]:
    """Call `fn` for each item in a branch of its own, at most `limit` at a time."""
    scope = async_scope("map")
    spec = getattr(fn, "spec", None)
    if isinstance(spec, Spec) and not spec.is_async:
        raise Misuse(NO_BRANCH.format(spec.name, "nothing was executed"))
    step_id = reserved_group(scope, "map")
    branches, room = [partial(_called, fn, item) for item in items], checked_limit(limit)

    async def listed() -> list[Any]:
        return list(await _gathered(scope, step_id, branches, room, errors))

    return listed()


@overload
def first(a: Awaitable[A], b: Awaitable[B], /) -> Coroutine[Any, Any, A | B]: ...
@overload
def first(a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> Coroutine[Any, Any, A | B | C]: ...
@overload
def first(*branches: Awaitable[T]) -> Coroutine[Any, Any, T]: ...
def first(*branches: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    """The result of the branch that finishes first; the winner is recorded, the others are cancelled."""
    with _closed_where_refused(branches):
        scope = async_scope("first")
        _refuse_results("first", branches)
    if not branches:
        raise Misuse("hf.first needs at least one branch")
    return _raced(scope, scope.reserve(), branches)


@contextlib.contextmanager
def _closed_where_refused(branches: Iterable[Awaitable[Any]]) -> Iterator[None]:
    """Where no branch can begin, as in a run that is taken down, those given are closed: Python would say that they were never awaited."""
    try:
        yield
    except BaseException:
        for branch in branches:
            if inspect.iscoroutine(branch):
                branch.close()
        raise


class Quit(Unwinding):
    """Its cause would end the process. In a worker it takes down the run alone: out of a task, the cause itself would end the loop."""


def reserved_group(scope: Scope, verb: str) -> str:
    """The step id of a group of branches, under which nothing is recorded itself: a step that was would never be asked for."""
    step_id = scope.reserve()
    history = scope.run.journal.histories.get(step_id)
    if history is not None:
        raise scope.run.stop(ReplayMismatch(scope.run.id, step_id, history.name or "hf.timeout", f"calls hf.{verb}"))
    return step_id


async def _awaited(branch: Awaitable[Any]) -> Any:
    return await branch


async def _called(fn: Callable[[Any], Awaitable[Any]], item: Any) -> Any:
    branch = fn(item)
    if not inspect.isawaitable(branch):
        raise Misuse(NO_BRANCH.format(getattr(fn, "__name__", "the function"), "its result is not used"))
    return await branch


def _refuse_results(verb: str, branches: Sequence[object]) -> None:
    for branch in branches:
        if not inspect.isawaitable(branch):
            remedy = f"Branches are calls of `async def` functions, without `await`: hf.{verb}(one(1), one(2)), or hf.{verb}(*calls)"
            raise Misuse(f"a branch of hf.{verb} is {type(branch).__name__}, which cannot be awaited; no branch was started. {remedy}")


def _start(
    parent: Scope, path: str, branch: Branch, *, group: Group, gate: asyncio.Semaphore, doomed: bool = False
) -> asyncio.Task[Any]:
    """Start a branch as a task, which begins in a scope of its own as soon as there is room for it."""

    async def body() -> Any:
        async with gate:
            scope = Scope(parent.run, path, parent, doomed=doomed)
            group.begun += 1
            place.set(scope)
            try:
                return await branch()
            except (SystemExit, KeyboardInterrupt) as error:
                if parent.run.in_worker:
                    raise Quit from error
                raise
            finally:
                group.ended += 1
                scope.close()

    return asyncio.get_running_loop().create_task(body(), context=contextvars.copy_context())


async def _gathered(scope: Scope, step_id: str, branches: Sequence[Branch], limit: int, errors: Errors) -> tuple[Any, ...]:
    refuse_too_many(len(branches))
    gate = asyncio.Semaphore(max(limit, 1))
    with Group(scope, len(branches), limit) as group:
        tasks = [_start(scope, f"{step_id}.{index}", branch, group=group, gate=gate) for index, branch in enumerate(branches, 1)]
        await _all_done(tasks)
    return collected([_outcome(task) for task in tasks], errors)


def _outcome(task: asyncio.Task[Any]) -> Outcome:
    if task.cancelled():
        return None, asyncio.CancelledError()
    error = task.exception()
    return (task.result(), None) if error is None else (None, error)


async def _all_done(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for every task; a cancellation goes to all of them, and on when all have ended."""
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in tasks:
                task.cancel()
    if cancelled is not None:
        raise_unwinding([task.exception() for task in tasks if not task.cancelled()])
        raise cancelled


def collected(outcomes: Sequence[Outcome], errors: Errors) -> tuple[Any, ...]:
    """The results in order; an unwinding goes first, then the error of the lowest branch, which carries the others.

    Whoever resumes the run goes behind all of them: what failed in the other branches, the code has never seen.
    """
    for _, error in outcomes:
        if error is not None and not isinstance(error, Exception | Unwinding | asyncio.CancelledError):
            raise error
    raise_unwinding(error for _, error in outcomes)
    for _, error in outcomes:
        if error is not None and not isinstance(error, Exception):
            raise error
    failed = [error for _, error in outcomes if error is not None]
    if failed and errors == "raise":
        failed[0].__holdfast_beside__ = failed[1:]  # type: ignore[attr-defined]
        raise failed[0]
    return tuple(value if error is None else error for value, error in outcomes)


def raise_unwinding(errors: Iterable[BaseException | None]) -> None:
    """What takes the run down is not an error of one branch."""
    for error in errors:
        if isinstance(error, Unwinding):
            raise error


async def _raced(scope: Scope, step_id: str, branches: Sequence[Awaitable[Any]]) -> Any:
    won, seq = recorded_winner(scope, step_id)
    gate = asyncio.Semaphore(len(branches))
    with Group(scope, len(branches), len(branches)) as group:
        tasks = [
            _start(scope, f"{step_id}.{index + 1}", partial(_awaited, branch), group=group, gate=gate, doomed=won not in (None, index))
            for index, branch in enumerate(branches)
        ]
        winner = await _decided(scope, step_id, tasks, won, seq)
    return tasks[winner].result()


async def _decided(scope: Scope, step_id: str, tasks: Sequence[asyncio.Task[Any]], won: int | None, seq: int) -> int:
    """Who came first, recorded; by then the others have been cancelled and have ended."""
    run = scope.run
    try:
        winner = await _winner(tasks, won)
        await drive_async(record_winner(scope, step_id, winner, seq), run, scope)
        lose(run, step_id, winner)
        for task in tasks:
            if task is not tasks[winner]:
                task.cancel()
        await _all_done(tasks)
        raise_unwinding([task.exception() for task in tasks if not task.cancelled()])
    except (asyncio.CancelledError, Unwinding):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return winner


def recorded_winner(scope: Scope, step_id: str) -> tuple[int | None, int]:
    """Who won when the race was recorded, and at which seq; (None, 0) where it was not."""
    run = scope.run
    run.requested.add(step_id)
    history = run.journal.histories.get(step_id)
    if history is None or history.outcome is None:
        return None, 0
    if history.name != RACE:
        raise run.stop(ReplayMismatch(run.id, step_id, history.name or "hf.timeout", "calls hf.first"))
    return int(json.loads(history.outcome.value or b"0")), history.outcome_seq


async def _winner(tasks: Sequence[asyncio.Task[Any]], won: int | None) -> int:
    """The recorded winner once it has finished again, or whoever finishes first now."""
    if won is not None:
        await asyncio.wait([tasks[won]])
        return won
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    raise_unwinding(task.exception() for task in tasks if task.done() and not task.cancelled())
    return next(index for index, task in enumerate(tasks) if task.done())


def lose(run: Run, step_id: str, winner: int) -> None:
    """Mark the branches that lost, so that what is broken off in them says why; nobody will ask for what they had recorded."""
    kept = f"{step_id}.{winner + 1}."
    for scope in run.scopes:
        if f"{scope.path}.".startswith(f"{step_id}.") and not f"{scope.path}.".startswith(kept):
            scope.lost = step_id
    for waiter in list(run.waiters):
        if run.blocking and waiter.scope.lost:
            waiter.wake()  # a thread cannot be cancelled, but one that only waits can be told
    run.recorded -= {found for found in run.recorded if found.startswith(f"{step_id}.") and not found.startswith(kept)}


def record_winner(scope: Scope, step_id: str, winner: int, seq: int) -> Life[None]:
    """Who came first; a race that is cancelled before that was recorded, as the journal says of what is around it, comes to no end."""
    if not seq:
        if scope.to_be_cancelled() or (scope.run.blocking and scope.lost):
            yield Hang()
        record = rec.StepDone(step_id=step_id, name=RACE, fingerprint="", value=str(winner).encode())
        seq = yield Commit([record])
    yield Turn(seq)


def refuse_too_many(branches: int) -> None:
    if branches > MAX_BRANCHES:
        raise Misuse(f"{branches} branches at once; the limit is {MAX_BRANCHES}. Map in pieces")


def checked_limit(limit: object) -> int:
    if limit is None:
        return MAX_BRANCHES
    if not isinstance(limit, int) or limit < 1:
        raise Misuse(f"limit={limit!r}: at least one branch must be able to run")
    return limit
