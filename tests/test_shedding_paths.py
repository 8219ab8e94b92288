"""Runs that were gone back in, that save partial results or that receive, and were then made lighter: they go on as they would have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S, Crash, loaded, play, records
from holdfast.operating import pruning
from holdfast.records import kinds as rec
from holdfast.records import shedding
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore
from test_shedding import copy_of, pruned

LONG = "x" * 2_000
did: list[str] = []
mood: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def afresh() -> None:
    did.clear()
    mood.clear()


@hf.step
async def look(what: str, more: str = "") -> str:
    did.append(what)
    return f"{what}{LONG}"


@hf.effect(in_doubt="ask")
async def pay(what: str) -> str:
    did.append(f"pay {what}")
    return f"r-{what}"


@hf.step(retry=hf.Retry(attempts=2, base=0.001))
async def crawl(pages: int) -> list[str]:
    so_far = hf.partial(list[str])
    found = so_far.value or []
    for page in range(len(found), pages):
        did.append(f"page {page}")
        found = [*found, f"{page}{LONG}"]
        so_far.save(found)
        if mood.get("stop") == page:
            raise Crash
    return found


@hf.agent
async def crawling() -> list[int]:
    found = [len(await crawl(3)), len(await crawl(4))]
    if "crash" in mood:
        raise Crash
    return found


@hf.agent
async def going() -> list[str]:
    notes: dict[str, str] = hf.state({"n": ""})
    found = [(await look("a"))[:1], (await look("b"))[:1]]
    notes["n"] = LONG + found[-1]
    found += [(await look("c"))[:1], await pay(found[1]), await hf.receive("word", str)]
    notes["n"] = LONG + found[-1]
    found += [(await look("d"))[:1], notes["n"][-3:]]
    if "crash" in mood:
        raise Crash
    return found


def stopped(store: MemoryStore, agent: Callable[..., Any], **how: Any) -> None:
    mood.update(how)
    with suppress(Crash, hf.HoldfastError):
        play(store, agent)
    mood.clear()


def operated(store: MemoryStore, *words: Callable[[hf.Holdfast], object]) -> None:
    with hf.Holdfast(store, lease=LEASE_S) as app:
        for word in words:
            word(app)


def gone_on(store: MemoryStore, agent: Callable[..., Any], run_id: str = "r") -> tuple[Any, list[str]]:
    did.clear()
    try:
        return play(store, agent, run_id=run_id), list(did)
    except Exception as error:  # noqa: BLE001 (how it ends is what is compared)
        return repr(error), list(did)


def edited(*edits: Callable[[hf.Holdfast], object]) -> MemoryStore:
    """A run that came to its end but for the last word, in which somebody then went back."""
    store = MemoryStore()
    stopped(store, going)
    operated(store, lambda app: app.send("r", "word", "tea"))
    stopped(store, going, crash=1)
    operated(store, *edits)
    return store


WAYS: dict[str, list[Callable[[hf.Holdfast], object]]] = {
    "a step, ask": [lambda app: app.edit("r", "2", "B", by="ann")],
    "a step, reuse": [lambda app: app.edit("r", "1", "A", by="ann", effects="reuse")],
    "a step, repeat": [lambda app: app.edit("r", "1", "A", by="ann", effects="repeat")],
    "a step twice": [lambda app: app.edit("r", "2", f"{LONG}1", by="ann"), lambda app: app.edit("r", "2", "b2", by="ann", effects="reuse")],
    "one, then one before it": [lambda app: app.edit("r", "3", LONG, by="ann"), lambda app: app.edit("r", "2", "b", by="ann")],
    "a state": [lambda app: app.edit_state("r", {"n": "mine"}, at="3", by="ann", effects="reuse")],
    "behind the message": [lambda app: app.edit("r", "6", "D", by="ann")],
}


@pytest.mark.parametrize("way", WAYS)
def test_an_edited_run_goes_on_as_it_would_have(way: str) -> None:
    store = edited(*WAYS[way])
    twin = copy_of(store)
    known = Journal.load(*loaded(store))
    report = pruned(store)
    assert (report.lightened, report.kept) == (1, 0)
    assert report.bytes > len(LONG)
    after = Journal.load(*loaded(store))
    assert repr(after.superseded) == repr(known.superseded)
    assert after.unread == known.unread
    assert gone_on(store, going) == gone_on(twin, going)


def test_what_an_edit_superseded_goes_and_what_is_received_again_stays() -> None:
    store = edited(lambda app: app.edit("r", "2", "b2", by="ann", effects="reuse"))
    pruned(store)
    values = {record.step_id: record.value for record in records(store) if isinstance(record, rec.StepDone)}
    assert {step_id for step_id, value in values.items() if value is None} == {"2", "3", "6"}
    assert values["5"] == b'"tea"'
    assert gone_on(store, going)[0] == ["a", "b", "c", "r-b", "tea", "d", "tea"]
    pruned(store)
    values = {record.step_id: record.value for record in records(store) if isinstance(record, rec.StepDone)}
    assert values["3"] is not None


def test_a_message_that_is_lost_to_a_prune_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: without the rule for messages the guard keeps the run as it is."""
    store = edited(lambda app: app.edit("r", "2", "b2", by="ann"))
    monkeypatch.setattr(shedding, "_received_again", lambda journal, pairs: ())
    (kept,) = pruned(store).runs
    assert (kept.what, kept.why) == ("kept", pruning.UNLIKE)


def test_a_fork_of_a_lighter_run_is_that_of_the_whole_one_and_can_be_made_lighter() -> None:
    store = edited(lambda app: app.edit("r", "3", "C", by="ann", effects="reuse"))
    twin = copy_of(store)
    pruned(store)
    for one in (store, twin):
        operated(one, lambda app: app.fork("r", at="1", new_id="f", by="ann", effects="reuse"))
    assert pruned(store).kept == 0
    assert gone_on(store, going, "f") == gone_on(twin, going, "f")


def test_partial_results_go_when_no_attempt_asks_for_them() -> None:
    store = MemoryStore()
    stopped(store, crawling, stop=3)
    twin = copy_of(store)
    assert pruned(store).bytes > 12 * len(LONG)
    saved = [(record.step_id, record.value is None) for record in records(store) if isinstance(record, rec.StepPartial)]
    assert saved == [("1", True)] * 3 + [("2", True)] * 3 + [("2", False)]
    assert gone_on(store, crawling) == gone_on(twin, crawling) == ([3, 4], [])


def test_a_partial_result_that_went_is_none_where_somebody_goes_back_before_its_step_was_done() -> None:
    store, ready, given = MemoryStore(), asyncio.Event(), list[object]()

    @hf.step
    async def slowly() -> int:
        so_far = hf.partial(list[str])
        given.append(so_far.value)
        so_far.save([LONG])
        await ready.wait()
        return 1

    async def quick() -> str:
        found = await look("q")
        await look("r")
        ready.set()
        return found[:1]

    @hf.agent
    async def beside() -> list[Any]:
        found = list(await hf.gather(slowly(), quick()))
        if "crash" in mood:
            raise Crash
        return found

    stopped(store, beside, crash=1)
    pruned(store)
    operated(store, lambda app: app.edit("r", "2.2.1", "Q", by="ann"))
    assert gone_on(store, beside)[0] == [1, "Q"]
    assert given == [None, None]
