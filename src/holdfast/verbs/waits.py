"""Steps that wait for a person, a time or a message, holding nothing meanwhile; what came is recorded like a result.

Each is a step with an id of its own, so that replay gives back what came. Before it waits it records what it waits for and until when: the
end of the time survives every restart, and an operator sees it. When every line of execution waits, the code is unwound and the run
is released; whoever wakes it replays to this place.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar, overload

from holdfast._duration import Duration, seconds
from holdfast._failpoints import reach
from holdfast._ids import checked_run_id, checked_text
from holdfast._options import AWAY
from holdfast.codec.answers import Wants, misfit, shown, wants_of
from holdfast.codec.values import codec_for
from holdfast.codec.words import written
from holdfast.errors import Misuse, NestedStep, NoRun, NotKept, RunMoved, Undeliverable, WrongMode
from holdfast.life.asking import consult
from holdfast.life.calls import SHOWN, Call, Spec
from holdfast.life.commands import Came, Commit, Life, Pause, WaitForPerson
from holdfast.life.mail import Message
from holdfast.life.run import A_TIME, LETTER_GRACE_US, MESSAGE, Body, Run, Scope, active, place
from holdfast.records import kinds as rec
from holdfast.records.away import left
from holdfast.records.replay import QUESTION
from holdfast.verbs.decorators import Step

T = TypeVar("T")

Who: TypeAlias = str | Sequence[str]

SHORT_S = 1.0
"""A sleep that ends within this time is waited for in place: to unwind the code and to replay it takes longer."""

AFTERWARDS = "then it goes on without an answer"
"""What people are told of the end of the time that a question has: the default holds, or else there is an error."""

ASK_FOR = "Ask for bool, str, int, float, a Literal or a pydantic model"

MISSING: Any = inspect.Parameter.empty

log = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What is asked of a person: what the answer must look like, who may give it, until when, and what holds without one."""

    wants: Wants
    who: tuple[str, ...] = ()
    timeout_s: float | None = None
    default: Any = MISSING


def _ask(question: str, answer: str, details: Any = None) -> None:
    """The arguments of an ask, for its fingerprint."""


def _sleep(until: Any) -> None:
    """The arguments of a sleep."""


def _receive(name: str, message: str) -> None:
    """The arguments of a receive."""


def asking(question: str, kind: Any, *, is_async: bool, details: Any, timeout: Duration | None, default: Any, who: Who) -> Any:
    """Put a question to a person and give the answer, as a step of the run."""
    checked_text(question, "the question")
    if not question:
        raise Misuse("hf.ask was given no question; nothing was asked")
    names = tuple(checked_text(name, "who") for name in _names(who))
    asked = Asking(wants=_wants(kind), who=names, timeout_s=None if timeout is None else seconds(timeout, "timeout"), default=default)
    _refuse_default(kind, asked)
    _refuse_unplain(details, "details")
    return _step("ask", _ask, kind, is_async=is_async, wait=lambda call: _answered(call, asked))(question, shown(asked.wants), details)


def _names(who: object) -> Sequence[str]:
    if not isinstance(who, str | list | tuple | set | frozenset):
        raise Misuse(f"who={who!r:.80} must be a name or several; nothing was asked")
    return (who,) if isinstance(who, str) else tuple(who)


def sleeping(until: Duration | datetime, *, is_async: bool) -> Any:
    """Wait for a time, as a step of the run."""
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise Misuse(f"hf.sleep was given {until.isoformat()} without a time zone; nothing was recorded. Add tzinfo=UTC")
        until_us = int(until.timestamp() * 1e6)
        wait_until = partial(_slept, until=lambda: until_us)
        return _step("sleep", _sleep, None, is_async=is_async, wait=wait_until)(until.astimezone(UTC).isoformat())
    length_s = seconds(until, "the time to sleep")

    def wait(call: Call) -> Life[Came]:
        return _slept(call, lambda: call.run.clock.now_us() + int(length_s * 1e6))

    return _step("sleep", _sleep, None, is_async=is_async, wait=wait)(length_s)


def receiving(name: str, kind: Any, *, is_async: bool, timeout: Duration | None, default: Any) -> Any:
    """Wait for a message, as a step of the run."""
    checked_text(name, "the name of a message")
    asked = Asking(wants=_wants(kind), timeout_s=None if timeout is None else seconds(timeout, "timeout"), default=default)
    _refuse_default(kind, asked)
    return _step("receive", _receive, kind, is_async=is_async, wait=lambda call: _received(call, name, asked))(name, shown(asked.wants))


def _step(name: str, signature: Callable[..., None], kind: Any, *, is_async: bool, wait: Callable[[Call], Life[Came]]) -> Step:
    _refuse_wrong_mode(name, is_async=is_async)
    return Step(Spec(fn=signature, name=name, is_async=is_async, returns=type(None) if kind is None else kind, wait=wait))


def _refuse_wrong_mode(name: str, *, is_async: bool) -> None:
    """A wait that blocks would stop the event loop, and with it all other branches."""
    where = place.get()
    if isinstance(where, Scope) and not where.run.blocking and not is_async:
        remedy = "It is an `async def` agent: use `import holdfast as hf` and await"
        raise WrongMode(f"holdfast.sync.{name}", where.run.started.agent, remedy)


def _refuse_unplain(value: object, what: str) -> None:
    """What others are to read is kept as it is, or refused: JSON that would not come back equal is not plain."""
    if not _is_plain(value):
        raise Misuse(f"{what} must be plain JSON (dicts with text keys, lists, texts, numbers), not {value!r:.80}; nothing was recorded")


def _is_plain(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False


def _as_message(value: object) -> object:
    """What is sent: plain JSON as it is, and a typed value, such as a model, in the form in which it is kept."""
    if not _is_plain(value) and not isinstance(value, dict | list | tuple | set | frozenset):
        with suppress(NotKept):
            return json.loads(written(value))
    _refuse_unplain(value, "a message")
    return value


def _wants(kind: Any) -> Wants:
    if inspect.isroutine(kind):
        raise Misuse(f"nobody can answer with {kind!r}: it is a function, not a type. {ASK_FOR}")
    try:
        return wants_of(kind)
    except Exception as error:
        raise Misuse(f"nobody can answer with {kind!r}: {error}. {ASK_FOR}") from error


def _refuse_default(kind: Any, asked: Asking) -> None:
    if asked.default is MISSING:
        return
    if asked.timeout_s is None:
        raise Misuse("default= without timeout=: nothing would ever give up waiting; nothing was asked")
    try:
        codec_for(kind, "the default").keep(asked.default)
    except NotKept as error:
        raise Misuse(f"default={asked.default!r} does not fit: {error}") from None


def _answered(call: Call, asked: Asking) -> Life[Came]:
    """The answer to a question; one that does not fit, which only the code can see, has it put anew."""
    question, problem, turn, until_us = call.args[0], "", _turn(call), 0
    while True:
        answer = yield from consult(
            call.run, call.step_id, topic=QUESTION, question=f"{question}{problem}", about=f"{call.fingerprint}/{turn}",
            timeout_s=asked.timeout_s, until_us=until_us, step_id=call.step_id, wants=asked.wants, who=asked.who, details=call.args[2],
        )  # fmt: skip
        if answer.timed_out:
            return _without(asked, f"nobody answered {question!r} in time")
        unfit = call.unfit(answer.value)
        if not unfit:
            return Came(call.spec.codec().give_back(answer.value or b"null"))
        problem, turn = f" (the answer of {answer.by} does not fit: {_line(unfit)})", turn + 1
        until_us = call.run.journal.asks[call.step_id].opened.until_us  # an answer that is no use does not begin the time anew


def _turn(call: Call) -> int:
    """How often this very question has been put: 1, and one more for each answer that did not fit."""
    asked = call.run.journal.asks.get(call.step_id)
    about, _, turn = asked.opened.about.rpartition("/") if asked is not None else ("", "", "")
    return int(turn) if about == call.fingerprint else 1


def _line(text: str) -> str:
    """What is wrong, as one line."""
    return "; ".join(line.strip() for line in text.splitlines())[:SHOWN]


def _without(asked: Asking, why: str) -> Came:
    if asked.default is MISSING:
        raise TimeoutError(why)
    return Came(asked.default)


def _slept(call: Call, until: Callable[[], int]) -> Life[Came]:
    run = call.run
    until_us = yield from _begun(call, A_TIME, until)
    while (left_s := (until_us - run.clock.now_us()) / 1e6) > 0:
        if left_s <= SHORT_S:
            yield Pause(left_s)
        else:
            yield WaitForPerson(call.step_id, until_us)
    return Came(None)


def _received(call: Call, name: str, asked: Asking) -> Life[Came]:
    run, length_us = call.run, None if asked.timeout_s is None else int(asked.timeout_s * 1e6)
    until_us = yield from _begun(call, f"{MESSAGE}{name}", lambda: 0 if length_us is None else run.clock.now_us() + length_us)
    while True:
        message = run.mail.take(name) or _just_come(run, name)
        if message is not None:
            taken = rec.MessageTaken(step_id=call.step_id, name=name, key=message.key, by=message.by, again=message.again)
            unfit = misfit(asked.wants, message.value) or _line(call.unfit(message.encoded()))
            if not unfit:
                return Came(call.spec.codec().give_back(message.encoded()), (taken,), run.mail.letters_of(message))
            log.warning("run %s: message %r of %s does not fit and is put aside: %s", run.id, name, message.by, unfit)
            yield Commit([taken.but(unfit=unfit)], run.mail.letters_of(message))
        elif until_us and run.clock.now_us() >= until_us + LETTER_GRACE_US:
            return _without(asked, f"no message {name!r} came in time")
        else:
            yield WaitForPerson(f"{MESSAGE}{name}", until_us + LETTER_GRACE_US if until_us else 0, call.step_id)


def _just_come(run: Run, name: str) -> Message | None:
    """A message that is in the store already: who waits need not wait for it to be brought."""
    run.listen()
    return run.mail.take(name)


def _begun(call: Call, what: str, until: Callable[[], int]) -> Life[int]:
    """Record what is waited for and until when, once; gives the end of the time. Code that waits for something else begins anew."""
    waits = call.run.journal.waits
    before = waits.get(call.step_id)
    if before is None or (before.what, before.about) != (what, call.fingerprint):
        reach("wait.before")
        yield Commit([rec.WaitBegun(step_id=call.step_id, what=what, until_us=until(), about=call.fingerprint)])
        reach("wait.after")
    return waits[call.step_id].until_us


def sent(run_id: str, name: str, value: object, *, is_async: bool) -> Any:
    """Leave a message for another run, as a step of this one: repeated after a crash, it is the same message."""
    where = place.get()
    checked_run_id(run_id)
    if not checked_text(name, "the name of a message"):
        raise Misuse("a message needs a name, the one that the other run receives; nothing was sent")
    value = _as_message(value)
    if isinstance(where, Body):
        raise NestedStep("send", where.call.spec.name)
    if not isinstance(where, Scope) and not active:
        raise NoRun("send")
    return Step(Spec(fn=_posting if is_async else _posted, name="send", is_async=is_async, returns=type(None)))(run_id, name, value)


def _posted(run_id: str, name: str, value: object) -> None:
    where = place.get()
    assert isinstance(where, Body)
    run = where.run
    head = run.committer.store.head(checked_run_id(run_id))
    if head is None or head.status in ("done", "cancelled", *AWAY):
        way = "" if head is None or head.status not in AWAY else f" {head.note}"
        raise Undeliverable(run_id, name, "there is no such run" if head is None else f"it is {head.status}{way}")
    body = {"name": name, "value": value, "by": f"run {run.id}", "key": run.sending_key(where.call)}
    where.at_once = True
    run.flush()  # what the message relies on must not be lost once it is sent
    reach("send.before")
    try:
        left(run.committer.store, run.clock, run_id, ("message", json.dumps(body).encode()))
    except RunMoved as error:
        raise Undeliverable(run_id, name, f"it is being moved {error.where}") from error
    reach("send.after")


async def _posting(run_id: str, name: str, value: object) -> None:
    _posted(run_id, name, value)


@overload
def ask(
    question: str, kind: type[T], /, *, details: object = ..., timeout: Duration | None = ..., default: T = ..., who: Who = ...
) -> Coroutine[Any, Any, T]: ...
@overload
def ask(
    question: str, /, *, details: object = ..., timeout: Duration | None = ..., default: bool = ..., who: Who = ...
) -> Coroutine[Any, Any, bool]: ...
@overload
def ask(
    question: str, kind: Any, /, *, details: object = ..., timeout: Duration | None = ..., default: Any = ..., who: Who = ...
) -> Coroutine[Any, Any, Any]: ...
def ask(
    question: str, kind: Any = bool, /, *, details: object = None, timeout: Duration | None = None, default: Any = MISSING, who: Who = ()
) -> Any:
    """A person's answer, of the type `kind`, waited for as long as it takes, or until `timeout`; then `default` holds."""
    return asking(question, kind, is_async=True, details=details, timeout=timeout, default=default, who=who)


def sleep(until: Duration | datetime, /) -> Coroutine[Any, Any, None]:
    """Wait for a time, or until one, also across restarts; the run holds nothing meanwhile."""
    return sleeping(until, is_async=True)  # type: ignore[no-any-return]


@overload
def receive(name: str, kind: type[T], /, *, timeout: Duration | None = ..., default: T = ...) -> Coroutine[Any, Any, T]: ...
@overload
def receive(name: str, kind: Any, /, *, timeout: Duration | None = ..., default: Any = ...) -> Coroutine[Any, Any, Any]: ...
def receive(name: str, kind: Any, /, *, timeout: Duration | None = None, default: Any = MISSING) -> Any:
    """The oldest message of that name that nobody took, sent from outside or by another run; waited for like an answer."""
    return receiving(name, kind, is_async=True, timeout=timeout, default=default)


def send(run_id: str, name: str, value: object = None, /) -> Coroutine[Any, Any, None]:
    """Leave a message for another run, once, whatever crashes."""
    return sent(run_id, name, value, is_async=True)  # type: ignore[no-any-return]
