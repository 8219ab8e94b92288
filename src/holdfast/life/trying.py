"""Whether a step is tried again after an error, and how long it waits: the policy, given what the journal says was tried before."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast._clock import to_datetime
from holdfast._ids import jitter
from holdfast.life.run import Body
from holdfast.records import kinds as rec
from holdfast.retry import retry_after_s

if TYPE_CHECKING:
    from holdfast.life.calls import Call


class Left(NamedTuple):
    """What is left of a retry that an earlier life began: the wait, unless the policy allows no further attempt (`over`)."""

    failed: rec.AttemptFailed
    wait_s: float
    over: bool


def delay_after(call: Call, body: Body, error: Exception) -> float | None:
    """How long to wait before the next attempt, or None where there is to be none."""
    retry, history = call.spec.retry, call.run.journal.histories.get(call.step_id)
    if retry is None:
        return None
    failures, usd, began_us = (history.failures, history.usd, history.began_us) if history else (0, 0.0, 0)
    now_us = call.run.clock.now_us()
    since_s = max(0.0, (now_us - (began_us or call.started_at_us)) / 1e6)
    delay_s = retry.delay_s(error, failures + 1, jitter(), to_datetime(now_us), since_s=since_s, usd=usd + rec.cost_usd(body.usage))
    circuit = call.spec.breaker
    if delay_s is None or circuit is None:
        return delay_s
    return max(delay_s, circuit.rest_s(call.run.clock.monotonic_s()))  # an attempt that meets an open breaker is wasted


def asked_to_wait_s(call: Call, error: Exception) -> float:
    """How long the other side asks to wait."""
    return retry_after_s(error, to_datetime(call.run.clock.now_us()))


def left_to_wait(call: Call) -> Left | None:
    """What an earlier life left of a retry; None where the last attempt did not end in an error."""
    retry, history = call.spec.retry, call.run.journal.histories.get(call.step_id)
    if retry is None or history is None or not history.failures or not isinstance(history.trouble, rec.AttemptFailed):
        return None
    now_us = call.run.clock.now_us()
    wait_s = max(0.0, (history.failed_us + history.trouble.delay_ms * 1000 - now_us) / 1e6)
    since_s = max(0.0, (now_us - history.began_us) / 1e6)
    over = retry.stops(history.failures, since_s=since_s + wait_s, usd=history.usd)
    return Left(history.trouble, wait_s, over)
