"""Declaring `@agent`, `@step`, `@effect` and what to do in doubt, without changing how a function is called."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from types import MethodType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)  # fmt: skip

from holdfast._duration import Duration, seconds
from holdfast._ids import checked_text
from holdfast._landing import Errors, Verdict, rules_of
from holdfast._options import refuse_unknown
from holdfast.breaker import Breaker, circuit_of
from holdfast.budget import Budget
from holdfast.budget import checked as checked_budget
from holdfast.codec.orders import OrderCodec
from holdfast.codec.signature import Arguments, return_annotation
from holdfast.codec.values import ValueCodec, codec_for
from holdfast.errors import LostContext, Misuse, NestedStep, NoRun, WrongMode
from holdfast.life.calls import Approve, Call, Spec
from holdfast.life.doubt import Action, Ask, Fail, Resend, Reset, Together, Verify
from holdfast.life.drive import step_async, step_blocking
from holdfast.life.run import Body, Place, Scope, active, place, plain
from holdfast.records.models import OnModelChange
from holdfast.retry import Retry

OnFailure: TypeAlias = Literal["keep", "undo"]
Durability: TypeAlias = Literal["step", "milestone"]
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_CALL_ID = 200

log = logging.getLogger("holdfast")
_warned: set[str] = set()


class Declared:
    """A decorated function: looks, binds and introspects like the one it stands for."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(cast("Callable[..., Any]", self), fn)
        self.fn = fn
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            if hasattr(fn, name):
                setattr(self, name, getattr(fn, name))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(cast("Callable[..., Any]", self), instance)


names: set[str] = {"ask", "sleep", "receive", "send"}
"""What there is to be called, by name, in this process: who counts calls of something else has mistyped it."""


class Step(Declared):
    """A step or an effect."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec.fn)
        self.spec = spec
        names.add(spec.name)

    def __repr__(self) -> str:
        return f"<{'effect' if self.spec.effect else 'step'} {self.spec.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        where = place.get()
        if not isinstance(where, Scope) or plain.get():
            return self._outside(where, args, kwargs)
        spec, run = self.spec, where.run
        if run.ended is not None or run.cancelling is not None:
            run.check()
        if spec.is_async and run.blocking:
            raise self._wrong_mode(run.started.agent)
        step_id = where.next_id() if spec.call_id is None else where.reserve_call(self._call_id(spec.call_id, args, kwargs))
        if not step_id:
            raise LostContext(spec.name, "a task or thread that is not a branch of the run")
        call = Call(spec, where, step_id, args, kwargs)
        if not spec.is_async:
            return step_blocking(call)
        run.calls += 1
        awaiting = step_async(call)
        awaiting.__name__ = awaiting.__qualname__ = spec.name  # type: ignore[attr-defined]
        run.unawaited[call.step_id] = (spec.name, awaiting)
        return awaiting

    def _wrong_mode(self, agent: str) -> WrongMode:
        """Of an async step, or verb, in a `def` agent."""
        if self.spec.fn.__module__.partition(".")[0] == __name__.partition(".")[0]:
            return WrongMode(f"hf.{self.spec.name}", agent, "It is a `def` agent: use `import holdfast.sync as hf`")
        return WrongMode(self.spec.name, agent, "Make the agent `async def`, or the step `def`")

    @staticmethod
    def _call_id(declared: str | Callable[..., str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The identity that the call brings."""
        return checked_call_id(declared if isinstance(declared, str) else declared(*args, **kwargs))

    def _outside(self, where: Place | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        spec = self.spec
        if plain.get() and spec.wait is None:
            return spec.fn(*args, **kwargs)
        if isinstance(where, Body):
            if spec.effect or spec.wait is not None:
                raise NestedStep(spec.name, where.call.spec.name)
            return spec.fn(*args, **kwargs)
        if active:
            raise LostContext(spec.name, "a thread or task that does not see the run")
        if spec.effect or spec.wait is not None:
            raise NoRun(spec.name)
        if spec.name not in _warned:
            _warned.add(spec.name)
            log.warning("step %r was called outside a run: it is the plain function there, and nothing is recorded", spec.name)
        return spec.fn(*args, **kwargs)


def checked_call_id(call_id: object) -> str:
    """A call id that can be part of a step id."""
    if not isinstance(call_id, str) or not call_id or len(call_id) > MAX_CALL_ID or not call_id.isprintable():
        raise Misuse(f"call_id={call_id!r}: it must be a printable string of 1 to {MAX_CALL_ID} characters; nothing was executed")
    return call_id.replace("%", "%25").replace("#", "%23")  # "#" counts repetitions of one id


class Agent(Declared, Generic[P, R]):
    """A decorated agent."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str = "",
        version: str = "",
        budget: Budget | None = None,
        on_model_change: OnModelChange = "warn",
        on_failure: OnFailure = "keep",
        durability: Durability = "step",
        raises: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> None:
        super().__init__(fn)
        if on_model_change not in get_args(OnModelChange):
            raise Misuse(f"on_model_change={on_model_change!r} of an agent: it is 'warn', 'ask' or 'fail'")
        if on_failure not in get_args(OnFailure):
            raise Misuse(f"on_failure={on_failure!r}: what it did is kept and the run can go on ('keep'), or it is undone ('undo')")
        if durability not in get_args(Durability):
            raise Misuse(f"durability={durability!r}: a step is on the disk when it returns ('step'), or with the next flush ('milestone')")
        self.on_model_change, self.on_failure, self.durability = on_model_change, on_failure, durability
        self.name = checked_text(name or getattr(fn, "__name__", "agent"), "the name of an agent")
        self.version = checked_text(version, "the version of an agent")
        names.add(self.name)
        self.budget, self.raises = checked_budget(budget, f"agent {self.name!r}"), _classes(raises, self.name)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.arguments, self.orders = Arguments(fn, ()), OrderCodec(fn)
        self._codec: ValueCodec | None = None

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        where = place.get()
        if isinstance(where, Body):
            raise NestedStep(self.name, where.call.spec.name)
        if isinstance(where, Scope) and where.run.nest is not None and not plain.get():
            return where.run.nest.call(self, where, args, kwargs)  # type: ignore[no-any-return]
        return self.fn(*args, **kwargs)  # type: ignore[no-any-return]

    def codec(self) -> ValueCodec:
        """How the result of the run is kept."""
        if self._codec is None:
            self._codec = codec_for(return_annotation(self.fn), f"the result of agent {self.name!r}")
        return self._codec


class StepOptions(TypedDict, total=False):
    """What a step, and so an effect, may be told."""

    name: str
    retry: Retry | None
    breaker: str | Breaker | None
    timeout: Duration | None
    raises: type[Exception] | tuple[type[Exception], ...]
    call_id: str | Callable[..., str] | None
    returns: Any
    ignore: tuple[str, ...]
    uses: str | Callable[..., Mapping[str, float]] | None


class EffectOptions(StepOptions, total=False):
    """What an effect may be told beyond a step."""

    approve: bool | str | timedelta | Callable[..., bool] | None
    errors: Errors


class TransactionOptions(TypedDict, total=False):
    """What a transaction may be told: as a step, but for the time-out, since it is a `def` function; and whether a person must agree."""

    name: str
    retry: Retry | None
    breaker: str | Breaker | None
    raises: type[Exception] | tuple[type[Exception], ...]
    call_id: str | Callable[..., str] | None
    returns: Any
    ignore: tuple[str, ...]
    approve: bool | str | timedelta | Callable[..., bool] | None


class AgentOptions(TypedDict, total=False):
    """What an agent may be told."""

    name: str
    version: str
    budget: Budget | None
    on_model_change: OnModelChange
    on_failure: OnFailure
    durability: Durability
    raises: type[Exception] | tuple[type[Exception], ...]


class Keeps(Protocol):
    """A decorator for any function; it gives back the type it was given."""

    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]: ...


class KeepsParameters(Protocol[P]):
    """A decorator for functions that take exactly these parameters."""

    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]: ...


class KeepsSignature(Protocol[P, T]):
    """A decorator for functions that take exactly these parameters and give a T, at once or awaited."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> Callable[P, T]: ...


class Verifying(Generic[P, T]):
    """What `verify` gives: an action for effects that take `P` and return `T`."""

    def __init__(self, action: Verify) -> None:
        self.action = action


class Resetting(Generic[P]):
    """What `reset` gives: an action for effects that take `P`."""

    def __init__(self, action: Reset) -> None:
        self.action = action


Unchecked: TypeAlias = Resend | Literal["resend", "ask", "fail"]
"""The kinds of in_doubt that call no function of the user's, so that there is no signature to compare."""


def resend(*, within: Duration = "24h") -> Resend:
    """In doubt, run again under the same `hf.key()`, as long as the other side remembers keys; later, ask."""
    return Resend(seconds(within, "within"))


@overload
def verify(probe: Callable[P, Coroutine[Any, Any, Verdict[T]]], /, *, settle: Duration = ...) -> Verifying[P, T]: ...
@overload
def verify(probe: Callable[P, Verdict[T]], /, *, settle: Duration = ...) -> Verifying[P, T]: ...
def verify(probe: Callable[P, Any], /, *, settle: Duration = "5s") -> Verifying[P, Any]:
    """In doubt, call `probe` with the same arguments; believe its NotLanded only `settle` after the intent."""
    return Verifying(Verify(_function(probe, "verify"), seconds(settle, "settle")))


def reset(fn: Callable[P, object], /, *, settle: Duration = "5s") -> Resetting[P]:
    """In doubt, call `fn`, harmless if nothing happened, then run the effect; not before `settle` after the intent."""
    return Resetting(Reset(_function(fn, "reset"), seconds(settle, "settle")))


@overload
def agent(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def agent(fn: None = None, /, **options: Unpack[AgentOptions]) -> Keeps: ...
def agent(fn: Callable[..., Any] | None = None, /, **options: Unpack[AgentOptions]) -> Any:
    """Declare an agent: the function whose steps are numbered and remembered."""
    refuse_unknown(options, [*AgentOptions.__annotations__], "an agent")
    if fn is None:
        return lambda later: Agent(_function(later, "agent"), **options)
    return Agent(_function(fn, "agent"), **options)


@overload
def step(fn: Callable[P, R], /, **options: Unpack[StepOptions]) -> Callable[P, R]: ...
@overload
def step(fn: None = None, /, **options: Unpack[StepOptions]) -> Keeps: ...
def step(fn: Callable[..., Any] | None = None, /, **options: Unpack[StepOptions]) -> Any:
    """Declare a step that is safe to repeat: it reads, computes, or asks a model.

    Also as a function, for code that is not yours: `hf.step(client.search)("shoes")`. On a decorated one it makes a copy with other
    options.
    """
    if fn is None:
        return lambda later: _declared(later, dict(options))
    return _declared(fn, dict(options))


@overload
def effect(
    *, in_doubt: Verifying[P, T], undo: Callable[Concatenate[T, P], object] | None = ..., key: str | Callable[P, str] | None = ...,
    **options: Unpack[EffectOptions],
) -> KeepsSignature[P, T]: ...  # fmt: skip
@overload
def effect(
    *, in_doubt: Resetting[P] | Unchecked, undo: Callable[Concatenate[T, P], object], key: str | Callable[P, str] | None = ...,
    **options: Unpack[EffectOptions],
) -> KeepsSignature[P, T]: ...  # fmt: skip
@overload
def effect(
    *, in_doubt: Resetting[P], key: str | Callable[P, str] | None = ..., **options: Unpack[EffectOptions]
) -> KeepsParameters[P]: ...
@overload
def effect(*, in_doubt: Unchecked, key: str | Callable[..., str] | None = ..., **options: Unpack[EffectOptions]) -> Keeps: ...
@overload
def effect(
    fn: Callable[P, R], /, *, in_doubt: Verifying[P, Any] | Resetting[P] | Unchecked = ..., undo: Callable[..., object] | None = ...,
    key: str | Callable[P, str] | None = ..., **options: Unpack[EffectOptions],
) -> Callable[P, R]: ...  # fmt: skip
def effect(
    fn: Any = None,
    /,
    *,
    in_doubt: Verifying[..., Any] | Resetting[...] | Unchecked | None = None,
    undo: Callable[..., object] | None = None,
    key: str | Callable[..., str] | None = None,
    **options: Unpack[EffectOptions],
) -> Any:
    """Declare an effect: it changes the world, so it says what to do when it is not known whether it happened.

    Also as a function, for code that is not yours. On an effect it makes a copy with other options: `hf.effect(send, call_id=call.id)`.
    """
    refuse_unknown(options, [*EffectOptions.__annotations__], "an effect", beside=("in_doubt", "key", "undo"))
    found = getattr(fn, "__func__", fn)
    copied = isinstance(found, Step) and found.spec.effect and in_doubt is None
    given: dict[str, Any] = {**options, "in_doubt": None if copied else _action(in_doubt), "key": key, "undo": undo}
    given["approve"] = _approve(options.get("approve"))
    if fn is None:
        return lambda later: _declared(later, given)
    return _declared(fn, given)


@overload
def transaction(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def transaction(
    fn: None = None, /, *, undo: Callable[Concatenate[T, P], object], **options: Unpack[TransactionOptions]
) -> KeepsSignature[P, T]: ...
@overload
def transaction(fn: None = None, /, **options: Unpack[TransactionOptions]) -> Keeps: ...
def transaction(
    fn: Callable[..., Any] | None = None, /, *, undo: Callable[..., object] | None = None, **options: Unpack[TransactionOptions]
) -> Any:
    """Declare an effect on tables of your own, in the PostgreSQL database of the store: it commits with its outcome, or not at all.

    Its body works on `hf.connection()`. It happens exactly once, and there is never a doubt.
    """
    refuse_unknown(options, [*TransactionOptions.__annotations__], "a transaction", beside=("undo",))
    given: dict[str, Any] = {**options, "approve": _approve(options.get("approve")), "in_doubt": Together(), "undo": undo}
    if fn is None:
        return lambda later: _declared(_blocking(later), given)
    return _declared(_blocking(fn), given)


def _blocking(fn: Any) -> Any:
    """A function that runs to its end in the thread of its transaction."""
    if callable(fn) and _is_async(fn.spec.fn if isinstance(fn, Step) else fn):
        shown = getattr(fn, "__name__", fn)
        raise Misuse(f"@hf.transaction on {shown!r}, an `async def` function: make it `def`. An `async def` agent calls it without await")
    return fn


def _approve(declared: object) -> Approve | None:
    """Whether a person must agree first: always (True), within a time ("24h"), or where a predicate of the arguments says so.

    False is never, in a copy of an effect too; None is what was not said.
    """
    match declared:
        case None:
            return None
        case False:
            return Approve(when=lambda *_, **__: False)
        case True:
            return Approve()
        case str() | timedelta():
            return Approve(timeout_s=seconds(declared, "approve"))
        case _ if callable(declared):
            return Approve(when=declared)
    raise Misuse(f"approve={declared!r}: it is True, a duration such as '24h', or a function of the arguments that says whether to ask")


def _action(in_doubt: object) -> Action:
    match in_doubt:
        case Verifying() | Resetting():
            return in_doubt.action
        case Resend():
            return in_doubt
        case "resend":
            return Resend(seconds("24h", "within"))
        case "ask":
            return Ask()
        case "fail":
            return Fail()
    said = "in_doubt= is missing, as in @hf.effect(in_doubt='ask')" if in_doubt is None else f"in_doubt={in_doubt!r}"
    raise Misuse(
        f"{said}: an effect says what to do when it is not known whether it happened: "
        f"'resend' or hf.resend(), hf.verify(probe), hf.reset(fn), 'ask' or 'fail'"
    )


def _refuse_wrong(name: str, given: Mapping[str, Any]) -> None:
    retry = given.get("retry")
    if retry is not None and not isinstance(retry, Retry):
        raise Misuse(f"retry={retry!r} of {name!r} is not a policy. Write retry=hf.Retry(attempts=5)")
    _classes(given.get("raises", ()), name)


def _classes(raises: Any, name: str) -> tuple[type[Exception], ...]:
    classes = raises if isinstance(raises, tuple) else (raises,)
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        raise Misuse(f"raises={raises!r} of {name!r} is not an exception class, nor a tuple of them. Write raises=ValueError")
    return classes


def _declared(fn: Any, options: dict[str, Any]) -> Any:
    """A step with these options; on a decorated function a copy, in which what was not given stays as it was."""
    if isinstance(fn, MethodType) and isinstance(fn.__func__, Step) and fn.__func__.spec.effect:
        return MethodType(_declared(fn.__func__, options), fn.__self__)
    if "in_doubt" not in options:
        refuse_unknown(options, [*StepOptions.__annotations__], "a step")
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    if isinstance(fn, Step):
        given = {**_options_of(fn.spec), **given}
        fn = fn.spec.fn
    fn = _function(fn, "effect" if "in_doubt" in options else "step")
    name = given.pop("name", None) or getattr(fn, "__name__", None)
    if not name:
        raise Misuse("a callable without a name needs name=")
    checked_text(name, "the name of a step")
    _refuse_wrong(name, given)
    is_async = _is_async(fn)
    timeout = given.pop("timeout", None)
    if timeout is not None and not is_async:
        raise Misuse(f"timeout= on {name!r}, a `def` function: threads cannot be stopped. Make it `async def`, or let its client time out")
    raises = _classes(given.pop("raises", ()), name)
    spec = Spec(
        fn=fn, name=name, is_async=is_async, timeout_s=None if timeout is None else seconds(timeout, "timeout"),
        raises=raises, errors=rules_of(given.pop("errors", ())),
        undo=_undo_of(given.pop("undo", None)), breaker=circuit_of(given.pop("breaker", None), repr(name)), **given,
    )  # fmt: skip
    _refuse_other_probe(spec)
    _refuse_other_undo(spec)
    return Step(spec)


def _options_of(spec: Spec) -> dict[str, Any]:
    return {
        "name": spec.name, "retry": spec.retry, "timeout": spec.timeout_s, "raises": spec.raises, "call_id": spec.call_id,
        "returns": spec.returns, "ignore": spec.ignore, "in_doubt": spec.in_doubt, "key": spec.key,
        "approve": spec.approve, "errors": spec.errors, "undo": spec.undo, "breaker": spec.breaker,
        "uses": spec.uses,
    }  # fmt: skip


def _undo_of(undo: Any) -> Spec | None:
    """How an undo is executed: an effect of its own, with the options that it was declared with, or "ask" where it is a plain function."""
    if undo is None or isinstance(undo, Spec):
        return undo
    if not isinstance(undo, Step):
        if not callable(undo):
            raise Misuse(f"undo={undo!r} is not a function. Write undo=refund, a function of the result and the effect's arguments")
        fn = _function(undo, "effect")
        return Spec(fn=fn, name=getattr(fn, "__name__", "undo"), is_async=_is_async(fn), in_doubt=Ask(), returns=Any)
    if not undo.spec.effect:
        raise Misuse(f"undo={undo.spec.name} is a step; an undo changes the world. Decorate it with @hf.effect(in_doubt=...)")
    copied = copy.copy(undo.spec)
    copied.call_id = copied.undo = None
    return copied


def _refuse_other_undo(spec: Spec) -> None:
    """An undo is called with the result and the arguments of its effect, when something has gone wrong already."""
    undo = spec.undo
    if undo is None:
        return
    if not spec.is_async and undo.is_async:
        raise Misuse(f"the effect {spec.name!r} is a `def` function, its undo is `async def`: make both the same")
    parameters = inspect.signature(spec.fn).parameters.values()
    if all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        try:
            inspect.signature(undo.fn).bind(None, *parameters)
        except TypeError as error:
            shown, called = f"{undo.name}{inspect.signature(undo.fn)}", f"{spec.name}{inspect.signature(spec.fn)}"
            raise Misuse(f"{shown} is called with the result and then the arguments of {called}, which does not fit: {error}") from None


def _refuse_other_probe(spec: Spec) -> None:
    """A probe or reset is called with the effect's arguments, in the night of the crash: better find out now whether it can be."""
    action = spec.in_doubt
    probe = action.probe if isinstance(action, Verify) else action.fn if isinstance(action, Reset) else None
    if probe is None:
        return
    if not spec.is_async and _is_async(probe):
        raise Misuse(f"the effect {spec.name!r} is a `def` function, its probe or reset is `async def`: make both the same")
    parameters = inspect.signature(spec.fn).parameters.values()
    if all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        try:
            inspect.signature(probe).bind(*parameters)
        except TypeError as error:
            shown, called = f"{getattr(probe, '__name__', probe)}{inspect.signature(probe)}", f"{spec.name}{inspect.signature(spec.fn)}"
            raise Misuse(f"{shown} is called with the arguments of {called}, which does not fit: {error}") from None


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 (a callable object)


def _function(fn: Any, what: str) -> Callable[..., Any]:
    if isinstance(fn, classmethod):
        raise Misuse(f"@hf.{what} decorates a function: write @classmethod above @hf.{what}, not below it")
    if not callable(fn):
        raise Misuse(f"@hf.{what} decorates a function, not {type(fn).__name__}. Options are keywords: @hf.{what}(name=...)")
    names.add(getattr(fn, "__name__", ""))
    try:
        inspect.signature(fn)
    except ValueError:
        raise Misuse(f"{getattr(fn, '__name__', fn)!r} does not tell its parameters; wrap it in a function of your own") from None
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise Misuse(f"{getattr(fn, '__name__', fn)!r} is a generator: a {what} returns one value that can be kept. Collect, then return")
    return fn  # type: ignore[no-any-return]
