"""What a run may spend: limits of money, tokens, steps, time and retries, and what follows when one is reached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from holdfast._duration import Duration, seconds
from holdfast.errors import Misuse

OnLimit: TypeAlias = Literal["ask", "fail"]

LIMITS = ("usd", "tokens", "steps", "time", "retries")
"""What can be limited, in the order in which limits are looked at."""


SINGULAR = {"tokens": "token", "steps": "step", "retries": "retry"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run may spend; when a limit is reached, a person is asked, or the run fails with `BudgetExceeded`.

    `tokens` are input and output together, `steps` are those with an outcome, `time` is how long the run executed (not how long it
    waited), `retries` are attempts that failed and were followed by another.
    """

    usd: float | None = None
    tokens: int | None = None
    steps: int | None = None
    time: Duration | None = None
    retries: int | None = None
    on_limit: OnLimit = "ask"

    def __post_init__(self) -> None:
        if all(getattr(self, name) is None for name in LIMITS):
            raise Misuse(f"a Budget without a limit limits nothing. Give at least one of {', '.join(LIMITS)}, such as hf.Budget(usd=5)")
        if self.on_limit not in ("ask", "fail"):
            raise Misuse(f"on_limit of Budget is {self.on_limit!r}; it is 'ask' (a person says whether to go on) or 'fail'")
        if self.usd is not None and (type(self.usd) not in (int, float) or not 0 < self.usd < math.inf):
            raise Misuse(f"usd of Budget is {self.usd!r}; it must be an amount of US dollars above 0, such as 5")
        for name, least in (("tokens", 1), ("steps", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise Misuse(f"{name} of Budget is {value!r}; it must be a whole number from {least} on")
        if self.time is not None and seconds(self.time, "time of Budget") == 0:
            raise Misuse("time of Budget is 0: nothing could be executed")

    def limits(self) -> dict[str, float]:
        """The limits that there are, by name; the time in seconds."""
        given = {name: getattr(self, name) for name in LIMITS}
        amounts = {name: value for name, value in given.items() if value is not None}
        return {**amounts, "time": seconds(amounts["time"], "time of Budget")} if "time" in amounts else amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run has spent so far, over all its lives; money and tokens as far as `hf.usage` said."""

    usd: float = 0.0
    tokens: int = 0
    steps: int = 0
    retries: int = 0
    seconds: float = 0.0

    def of(self, name: str) -> float:
        """The amount that a limit of this name is compared with."""
        return self.seconds if name == "time" else float(getattr(self, name))


def checked(budget: object, where: str) -> Budget | None:
    """The budget that was given, if it is one."""
    if budget is None or isinstance(budget, Budget):
        return budget
    raise Misuse(f"budget={budget!r} of {where} is no budget; nothing was started. Write budget=hf.Budget(usd=5)")


def read_limits(found: Mapping[str, Any]) -> dict[str, float]:
    """The limits among the fields of a record or letter, if they are sound; Misuse where they are not."""
    named = {name: found[name] for name in LIMITS if found.get(name) is not None}
    return Budget(**named).limits() if named else {}


def shown(name: str, amount: float) -> str:
    """An amount as a person would write it."""
    match name:
        case "usd":
            return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}".removesuffix("00")
        case "time":
            return f"{amount:,.1f} s"
        case _:
            return f"{int(amount):,} {SINGULAR[name] if amount == 1 else name}"
