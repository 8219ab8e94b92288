"""What to do when it is not known whether an effect happened: the five actions, and how they are carried out.

`settle` is the part of an effect's life that turns a doubt into the next move: another attempt under the same key, a result that was
found, or an error. Whatever an action cannot decide goes to a person. Nothing here repeats an effect without a word from
somebody: the other side that knows keys (resend), a probe, a reset, or a person.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast import _landing
from holdfast._facts import Fact, fact
from holdfast._failpoints import reach
from holdfast._ids import jitter
from holdfast.codec.answers import wants_of_result
from holdfast.codec.failures import failure, told
from holdfast.errors import InDoubt, NotKept
from holdfast.life.commands import Commit, Invoke, Life, Pause, Turn, WaitForPerson
from holdfast.life.run import Body
from holdfast.records import kinds as rec
from holdfast.records.replay import History
from holdfast.retry import Retry

if TYPE_CHECKING:
    from holdfast.life.calls import Call


MAX_REASON = 1000
"""Characters of a reason that are kept with a doubt."""

NOTHING = History()
"""What is recorded of a call before its first record."""


@fact()
class Resend(Fact):
    """Run again under the same key, as long as the other side remembers keys."""

    within_s: float


@fact()
class Verify(Fact):
    """Ask a probe; believe its "not landed" only `settle_s` after the intent."""

    probe: Callable[..., Any]
    settle_s: float


@fact()
class Reset(Fact):
    """Call something harmless that brings the world back to before, `settle_s` after the intent, then run again."""

    fn: Callable[..., Any]
    settle_s: float


@fact()
class Ask(Fact):
    """A person says what is true."""


@fact()
class Fail(Fact):
    """Raise `InDoubt` into the agent."""


@fact()
class Together(Fact):
    """In place of an action: it commits with its outcome in one transaction, and is never in doubt."""


Action: TypeAlias = Resend | Verify | Reset | Ask | Fail


@fact()
class Attempt(Fact):
    """Run the body (again)."""

    number: int


@fact()
class Uncertain(Fact):
    """It is not known whether attempt `number` happened; `live` where this process saw the error itself.

    `after_s` is how long the other side asks to wait before the next attempt; `same_as` names the same call on a path that was given up;
    `unread` where nothing is known of it, and a repair could not read everything.
    """

    number: int
    reason: str
    live: bool
    asked: bool = False
    after_s: float = 0.0
    same_as: str = ""
    unread: bool = False


@fact()
class Found(Fact):
    """It happened, and this is what it returned."""

    number: int
    value: bytes


@fact()
class Finished(Fact):
    """The effect has its outcome."""

    result: Any


Move: TypeAlias = Attempt | Uncertain | Found | Finished


def settle(call: Call, doubt: Uncertain) -> Life[Move]:
    """The next move after a doubt.

    An intent of which nothing was heard again counts like an error here: under resend, an effect that kills its process every time would
    not end otherwise. One that a probe, a reset or a person has said did not happen is no attempt in vain.
    """
    action = _action(call, doubt)
    if doubt.asked:
        return (yield from _ask(call, doubt, ""))
    match action:
        case None | Ask() | Together():  # where another version of the code had begun it otherwise
            return (yield from _ask(call, doubt, "a person must say"))
        case Fail():
            return (yield from give_up(call, doubt))
    delay_s = _delay_s(call, doubt)
    if _used_up(call, delay_s):
        return (yield from give_up(call, doubt))
    match action:
        case Resend():
            return (yield from _resend(call, doubt, action, delay_s))
        case Verify():
            return (yield from _verify(call, doubt, action, delay_s))
        case Reset():
            return (yield from _reset(call, doubt, action, delay_s))


def _action(call: Call, doubt: Uncertain) -> Action | Together | None:
    """What the effect declared; a person, where that relies on a key and nobody knows that of an intent that a repair could not read.

    Nor is sent again unasked what needs an approval: whether it was given is not known either.
    """
    action, unknown = call.spec.in_doubt, call.run.journal.unknown
    if not doubt.unread or not isinstance(action, Resend | Verify | Reset):
        return action
    sure = call.spec.key is not None or (unknown is not None and unknown.sure)
    return action if sure and not (isinstance(action, Resend) and call.spec.approve is not None) else Ask()


def give_up(call: Call, doubt: Uncertain) -> Life[Move]:
    """Raise `InDoubt`, live now and on replay; the doubt stays open until somebody settles it."""
    tried = {0: "no attempt is on record", 1: "one attempt was made"}.get(doubt.number, f"{doubt.number} attempts were made")
    reason = f"{doubt.reason[:MAX_REASON]}; {tried}, under the key {call.key}"
    error = InDoubt(call.step_id, call.spec.name, reason)
    outcome = rec.StepFailed(
        step_id=call.step_id, name=call.spec.name, fingerprint=call.fingerprint, effect=True,
        error=failure(error), attempt=doubt.number, doubt=True, reason=reason, **call.called_so_far(),
    )  # fmt: skip
    yield Turn((yield Commit([_opened(call, doubt, "fail"), outcome])))
    raise call.blamed(error)


def ask_first(call: Call, why: str, same_as: str = "") -> Life[Move]:
    """A call that has not begun, while the same call may have happened at another step: a person must agree."""
    reason = f"{why}; running this one could do it twice"
    return (yield from _ask(call, Uncertain(0, reason, live=False, same_as=same_as), reason))


def _resend(call: Call, doubt: Uncertain, action: Resend, delay_s: float) -> Life[Move]:
    first_us = call.first_us()
    age_s = (call.run.clock.now_us() - first_us) / 1e6
    if age_s > action.within_s:
        old = f"the intent {'may be' if doubt.unread else 'is'} {age_s:.0f} s old" if first_us else "how old the intent is, is not known"
        return (yield from _ask(call, doubt, f"{old}, the key is remembered for {action.within_s:.0f} s"))
    yield Commit([_opened(call, doubt, "resend", delay_s=delay_s)])
    yield Pause(delay_s)
    return Attempt(doubt.number + 1)


def _verify(call: Call, doubt: Uncertain, action: Verify, delay_s: float) -> Life[Move]:
    yield Commit([_opened(call, doubt, "verify")])
    verdict, why = yield from _believable(call, action)
    reach("doubt.before_settle")
    match verdict:
        case _landing.Landed():
            try:
                value, _ = call.spec.codec().keep(verdict.result)
            except NotKept as error:
                return (yield from _ask(call, doubt, f"the probe found it, but {error}"))
            yield Commit([rec.DoubtSettled(step_id=call.step_id, verdict="landed", by="probe", value=value)])
            reach("doubt.after_settle")
            return Found(doubt.number, value)
        case _landing.NotLanded():
            yield Commit([rec.DoubtSettled(step_id=call.step_id, verdict="not_landed", by="probe", delay_ms=round(delay_s * 1000))])
            reach("doubt.after_settle")
            yield Pause(delay_s)
            return Attempt(doubt.number + 1)
        case _:
            yield Commit([rec.DoubtSettled(step_id=call.step_id, verdict="unknown", by="probe", reason=why)])
            return (yield from _ask(call, doubt, why))


def _believable(call: Call, action: Verify) -> Life[tuple[object, str]]:
    """What the probe says: "landed" is believed at once, "not landed" only when nothing can be under way any more."""
    early_s = _settle_wait_s(call, action.settle_s)
    verdict, why = yield from _probe(call, action)
    if early_s <= 0 or not isinstance(verdict, _landing.NotLanded):
        return verdict, why
    reason = f"not there, but it may still be under way: asking again in {early_s:.1f} s"
    yield Commit([rec.DoubtSettled(step_id=call.step_id, verdict="unknown", by="probe", reason=reason)])
    yield Pause(early_s)
    return (yield from _probe(call, action))


def _probe(call: Call, action: Verify) -> Life[tuple[object, str]]:
    """The probe's verdict, with the reason where it has none."""
    try:
        verdict = yield Invoke(Body(call), action.probe, call.args, call.kwargs, call.spec.timeout_s)
    except _landing.NotLanded as raised:
        return raised, ""
    except Exception as error:  # noqa: BLE001 (whatever a probe raises, it does not know)
        return None, f"the probe failed: {told(error)}"
    match verdict:
        case _landing.Landed() | _landing.NotLanded():
            return verdict, ""
        case _landing.Unknown():
            return None, f"the probe does not know{': ' + verdict.reason if verdict.reason else ''}"
    return None, f"the probe returned {type(verdict).__name__} instead of Landed, NotLanded or Unknown"


def _settle_wait_s(call: Call, settle_s: float) -> float:
    """How long until nothing can land any more: the request may still be under way, and so may an owner that only seems dead."""
    run, grace_us = call.run, (call.run.lease_s + (call.spec.timeout_s or 0.0)) * 1e6
    began_epoch = run.journal.histories[call.step_id].started_epoch
    silent_us = max((at_us + grace_us for epoch, at_us in run.journal.silences if epoch > began_epoch), default=0.0)
    began_us = call.started_us() or (run.journal.unknown.until_us if run.journal.unknown is not None else 0)
    believable_us = max(began_us + settle_s * 1e6, silent_us)
    return max(0.0, (believable_us - run.clock.now_us()) / 1e6)


def _reset(call: Call, doubt: Uncertain, action: Reset, delay_s: float) -> Life[Move]:
    yield Commit([_opened(call, doubt, "reset")])
    yield Pause(_settle_wait_s(call, action.settle_s))
    try:
        yield Invoke(Body(call), action.fn, call.args, call.kwargs, call.spec.timeout_s)
    except Exception as error:  # noqa: BLE001 (a reset that failed leaves the doubt where it was)
        return (yield from _ask(call, doubt, f"the reset failed: {told(error)}"))
    reach("doubt.before_settle")
    yield Commit([rec.DoubtSettled(step_id=call.step_id, verdict="not_landed", by="reset", delay_ms=round(delay_s * 1000))])
    reach("doubt.after_settle")
    yield Pause(delay_s)
    return Attempt(doubt.number + 1)


def _ask(call: Call, doubt: Uncertain, why: str) -> Life[Move]:
    """Wait for a person, as long as it takes; a result that does not fit is put before them again."""
    reason = doubt.reason if not why or why in doubt.reason else f"{doubt.reason}; {why}"
    if not doubt.asked:
        yield Commit([_opened(call, doubt, "ask", reason=reason)])
    elif (put := call.run.journal.histories[call.step_id].doubt) is not None and put.wants != _wants(call):
        yield Commit([put.but(wants=_wants(call))])  # the code returns something else by now
    while True:
        yield WaitForPerson(call.step_id)
        settled = call.run.journal.histories[call.step_id].settled
        assert settled is not None
        if settled.verdict == "not_landed":
            return Attempt(doubt.number + 1)
        unfit = call.unfit(settled.value)
        if not unfit:
            return Found(doubt.number, settled.value or b"null")
        yield Commit([opened(call, f"{reason}; the result that {settled.by} gave does not fit: {unfit}", "ask")])


def _delay_s(call: Call, doubt: Uncertain) -> float:
    """How long to wait before the next attempt: after a crash not at all, the restart took its time."""
    if not doubt.live:
        return 0.0
    tries = call.run.journal.histories[call.step_id].tries()
    return max(_policy(call).backoff_s(tries, jitter()), doubt.after_s)


def _used_up(call: Call, delay_s: float) -> bool:
    """Whether the policy allows no attempt after that wait; where nothing failed but its process, no time is over."""
    history = call.run.journal.histories.get(call.step_id, NOTHING)
    since_s = (call.run.clock.now_us() - history.began_us) / 1e6 if history.failures else 0.0
    return _policy(call).stops(history.tries(), since_s=since_s + delay_s, usd=history.usd)


def _policy(call: Call) -> Retry:
    return call.spec.retry or Retry()


def _opened(call: Call, doubt: Uncertain, action: str, *, reason: str = "", delay_s: float = 0.0) -> rec.DoubtOpened:
    record = opened(call, reason or doubt.reason, action, not_begun=doubt.number == 0, delay_s=delay_s)
    return record.but(same_as=doubt.same_as, unread=doubt.unread)


def opened(call: Call, reason: str, action: str, *, not_begun: bool = False, delay_s: float = 0.0) -> rec.DoubtOpened:
    """The record of a doubt; a call that has not begun has no other record that tells its arguments and key."""
    told = {**call.kept_arguments(), "key": call.key} if not_begun else {}
    if action in ("ask", "fail"):
        told["wants"] = _wants(call)
    return rec.DoubtOpened(
        step_id=call.step_id, name=call.spec.name, fingerprint=call.fingerprint, reason=reason, action=action,
        delay_ms=round(delay_s * 1000), **told,
    )  # fmt: skip


def _wants(call: Call) -> rec.Json:
    """What a person must give who knows the result."""
    return wants_of_result(call.spec.codec().annotation)
