"""A store that is lost before or after each record of a wait: nothing is lost, nothing is asked, answered or taken twice."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import LEASE_S, FailingStore, dies_at, lines, play, records, status
from holdfast.errors import Refusal
from holdfast.life import drive
from holdfast.records import kinds as rec
from holdfast.verbs import blocking_waits, waits
from test_waits import CALLS, MODES, _no_calls, agents, look

__all__ = ["_no_calls"]

ROUNDS = 6
DEATHS = [
    ("ask.opened", "2"), ("run.waiting", ""), ("ask.answered", "2"), ("step.done", "2"), ("wait.begun", "4"), ("step.done", "4"),
    ("wait.begun", "5"), ("message.taken", "5"), ("step.done", "5"), ("message.taken", "6"), ("run.done", ""),
]  # fmt: skip


async def _waits_for_all() -> list[str]:
    found = [look("a"), await hf.ask("colour?", str), look("b")]
    await hf.sleep(0.001)
    return [*found, await hf.receive("note", str), await hf.receive("note", str)]


def _waits_for_all_blocking() -> list[str]:
    found = [look("a"), hfs.ask("colour?", str), look("b")]
    hfs.sleep(0.001)
    return [*found, hfs.receive("note", str), hfs.receive("note", str)]


ALL = agents(_waits_for_all, _waits_for_all_blocking)


def answered(store: FailingStore) -> None:
    with hf.Holdfast(store, lease=LEASE_S) as app, suppress(Refusal, hf.UnknownRun):
        app.answer("r", "2", "red", by="ann")


def survived(store: FailingStore, agent: Any) -> Any:
    """Play, answer, and mend the store whenever it is lost, until there is a result; the messages are sent once, early."""
    sent = died = False
    for _ in range(ROUNDS):
        acts: list[Callable[[], Any]] = [lambda: play(store, agent), lambda: answered(store)]
        for act in acts:
            try:
                result = act()
                if result is not None:
                    assert died, "the record at which the store is lost was never written"
                    return result
            except hf.RunWaiting:
                continue
            except hf.StoreError:
                died = True
                store.mend()
        if not sent and store.head("r") is not None:
            with hf.Holdfast(store) as app:
                sent = [app.send("r", "note", value, by="bob") for value in ("1", "2")] != []
    raise AssertionError(f"no result after {ROUNDS} rounds: {lines(store)}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(("kind", "step_id"), DEATHS)
def test_nothing_is_lost_or_done_twice(kind: str, step_id: str, *, written: bool, mode: str) -> None:
    store = dies_at(kind, step_id, written=written)
    assert survived(store, ALL[mode]) == ["a", "red", "b", "1", "2"]
    assert CALLS == ["a", "b"]
    counted = Counter(type(record) for record in records(store))
    assert (counted[rec.AskOpened], counted[rec.AskAnswered], counted[rec.MessageTaken]) == (1, 1, 2)
    assert counted[rec.WaitBegun] == 3
    assert (status(store), store.letters(["r"])) == ("done", [])


@pytest.mark.parametrize("mode", MODES)
def test_a_letter_that_is_not_taken_with_its_outcome_is_taken_twice(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with the transaction torn apart, the same crash doubles the message, and what is counted above shows it."""
    waiting_for, blocking = drive._commit_async, drive._commit_blocking

    async def commit_async(run: Any, given: Any, takes: Any = ()) -> int:
        return await waiting_for(run, given)

    monkeypatch.setattr(drive, "_commit_async", commit_async)
    monkeypatch.setattr(drive, "_commit_blocking", lambda run, given, takes=(): blocking(run, given))
    assert survived(dies_at("step.done", "5", written=True), ALL[mode]) == ["a", "red", "b", "1", "1"]


@pytest.mark.parametrize("verb", ["ask", "sleep", "receive", "send"])
def test_the_blocking_verbs_take_what_the_others_take(verb: str) -> None:
    blocking, waiting = (inspect.signature(getattr(module, verb)).parameters for module in (blocking_waits, waits))
    assert list(blocking.values()) == list(waiting.values())
