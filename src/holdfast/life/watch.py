"""Things outside that a run relies on: fingerprinted when they are watched, compared when the run resumes, before its first new step.

A watch has a name; watching the same name again renews it, so that an agent does not drift against its own edits. On replay the recorded
prints are kept and nothing is looked at. At the live edge every print of an earlier life is compared with the thing as it is now: gone,
changed and unreachable are told apart, and what follows is what `on_change` says. No branch begins a new step meanwhile.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from holdfast.errors import Drifted
from holdfast.life.asking import consult, is_asked
from holdfast.life.commands import Commit, Invoke, Life, Pause, WaitForPerson
from holdfast.life.prints import Print, Thing, difference, name_of, take
from holdfast.life.run import Body, Run
from holdfast.records import kinds as rec

if TYPE_CHECKING:
    from holdfast.life.calls import Call

OnChange: TypeAlias = Literal["ask", "fail", "warn"] | Callable[[str, str, str], object]

OTHERS_S = 0.01
"""How often a branch looks whether another has compared what both rely on."""

log = logging.getLogger("holdfast")


class Watched(NamedTuple):
    """A thing that the code watches, and what to do when it is not what it was."""

    thing: Thing
    on_change: OnChange


def begin(run: Run, thing: Thing, on_change: OnChange) -> None:
    """Watch a thing from here on; its print rides on the next commit, or was recorded in an earlier life."""
    name = name_of(thing)
    run.watching[name] = Watched(thing, on_change)
    index, run.watch_calls[name] = run.watch_calls.get(name, 0), run.watch_calls.get(name, 0) + 1
    if index >= run.journal.looks.get(name, 0):
        run.riders.prints.append(rec.WatchTaken(step_id=name, found=dataclasses.asdict(take(thing))))
        run.unchecked.pop(name, None)


def compare(call: Call) -> Life[None]:
    """Compare what was watched in an earlier life, each thing once, before the first new step; whatever is refused stays so."""
    run = call.run
    for name in [name for name in run.unchecked if name in run.watching]:
        while not _takes(call, name):
            yield WaitForPerson(f"watch:{name}") if _is_open(run, f"watch:{name}") else Pause(OTHERS_S)
        if name in run.unchecked:
            yield from _compared(call, name)


def _takes(call: Call, name: str) -> bool:
    """Whether this branch is the one that compares, or it has been done; a step that would stop the event loop does not wait for others."""
    run = call.run
    with run.lock:
        if run.unchecked.get(name) and (run.blocking or call.spec.is_async):
            return False
        if name in run.unchecked:
            run.unchecked[name] = True
        return True


def _is_open(run: Run, ask_id: str) -> bool:
    asked = run.journal.asks.get(ask_id)
    return asked is not None and asked.answer is None


def _compared(call: Call, name: str) -> Life[None]:
    run = call.run
    try:
        watched, old = run.watching[name], Print(**run.journal.prints[name])
        new = take(watched.thing)
        what = difference(old, new)
        if what:
            yield from _drifted(call, watched, what, old=old, new=new)
        run.unchecked.pop(name, None)
    finally:
        if name in run.unchecked:
            run.unchecked[name] = False


def _drifted(call: Call, watched: Watched, what: str, *, old: Print, new: Print) -> Life[None]:
    run, name = call.run, name_of(watched.thing)
    told = f"{name} is {what}: it was {old.shown or old.state}, it is {new.shown or new.state}"
    action = watched.on_change if isinstance(watched.on_change, str) else "repair"
    about = f"{new.state} {new.digest}"
    if not is_asked(run, f"watch:{name}", about):
        yield Commit([rec.WatchDrifted(step_id=name, what=what, old=old.shown, new=new.shown, action=action)])
    match watched.on_change:
        case "fail":
            raise call.blamed(Drifted(name, what, old.shown, new.shown))
        case "warn":
            log.warning("run %s: %s", run.id, told)
        case "ask":
            answer = yield from consult(run, f"watch:{name}", topic="drift", question=f"{told}. Go on with it as it is?", about=about)
            if not answer.yes:
                raise call.blamed(Drifted(name, what, old.shown, new.shown))
        case repair:
            yield Invoke(Body(call), repair, (name, old.shown, new.shown), {}, None)
            new = take(watched.thing)
    yield Commit([rec.WatchTaken(step_id=name, found=dataclasses.asdict(new), accepted=True)])
