"""The rig: runs an agent as a row of short lives of simulated processes, with prepared answers, crashes and time of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self, TypeAlias, TypedDict, TypeVar, TypeVarTuple, Unpack, cast, overload

from holdfast import Budget, Holdfast, Landed, NotLanded, RunWaiting
from holdfast._clock import to_datetime
from holdfast._duration import Duration, seconds
from holdfast._ids import checked_run_id
from holdfast.app.loop import Loop
from holdfast.errors import Misuse, StoreFailed
from holdfast.life.run import LETTER_GRACE_US
from holdfast.operating.checkpoints import Checkpoint
from holdfast.operating.views import Item, walk
from holdfast.store import Head, Store, is_store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.opening import open_store
from holdfast.testing.lives import Crashed, Execution, Life, Log, Point, RigClock, life_on
from holdfast.verbs.decorators import names

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

Asked: TypeAlias = str | re.Pattern[str]
"""A question: its text, with * for anything; its id in the run; or the name of the step that wants it."""

MAX_LIVES = 1_000
"""Processes that one call may use up: a run that needs more goes round in a circle."""

APPROVAL = re.compile(r"may (\S+?)\(")
DOUBT = re.compile(r"did (\S+?)\(")


class Options(TypedDict, total=False):
    """What may be said of a run in a test."""

    run_id: str | None
    resources: Sequence[object]
    tags: Mapping[str, str] | None
    budget: Budget | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """An answer that waits for its question; a function is called with the question."""

    asked: Asked
    answer: Any
    by: str

    def fits(self, item: Item) -> bool:
        if isinstance(self.asked, re.Pattern):
            return self.asked.search(item.what) is not None
        pattern = re.compile(".*".join(re.escape(part) for part in self.asked.split("*")), re.DOTALL)
        return any(pattern.fullmatch(name) for name in _names_of(item))


@dataclass(frozen=True, slots=True)
class Played:
    """A run that the rig knows how to go on with."""

    run_id: str
    agent: Callable[..., Any]
    args: tuple[Any, ...]
    resources: Sequence[object]
    options: dict[str, Any]


class Rig:
    """Plays agents in a test: answers what is asked, advances time, crashes where it is told to, and counts what was executed.

    Every time the code parks, and after every crash, a new simulated process takes the run up and replays it.
    """

    def __init__(
        self, store: Store | str | Path | None = None, *, resources: Sequence[object] = (), start: datetime | None = None
    ) -> None:
        self._owned = not is_store(store)
        self.store = store if is_store(store) else MemoryStore() if store is None else open_store(store)
        self.resources = resources
        self._clock = RigClock() if start is None else RigClock(round(start.timestamp() * 1e6))
        self._log, self._loop = Log(self._clock), Loop()
        self._prepared: list[Prepared] = []
        self._used: list[Prepared] = []
        self._runs: dict[str, Played] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is None:
            self.check()

    def close(self) -> None:
        """Let go of the store, if the rig has opened it, and of the event loop."""
        self._loop.close()
        if self._owned:
            self.store.close()

    def check(self) -> None:
        """Complain of a crash that was wanted and never came: a test that crashes nowhere shows nothing."""
        if self._log.armed:
            wanted = "; ".join(str(point) for point in self._log.armed)
            seen = ", ".join(dict.fromkeys(point.name for point in self._log.reached)) or "nothing"
            raise AssertionError(f"the rig was to crash {wanted}, and no run came there; what was reached: {seen}")

    def answers(self, answers: Mapping[Any, Any], *, by: str = "rig") -> None:
        """Prepare answers: to questions, approvals, budgets and drift (a value), to doubts (`hf.Landed(result)` or `hf.NotLanded()`).

        A key is the question, with * for anything, or a compiled pattern, or the name of the effect or question. Each may serve often.
        """
        if not isinstance(answers, Mapping):
            raise Misuse(f"answers takes a dict of questions and answers, not {answers!r:.80}")
        self._prepared[:0] = [Prepared(asked, answer, by) for asked, answer in answers.items()]

    def crash(self, *, before: str = "", inside: str = "", after: str = "", nth: int = 1) -> None:
        """Let the process die where a step, effect, wait or agent of this name comes to that point for the nth time.

        Before: its body is about to begin; of an effect the intent is recorded. Inside: its body has returned, and that is not recorded.
        After: that is recorded, and the agent has not heard of it.
        """
        wanted = [Point("before", before, nth), Point("inside", inside, nth), Point("after", after, nth)]
        named = [point for point in wanted if point.name]
        if len(named) != 1 or nth < 1:
            raise Misuse("crash takes one of before=, inside= and after=, with the name of a step, and nth= from 1 on")
        self._log.armed += named

    def count(self, name: str) -> int:
        """How often the body of this step, effect or probe was begun, in all lives; of an agent, how often its code was."""
        if name not in names and name not in self._log.begun:
            close = get_close_matches(name, names, 1)
            raise Misuse(f"no step, effect, probe or agent is named {name!r}{f'; did you mean {close[0]!r}?' if close else ''}")
        return self._log.begun[name]

    @property
    def now(self) -> datetime:
        """The time, as the runs see it."""
        return to_datetime(self._clock.now_us())

    @property
    def reached(self) -> list[Point]:
        """Every point that was come to, in order."""
        return list(self._log.reached)

    @property
    def executed(self) -> list[Execution]:
        """Every body of an effect that came to its end, in order, whatever became of its process."""
        return list(self._log.done)

    @overload
    def run(
        self, agent: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, resume: bool = ..., patience: Duration = ...,
        **options: Unpack[Options],
    ) -> R: ...  # fmt: skip
    @overload
    def run(
        self, agent: Callable[[*Ts], R], /, *args: *Ts, resume: bool = ..., patience: Duration = ..., **options: Unpack[Options]
    ) -> R: ...
    def run(
        self, agent: Callable[[*Ts], Any], /, *args: *Ts, resume: bool = True, patience: Duration = 0, **options: Unpack[Options]
    ) -> Any:
        """The result of an agent, through all prepared answers and crashes; `RunWaiting` where nothing prepared lets it go on.

        With resume=False a crash raises `Crashed`, and nobody takes the run up. `patience` is how far time may jump by itself.
        """
        return self._play_on(self._known(agent, args, options), resume=resume, patience=patience)

    def start(self, agent: Callable[[*Ts], Any], /, *args: *Ts, **options: Unpack[Options]) -> str:
        """Play an agent as far as it comes, and give its run id; `advance`, `send` and `result` go on from there."""
        played = self._known(agent, args, options)
        self._play_quietly(played)
        return played.run_id

    def result(self, run_id: str, *, resume: bool = True, patience: Duration = 0) -> Any:
        """Go on with a run that was played here, and give its result."""
        if run_id not in self._runs:
            raise Misuse(f"run {run_id!r} was not begun with this rig, which has played: {', '.join(self._runs) or 'none'}")
        return self._play_on(self._runs[run_id], resume=resume, patience=patience)

    def advance(self, duration: Duration) -> None:
        """Let time go by; runs of this rig that were answered go on first, and those whose time comes meanwhile each at its moment."""
        until_us = self._clock.now_us() + round(seconds(duration, "advance") * 1e6)
        for _ in range(MAX_LIVES):
            self._play_ready()
            due = min(self._sleeping(until_us), key=lambda head: head.wake_us or 0, default=None)
            if due is None:
                break
            self._clock.reach(due.wake_us or 0)
            self._play_quietly(self._runs[due.run_id])
        else:
            raise AssertionError(f"within {duration} runs woke more than {MAX_LIVES} times")
        self._clock.reach(until_us)

    def send(self, run_id: str, name: str, value: object = None, *, by: str = "rig") -> None:
        """Leave a message for a run; its code takes it when it goes on."""
        with self.app() as app:
            app.send(run_id, name, value, by=by)

    def status(self, run_id: str) -> str:
        """Where a run stands."""
        with self.app() as app:
            return app.show(run_id).status

    def history(self, run_id: str) -> list[Checkpoint]:
        """Every checkpoint of a run, in order."""
        with self.app() as app:
            return app.history(run_id)

    def app(self, resources: Sequence[object] = ()) -> Holdfast:
        """A process of its own on the same store and in the same time: all the verbs of operators. Use it in a `with`."""
        return Holdfast(cast("Store", life_on(self.store, self._log)), clock=self._clock, resources=resources)

    def _known(self, agent: Callable[..., Any], args: tuple[Any, ...], options: Options) -> Played:
        name = getattr(agent, "name", getattr(agent, "__name__", "run"))
        run_id = options.get("run_id") or f"{re.sub(r'[^A-Za-z0-9._-]', '-', name)}-{len(self._runs) + 1}"
        own = {name: value for name, value in options.items() if name not in ("run_id", "resources")}
        played = Played(checked_run_id(run_id), agent, args, options.get("resources", self.resources), own)
        self._runs[run_id] = played
        return played

    def _play_quietly(self, played: Played) -> None:
        """Go on as far as it goes; how it ended is in the store, and `result` tells."""
        try:
            self._play_on(played, resume=True, patience=0)
        except RunWaiting:
            pass
        except Exception:
            if self.status(played.run_id) not in ("failed", "blocked", "cancelled"):
                raise

    def _play_ready(self) -> None:
        """Go on with the runs of this rig to which somebody has said what they wait for."""
        with self.app() as app:
            ready = [found.run_id for found in app.ready() if found.run_id in self._runs]
        for run_id in ready:
            self._play_quietly(self._runs[run_id])

    def _play_on(self, played: Played, *, resume: bool, patience: Duration) -> Any:
        until_us = self._clock.now_us() + round(seconds(patience, "patience") * 1e6)
        for _ in range(MAX_LIVES):
            life = life_on(self.store, self._log)
            try:
                return self._live(life, played)
            except RunWaiting as waiting:
                if not self._answered() and not self._woken(played.run_id, until_us):
                    self._tell_unused(waiting)
                    raise
            except StoreFailed:
                if life.died is None:
                    raise
                if not resume:
                    raise Crashed(played.run_id, str(life.died)) from None
        raise AssertionError(f"run {played.run_id!r} did not come to an end in {MAX_LIVES} lives; its history shows the circle")

    def _live(self, life: Life, played: Played) -> Any:
        """One simulated process: it plays the run until it is done, waits, fails or dies."""
        with Holdfast(cast("Store", life), clock=self._clock, resources=played.resources) as app:
            unused, app.loop = app.loop, self._loop  # which outlives it, as the clients among the resources do
            try:
                return app.run(played.agent, *played.args, run_id=played.run_id, wait=False, **played.options)
            finally:
                app.loop = unused

    def _answered(self) -> bool:
        """Give every prepared answer whose question is open; whether there was one."""
        with self.app() as app:
            pairs = [(item, prepared) for item in app.inbox() if (prepared := self._for(item)) is not None]
            for item, prepared in pairs:
                _give(app, item, prepared)
        self._used += [prepared for _, prepared in pairs]
        return bool(pairs)

    def _tell_unused(self, waiting: RunWaiting) -> None:
        """A prepared answer that has fitted nothing so far was perhaps mistyped."""
        unused = [str(getattr(one.asked, "pattern", one.asked)) for one in self._prepared if not any(one is used for used in self._used)]
        if unused:
            waiting.add_note(f"prepared answers that have fitted no question so far: {', '.join(map(repr, unused))}")

    def _for(self, item: Item) -> Prepared | None:
        return next((prepared for prepared in self._prepared if prepared.fits(item)), None)

    def _woken(self, run_id: str, until_us: int) -> bool:
        """Whether the run's time has come, or may come by itself; the clock is there then."""
        head = self.store.head(run_id)
        if head is None or (head.status == "waiting" and (not head.wake_us or head.wake_us > until_us + LETTER_GRACE_US)):
            return False
        self._clock.reach(head.wake_us or 0)
        return True

    def _sleeping(self, until_us: int) -> list[Head]:
        """The runs of this rig whose time comes until then; a late answer has a moment of grace, which does not count."""
        with self.app() as app:
            waiting = [head for head in walk(app.engine, ("waiting",)) if head.run_id in self._runs and head.wake_us]
        return [head for head in waiting if (head.wake_us or 0) <= until_us + LETTER_GRACE_US]


def _names_of(item: Item) -> list[str]:
    """What a test may call the thing that somebody must say."""
    found = APPROVAL.match(item.what) or DOUBT.match(item.what)
    return [item.what, item.step_id, *([found.group(1)] if found and item.kind in ("approval", "doubt") else [])]


def _give(app: Holdfast, item: Item, prepared: Prepared) -> None:
    answer = prepared.answer
    if callable(answer) and not isinstance(answer, Landed | NotLanded):
        answer = answer(item.what)
    if item.kind != "doubt":
        app.answer(item.run_id, item.step_id, answer, by=prepared.by)
        return
    match answer:
        case Landed(result=result):
            app.resolve(item.run_id, item.step_id, landed=result, by=prepared.by)
        case NotLanded():
            app.resolve(item.run_id, item.step_id, not_landed=True, by=prepared.by)
        case _:
            raise Misuse(f"{item.what} is a doubt: prepare hf.Landed(result) or hf.NotLanded(), not {answer!r}")
