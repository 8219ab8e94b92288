"""What the tests of undoing share: payments that can be refunded, what was really done, and the operator's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from crashing import play, status
from holdfast.stores.memory import MemoryStore

DONE: list[str] = []
"""What was really done, in order."""
BROKEN: set[str] = set()
"""What fails for now."""


def start_afresh() -> None:
    DONE.clear()
    BROKEN.clear()


async def refund(receipt: str, what: str, cents: int = 5) -> None:
    if what in BROKEN:
        raise ConnectionRefusedError(f"no bank for {what}")
    if f"{what}?" in BROKEN:
        raise TimeoutError("no answer")
    DONE.append(f"refund {receipt} {what} {cents}")


@hf.effect(in_doubt="ask", undo=refund)
async def pay(what: str, cents: int = 5) -> str:
    if what in BROKEN:
        raise TimeoutError("no answer")
    DONE.append(f"pay {what}")
    return f"r-{what}"


@hf.effect(in_doubt="ask")
async def mail(text: str) -> None:
    DONE.append(f"mail {text}")


@hf.step
async def look(what: str) -> str:
    if what in BROKEN:
        raise ValueError(f"cannot see {what}")
    DONE.append(f"look {what}")
    return what


def refund_blocking(receipt: str, what: str) -> None:
    DONE.append(f"refund {receipt} {what}")


@hf.effect(in_doubt="ask", undo=refund_blocking)
def pay_blocking(what: str) -> str:
    DONE.append(f"pay {what}")
    return f"r-{what}"


def undone() -> list[str]:
    return [line.split()[2] for line in DONE if line.startswith("refund")]


def cancel(store: MemoryStore, **more: Any) -> str:
    with hf.Holdfast(store) as app:
        return app.cancel("r", undo=True, by="ann", **more)


def resolve(store: MemoryStore, step_id: str, **verdict: Any) -> None:
    with hf.Holdfast(store) as app:
        app.resolve("r", step_id, by="ann", **verdict)


def closed(store: MemoryStore, agent: Callable[..., Any]) -> str:
    """Play a run that is to be undone; the reason with which it is closed."""
    with pytest.raises(hf.RunCancelled) as caught:
        play(store, agent)
    assert status(store) == "cancelled"
    return caught.value.reason


async def later(what: str) -> str:
    await look(what)
    return await pay(what)


@hf.agent
async def keeping() -> str:
    await pay("a")
    await pay("b")
    return await look("c")


def failed_run() -> MemoryStore:
    store = MemoryStore()
    BROKEN.add("c")
    with pytest.raises(ValueError):
        play(store, keeping)
    assert (status(store), undone()) == ("failed", [])
    return store
