"""What the tests of moving share: agents that pay, ask and expect, stores in which somebody meddles, and a way to move a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync
from crashing import LEASE_S, Crash, loaded, play
from holdfast.moving import moving
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.store import Append, Stale
from holdfast.stores.memory import MemoryStore

paid: list[tuple[str, str]] = []


@hf.effect(in_doubt="ask")
def pay(what: str) -> str:
    paid.append((what, hf.key()))
    return f"paid {what}"


@hf.step
def die() -> None:
    raise Crash


@hf.step
def fail() -> None:
    raise ValueError("no")


@hf.agent
def fine() -> str:
    return pay("a")


@hf.agent
def asking() -> str:
    return f"{pay('a')} {holdfast.sync.ask('sure?')}"


@hf.agent
def sleeping() -> str:
    pay("a")
    holdfast.sync.sleep(3600)
    return "late"


@hf.agent
def dying() -> str:
    pay("a")
    die()
    return "never"


@hf.agent
def failing() -> str:
    pay("a")
    fail()
    return "never"


@hf.agent
def expecting() -> list[str]:
    return [pay("a"), holdfast.sync.receive("go", str), holdfast.sync.receive("go", str), pay("b")]


@hf.agent
def child(what: str) -> str:
    return f"{pay(what)} {holdfast.sync.ask('go on?')}"


@hf.agent
def parent() -> list[str]:
    return [pay("top"), child("low")]


@hf.agent
def counting(number: int) -> str:
    pay(str(number))
    return hf.continue_as(number + 1) if number < 3 else f"counted {holdfast.sync.ask('enough?')}"


def begun(agent: Any, *args: Any) -> MemoryStore:
    """A store with a run "r" as far as it comes by itself."""
    store = MemoryStore()
    with suppress(hf.RunWaiting, hf.RunFailed, ValueError, Crash):
        play(store, agent, *args)
    return store


def play_to_wait(store: MemoryStore) -> list[str]:
    """What the run did by the time it waits again."""
    with pytest.raises(hf.RunWaiting):
        play(store, expecting)
    return [f"paid {what}" for what, _ in paid]


def moved(source: Any, target: Any, run_id: str = "r", **more: Any) -> moving.Moving:
    with hf.Holdfast(source, lease=LEASE_S) as app:
        return app.move(run_id, to=target, by="ann", **more)


def claimed(store: MemoryStore, owner: str) -> None:
    """Somebody takes the run, and is not heard of again."""
    head, rows = loaded(store)
    store.append([Journal.load(head, rows).seal([rec.RunResumed(owner=owner, why="waiting")], at_us=head.updated_us)])


class FarStore(MemoryStore):
    url = "memory:far"


class Meddling(MemoryStore):
    """Something is done right before an append that holds a record of this kind goes in, once."""

    def __init__(self, kind: str, fn: Callable[[], object]) -> None:
        super().__init__()
        self.kind, self.fn = kind, fn

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        if any(row.kind == self.kind for append in batch for row in append.rows):
            self.kind, fn = "", self.fn
            fn()
        return super().append(batch, wait=wait)


def into(store: MemoryStore, source: MemoryStore) -> None:
    """What is in one store, in another."""
    for run_id in source._heads:
        store.append([Append(run_id, 0, 0, source._rows[run_id], source._heads[run_id])])
