"""What code may say to the run it is in: who am I, what time is it, keep this, clean that up, it cost so much."""

from __future__ import annotations

import contextlib
import contextvars
import random as _random
import uuid as _uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from holdfast._clock import SystemClock, to_datetime
from holdfast.budget import Spent
from holdfast.errors import LostContext, Misuse, NestedStep, NoRun
from holdfast.life.prints import Thing
from holdfast.life.run import Body, Run, Scope
from holdfast.life.run import place as _place
from holdfast.life.run import plain as _plain
from holdfast.life.watch import OnChange
from holdfast.life.watch import begin as begin_watch
from holdfast.records import kinds as rec
from holdfast.records.models import read as read_reply
from holdfast.records.state import Tracked

if TYPE_CHECKING:
    import psycopg

P = ParamSpec("P")
T = TypeVar("T")

LARGEST = 2**53
"""Larger numbers are no amounts, and not every reader of JSON takes them."""


_lent: contextvars.ContextVar[psycopg.Connection[tuple[Any, ...]] | None] = contextvars.ContextVar("holdfast_lent", default=None)


class Current:
    """The run that this code is part of."""

    __slots__ = ("_place",)

    def __init__(self, place: Scope | Body) -> None:
        self._place = place

    @property
    def _run(self) -> Run:
        return self._place.run

    @property
    def id(self) -> str:
        """The run id."""
        return self._run.id

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self._run.started.agent

    @property
    def version(self) -> str:
        """The agent's version when the run was started."""
        return self._run.started.version

    @property
    def attempt(self) -> int:
        """How many times a process has taken the run up, this time included; a fork counts its own."""
        return self._run.journal.claims

    @property
    def generation(self) -> int:
        """0, and one more for each `hf.continue_as`, each edit, and each time that changed code was accepted."""
        return self._run.journal.generation

    @property
    def replaying(self) -> bool:
        """Whether recorded results are still being given back."""
        return self._run.turnstile.replaying

    @property
    def spent(self) -> Spent:
        """What the run has spent so far: `usd`, `tokens`, `steps`, `retries`, `seconds`."""
        return self._run.journal.ledger.spent(self._run.clock.now_us())

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags given at the start."""
        return dict(self._run.started.tags)

    @property
    def parent(self) -> str | None:
        """The run id of the run that started this one."""
        return self._run.started.parent.get("run")

    @property
    def random(self) -> _random.Random:
        """A seeded stream: the same numbers in every attempt and after every restart."""
        return self._place.random()

    def uuid(self) -> _uuid.UUID:
        """A UUID from the seeded stream."""
        return self._run.draw_uuid(self._place)


def here() -> Scope | Body | None:
    """Where this code is, if it is in a run."""
    where = _place.get()
    return where if isinstance(where, Scope | Body) else None


def in_agent(verb: str) -> Scope:
    """The scope that calls `verb`; an error where the verb cannot keep its promise."""
    where = here()
    if isinstance(where, Body):
        raise NestedStep(f"hf.{verb}", where.call.spec.name)
    if where is None:
        raise Misuse(f"hf.{verb} was called outside a run; nothing was done. Call it from an agent under hf.run(...)")
    where.run.check()
    if not where.mine():
        raise LostContext(f"hf.{verb}", "a task or thread that is not a branch of the run")
    return where


def current() -> Current:
    """The run that this code is part of."""
    where = here()
    if where is None:
        raise Misuse("hf.current() was called outside a run. Call it from an agent under hf.run(...), or from one of its steps")
    return Current(where)


def key() -> str:
    """The idempotency key of the effect being executed: the same in every attempt and after every restart."""
    where = here()
    if not isinstance(where, Body) or not where.call.key:
        if _plain.get():
            return "plain"
        raise NoRun("hf.key()")
    return where.call.key


def connection() -> psycopg.Connection[tuple[Any, ...]]:
    """The connection of the `@hf.transaction` being executed, in a transaction that commits with its outcome, or not at all."""
    where = here()
    if isinstance(where, Body) and where.transaction is not None and not where.over:
        return where.transaction.connection  # type: ignore[no-any-return]
    lent = _lent.get()
    if lent is None:
        raise Misuse("hf.connection() is for the body of an @hf.transaction; nothing was done. In a unit test: hf.plain(connection=...)")
    return lent


def now() -> datetime:
    """The time, recorded: replay reads the same."""
    where = here()
    if isinstance(where, Scope):
        return to_datetime(where.run.read_time(in_agent("now")))
    return to_datetime(where.run.clock.now_us() if where else SystemClock().now_us())


def state(initial: T) -> T:
    """An object (model, dataclass, dict or list) whose changes are saved with each checkpoint and come back on resume."""
    scope = in_agent("state")
    scope.states += 1
    step_id = f"{scope.path}/state.{scope.states}"
    journal = scope.run.journal
    edited = journal.turned.after if isinstance(journal.turned, rec.StateEdited) and journal.turned.step_id == step_id else 0
    scope.run.riders.tracked[step_id] = Tracked(initial, journal.states.get(step_id, []), edited)
    return initial


def watch(thing: Thing, *, on_change: OnChange = "ask") -> None:
    """Rely on a thing outside: it is compared when the run resumes, before its first new step; watching the same name again renews it.

    A path of a file or folder, a URL, `"env:NAME"`, `"package:NAME"`, or `(name, function)` for anything else. When it is gone, changed or
    unreachable: "ask" a person, "fail" with `Drifted`, "warn" in the log, or call a function that repairs it.
    """
    begin_watch(in_agent("watch").run, thing, on_change)


def cleanup(fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Have `fn(*args)` called once when the run ends for good, the newest first; never when it only waits."""
    scope = in_agent("cleanup")
    scope.run.cleanups.append((fn, args, kwargs))


def resource(kind: type[T]) -> T:
    """The object of this type that was handed to `Holdfast(resources=[...])`; it is never recorded."""
    where = here()
    if where is None:
        raise Misuse("hf.resource(...) was called outside a run. Call it from an agent under hf.run(...), or from one of its steps")
    for candidate in where.run.resources:
        if isinstance(candidate, kind):
            return candidate
    remedy = "Open the store with Holdfast(store, resources=[...]); for `holdfast resume --here`, define holdfast_resources() in the file"
    raise Misuse(f"no resource of type {kind.__name__} was handed over. {remedy}")


def usage(
    response: object = None, /, *, model: str = "", asked: str = "", input_tokens: int = 0, output_tokens: int = 0, usd: float = 0.0,
    **more: Any,
) -> None:  # fmt: skip
    """Add to the cost of the running step: from a model's reply, by keywords, or both; keywords count more.

    `model` is the one that answered, `asked` the one that was asked for; without it, it is the step's own argument named `model`.
    """
    told = {} if response is None else read_reply(response)
    if response is not None and not told:
        remedy = "Give model=, input_tokens= and output_tokens= instead"
        raise Misuse(f"hf.usage was given {type(response).__name__}, which has no .model and .usage of a model's reply. {remedy}")
    where = here()
    if not isinstance(where, Body):
        if _plain.get():
            return
        raise Misuse("hf.usage(...) belongs inside a step: it is recorded with the step's result")
    for name, amount in (("input_tokens", input_tokens), ("output_tokens", output_tokens), ("usd", usd)):
        _refuse_no_amount(name, amount)
    given = {"model": model, "asked": asked, "input_tokens": input_tokens, "output_tokens": output_tokens, "usd": usd, **more}
    entry = {**told, **{name: _scalar(value) for name, value in given.items() if value}}
    if "model" in entry and "asked" not in entry and where.call.asked_model():
        entry["asked"] = where.call.asked_model()
    where.usage.append(entry)


def _refuse_no_amount(name: str, amount: object) -> None:
    if not isinstance(amount, int | float) or not 0 <= amount <= LARGEST:
        shown = f"{amount!r}" if not isinstance(amount, int) else "a number of astronomical size"
        raise Misuse(f"{name}={shown} of hf.usage is no amount; nothing was recorded. Give a number from 0 on")


def _scalar(value: object) -> object:
    """A value that can be kept and read again, whatever was given: the outcome of a step must not depend on what is told beside it."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | float) and -LARGEST <= value <= LARGEST:
        return value
    return f"<{type(value).__name__}>"


@contextlib.contextmanager
def plain(*, connection: psycopg.Connection[tuple[Any, ...]] | None = None) -> Iterator[None]:
    """Steps and effects called inside are the plain functions: for unit tests. `connection` is what `hf.connection()` gives there."""
    token, lent = _plain.set(True), _lent.set(connection)
    try:
        yield
    finally:
        _plain.reset(token)
        _lent.reset(lent)
