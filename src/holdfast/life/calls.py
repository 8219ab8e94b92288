"""One call of a step: what was declared of it, who calls it, and with what."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast._landing import Rules
from holdfast.breaker import Circuit
from holdfast.codec.fingerprint import as_called, encode_arguments, identity
from holdfast.codec.signature import Arguments, return_annotation
from holdfast.codec.values import ValueCodec, codec_for
from holdfast.errors import NotKept
from holdfast.life.doubt import Together
from holdfast.life.run import Scope
from holdfast.retry import Retry

if TYPE_CHECKING:
    from holdfast.life.commands import Came, Life
    from holdfast.life.doubt import Action
    from holdfast.records.replay import History

SHOWN = 200
"""Characters of a value or call that an error message shows."""


class Approve(NamedTuple):
    """A person must agree first: always or `when` the arguments ask for it, and within a time."""

    when: Callable[..., bool] | None = None
    timeout_s: float | None = None


class Spec:
    """What was declared of a step: its function and its options."""

    __slots__ = (
        "approve", "arguments", "breaker", "call_id", "effect", "errors", "fn", "ignore", "in_doubt", "is_async", "kept_by", "key", "name",
        "raises", "retry", "returns", "timeout_s", "undo", "uses", "usual", "wait",
    )  # fmt: skip

    def __init__(
        self,
        *,
        fn: Callable[..., Any],
        name: str,
        is_async: bool,
        in_doubt: Action | Together | None = None,
        approve: Approve | None = None,
        key: str | Callable[..., str] | None = None,
        retry: Retry | None = None,
        breaker: Circuit | None = None,
        timeout_s: float | None = None,
        raises: tuple[type[BaseException], ...] = (),
        errors: Rules = (),
        call_id: str | Callable[..., str] | None = None,
        returns: object = None,
        ignore: tuple[str, ...] = (),
        undo: Spec | None = None,
        uses: str | Callable[..., Mapping[str, float]] | None = None,
        wait: Callable[[Call], Life[Came]] | None = None,
    ) -> None:
        self.fn, self.name, self.is_async = fn, name, is_async
        self.effect, self.in_doubt, self.key = in_doubt is not None, in_doubt, key
        self.approve, self.undo, self.breaker, self.wait = approve, undo, breaker, wait
        self.retry, self.timeout_s, self.raises, self.errors = retry, timeout_s, raises, errors
        self.call_id, self.returns, self.ignore, self.uses = call_id, returns, ignore, uses
        self.usual = not isinstance(in_doubt, Together) and not any((approve, undo, breaker, wait, call_id, uses))
        self.arguments = Arguments(fn, ignore)
        self.kept_by: ValueCodec | None = None

    def codec(self) -> ValueCodec:
        """How results are kept; built once, before the first intent."""
        if self.kept_by is None:
            annotation = return_annotation(self.fn) if self.returns is None else self.returns
            try:
                self.kept_by = codec_for(annotation, f"the result of {'effect' if self.effect else 'step'} {self.name!r}")
            except NotKept as error:
                raise NotKept(error.what, f"{error.reason}; nothing was executed by this call", error.remedy) from error
        return self.kept_by


class Call:
    """One call of a step in a run: who, with what, numbered by its `home` and executed in its `scope`."""

    __slots__ = (
        "args", "args_sha", "bound", "fingerprint", "home", "key", "kwargs", "run", "scope", "spec", "started_at_us", "step_id", "text",
    )  # fmt: skip

    def __init__(self, spec: Spec, scope: Scope, step_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.spec, self.home, self.scope, self.run, self.step_id = spec, scope, scope, scope.run, step_id
        self.args, self.kwargs = args, kwargs
        self.bound = spec.arguments.bind(args, kwargs)
        self.fingerprint, self.text, self.args_sha = identity(self.bound)
        self.key = ""
        self.started_at_us = 0

    def called_so_far(self) -> dict[str, Any]:
        """How many steps its scope has called, and those that this one is a branch of: what a failure records of them."""
        called, *above = (scope.count for scope in self.home.line())
        return {"called": called, "above": above}

    def shown(self) -> str:
        """The call as a person would write it."""
        return shown_call(self.spec.name, encode_arguments(self.bound))

    def keeping_name(self, recorded: History | None) -> str:
        """What to write if the recorded step was only renamed: it had another name and the same arguments."""
        if recorded is None or not recorded.name or recorded.name == self.spec.name or recorded.fingerprint != self.fingerprint:
            return ""
        if recorded.child or self.spec.wait is not None:
            return ""
        declared = "effect" if self.spec.effect else "step"
        return f"If it was only renamed, keep the old name: @hf.{declared}(name={recorded.name!r})"

    def first_us(self) -> int:
        """When the first intent of this effect was recorded, or may have been in what a repair could not read; 0 where nobody knows."""
        history, unknown = self.run.journal.histories.get(self.step_id), self.run.journal.unknown
        return history.first_us if history is not None else unknown.since_us if unknown is not None else 0

    def started_us(self) -> int:
        """When the latest attempt began."""
        return self.run.journal.histories[self.step_id].started_us

    def unfit(self, value: bytes | None) -> str:
        """Why these bytes cannot be the result of this call, or nothing."""
        try:
            self.spec.codec().give_back(value or b"null")
        except ValueError as error:
            return f"{error}; it must be {self.spec.codec().shape()}"
        return ""

    def asked_model(self) -> str:
        """The model that the arguments name, if one of them is called `model`."""
        given = self.spec.arguments.value_of("model", self.args, self.kwargs)
        return given if isinstance(given, str) else ""

    def kept(self) -> tuple[bytes, str]:
        """The arguments as they are stored, and their digest: as they were when this was first asked for."""
        if self.text is None:
            self.text = encode_arguments(self.bound)
        if not self.args_sha:
            self.args_sha = hashlib.sha256(self.text).hexdigest()
        return self.text, self.args_sha

    def kept_arguments(self) -> dict[str, Any]:
        """The same as fields of a record."""
        args, args_sha = self.kept()
        return {"args": args, "args_sha": args_sha}

    def has_changed(self) -> bool:
        """Whether the arguments are not any more what they were when the call began."""
        with contextlib.suppress(Exception):
            return identity(self.bound)[0] != self.fingerprint
        return True

    def as_it_is_now(self) -> Call:
        """The call with its arguments as they are now, whatever becomes of them; what cannot be copied stays itself."""
        kept = copy.copy(self)
        with contextlib.suppress(Exception):
            kept.args, kept.kwargs = copy.deepcopy((self.args, self.kwargs))
        return kept

    def blamed(self, error: BaseException) -> BaseException:
        """The error, marked with the step it came from: a resumed run goes behind the failure that escaped."""
        with contextlib.suppress(AttributeError):
            error.__holdfast_step__ = (self.run.id, self.step_id)  # type: ignore[attr-defined]
        return error


def shown_call(name: str, args: bytes | None) -> str:
    """A call with its arguments, shortened for a message."""
    try:
        inside = as_called(args or b"{}") if args is not None else "..."
    except (ValueError, AttributeError):
        inside = "..."
    return f"{name}({inside if len(inside) <= SHOWN else inside[:SHOWN] + '...'})"
