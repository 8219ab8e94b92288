"""Holdfast: an opened store with everything that runs need, and the verbs of those who run and operate agents."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, TypeVarTuple, Unpack, overload

from holdfast._clock import Clock, SystemClock
from holdfast._duration import Duration, seconds
from holdfast._ids import checked_run_id, checked_text
from holdfast._options import refuse_unknown
from holdfast.app.child import Children, Started
from holdfast.app.frames import interrupted, without_our_frames
from holdfast.app.handle import Handle, to_be_awaited
from holdfast.app.loop import Loop, on_a_loop
from holdfast.app.terminal import at_a_terminal
from holdfast.app.transferring import Transferring
from holdfast.app.working import Working
from holdfast.budget import Budget, checked
from holdfast.errors import HoldfastError, Misuse
from holdfast.large.packed import packed
from holdfast.life.bell import Bell
from holdfast.life.commit import Committer
from holdfast.life.metering import Meter
from holdfast.life.run import OnAsk, Scope, place
from holdfast.limits import Limit
from holdfast.records.journal import Journal
from holdfast.running.engine import Engine, Order
from holdfast.running.lease import LEASE_S, Keeper, Observer
from holdfast.running.ordering import RunOptions, checked_tags, not_an_agent, ordered, refuse_while_loading
from holdfast.running.runner import attend_async, attend_blocking
from holdfast.store import Store, is_store
from holdfast.stores.opening import open_store, store_option
from holdfast.verbs.decorators import Agent

if TYPE_CHECKING:
    from holdfast.large.artifact import Artifact
    from holdfast.operating.checking import Verdict
    from holdfast.operating.checkpoints import Checkpoint
    from holdfast.operating.compare import Difference
    from holdfast.operating.drift import Comparison
    from holdfast.operating.follow import Event
    from holdfast.operating.pruning import Pruning
    from holdfast.operating.repair import Mending
    from holdfast.operating.timetravel import Effects
    from holdfast.operating.views import CheckpointView, Item, RunView, Summary
    from holdfast.retention import Retention

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

STORE_VARIABLE = "HOLDFAST_STORE"

class ChildHandle(Handle[R]):
    """A child run that the code of a run started: what is asked of it is a part of that run."""

    def __init__(self, child: Started) -> None:
        self._child = child

    @property
    def id(self) -> str:
        """The run id."""
        return self._child.run_id

    async def result(self, *, timeout: Duration | None = None) -> R:
        """Wait for the result; a time-out is recorded, and leaves the child going."""
        return await self._child.result(timeout)  # type: ignore[no-any-return]

    def status(self) -> str:
        """Where the child stands now."""
        return self._child.status()

    def cancel(self, *, undo: bool = False, by: str = "", reason: str = "") -> None:
        """Cancel the child for good, as a step of the run."""
        self._child.cancel(undo=undo, by=by, reason=reason)

    def when_ended(self, fn: Callable[[], object]) -> None:
        """Have `fn` called when the child has ended here."""
        self._child.task.add_done_callback(lambda _: fn())


class Holdfast(Transferring, Working):
    """An opened store. Use it as a context manager; `run` and `start` execute agents, the other methods are the operators' verbs."""

    def __init__(
        self,
        store: Store | str | Path | None = None,
        *,
        resources: Sequence[object] = (),
        lease: Duration = LEASE_S,
        clock: Clock | None = None,
        on_ask: OnAsk | None = None,
        park_after: Duration = 0,
        limits: Sequence[Limit] = (),
    ) -> None:
        clock, lease_s = clock or SystemClock(), seconds(lease, "lease")
        if not lease_s:
            raise Misuse('lease=0: each process would count as gone at once, its runs as free; nothing was opened. Such as lease="15s"')
        opened = store if is_store(store) else open_store(default_store() if store is None else store)
        self._opened, opened = opened, packed(opened, clock)
        bell = Bell(opened)
        self.engine = Engine(
            store=opened, clock=clock, committer=Committer(opened, clock), keeper=Keeper(opened, clock, lease_s, bell), bell=bell,
            observer=Observer(opened, clock, lease_s), resources=tuple(resources), lease_s=lease_s,
            on_ask=_checked_on_ask(on_ask), park_after_s=seconds(park_after, "park_after"), nest=Children,
            meter=Meter(opened, clock, limits),
        )  # fmt: skip
        self.loop = Loop()

    @property
    def store(self) -> Store:
        """The store that was opened. Its own rows are packed where values are large or grow (docs/format.md)."""
        return self._opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what waits, stop the threads and let go of the store; while a run executes the store stays open.

        To let go of its lock would prove a death that has not happened: the effect of that run may be under way.
        """
        self.loop.close()
        self.engine.committer.close()
        self.engine.keeper.close()
        if not self.engine.keeper.runs:
            self.engine.store.close()

    @overload
    def run(
        self, agent: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, wait: bool = ..., **options: Unpack[RunOptions]
    ) -> R: ...
    @overload
    def run(self, agent: Callable[[*Ts], R], /, *args: *Ts, wait: bool = ..., **options: Unpack[RunOptions]) -> R: ...
    def run(self, agent: Callable[[*Ts], Any], /, *args: *Ts, wait: bool = True, **options: Unpack[RunOptions]) -> Any:
        """Run an agent and give its result, like `asyncio.run`. The same line again after a crash goes on where it stopped.

        An unknown id starts; an unfinished or failed run goes on from its last finished step; a done one gives its recorded result.
        A run that another live process owns is waited for. With wait=False a run that waits for a person raises `RunWaiting`.
        """
        return self.carry_out(ordered(agent, args, wait=wait, options=options, beside=("wait",)))

    def carry_out(self, order: Order) -> Any:
        """Attend to an order, blocking until it has its result."""
        if order.agent.is_async and on_a_loop():
            raise Misuse("hf.run blocks like asyncio.run and cannot be called on a running loop; nothing began. Use `await hf.start(...)`")
        order = replace(order, voice=at_a_terminal(self.engine)) if order.wait else order
        try:
            if order.agent.is_async:
                return self.loop.run(attend_async(self.engine, order))
            return contextvars.copy_context().run(attend_blocking, self.engine, order)  # as on a loop, nothing of it stays behind
        except Exception as error:
            without_our_frames(error)
            _tell_store(error, self.engine.store.url)
            raise
        except KeyboardInterrupt as pressed:
            raise interrupted(pressed, _as_left(self.engine, order.run_id)) from None

    @overload
    def start(
        self, agent: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Unpack[RunOptions]
    ) -> Coroutine[Any, Any, Handle[R]]: ...
    @overload
    def start(
        self, agent: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[RunOptions]
    ) -> Coroutine[Any, Any, Handle[R]]: ...
    def start(self, agent: Callable[[*Ts], Any], /, *args: *Ts, **options: Unpack[RunOptions]) -> Coroutine[Any, Any, Handle[Any]]:
        """Run an agent in this event loop (a `def` agent in a thread) and give a handle to it at once; inside a run, as its child."""
        return to_be_awaited(lambda: self._begin(agent, args, options))

    def _begin(self, agent: Any, args: tuple[Any, ...], options: RunOptions) -> Handle[Any]:
        nest = _inside()
        if nest is not None:
            if nest.engine is not self.engine:
                raise Misuse("app.start was called inside a run of another store; nothing was started. A child is kept with its parent")
            return _child_handle(nest, agent, args, options)
        order = ordered(agent, args, wait=True, options=options)
        work = attend_async(self.engine, order) if order.agent.is_async else asyncio.to_thread(attend_blocking, self.engine, order)
        return Handle(self.engine, order.run_id, agent=order.agent, task=asyncio.create_task(work))

    @overload
    def handle(self, run_id: str, agent: Callable[..., Coroutine[Any, Any, R]]) -> Handle[R]: ...
    @overload
    def handle(self, run_id: str, agent: Callable[..., R]) -> Handle[R]: ...
    @overload
    def handle(self, run_id: str, agent: None = ...) -> Handle[Any]: ...
    def handle(self, run_id: str, agent: Callable[..., Any] | None = None) -> Handle[Any]:
        """A handle to a run that any process executes; with its agent, the result is given in the agent's type, else as plain JSON."""
        if agent is not None and not isinstance(agent, Agent):
            raise Misuse(f"app.handle was given {agent!r:.80}, which is no agent. Give the agent of the run, or none")
        return Handle(self.engine, checked_run_id(run_id), agent=agent)

    def tail(self, run_id: str, *, after: int = 0) -> Iterator[Event]:
        """The records of a run behind `after` and what it emits, live and blocking, until it has ended and nobody executes it."""
        from holdfast.operating import follow

        if not isinstance(after, int):
            raise Misuse(f"after={after!r:.80} must be the number of a record")
        return follow.tail(self.engine, run_id, after=after)

    def runs(
        self,
        *,
        status: str | Sequence[str] = (),
        agent: str | None = None,
        tags: Mapping[str, str] | None = None,
        idle: Duration | None = None,
        queue: str | None = None,
        limit: int = 100,
    ) -> list[Summary]:
        """The runs that match, the one that changed last first."""
        from holdfast.operating import views

        return views.runs(self.engine, status=status, agent=agent, tags=checked_tags(tags), idle=idle, queue=queue, limit=limit)

    def ready(self, *, agent: str | None = None, limit: int = 100) -> list[Summary]:
        """The runs that nobody executes and that can go on now: their time has come, somebody has answered or sent, or they are queued."""
        from holdfast.fleet import waking
        from holdfast.operating import views

        return [views.summary(self.engine, head) for head in waking.ready(self.engine, agent=agent, limit=limit)]

    def show(self, run_id: str) -> RunView:
        """Where a run stands, who owns it, what it waits for, and the command to try next."""
        from holdfast.operating import views

        return views.show(self.engine, run_id)

    def show_at(self, run_id: str, step_id: str | int) -> CheckpointView:
        """What the agent knew after a step: its call and result, the state, and what came before."""
        from holdfast.operating import views

        return views.show_at(self.engine, run_id, str(step_id))

    def drift(self, run_id: str, *, urls: bool = False) -> list[Comparison]:
        """What a run relies on, compared with what it is here and now; with urls=True, pages are fetched too. Nothing is written."""
        from holdfast.operating import drift

        return drift.drift(self.engine, run_id, urls=urls)

    def history(self, run_id: str) -> list[Checkpoint]:
        """Every checkpoint of a run, in order."""
        from holdfast.operating import views

        return views.history(self.engine, run_id)

    def diff(self, left: str, right: str) -> Difference:
        """What differs between two checkpoints, each RUN@STEP or RUN as it stands now; of two runs, also where they part."""
        from holdfast.operating import compare

        return compare.diff(self.engine, checked_text(left, "left"), checked_text(right, "right"))

    def inbox(self) -> list[Item]:
        """What needs a person: doubts and blocked runs, each with the command that settles it."""
        from holdfast.operating import views

        return views.inbox(self.engine)

    def check(self, run_id: str | None = None) -> list[Verdict]:
        """Whether what is stored is what was written, for one run or all."""
        from holdfast.operating import checking

        return list(checking.check(self.engine, run_id))

    def artifact(self, run_id: str, digest: str) -> Artifact:
        """The artifact of a run whose digest begins so; six digits are enough where no other begins with them."""
        from holdfast.operating import shelved, views

        return shelved.artifact(self.store, run_id, views.loaded(self.engine, run_id)[1], digest)

    def artifacts(self, run_id: str) -> list[Artifact]:
        """The artifacts that a run refers to, in the order of its records."""
        from holdfast.operating import shelved, views

        return shelved.artifacts_of(self.store, run_id, views.loaded(self.engine, run_id)[1])

    def repair(self, run_id: str, *, dry_run: bool, by: str | None = None, reason: str = "") -> Mending:
        """Put a damaged run back to its last good record, moving the rest aside; with dry_run=True only say what that would do."""
        from holdfast.operating import repair
        from holdfast.operating.telling import somebody

        return repair.repair(self.engine, run_id, dry_run=dry_run, by=by or somebody(), reason=reason)

    def prune(
        self,
        retention: Retention,
        *,
        dry_run: bool,
        status: str | Sequence[str] = (),
        agent: str | None = None,
        tags: Mapping[str, str] | None = None,
        compact: bool = False,
        by: str | None = None,
        reason: str = "",
    ) -> Pruning:
        """Remove runs that have ended and that the policy does not keep, and the details of old steps; with dry_run=True only say which.

        What has not ended stays, and goes on as before. With compact=True the store gives its free room back, which may take long.
        """
        from holdfast.operating import pruning
        from holdfast.operating.telling import somebody

        statuses = (status,) if isinstance(status, str) else tuple(status)
        ordered = pruning.Ordered(
            retention=retention, by=by or somebody(), reason=reason, dry_run=dry_run, statuses=statuses, agent=agent,
            tags=checked_tags(tags),
        )  # fmt: skip
        return pruning.prune(self.engine, ordered, compact=compact)

    def resolve(
        self,
        run_id: str,
        step_id: str | int,
        *,
        landed: object = ...,
        not_landed: bool = False,
        by: str | None = None,
        reason: str = "",
    ) -> str:
        """Say what is true of a doubt: it landed, with this result, or it did not."""
        from holdfast.operating import words
        from holdfast.operating.telling import somebody

        who = by or somebody()
        return words.resolve(self.engine, run_id, str(step_id), landed=landed, not_landed=not_landed, by=who, reason=reason)

    def answer(
        self,
        run_id: str,
        ask_id: str | int,
        value: object = ...,
        *,
        yes: bool | None = None,
        typed: str | None = None,
        by: str | None = None,
        reason: str = "",
        about: int = 0,
    ) -> str:
        """Answer a question of a run with a value, with yes=True or False, or with what a person typed; the first answer is for good.

        With `about`, the `about` of what `inbox` gave: refused where the run asks something else by now.
        """
        from holdfast.operating import words
        from holdfast.operating.telling import somebody

        if not isinstance(about, int):
            raise Misuse(f"about={about!r:.80} must be the number that `inbox` gave; nothing was changed")
        if sum((value is not ..., yes is not None, typed is not None)) != 1:
            raise Misuse("answer takes one of value, yes= and typed=; nothing was changed")
        given = words.Given(typed, typed=True) if typed is not None else words.Given(yes if yes is not None else value)
        return words.answer(self.engine, run_id, str(ask_id), given=given, by=by or somebody(), reason=reason, about=about)

    def send(self, run_id: str, name: str, value: object = None, *, key: str = "", by: str | None = None) -> str:
        """Leave a message for a run; its code takes it with `hf.receive`, once, now or later. The same `key` again is the same message."""
        from holdfast.operating import words
        from holdfast.operating.telling import somebody

        return words.send(self.engine, run_id, name, value, by=by or somebody(), key=key)

    def cancel(self, run_id: str, *, undo: bool = False, by: str | None = None, reason: str = "") -> str:
        """Close a run for good; one that executes elsewhere is told to stop. With undo=True whoever has its code undoes what it did."""
        from holdfast.operating import operate
        from holdfast.operating.telling import somebody

        return (operate.undo if undo else operate.cancel)(self.engine, run_id, by=by or somebody(), reason=reason)

    def resume(
        self,
        run_id: str,
        *,
        budget: Budget | None = None,
        effects: Literal["ask", "repeat"] = "ask",
        by: str | None = None,
        reason: str = "",
    ) -> str:
        """Mark a failed, blocked or waiting run as ready for whoever runs its agent next.

        The limits of `budget` take the place of the code's from now on, also of a run that executes; a question about a limit is settled.
        With effects="repeat" what is not on record did not happen, whatever a repair could not read: it is executed.
        """
        from holdfast.operating import operate
        from holdfast.operating.telling import somebody

        who = by or somebody()
        if budget is not None and effects != "ask":
            raise Misuse("say one after the other: first effects=, then budget=; nothing was changed")
        if budget is not None:
            return operate.allow(self.engine, run_id, budget, by=who, reason=reason)
        return operate.resume(self.engine, run_id, by=who, reason=reason, effects=effects)

    def accept(self, run_id: str, *, by: str | None = None, reason: str = "") -> str:
        """Let a run go on with changed code that blocks it, or with a model that changed; effects that happened are not done again."""
        from holdfast.operating import operate
        from holdfast.operating.telling import somebody

        return operate.accept(self.engine, run_id, by=by or somebody(), reason=reason)

    def edit(
        self,
        run_id: str,
        step: str | int,
        value: object,
        *,
        effects: Effects = "ask",
        fits: object = None,
        by: str | None = None,
        reason: str = "",
    ) -> str:
        """Give a finished step another result, as JSON, and have the run go on from there; what came after is kept, as superseded.

        `fits` is the decorated step, or the type, that the value is checked by; without it, it must be of the kind that it was.
        """
        from holdfast.operating import timetravel
        from holdfast.operating.telling import somebody

        said = timetravel.word(by or somebody(), reason, effects)
        return timetravel.edit(self.engine, run_id, str(step), value, said=said, fits=fits)

    def edit_state(
        self,
        run_id: str,
        value: object,
        *,
        at: str | int,
        name: str = "",
        effects: Effects = "ask",
        by: str | None = None,
        reason: str = "",
    ) -> str:
        """Give a state object another value at a step, and have the run go on from there; `name` where there are several."""
        from holdfast.operating import timetravel
        from holdfast.operating.telling import somebody

        said = timetravel.word(by or somebody(), reason, effects)
        return timetravel.edit_state(self.engine, run_id, value, at=str(at), name=name, said=said)

    def fork(
        self,
        run_id: str,
        *,
        at: str | int,
        edits: Mapping[str | int, object] | None = None,
        effects: Effects = "ask",
        new_id: str | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> str:
        """Make another run that goes on from a step of this one, and give its id; it knows which effects happened after that step."""
        from holdfast.operating import timetravel
        from holdfast.operating.telling import somebody

        if edits is not None and not isinstance(edits, Mapping):
            raise Misuse(f"edits={edits!r:.80} must be a dict of steps and values; nothing was changed")
        said = timetravel.word(by or somebody(), reason, effects)
        given = {str(name): each for name, each in (edits or {}).items()}
        return timetravel.fork(self.engine, run_id, at=str(at), edits=given, new_id=new_id, said=said).run_id

    def resume_here(self, run_id: str, agents: Sequence[Callable[..., Any]], *, where: str = "agents", wait: bool = True) -> Any:
        """Go on with a run now, in this process, with the one of these agents that it is of; `where` is what errors say they are from."""
        from holdfast.operating import operate

        known = [agent for agent in agents if isinstance(agent, Agent)]
        if len(known) < len(agents):
            raise Misuse(f"resume_here was given {next(one for one in agents if one not in known)!r:.80}, which is no agent; nothing began")
        return self.carry_out(operate.order_for(self.engine, run_id, known, where=where, wait=wait))


def _checked_on_ask(on_ask: OnAsk | None) -> OnAsk | None:
    if on_ask is not None and inspect.iscoroutinefunction(on_ask):
        raise Misuse("on_ask= takes a `def` function of run id, question id, question and details, which should be brief")
    return on_ask


def _tell_store(error: Exception, url: str) -> None:
    """The commands that an error of ours proposes need to be told the store, where they would not find it by themselves."""
    option, told = store_option(url), " ".join([str(error), *getattr(error, "__notes__", ())])
    if option and isinstance(error, HoldfastError) and re.search(r"\bholdfast [a-z]", told) and option not in told:
        error.add_note(f"here a command needs, too:{option}")


def _as_left(engine: Engine, run_id: str) -> str:
    """What is true of a run that Ctrl-C broke off, and what follows from it."""
    told, unsure = f"run {run_id!r} was left as it is: what is recorded stays, and the same line again goes on", list[str]()
    with contextlib.suppress(HoldfastError):
        found = engine.store.load(run_id)
        if found is not None and found[0].status == "done":
            return f"run {run_id!r} has come to its end all the same: the same line again gives its result"
        unsure = [f"{found.name} at step {step_id}" for step_id, found in Journal.load(*found).open_doubts(ended=True)] if found else []
    seen = f"holdfast show {run_id}{store_option(engine.store.url)}"
    return f"{told}. Whether this has happened is not known: {', '.join(unsure)}; to see it: {seen}" if unsure else told


def _inside() -> Children | None:
    """The family of the run that this code is in, if it is in one."""
    where = place.get()
    return where.run.nest if isinstance(where, Scope) and isinstance(where.run.nest, Children) else None


def _child_handle(nest: Children, agent: Any, args: tuple[Any, ...], options: RunOptions) -> Handle[Any]:
    if not isinstance(agent, Agent):
        raise Misuse(not_an_agent(agent))
    refuse_unknown(options, [*RunOptions.__annotations__], "hf.start", "Arguments of the agent are given by position", ())
    run_id = options.get("run_id")
    return ChildHandle(
        nest.begin(
            agent, args, run_id="" if run_id is None else checked_run_id(run_id), tags=checked_tags(options.get("tags")),
            budget=checked(options.get("budget"), "hf.start"),
        )
    )  # fmt: skip


@overload
def run(
    agent: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts,
    store: Store | str | Path | None = ..., wait: bool = ..., **options: Unpack[RunOptions],
) -> R: ...  # fmt: skip
@overload
def run(
    agent: Callable[[*Ts], R], /, *args: *Ts,
    store: Store | str | Path | None = ..., wait: bool = ..., **options: Unpack[RunOptions],
) -> R: ...  # fmt: skip
def run(
    agent: Callable[[*Ts], Any], /, *args: *Ts,
    store: Store | str | Path | None = None, wait: bool = True, **options: Unpack[RunOptions],
) -> Any:  # fmt: skip
    """Run an agent on the default store (or `store`) and give its result; run the same line again after a crash: it goes on."""
    order = ordered(agent, args, wait=wait, options=options, beside=("store", "wait"))
    with Holdfast(store) as app:
        return app.carry_out(order)


@overload
def start(
    agent: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts,
    store: Store | str | Path | None = ..., **options: Unpack[RunOptions],
) -> Coroutine[Any, Any, Handle[R]]: ...  # fmt: skip
@overload
def start(
    agent: Callable[[*Ts], R], /, *args: *Ts, store: Store | str | Path | None = ..., **options: Unpack[RunOptions]
) -> Coroutine[Any, Any, Handle[R]]: ...
def start(
    agent: Callable[[*Ts], Any], /, *args: *Ts, store: Store | str | Path | None = None, **options: Unpack[RunOptions]
) -> Coroutine[Any, Any, Handle[Any]]:
    """Run an agent in this event loop and give a handle to it at once; the store is closed when the run has ended.

    Inside a run, the agent is a child run, in the same store, which is waited for before its parent is done.
    """
    return to_be_awaited(lambda: _begun(agent, args, store, options))


def _begun(agent: Any, args: tuple[Any, ...], store: Store | str | Path | None, options: RunOptions) -> Handle[Any]:
    refuse_while_loading()
    nest = _inside()
    if nest is not None:
        return _child_handle(nest, agent, args, options)
    app = Holdfast(store)
    handle = app._begin(agent, args, options)  # noqa: SLF001 (what `app.start` awaits)
    handle.when_ended(app.close)
    return handle


def default_store() -> str:
    """HOLDFAST_STORE, else `.holdfast/holdfast.db` in the project's root; a new one is announced."""
    named = os.environ.get(STORE_VARIABLE)
    if named:
        return named
    path = _project_root() / ".holdfast" / "holdfast.db"
    if not path.exists():
        sys.stderr.write(f"holdfast: keeping runs in {path} (a new store; choose another with {STORE_VARIABLE} or store=)\n")
    return str(path)


def _project_root() -> Path:
    """The nearest folder above the script with a pyproject.toml or .git: a job started from another folder must not start afresh."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = Path(main).resolve().parent if main else Path.cwd()
    for candidate in (folder, *folder.parents):
        if (candidate / "pyproject.toml").exists() or (candidate / ".git").exists():
            return candidate
    return folder
