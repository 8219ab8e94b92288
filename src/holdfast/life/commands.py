"""What the life of a step asks its driver to do; the driver alone knows whether that blocks or awaits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from holdfast.life.bell import News
from holdfast.life.run import Body
from holdfast.records import kinds as rec
from holdfast.store import Transaction

T = TypeVar("T")


class Commit(NamedTuple):
    """Make the records durable, together with the letters they follow from; the answer is the seq of the last one."""

    records: Sequence[rec.Record]
    takes: Sequence[int] = ()


class Invoke(NamedTuple):
    """Call a function of the user's; the answer is what it returned, and its error is thrown in."""

    body: Body
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    timeout_s: float | None


class Settle(NamedTuple):
    """Make the records durable, the last of which is an outcome, and wait until it may be given back to the code.

    Where it `may_wait`, the run decides when it becomes durable: with the next thing that must be, at the latest. What is done `within` a
    transaction of the user's commits with it.
    """

    records: Sequence[rec.Record]
    may_wait: bool = False
    within: Transaction | None = None


class Turn(NamedTuple):
    """Wait until the outcome `seq` may be given back to the code."""

    seq: int


class Pause(NamedTuple):
    """Let time go by, or until there is news."""

    seconds: float
    news: News | None = None


class WaitForPerson(NamedTuple):
    """Wait until somebody has spoken about `step_id`, or until a time; the run may park meanwhile.

    `waiting` is the step that waits, where that is another; `looks` says that the time is only that to look again.
    """

    step_id: str
    until_us: int = 0
    waiting: str = ""
    looks: bool = False


class Hang(NamedTuple):
    """Wait to be cancelled; where what does it is `over`, its cancellation comes now, or came together with another one."""

    over: bool = False


class Came(NamedTuple):
    """What a step that waited ended with: its value, whose that was if it is taken over, and what is stored in the same transaction."""

    value: Any
    records: Sequence[rec.Record] = ()
    takes: Sequence[int] = ()
    reused: str = ""


Command: TypeAlias = Commit | Settle | Invoke | Turn | Pause | WaitForPerson | Hang
Life: TypeAlias = Generator[Command, Any, T]
