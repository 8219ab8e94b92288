"""Runs without end: a generation ends, the next one begins with other arguments, and nothing before it is replayed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, dies_at, lines, loaded, play, records, status
from holdfast.errors import Refusal
from holdfast.records import kinds as rec
from holdfast.records.chain import record_of
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore
from holdfast.verbs import continuing

SEEN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


@hf.step
async def look(day: int) -> str:
    SEEN.append(f"look {day}")
    hf.usage(usd=0.5)
    return f"seen {day}"


@hf.effect(in_doubt="ask")
async def mail(day: int) -> str:
    SEEN.append(f"mail {day}")
    return hf.key()


@hf.step
def look_def(day: int) -> str:
    SEEN.append(f"look {day}")
    return f"seen {day}"


@hf.agent
async def daily(day: int, keys: list[str]) -> list[str]:
    days: list[int] = hf.state([])
    await look(day)
    days.append(day)
    keys = [*keys, await mail(day), str(hf.current().uuid()), str(days), str(hf.current().generation)]
    if day < 3:
        hf.continue_as(day + 1, keys)
    return keys


@hf.agent
def daily_def(day: int) -> str:
    look_def(day)
    if day < 3:
        hfs.continue_as(day + 1)
    return look_def(0)


def test_generations_follow_each_other_until_one_returns() -> None:
    store = MemoryStore()
    result = play(store, daily, 1, [])
    assert SEEN == ["look 1", "mail 1", "look 2", "mail 2", "look 3", "mail 3"]
    assert result[2::4] == ["[1]", "[2]", "[3]"]
    assert result[3::4] == ["0", "1", "2"]
    assert len({*result[0::4], *result[1::4]}) == 6
    assert play(store, daily, 1, []) == result
    with pytest.raises(hf.RunConflict):
        play(store, daily, 2, [])
    assert len(SEEN) == 6


def test_def_agents_continue_too() -> None:
    store = MemoryStore()
    assert play(store, daily_def, 1) == "seen 0"
    assert SEEN == ["look 1", "look 2", "look 3", "look 0"]
    assert lines(store).count("run.continued") == 2


@pytest.mark.parametrize("written", [False, True])
def test_a_store_that_fails_at_the_continuation_neither_loses_nor_repeats_it(*, written: bool) -> None:
    store = dies_at("run.continued", written=written)
    with pytest.raises(hf.StoreError):
        play(store, daily, 1, [])
    store.mend()
    play(store, daily, 1, [])
    assert SEEN == ["look 1", "mail 1", "look 2", "mail 2", "look 3", "mail 3"]
    assert lines(store).count("run.continued") == 2


def test_a_crash_in_a_later_generation_replays_that_one_alone() -> None:
    store, calls = MemoryStore(), list[int]()

    @hf.agent
    async def crashes(day: int) -> int:
        calls.append(day)
        await look(day)
        if day == 2 and hf.current().attempt == 1:
            raise Crash
        if day < 3:
            hf.continue_as(day + 1)
        return day

    crashing(lambda: play(store, crashes, 1))
    assert play(store, crashes, 1) == 3
    assert calls == [1, 2, 2, 3]
    assert SEEN == ["look 1", "look 2", "look 3"]


def test_totals_tags_and_limits_stay() -> None:
    store = MemoryStore()
    with hf.Holdfast(store) as app:
        app.run(daily, 1, [], run_id="r", tags={"customer": "7"}, budget=hf.Budget(usd=9, steps=50))
        view = app.show("r")
    assert (view.usd, view.spent.usd, view.spent.steps, view.tags) == (1.5, 1.5, 6, {"customer": "7"})
    assert view.limits == {"usd": 9.0, "steps": 50.0}
    assert view.generation == 2


def test_a_limit_is_reached_across_generations() -> None:
    @hf.agent(budget=hf.Budget(steps=4, on_limit="fail"))
    async def endless(day: int) -> None:
        await look(day)
        hf.continue_as(day + 1)

    with pytest.raises(hf.BudgetExceeded):
        play(MemoryStore(), endless, 1)
    assert SEEN == ["look 1", "look 2", "look 3", "look 4"]


def test_what_came_before_is_not_needed_any_more() -> None:
    store = MemoryStore()

    @hf.agent
    async def waits(day: int) -> str:
        await look(day)
        note = await hf.receive("note", str)
        if day < 2:
            hf.continue_as(day + 1)
        return note

    with suppress(hf.RunWaiting):
        play(store, waits, 1)
    with hf.Holdfast(store) as app:
        app.send("r", "note", "a", key="k-1")
        app.resume("r", budget=hf.Budget(usd=5), by="ann")
    with suppress(hf.RunWaiting):
        play(store, waits, 1)
    head, rows = loaded(store)
    first = max(row.seq for row in rows if row.kind == "run.continued")
    whole, bare = Journal.load(head, rows), Journal("r")
    for row in [rows[0], *(row for row in rows if row.seq >= first)]:
        bare.ledger.fold(record_of(row), row.at_us)
        bare._index(record_of(row), row)
    for name in ("histories", "generation", "taken", "asks", "waits", "started", "continued", "claims", "states", "times"):
        assert getattr(bare, name) == getattr(whole, name), name
    assert bare.ledger.spent(head.updated_us) == whole.ledger.spent(head.updated_us)
    assert (bare.ledger.limits, list(bare.taken)) == (whole.ledger.limits, ["k-1"])
    assert bare.ledger.limits == (("usd", 5.0),)


def test_messages_that_nobody_took_stay_for_the_next_generation_and_repeated_ones_are_dropped() -> None:
    store = MemoryStore()

    @hf.agent
    async def taking(day: int, notes: list[str]) -> list[str]:
        notes = [*notes, await hf.receive("note", str)]
        if day < 2:
            hf.continue_as(day + 1, notes)
        return notes

    with suppress(hf.RunWaiting):
        play(store, taking, 1, [])
    with hf.Holdfast(store) as app:
        for value, key in (("a", "1"), ("b", "2"), ("a", "1")):
            app.send("r", "note", value, key=key)
    assert play(store, taking, 1, []) == ["a", "b"]
    assert store.letters(["r"]) == []


def test_cleanups_run_with_their_generation_and_finally_blocks_too() -> None:
    @hf.agent
    async def tidy(day: int) -> None:
        hf.cleanup(SEEN.append, f"cleanup {day}")
        try:
            await look(day)
            if day < 2:
                hf.continue_as(day + 1)
        finally:
            SEEN.append(f"finally {day}")

    play(MemoryStore(), tidy, 1)
    assert SEEN == ["look 1", "finally 1", "cleanup 1", "look 2", "finally 2", "cleanup 2"]


def test_code_that_swallows_the_signal_does_nothing_more() -> None:
    @hf.agent
    async def stubborn(day: int) -> str:
        if day < 2:
            with suppress(BaseException):
                hf.continue_as(day + 1)
            await look(99)
        return "end"

    assert play(MemoryStore(), stubborn, 1) == "end"
    assert SEEN == []


def test_a_finally_block_that_fails_fails_the_run_as_it_would_behind_a_return() -> None:
    store, trouble = MemoryStore(), [ValueError("not closed")]

    @hf.agent
    async def closing(day: int) -> int:
        try:
            if day < 2:
                hf.continue_as(day + 1)
        finally:
            if trouble:
                raise trouble.pop()
        return day

    with pytest.raises(ValueError, match="not closed"):
        play(store, closing, 1)
    assert status(store) == "failed"
    assert play(store, closing, 1) == 2


def test_an_open_doubt_must_be_settled_first() -> None:
    store = MemoryStore()

    @hf.effect(in_doubt="fail")
    async def unsure() -> None:
        raise RuntimeError("reset by peer")

    @hf.agent
    async def doubting(day: int) -> int:
        if day < 2:
            with suppress(hf.InDoubt):
                await unsure()
            hf.continue_as(day + 1)
        return day

    with pytest.raises(hf.RunWaiting):
        play(store, doubting, 1)
    assert "run.continued" not in lines(store)
    with hf.Holdfast(store) as app:
        app.resolve("r", "1", landed=None, by="ann")
    assert play(store, doubting, 1) == 2


def test_only_the_main_line_may_continue() -> None:
    @hf.agent
    async def branching(day: int) -> None:
        async def branch() -> None:
            hf.continue_as(day + 1)

        await hf.gather(branch(), look(1))

    @hf.agent
    async def inside(day: int) -> None:
        @hf.step
        async def body() -> None:
            hf.continue_as(day + 1)

        await body()

    with pytest.raises(hf.Misuse, match="in a branch"):
        play(MemoryStore(), branching, 1)
    with pytest.raises(hf.NestedStep):
        play(MemoryStore(), inside, 1)
    with pytest.raises(hf.Misuse, match="outside a run"):
        continuing.continue_as(1)


def test_arguments_that_do_not_fit_are_refused_at_the_call() -> None:
    @hf.agent
    async def wrong(day: int) -> str:
        with pytest.raises(hf.Misuse, match="does not take"):
            hf.continue_as(1, 2)
        with pytest.raises(hf.NotKept):
            hf.continue_as(object())
        return "still here"

    assert play(MemoryStore(), wrong, 1) == "still here"


def test_what_a_task_of_its_own_does_is_waited_for() -> None:
    store, tasks = MemoryStore(), list[asyncio.Task[str]]()

    @hf.step(call_id="slow")
    async def slow() -> str:
        await asyncio.sleep(0.1)
        return "slow"

    @hf.agent
    async def straying(day: int) -> int:
        if day < 2:
            tasks.append(asyncio.create_task(slow()))
            await asyncio.sleep(0)
            hf.continue_as(day + 1)
        return day

    assert play(store, straying, 1) == 2
    kinds = lines(store)
    assert kinds.index("step.done 0:slow") < kinds.index("run.continued")


def test_a_cancellation_comes_before_the_next_generation() -> None:
    store = MemoryStore()

    @hf.agent
    async def going(day: int) -> None:
        await look(day)
        if day == 2:
            with hf.Holdfast(store) as other:
                other.cancel("r", by="ann")
        hf.continue_as(day + 1)

    with pytest.raises(hf.RunCancelled):
        play(store, going, 1)
    assert status(store) == "cancelled"
    assert SEEN == ["look 1", "look 2"]


def test_operators_see_the_generation() -> None:
    store = MemoryStore()

    @hf.agent
    async def stopping(day: int) -> None:
        await look(day)
        if day < 2:
            await look(day)
            hf.continue_as(day + 1)
        raise Crash

    crashing(lambda: play(store, stopping, 1))
    with hf.Holdfast(store) as app:
        view = app.show("r")
        assert (view.generation, view.call) == (1, "stopping(day=2)")
        assert "generation 1 begins with (day=2)" in [line.note for line in app.history("r")]
        assert app.show_at("r", "1").arguments == {"day": 2}
        with pytest.raises(Refusal, match="earlier generation"):
            app.show_at("r", "2")


def test_the_record_holds_what_the_next_generation_is_called_with() -> None:
    store = MemoryStore()
    play(store, daily_def, 1)
    first = next(record for record in records(store) if isinstance(record, rec.RunContinued))
    assert (first.generation, first.args, first.carried["steps"]) == (1, b'{"day":2}', 1)


def test_show_tells_of_the_generation_that_is() -> None:
    store = MemoryStore()
    play(store, daily_def, 1)
    with hf.Holdfast(store) as app:
        shown = app.show("r")
    assert (shown.call, shown.generation) == ("daily_def(day=3)", 2)
    assert shown.steps_done == 2
