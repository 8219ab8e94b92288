"""Holes between features that were built apart: children, continuing, going back, staying in place, waking, messages."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from crashing import FailingStore, dies_at, play
from holdfast.errors import ChildStopped, StoreFailed
from holdfast.retention import Retention
from holdfast.store import Query
from holdfast.stores.memory import MemoryStore

booked: list[tuple[str, str]] = []
trouble: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_booked() -> None:
    booked.clear()
    trouble.clear()


@hf.step
async def pick(number: int) -> str:
    return f"city {number}"


@hf.step
async def confirm() -> None:
    if trouble:
        raise ValueError(trouble.pop())


@hf.effect(in_doubt="ask")
async def book(city: str) -> str:
    booked.append((city, hf.key()))
    return f"{city} booked"


@hf.agent
async def trip(city: str) -> str:
    return await book(city)


@hf.agent
async def tour(city: str) -> str:
    picked = await pick(1)
    found = await trip(city or picked)
    await confirm()
    return found


def failed_tour(city: str) -> hf.Holdfast:
    trouble.append("no answer")
    app = hf.Holdfast(MemoryStore())
    with pytest.raises(ValueError, match="no answer"):
        app.run(tour, city, run_id="t")
    return app


def test_what_a_child_did_is_not_done_again_after_an_edit_before_it() -> None:
    with failed_tour("Rome") as app:
        assert app.edit("t", 1, "Oslo").startswith("child runs began after it: t.2 (done);")
        assert app.run(tour, "Rome", run_id="t") == "Rome booked"
        assert [city for city, _ in booked] == ["Rome"]


def test_a_fork_does_not_do_again_unasked_what_a_child_of_its_source_did() -> None:
    with failed_tour("Rome") as app:
        same = app.fork("t", at=1)
        assert app.run(tour, "Rome", run_id=same) == "Rome booked"
        assert [city for city, _ in booked] == ["Rome"]
        again = app.fork("t", at=1, effects="repeat")
        assert app.run(tour, "Rome", run_id=again) == "Rome booked"
        behind = app.fork("t", at=2)
        assert app.run(tour, "Rome", run_id=behind) == "Rome booked"
        assert [city for city, _ in booked] == ["Rome", "Rome"]


def test_the_children_of_a_fork_have_keys_of_their_own() -> None:
    with failed_tour("") as app:
        other = app.fork("t", at=1, edits={1: "Oslo"}, effects="repeat")
        assert app.run(tour, "", run_id=other) == "Oslo booked"
        assert len({key for _, key in booked}) == 2


@hf.agent
async def asking(city: str) -> str:
    return await book(city) if await hf.ask(f"Go to {city}?") else "stayed"


@hf.agent
async def failing(city: str) -> str:
    await confirm()
    return await book(city)


@hf.agent
async def without_end(which: str, day: int) -> str:
    if day < 2:
        await hf.start({"trip": trip, "asking": asking, "failing": failing}[which], f"Rome {day}")
        hf.continue_as(which, day + 1)
    return "the end"


def test_a_started_child_comes_to_its_end_before_its_parent_begins_anew() -> None:
    with hf.Holdfast(MemoryStore()) as app:
        assert app.run(without_end, "trip", 0, run_id="r") == "the end"
        assert [city for city, _ in booked] == ["Rome 0", "Rome 1"]
        assert {run.run_id: run.status for run in app.runs()} == {"r": "done", "r.1": "done", "r.1-1": "done"}


def test_a_parent_that_begins_anew_waits_with_the_child_that_it_started() -> None:
    with hf.Holdfast(MemoryStore()) as app:
        for child in ("r.1", "r.1-1"):
            with pytest.raises(hf.RunWaiting, match="Go to Rome"):
                app.run(without_end, "asking", 0, run_id="r", wait=False)
            app.answer(child, "1", yes=True)
        assert app.run(without_end, "asking", 0, run_id="r", wait=False) == "the end"
        assert [city for city, _ in booked] == ["Rome 0", "Rome 1"]


def test_the_failure_of_a_started_child_takes_the_place_of_the_next_generation() -> None:
    trouble.append("no answer")
    with hf.Holdfast(MemoryStore()) as app:
        with pytest.raises(ValueError, match="no answer"):
            app.run(without_end, "failing", 0, run_id="r")
        assert app.run(without_end, "failing", 0, run_id="r") == "the end"
        assert [city for city, _ in booked] == ["Rome 0", "Rome 1"]


@hf.agent
async def giving_up(day: int) -> str:
    if day == 0:
        try:
            await failing("Rome")
        except ValueError:
            hf.continue_as(1)
    await confirm()
    return "the end"


def test_a_child_of_an_earlier_generation_is_closed_by_whoever_takes_it() -> None:
    trouble.extend(["the next generation fails", "so does the child"])
    with hf.Holdfast(MemoryStore()) as app:
        with pytest.raises(ValueError, match="the next generation fails"):
            app.run(giving_up, 0, run_id="r")
        with pytest.raises(hf.RunCancelled, match="begun anew"):
            app.run(failing, "Rome", run_id="r.1")
        assert not booked


@hf.agent
async def planned(city: str) -> str:
    try:
        return await asking(city)
    except hf.RunCancelled:
        return "called off"


def parked(app: hf.Holdfast) -> None:
    with pytest.raises(hf.RunWaiting, match=r"child run 'p\.1' waits"):
        app.run(planned, "Bern", run_id="p", wait=False)
    assert not app.ready()


def test_a_parent_is_ready_when_its_child_was_brought_to_its_end_without_it() -> None:
    with hf.Holdfast(MemoryStore()) as app:
        parked(app)
        app.answer("p.1", "1", yes=True)
        assert {run.run_id for run in app.ready()} == {"p", "p.1"}  # whoever takes the parent goes on with its child
        assert app.run(asking, "Bern", run_id="p.1") == "Bern booked"
        assert [run.run_id for run in app.ready()] == ["p"]
        assert app.run(planned, "Bern", run_id="p", wait=False) == "Bern booked"
        assert not app.engine.store.letters(["p"])


def test_a_parent_is_ready_when_its_child_was_cancelled() -> None:
    with hf.Holdfast(MemoryStore()) as app:
        parked(app)
        app.cancel("p.1", by="ann")
        assert [run.run_id for run in app.ready()] == ["p"]
        assert app.run(planned, "Bern", run_id="p", wait=False) == "called off"


@hf.agent
async def reports() -> None:
    await hf.send("hears", "noon", hf.now().isoformat())


@hf.agent
async def hears() -> str:
    return await hf.receive("noon", str)


def test_a_time_that_was_sent_is_the_same_when_the_sending_is_repeated() -> None:
    store = dies_at("step.done", "1")
    with pytest.raises(hf.RunWaiting):
        play(store, hears, run_id="hears")
    with pytest.raises(StoreFailed):
        play(store, reports)
    store.mend()
    play(store, reports)
    first, again = store.letters(["hears"])
    assert first.body == again.body  # so that its key tells it for the one that is there


@hf.agent
async def hurried(city: str) -> str:
    try:
        async with hf.timeout("20ms"):
            return await asking(city)
    except TimeoutError:
        return await hf.ask("What now?", str)


@hf.agent
async def racing(city: str) -> str:
    return str(await hf.first(asking(city), pick(1))) + await hf.ask("What now?", str)


@pytest.mark.parametrize("agent", [hurried, racing])
def test_a_child_that_a_crash_kept_from_being_cancelled_is_cancelled_when_its_parent_goes_on(agent: Any) -> None:
    store = dies_at("run.cancelled")
    with pytest.raises(StoreFailed):
        play(store, agent, "Rome")
    store.mend()
    with pytest.raises(hf.RunWaiting, match="What now"):
        play(store, agent, "Rome")
    assert {head.status for head in store.heads(Query()) if head.run_id != "r"} == {"cancelled"}


def test_a_fork_of_a_child_is_a_run_of_its_own() -> None:
    with failed_tour("Rome") as app:
        assert app.run(tour, "Rome", run_id="t") == "Rome booked"
        other = app.fork("t.2", at=0, effects="repeat")
        assert app.run(trip, "Rome", run_id=other) == "Rome booked"
        assert not app.show(other).parent
        assert len({key for _, key in booked}) == 2


@hf.agent
async def daily(day: int) -> str:
    await book(f"day {day}")
    if day < 2:
        hf.continue_as(day + 1)
    return "the end"


def test_a_fork_from_the_beginning_begins_with_the_generation_that_the_run_is_in() -> None:
    with hf.Holdfast(MemoryStore()) as app:
        app.run(daily, 0, run_id="r")
        other = app.fork("r", at=0)
        with pytest.raises(hf.RunWaiting, match="the same call was made at step 1 of run r"):
            app.run(daily, 0, run_id=other, wait=False)
        assert [city for city, _ in booked] == ["day 0", "day 1", "day 2"]


@hf.agent(name="sum")
async def number() -> int:
    await book("a number")
    return 1


@hf.agent(name="sum")
async def word() -> list[str]:
    await book("a number")
    return ["one"]


def caller(child: Any, name: str = "calls") -> Any:
    async def calls() -> str:
        try:
            return str(await child())
        except Exception:  # noqa: BLE001 (as careless code does)
            return await book("something else")

    return hf.agent(name=name)(calls)


def test_a_child_whose_result_cannot_be_read_is_no_failure_that_its_parent_may_answer() -> None:
    store = FailingStore(lambda row: row.kind == "step.done" and b'"sum"' in row.body)
    with pytest.raises(StoreFailed):
        play(store, caller(caller(number), "above"))
    store.mend()
    for _ in range(2):
        with pytest.raises(ChildStopped, match="does not fit its type"):
            play(store, caller(caller(word), "above"))
    assert play(store, caller(caller(number), "above")) == "1"
    assert [city for city, _ in booked] == ["a number"]


def test_a_child_is_not_pruned_before_its_parent_has_ended() -> None:
    store = dies_at("step.done", "2")
    with pytest.raises(StoreFailed):
        play(store, tour, "Rome")
    store.mend()
    with hf.Holdfast(store) as app:
        app.prune(Retention(max_age=0), dry_run=False)
        assert app.show("r.2").status == "done"
    assert play(store, tour, "Rome") == "Rome booked"
    assert [city for city, _ in booked] == ["Rome"]
