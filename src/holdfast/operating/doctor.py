"""The doctor: looks at a store and what it rests on, at the clocks, and for runs and letters that were left behind; touches no run."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import get_args

from holdfast._clock import Clock
from holdfast.errors import StoreFull
from holdfast.store import Examined, Finding, Grade, Head, Query, Store, Topic
from holdfast.stores.opening import KINDS
from holdfast.stores.planning import NONE_YET, PlannedStore

TOPICS: tuple[Topic, ...] = get_args(Topic)
GRADES: tuple[Grade, ...] = get_args(Grade)
PAGE, MOST = 500, 10_000
"""Runs that are looked at: at once, and altogether."""
NAMED = 5
"""Runs that a finding names."""
JUMP_S = 0.5
FUTURE_S = 2.0
WAITED_S = 3600.0
"""After so long a letter that nobody took is worth a look: whoever runs the agent may be gone."""

RECORDS = Finding(topic="runs", what="what records hold", value="not looked at here", meaning="holdfast check --all reads every one")


def diagnosed(store: Store, clock: Clock) -> list[Finding]:
    """All findings, by topic."""
    before_us, before_s = clock.now_us(), clock.monotonic_s()
    found = [*_versions(), *(store.examine(clock) if isinstance(store, Examined) else [_silent(store)])]
    found += [RECORDS, _stranded(store), _letters(store, clock), *_future(store, clock)]
    found += [_steady((clock.now_us() - before_us) / 1e6, clock.monotonic_s() - before_s)]
    return sorted(found, key=lambda one: TOPICS.index(one.topic))


def unopened(error: StoreFull, clock: Clock) -> list[Finding]:
    """What can be said of a store on this machine that cannot be opened for want of room: of the place where it is."""
    shut = Finding(topic="runs", what="store", value="cannot be opened", grade="bad", meaning=error.reason)
    found = [one for one in PlannedStore(error.store).examine(clock) if one is not NONE_YET]
    return sorted([*_versions(), *found, shut], key=lambda one: TOPICS.index(one.topic))


def worst(findings: Sequence[Finding]) -> Grade:
    """The worst of their grades."""
    return GRADES[max(GRADES.index(one.grade) for one in findings)]


def _versions() -> list[Finding]:
    found = [Finding(topic="versions", what="Python", value=platform.python_version())]
    found += [Finding(topic="versions", what="Holdfast", value=version("holdfast"))]
    for kind in KINDS:
        if kind.library:
            found += [_library(kind.library, kind.schemes, kind.extra)]
    return found


def _library(name: str, schemes: Sequence[str], extra: str) -> Finding:
    needed = f"for {', '.join(schemes)}"
    try:
        return Finding(topic="versions", what=name, value=version(name), meaning=needed)
    except PackageNotFoundError:
        return Finding(topic="versions", what=name, value="not installed", meaning=f'{needed}: pip install "holdfast[{extra}]"')


def _silent(store: Store) -> Finding:
    """A store of somebody's own that cannot say anything of itself."""
    meaning, advice = "this store does not say what it rests on", "give it the method `examine`"
    return Finding(topic="durability", what=type(store).__name__, value="unknown", grade="warn", meaning=meaning, advice=advice)


def _stranded(store: Store) -> Finding:
    owned = [head for head in _running(store) if head.owner is not None]
    dead = {owner for owner in {str(head.owner) for head in owned} if _is_gone(store, owner)}
    stranded = [head.run_id for head in owned if head.owner in dead]
    if not stranded:
        return Finding(topic="runs", what="left behind", value=f"none ({len(owned):,} executed now)")
    return Finding(
        topic="runs", what="left behind", value=f"{len(stranded):,} of {len(owned):,} that run", grade="warn",
        meaning=f"the process that ran them is dead: {_named(stranded)}",
        advice="run the same line again, or: holdfast resume RUN --here APP.py",
    )  # fmt: skip


def _running(store: Store) -> Iterator[Head]:
    query = Query(statuses=("running",), limit=PAGE)
    while query.offset < MOST and (page := store.heads(query)):
        yield from page
        query = query._replace(offset=query.offset + PAGE)


def _is_gone(store: Store, owner: str) -> bool:
    pulse = store.pulse(owner)
    return pulse is None or pulse.dead


def _letters(store: Store, clock: Clock) -> Finding:
    """To runs that nobody executes; those to others are read within a second."""
    addressed = store.heads(Query(addressed=True, limit=MOST, after=""))
    letters = store.letters([head.run_id for head in addressed])
    if not letters:
        return Finding(topic="runs", what="letters nobody took", value="none")
    waited_s = (clock.now_us() - min(letter.at_us for letter in letters)) / 1e6
    value = f"{len(letters):,}, the oldest since {_span(waited_s)}"
    if waited_s < WAITED_S:
        return Finding(topic="runs", what="letters nobody took", value=value)
    return Finding(
        topic="runs", what="letters nobody took", value=value, grade="warn",
        meaning=f"nobody runs those whom they are for: {_named([head.run_id for head in addressed])}",
        advice="see what can go on: holdfast runs --due",
    )  # fmt: skip


def _named(run_ids: Sequence[str]) -> str:
    return ", ".join(run_ids[:NAMED]) + (f" and {len(run_ids) - NAMED:,} more" if len(run_ids) > NAMED else "")


def _span(duration_s: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if duration_s >= 2 * size:
            return f"{duration_s // size:,.0f} {unit}"
    return f"{max(duration_s, 0):.0f} seconds"


def _future(store: Store, clock: Clock) -> list[Finding]:
    """Records from a time that has not come yet."""
    newest = store.heads(Query(limit=1))
    ahead_s = (newest[0].updated_us - clock.now_us()) / 1e6 if newest else 0.0
    if ahead_s <= FUTURE_S:
        return []
    meaning = f"run {newest[0].run_id} was written {_span(ahead_s)} from now: this clock was set back, or that of another machine is ahead"
    advice = "set the clocks by a time server"
    return [Finding(topic="clock", what="records", value="from the future", grade="warn", meaning=meaning, advice=advice)]


def _steady(wall_s: float, lasted_s: float) -> Finding:
    jumped_s = wall_s - lasted_s
    if abs(jumped_s) <= JUMP_S:
        never = "leases are measured on a clock that never jumps"
        return Finding(topic="clock", what="this machine's clock", value="steady", meaning=never)
    meaning = f"it moved by {jumped_s:+,.1f} s during this examination; leases do not depend on it, times to wake do"
    advice = "let a time server set it gradually"
    return Finding(topic="clock", what="this machine's clock", value="it jumps", grade="warn", meaning=meaning, advice=advice)
