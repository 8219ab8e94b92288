"""From what somebody writes to the order that is meant: an agent, its arguments, and what may be said of a run when it is started."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from types import MethodType
from typing import Any, TypedDict

from holdfast._duration import Duration, seconds
from holdfast._ids import checked_name, checked_run_id, checked_text, new_run_id
from holdfast._options import refuse_unknown
from holdfast._turns import PRIORITIES
from holdfast.budget import Budget, checked
from holdfast.errors import Misuse, NestedStep
from holdfast.life.run import Body, Scope, place
from holdfast.running.engine import Order
from holdfast.verbs.decorators import Agent

QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
QUEUE_RULE = "a queue is named by letters, digits, '.', '_' and '-', 64 at the most"

loading: ContextVar[str] = ContextVar("holdfast_loading", default="")
"""The file that is being loaded for the agents in it, while it is: then nothing is started."""


class RunOptions(TypedDict, total=False):
    """What may be said of a run when it is started."""

    run_id: str | None
    tags: Mapping[str, str] | None
    budget: Budget | None
    park_after: Duration | None


def not_an_agent(found: Any, *, said: str = "hf.run", written: str = "agent, arguments") -> str:
    """What is said to somebody who hands over something else."""
    if asyncio.iscoroutine(found):
        found.close()
    if isinstance(found, MethodType) and isinstance(found.__func__, Agent):
        remedy = "Make the agent a function; what it needs comes as arguments, or from hf.resource(Type)"
        return f"{found.__name__!r} is a method, and its object could not be recorded; nothing was started. {remedy}"
    if callable(found):
        return f"{getattr(found, '__name__', found)!r} is not an agent; nothing was started. Decorate it with @hf.agent"
    return f"{said} was given {type(found).__name__}, not an agent; nothing was started. Hand over the agent: {said}({written})"


def refuse_while_loading(said: str = "hf.run") -> None:
    """A file that is loaded for its agents starts nothing."""
    if loading.get():
        remedy = f"put {said}(...) under `if __name__ == '__main__':`"
        raise Misuse(f"{loading.get()} starts a run while it is loaded for its agents; nothing was started: {remedy}")


def checked_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    """The tags, as text: of a run as it is started, and of those that are looked for."""
    if tags is not None and not isinstance(tags, Mapping):
        raise Misuse(f"tags={tags!r:.80}: they are texts by name, such as {{'team': 'sales'}}; nothing was done")
    return {checked_text(str(name), "tag"): checked_text(str(value), "tag") for name, value in (tags or {}).items()}


def ordered(
    agent: Any, args: tuple[Any, ...], *, wait: bool, options: RunOptions, beside: Sequence[str] = (), said: str = "hf.run"
) -> Order:
    """The order, checked before anything begins: what cannot be recorded is refused here. `said` is what the caller wrote."""
    refuse_while_loading(said)
    where = place.get()
    if isinstance(where, Body):
        raise NestedStep(said, where.call.spec.name)
    if isinstance(where, Scope):
        raise Misuse(f"{said} was called inside a run; nothing was started. Call the agent itself: inside a run that is a child run")
    if not isinstance(agent, Agent):
        raise Misuse(not_an_agent(agent, said=said))
    refuse_unknown(options, [*RunOptions.__annotations__], said, "Arguments of the agent are given by position", beside)
    run_id, park_after = options.get("run_id"), options.get("park_after")
    order = Order(
        agent=agent, args=args, wait=wait, tags=checked_tags(options.get("tags")),
        run_id=new_run_id(agent.name) if run_id is None else checked_run_id(run_id), budget=checked(options.get("budget"), said),
        park_after_s=None if park_after is None else seconds(park_after, "park_after"),
    )  # fmt: skip
    order.fingerprint()
    order.encoded()
    agent.codec()
    return order


def in_line(order: Order, *, queue: str, priority: int, key: str) -> Order:
    """The order with its place among those that are left to workers."""
    if not QUEUE_NAME.fullmatch(checked_text(queue, "queue")):
        raise Misuse(f"queue={queue!r:.80}: {QUEUE_RULE}; nothing was left to anybody")
    if type(priority) is not int or abs(priority) >= PRIORITIES:
        raise Misuse(f"priority={priority!r:.80} must be a whole number between {1 - PRIORITIES} and {PRIORITIES - 1}, 0 for most runs")
    return replace(order, queue=queue, priority=priority, lane=checked_name(key, "key"))
