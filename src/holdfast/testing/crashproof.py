"""Crashproof: an agent is run once without a crash and then with a crash at every point, and nothing may come of it but the same.

The points are those of the rig: before, inside and after each step, effect, wait and the agent itself. A doubt that is put to a person is
answered by one who knows the truth.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple, overload

from holdfast import Landed, NotLanded, RunWaiting
from holdfast._duration import Duration
from holdfast.errors import Misuse
from holdfast.operating.views import Item
from holdfast.testing.lives import Execution, Point
from holdfast.testing.rig import Prepared, Rig

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

RUN_ID = "crashproof"
SHOWN = 60
"""Characters of a result in the table."""
REPEATABLE = ("resend", "reset")
"""Actions in doubt under which a body may return twice: the other side knows its key, or it was reset in between."""


class _KnowingRig(Rig):
    """A rig whose people know what happened."""

    def _for(self, item: Item) -> Prepared | None:
        if item.kind != "doubt":
            return super()._for(item)
        done = [each.value for each in self.executed if (each.run_id, each.step_id) == (item.run_id, item.step_id)]
        return Prepared(item.what, Landed(done[-1]) if done else NotLanded(), "crashproof")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run from its beginning to its end, and what could be seen of it."""

    result: Any
    error: str
    executed: Sequence[Execution]
    reached: Sequence[Point] = field(compare=False)
    seen: Any

    def told(self) -> str:
        text = self.error or repr(self.result)
        return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What is tried again and again."""

    agent: Callable[..., Any]
    args: tuple[Any, ...]
    resources: Sequence[object]
    answers: Mapping[Any, Any]
    patience: Duration
    seen: Callable[..., object]

    def trial(self, point: Point | None = None) -> Trial:
        """Play it, on things of its own, with a crash at `point`; without one every error is the caller's."""
        resources, result, error = _copied(self.resources), None, ""
        rig = _KnowingRig(resources=resources)
        rig.answers(self.answers)
        if point is not None:
            rig.crash(**{point.where: point.name}, nth=point.nth)
        try:
            result = rig.run(self.agent, *self.args, run_id=RUN_ID, patience=self.patience)
            rig.check()
        except Exception as raised:
            if point is None and isinstance(raised, RunWaiting):
                raise
            error = f"{type(raised).__name__}: {raised}"
        finally:
            rig.close()
        return Trial(result=result, error=error, executed=rig.executed, reached=rig.reached, seen=copy.deepcopy(self.seen(*resources)))


def _copied(resources: Sequence[object]) -> list[Any]:
    try:
        return copy.deepcopy(list(resources))
    except Exception as error:
        kinds = ", ".join(type(resource).__name__ for resource in resources)
        remedy = "Give a stand-in that can be copied, or one whose __deepcopy__ makes a new client"
        raise Misuse(f"each trial has copies of the resources, and these cannot be copied: {kinds} ({error}). {remedy}") from error


@overload
def crashproof(
    agent: Callable[[*Ts], Coroutine[Any, Any, R]], /, *args: *Ts, resources: Sequence[object] = ...,
    answers: Mapping[Any, Any] | None = ..., patience: Duration = ..., seen: Callable[..., object] | None = ...,
) -> R: ...  # fmt: skip
@overload
def crashproof(
    agent: Callable[[*Ts], R], /, *args: *Ts, resources: Sequence[object] = ...,
    answers: Mapping[Any, Any] | None = ..., patience: Duration = ..., seen: Callable[..., object] | None = ...,
) -> R: ...  # fmt: skip
def crashproof(
    agent: Callable[[*Ts], Any],
    /,
    *args: *Ts,
    resources: Sequence[object] = (),
    answers: Mapping[Any, Any] | None = None,
    patience: Duration = "1000d",
    seen: Callable[..., object] | None = None,
) -> Any:
    """Crash an agent at every point; `AssertionError` with a table where its result, its effects or what is `seen` is not the same.

    Every trial has copies of the `resources`; `seen` is called with them at the end, and gives what the world shows: a fake bank's charges.
    """
    play = Play(agent=agent, args=args, resources=resources, answers=answers or {}, patience=patience, seen=seen or _nothing)
    plain = play.trial()
    found = [(point, trial, differences) for point in plain.reached if (differences := _differences(plain, trial := play.trial(point)))]
    if found:
        raise AssertionError(_table(agent, plain, found))
    if plain.error:
        raise AssertionError(f"{_name(agent)} fails without a crash: {plain.error}")
    return plain.result


def _nothing(*_: object) -> None:
    return None


def _differences(plain: Trial, trial: Trial) -> list[str]:
    found = [] if (plain.result, plain.error) == (trial.result, trial.error) else ["another result"]
    found += _repeated(trial.executed)
    was, now = _effects(plain), _effects(trial)
    found += [f"{name} was done at {now[name]} steps, not {was[name]}" for name in sorted(was | now) if was[name] != now[name]]
    return found if plain.seen == trial.seen else [*found, f"seen: {trial.seen!r}, not {plain.seen!r}"]


def _effects(trial: Trial) -> Counter[str]:
    """At how many steps each effect happened."""
    return Counter(name for _, _, name in {(each.run_id, each.step_id, each.name) for each in trial.executed})


def _repeated(executed: Sequence[Execution]) -> list[str]:
    """Effects that happened twice though nothing says that this is harmless."""
    steps: dict[tuple[str, str, str], list[Execution]] = defaultdict(list)
    for each in executed:
        steps[each.run_id, each.step_id, each.name].append(each)
    found = [f"{name} was done {len(times)} times (in_doubt={times[0].action})" for (*_, name), times in steps.items() if _twice(times)]
    return [*found, *(f"{name} was sent under two keys" for (*_, name), times in steps.items() if len({each.key for each in times}) > 1)]


def _twice(times: Sequence[Execution]) -> bool:
    return len(times) > 1 and times[0].action not in REPEATABLE


def _table(agent: Callable[..., Any], plain: Trial, found: Sequence[tuple[Point, Trial, list[str]]]) -> str:
    rows = [("crash", "it gave", "what differs"), *((str(point), trial.told(), "; ".join(what)) for point, trial, what in found)]
    widths = [max(len(row[index]) for row in rows) for index in range(2)]
    lines = [f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows]
    total = len(plain.reached)
    return "\n".join([f"{_name(agent)} is not crashproof: {len(found)} of {total} crashes change what happens", *lines,
                      f"  without a crash it gave {plain.told()}"])  # fmt: skip


def _name(agent: Callable[..., Any]) -> str:
    return str(getattr(agent, "name", agent))
