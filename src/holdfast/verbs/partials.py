"""What a step's body has so far: saved while it works, given back to the attempt that comes after one that was broken off."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast, overload

from holdfast._failpoints import reach
from holdfast._ids import checked_text
from holdfast.codec.values import ValueCodec, codec_for
from holdfast.errors import LostContext, Misuse, UndecodableResult
from holdfast.life.run import Body, active, place, plain
from holdfast.records import kinds as rec

T = TypeVar("T")


class Partial(Generic[T]):
    """`value` is what was saved last, by this attempt or one before it; None where nothing was."""

    __slots__ = ("_body", "_codec", "_name", "value")

    def __init__(self, body: Body | None, name: str, codec: ValueCodec, value: T | None) -> None:
        self._body, self._name, self._codec, self.value = body, name, codec, value

    def save(self, value: T) -> None:
        """Keep `value` in the place of what was saved before; it is on the disk when this returns."""
        data, kept = self._codec.keep(value)
        if self._body is not None:
            self._store(self._body, data)
        self.value = cast("T", kept)

    def _store(self, body: Body, data: bytes) -> None:
        if body.over:
            raise Misuse(f"step {body.call.spec.name!r} has ended; nothing was saved. Save while its body works, or return the value")
        run = body.run
        run.check()
        reach("partial.before")
        record = rec.StepPartial(step_id=body.call.step_id, name=self._name, about=_about(body), value=data)
        run.committer.commit(run.journal, [record])
        reach("partial.after")


@overload
def partial(kind: type[T], /, *, name: str = ...) -> Partial[T]: ...
@overload
def partial(kind: Any, /, *, name: str = ...) -> Partial[Any]: ...
def partial(kind: Any, /, *, name: str = "") -> Partial[Any]:
    """What this step had saved before it was broken off, as `.value`, and `.save(v)` to keep more; cleared when it returns.

    Several in one body are told apart by their order, or by `name`.
    """
    codec = codec_for(kind, "the partial result")
    body = _body()
    if body is None:
        return Partial(None, name, codec, None)
    body.partials += 1
    name = checked_text(name, "the name of a partial result") or str(body.partials)
    return Partial(body, name, codec, _saved(body, name, codec))


def _body() -> Body | None:
    """The body that calls; none where a step is the plain function."""
    where = place.get()
    if isinstance(where, Body) or plain.get():
        return where if isinstance(where, Body) and not plain.get() else None
    if where is not None:
        raise Misuse("hf.partial belongs inside a step: an agent keeps what it has with hf.state, or as results of steps")
    if active:
        raise LostContext("hf.partial", "a thread or task that does not see the run")
    return None


def _saved(body: Body, name: str, codec: ValueCodec) -> Any:
    """What was saved for this very call; what no longer fits its type blocks the run, as a result would."""
    record = body.run.journal.partials.get(body.call.step_id, {}).get(name)
    if record is None or record.value is None or record.about != _about(body):  # a prune may have taken the value
        return None
    try:
        return codec.give_back(record.value)
    except ValueError as error:
        call = body.call
        raise body.run.stop(UndecodableResult(body.run.id, call.step_id, f"{call.spec.name} (its partial result)", str(error))) from error


def _about(body: Body) -> str:
    return f"{body.call.spec.name} {body.call.fingerprint}"
