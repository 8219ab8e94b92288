"""An agent that carries out a plan, the world it changes, and processes that die: what the state machine plays with.

A plan is a list of acts, each a word and what it is about: `step:a`, `effect:b`, `ask:c`, `sleep:d`, `receive:e`, or a list, which is the
plan of a child. What each act gives is known beforehand, so that a result can be compared with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import holdfast as hf
import holdfast.sync as hfs
from agents_for_tests.sites import StillClock
from holdfast.errors import StoreFailed
from holdfast.store import Append, Prunable, Removal, Shedding, Stale, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.opening import open_store

T = TypeVar("T")

NAP = "1h"
"""How long every sleep is."""

LEASE_S = 0.5
"""On the clock of the test, so nobody waits for it."""


class Killed(BaseException):
    """The process dies in the body of a step."""


class Death(NamedTuple):
    """How a process dies: at that write, the first being 1, before or after it is made; or before or after a body of that word."""

    write: int = 0
    written: bool = False
    body: tuple[str, str] | None = None


STAYS = Death()


class World:
    """Everything outside: what was charged under which key and by which run, and which steps of which run must not run again."""

    def __init__(self) -> None:
        self.charges: dict[str, str] = {}
        self.charged = Counter[tuple[str, str]]()
        self.kept: set[tuple[str, str]] = set()
        self.broken: list[str] = []
        self.process: Process | None = None

    def dies(self, when: str, word: str) -> None:
        """Where this is the body in which the process is to die, it does."""
        assert self.process is not None
        if self.process.death.body == (when, word):
            self.process.store.dead = True
            raise Killed

    def ran(self, what: str) -> None:
        """A safe body ran; one whose result was kept must not."""
        if (hf.current().id, what) in self.kept:
            self.broken.append(f"step {what} of {hf.current().id} ran again")


world = World()


def look(what: str) -> str:
    world.dies("before", "step")
    world.ran(what)
    world.dies("after", "step")
    return f"saw {what}"


def probe(what: str) -> hf.Verdict[str]:
    return hf.Landed(f"paid {what}") if hf.key() in world.charges else hf.NotLanded()


def pay(what: str) -> str:
    world.dies("before", "effect")
    if hf.key() in world.charges:
        world.broken.append(f"{what} was charged again under one key")
    world.charges[hf.key()] = what
    world.charged[hf.current().id, what] += 1
    world.dies("after", "effect")
    return f"paid {what}"


step = hf.step(look, name="look")
effect = hf.effect(in_doubt=hf.verify(probe, settle=0))(pay)


@hfs.agent
def planned(acts: list[Any]) -> list[Any]:
    """Carry out the plan, act by act."""
    return [planned(act) if isinstance(act, list) else done(act) for act in acts]


def done(act: str) -> Any:
    word, what = act.split(":")
    match word:
        case "step":
            return step(what)
        case "effect":
            return effect(what)
        case "ask":
            return hfs.ask(f"{what}?", str)
        case "sleep":
            return hfs.sleep(NAP)
        case "receive":
            return hfs.receive(what, str)
    raise AssertionError(act)


class Mortal:
    """A store as one process sees it: it may fail at one write, before or after that is made, and then nothing works any more."""

    def __init__(self, inner: Store, death: Death) -> None:
        self._inner, self._left, self._written, self.dead = inner, death.write, death.written, False
        self.url, self.inline = inner.url, inner.inline

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        return self._write(lambda: self._inner.append(batch, wait=wait))

    def post(self, run_id: str, kind: str, body: bytes, at_us: int) -> int:
        return self._write(lambda: self._inner.post(run_id, kind, body, at_us))

    def remove(self, removals: Sequence[Removal]) -> list[bool]:
        return self._write(lambda: self._prunable().remove(removals))

    def shed(self, shedding: Shedding) -> bool:
        return self._write(lambda: self._prunable().shed(shedding))

    def _prunable(self) -> Prunable:
        assert isinstance(self._inner, Prunable)
        return self._inner

    def _write(self, write: Callable[[], T]) -> T:
        self._left -= 1
        if self._left == 0 and not self._written:
            self.dead = True
        self._refuse_dead()
        written = write()
        if self._left == 0:
            self.dead = True
        self._refuse_dead()
        return written

    def _refuse_dead(self) -> None:
        if self.dead:
            raise StoreFailed(self.url, "this process is dead")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name != "close":
            self._refuse_dead()
        return getattr(self._inner, name)


class Place:
    """Where the runs are kept, for one process after the other: in memory, where nothing else is said."""

    def __init__(self, url: str = "") -> None:
        self._memory, self._url, self.clock = MemoryStore(), url, StillClock()
        self.observer = hf.Holdfast(self.store(), clock=self.clock, lease=LEASE_S)

    def store(self) -> Store:
        return open_store(self._url) if self._url else self._memory

    def close(self) -> None:
        self.observer.close()
        self.observer.store.close()


class Process:
    """One process: it opens the store, does one thing, and ends, or dies at a write or in a body."""

    def __init__(self, place: Place, death: Death = STAYS) -> None:
        self.store, self.death = Mortal(place.store(), death), death
        self.app = hf.Holdfast(self.store, clock=place.clock, lease=LEASE_S)
        world.process = self

    def __enter__(self) -> hf.Holdfast:
        return self.app

    def __exit__(self, *_: object) -> None:
        with suppress(StoreFailed):
            self.app.close()
        self.store.close()
