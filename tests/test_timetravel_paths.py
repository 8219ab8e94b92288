"""What stands and what comes anew where a run goes back: branches, states, times, questions, messages, drift; and other verbs around it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

import holdfast as hf
from crashing import LEASE_S, Crash, lines, loaded
from holdfast._clock import SystemClock
from holdfast.errors import Refusal, UndecodableResult
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore


class Clock(SystemClock):
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    yield opened
    opened.close()


@pytest.fixture
def app(store: Store) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(store, lease=LEASE_S, clock=Clock()) as opened:
        yield opened


DONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@hf.step
async def see(what: str) -> str:
    DONE.append(f"see {what}")
    return what


@hf.effect(in_doubt="ask")
async def act(what: str) -> str:
    DONE.append(f"act {what}")
    return f"did {what}"


def unpost(result: str, what: str) -> None:
    DONE.append(f"unpost {what}")


@hf.effect(in_doubt="ask", undo=unpost)
async def post(what: str) -> str:
    DONE.append(f"post {what}")
    return what


def waits(app: hf.Holdfast, agent: Any, run_id: str = "r") -> str:
    with pytest.raises(hf.RunWaiting) as waiting:
        app.run(agent, run_id=run_id, wait=False)
    return str(waiting.value)


def crashes(app: hf.Holdfast, agent: Any, run_id: str = "r") -> None:
    with pytest.raises(Crash):
        app.run(agent, run_id=run_id)


def test_an_effect_that_was_under_way_beside_the_edited_step_keeps_its_outcome(app: hf.Holdfast, store: Store) -> None:
    ready = asyncio.Event()

    @hf.effect(in_doubt="ask")
    async def long(what: str) -> str:
        DONE.append(f"long {what}")
        if what == "a":
            await ready.wait()
        return f"long {what}"

    async def left() -> str:
        return await long("a")

    async def right() -> list[str]:
        first = await see("b")
        if not ready.is_set():
            await see("c")
            ready.set()
        return [first, await see("d")]

    @hf.agent
    async def both() -> Any:
        result = await hf.gather(left(), right())
        if len(DONE) < 5:
            raise Crash
        return list(result)

    crashes(app, both)
    order = lines(store)
    assert order.index("step.started 1.1.1") < order.index("step.done 1.2.1") < order.index("step.done 1.1.1")
    app.edit("r", "1.2.1", "B")
    assert app.run(both, run_id="r") == ["long a", ["B", "d"]]
    assert [what for what in DONE if what.startswith("long")] == ["long a"]


def test_a_fork_at_a_group_keeps_all_of_its_branches(app: hf.Holdfast) -> None:
    async def branch(what: str) -> str:
        return await see(what)

    @hf.agent
    async def both() -> Any:
        found = await hf.gather(branch("a"), branch("b"))
        return [*found, await see("c")]

    app.run(both, run_id="r")
    app.fork("r", at=1)
    assert app.run(both, run_id="r.f1") == ["a", "b", "c"]
    assert DONE == ["see a", "see b", "see c", "see c"]


def stateful(ends: list[bool]) -> Any:
    @hf.agent
    async def counts() -> list[int]:
        state: dict[str, list[int]] = hf.state({"seen": []})
        for number in range(3):
            state["seen"].append(number)
            await see(str(number))
        if not ends[0]:
            raise Crash
        return state["seen"]

    return counts


def test_a_state_is_edited_at_a_checkpoint(app: hf.Holdfast) -> None:
    ends = [False]
    agent = stateful(ends)
    crashes(app, agent)
    assert app.show_at("r", "2").state == {"/state.1": {"seen": [0, 1]}}
    app.edit_state("r", {"seen": [70, 80]}, at=2, by="ann", reason="wrong ones")
    assert app.show_at("r", "2").state == {"/state.1": {"seen": [70, 80]}}
    ends[0] = True
    assert app.run(agent, run_id="r") == [70, 80, 2]
    assert app.run(agent, run_id="r") == [70, 80, 2]
    assert DONE == ["see 0", "see 1", "see 2", "see 2"]
    assert any(line.state == "state edited" and "ann" in line.note for line in app.history("r"))


def test_states_after_the_point_are_forgotten_and_a_fork_can_edit_them(app: hf.Holdfast) -> None:
    ends = [True]
    agent = stateful(ends)
    app.run(agent, run_id="r")
    app.fork("r", at=1)
    app.fork("r", at=2, edits={"/state.1": {"seen": [5]}})
    assert app.run(agent, run_id="r.f1") == [0, 1, 2]
    assert app.run(agent, run_id="r.f2") == [5, 2]


def test_a_state_that_does_not_fit_blocks_the_run_and_can_be_edited_again(app: hf.Holdfast) -> None:
    ends = [False]

    class Notes(BaseModel):
        seen: list[int] = Field(default_factory=list)

    @hf.agent
    async def counts() -> list[int]:
        notes = hf.state(Notes())
        for number in range(3):
            notes.seen.append(number)
            await see(str(number))
        if not ends[0]:
            raise Crash
        return list(notes.seen)

    crashes(app, counts)
    with pytest.raises(Refusal, match="seen is a text, and was a list; nothing was changed"):
        app.edit_state("r", {"seen": "x"}, at=2)
    app.edit_state("r", {"seen": ["x"]}, at=2, by="ann")
    ends[0] = True
    with pytest.raises(UndecodableResult, match="ann edited it"):
        app.run(counts, run_id="r")
    assert app.show("r").status == "blocked"
    assert DONE == ["see 0", "see 1", "see 2"]
    app.edit_state("r", {"seen": [9]}, at=2)
    assert app.run(counts, run_id="r") == [9, 2]


def test_a_value_that_only_the_code_can_refuse_blocks_the_run_and_is_edited_again(app: hf.Holdfast) -> None:
    @hf.step
    async def number() -> list[int]:
        return [1]

    @hf.agent
    async def adds() -> int:
        numbers = await number()
        await see("a")
        if len(DONE) < 2:
            raise Crash
        return sum(numbers)

    crashes(app, adds)
    app.edit("r", 1, ["many"], by="ann")
    with pytest.raises(UndecodableResult, match="ann gave it by an edit, and it does not fit"):
        app.run(adds, run_id="r")
    assert app.show("r").status == "blocked"
    app.edit("r", 1, [40, 2])
    assert app.run(adds, run_id="r") == 42
    assert DONE == ["see a", "see a"]


def test_messages_taken_after_the_point_are_received_again(app: hf.Holdfast, store: Store) -> None:
    @hf.agent
    async def reads() -> list[str]:
        plan = await see("plan")
        found = [await hf.receive("note", str) for _ in range(2)]
        if not await hf.ask(f"{plan}: done?"):
            return []
        return [plan, *found]

    waits(app, reads)
    app.send("r", "note", "one")
    app.send("r", "note", "two", key="k")
    waits(app, reads)
    app.fork("r", at=1, new_id="f")
    for run_id in ("r", "f"):
        if run_id == "r":
            app.edit("r", 1, "PLAN")
        told = waits(app, reads, run_id)
        assert "done?" in told
        app.send(run_id, "note", "two", key="k")
        app.answer(run_id, "4", yes=True)
        assert app.run(reads, run_id=run_id)[1:] == ["one", "two"]
    assert store.letters(["r", "f"]) == []


def test_a_message_is_received_once_more_after_each_edit(app: hf.Holdfast) -> None:
    @hf.agent
    async def reads() -> list[str]:
        first, note = await see("a"), await hf.receive("note", str)
        third = await see("c")
        await hf.ask("done?")
        return [first, note, third]

    waits(app, reads)
    app.send("r", "note", "hello")
    waits(app, reads)
    for value in ("b", "c"):
        app.edit("r", 1, value)
        waits(app, reads)
    app.edit("r", 3, "z")
    waits(app, reads)
    app.answer("r", "4", yes=True)
    assert app.run(reads, run_id="r") == ["c", "hello", "z"]


def test_what_was_answered_and_slept_after_the_point_comes_anew_and_the_time_too(app: hf.Holdfast) -> None:
    @hf.agent
    async def asks() -> list[Any]:
        plan, began = await see("plan"), hf.now()
        answer = await hf.ask("which?", str)
        await hf.sleep("1h")
        return [plan, answer, began.timestamp()]

    waits(app, asks)
    app.answer("r", "2", "red")
    waits(app, asks)
    clock = app.engine.clock
    assert isinstance(clock, Clock)
    clock.ahead_us += 7_200_000_000
    app.edit("r", 1, "other")
    assert "which?" in waits(app, asks)
    app.answer("r", "2", "blue")
    assert "sleeps until" in waits(app, asks)
    clock.ahead_us += 3_700_000_000
    plan, answer, began = app.run(asks, run_id="r")
    assert (plan, answer) == ("other", "blue")
    assert began > SystemClock().now_us() / 1e6 + 7000


def test_an_answer_can_be_corrected(app: hf.Holdfast) -> None:
    @hf.agent
    async def asks() -> str:
        colour = await hf.ask("which?", str)
        await hf.ask("sure?")
        return colour

    waits(app, asks)
    app.answer("r", "1", "red")
    waits(app, asks)
    app.edit("r", 1, "blue")
    waits(app, asks)
    app.answer("r", "2", yes=True)
    assert app.run(asks, run_id="r") == "blue"


def test_an_approval_is_asked_for_anew_where_the_call_is_another(app: hf.Holdfast) -> None:
    @hf.effect(in_doubt="ask", approve=True)
    async def buy(what: str) -> str:
        DONE.append(f"buy {what}")
        return what

    @hf.agent
    async def shops() -> str:
        result = await buy(await see("a"))
        if result == "a":
            raise Crash
        return result

    waits(app, shops)
    app.answer("r", "approve:2", yes=True)
    crashes(app, shops)
    app.edit("r", 1, "b")
    assert 'buy(what="b")' in waits(app, shops)
    app.answer("r", "approve:2", yes=True)
    assert app.run(shops, run_id="r") == "b"


def test_a_message_to_another_run_is_not_sent_twice(app: hf.Holdfast, store: Store) -> None:
    @hf.agent
    async def hears() -> list[str]:
        return [await hf.receive("note", str), await hf.receive("note", str)]

    ends = [False]

    @hf.agent
    async def tells() -> None:
        text = await see("a")
        await hf.send("other", "note", "fixed")
        await hf.send("other", "note", text)
        if not ends[0]:
            raise Crash

    waits(app, hears, "other")
    crashes(app, tells)
    app.edit("r", 1, "b")
    ends[0] = True
    app.run(tells, run_id="r")
    assert len(store.letters(["other"])) == 4
    assert app.run(hears, run_id="other") == ["fixed", "a"]


def path_with_effects(ends: list[bool], texts: list[str]) -> Any:
    @hf.agent
    async def acts() -> list[str]:
        first = await see(texts[0])
        done = [await post(first), await act("x")]
        await see("end")
        if not ends[0]:
            raise Crash
        return done

    return acts


def test_edit_twice_accept_after_edit_and_edit_after_accept(app: hf.Holdfast) -> None:
    ends, texts = [False], ["a"]
    agent = path_with_effects(ends, texts)
    crashes(app, agent)
    for value in ("b", "c"):
        app.edit("r", 1, value, effects="reuse")
        crashes(app, agent)
    texts[0] = "changed"
    with pytest.raises(hf.ReplayMismatch):
        app.run(agent, run_id="r")
    app.accept("r", by="ann")
    assert "the same call was made at step 3" in waits(app, agent)
    app.edit("r", 1, "a", effects="reuse")
    ends[0] = True
    assert app.run(agent, run_id="r") == ["a", "did x"]
    assert [what for what in DONE if what.startswith(("post", "act"))] == ["post a", "act x", "post b", "post c", "post changed"]
    assert [verdict.good for verdict in app.check()] == [True]


def test_an_undo_takes_back_what_stands_and_names_what_is_superseded(app: hf.Holdfast) -> None:
    ends = [False]
    agent = path_with_effects(ends, ["a"])
    crashes(app, agent)
    app.edit("r", 1, "b", effects="reuse")
    crashes(app, agent)
    ends[0] = True
    assert "what is superseded is not undone, its code is not called any more: post (step 2)" in app.cancel("r", undo=True)
    with pytest.raises(hf.RunCancelled, match=r"1 effect undone; superseded by an edit, and not undone: post \(step 2\)"):
        app.run(agent, run_id="r")
    assert [what for what in DONE if "post" in what] == ["post a", "post b", "unpost b"]


def test_an_effect_that_was_taken_over_is_undone_with_the_run(app: hf.Holdfast) -> None:
    ends = [False]
    agent = path_with_effects(ends, ["a"])
    crashes(app, agent)
    app.edit("r", 1, "a", effects="reuse")
    crashes(app, agent)
    app.cancel("r", undo=True)
    ends[0] = True
    with pytest.raises(hf.RunCancelled, match=r"1 effect undone\. It is closed"):
        app.run(agent, run_id="r")
    assert [what for what in DONE if "post" in what] == ["post a", "unpost a"]


def test_a_fork_does_not_stand_on_what_was_undone(app: hf.Holdfast, store: Store) -> None:
    ends = [False]
    agent = path_with_effects(ends, ["a"])
    crashes(app, agent)
    app.cancel("r", undo=True)
    ends[0] = True
    with pytest.raises(hf.RunCancelled):
        app.run(agent, run_id="r")
    before = loaded(store)
    with pytest.raises(Refusal, match="step 2 of run 'r' was undone, so step 3 stands no more"):
        app.fork("r", at=3)
    assert loaded(store) == before
    app.fork("r", at=1)
    assert 'act(what="x")' in waits(app, agent, "r.f1")
    assert [what for what in DONE if "post" in what] == ["post a", "unpost a", "post a"]


def test_a_fork_answers_a_drift_by_looking_anew(app: hf.Holdfast, tmp_path: Path) -> None:
    prices, ends = tmp_path / "prices.csv", [False]

    @hf.step
    async def read() -> str:
        return prices.read_text()

    @hf.agent
    async def shops() -> str:
        await see("before")
        hf.watch(prices)
        price = await read()
        if not ends[0]:
            raise Crash
        await see("after")
        return price

    prices.write_text("500")
    crashes(app, shops)
    prices.write_text("900")
    ends[0] = True
    waits(app, shops)
    [item] = app.inbox()
    assert item.commands[-1] == "holdfast fork r --at 1"
    app.fork("r", at=1)
    assert app.run(shops, run_id="r.f1") == "900"
    assert DONE == ["see before", "see after"]
    assert app.show("r").status == "waiting"


def test_random_numbers_before_the_point_are_those_of_the_source(app: hf.Holdfast) -> None:
    @hf.agent
    async def draws() -> list[str]:
        first = str(hf.current().uuid())
        return [await see(first), await see(str(hf.current().uuid()))]

    drawn = app.run(draws, run_id="r")
    app.fork("r", at=1)
    assert app.run(draws, run_id="r.f1")[0] == drawn[0]


@pytest.mark.parametrize("kind", ["def"])
def test_a_def_agent_goes_back_too(app: hf.Holdfast, kind: str) -> None:
    from holdfast import sync

    @hf.step
    def look(what: str) -> str:
        DONE.append(f"{kind} {what}")
        return what

    @hf.effect(in_doubt="ask")
    def pay(what: str) -> str:
        DONE.append(f"pay {what}")
        return what

    @hf.agent
    def shops() -> str:
        first = look("a")
        paid = pay("rent")
        sync.ask("done?")
        return first + paid

    waits(app, shops)
    app.edit("r", 1, "b", effects="reuse")
    waits(app, shops)
    app.answer("r", "3", yes=True)
    assert app.run(shops, run_id="r") == "brent"
    assert DONE == ["def a", "pay rent"]


def test_what_a_body_draws_is_another_on_another_branch(app: hf.Holdfast) -> None:
    """It may be sent along as an id: two different calls must not look like one."""

    @hf.effect(in_doubt="ask")
    async def order() -> str:
        return str(hf.current().uuid())

    @hf.agent
    async def orders() -> str:
        await see("a")
        return await order()

    drawn = app.run(orders, run_id="r")
    app.fork("r", at=1, effects="repeat", new_id="f")
    app.fork("r", at=1, effects="repeat", new_id="g")
    assert len({drawn, app.run(orders, run_id="f"), app.run(orders, run_id="g")}) == 3


def test_a_fork_that_has_lost_what_it_knows_is_not_repaired() -> None:
    store = MemoryStore()

    @hf.agent
    async def acts() -> str:
        return await act(await see("a"))

    with hf.Holdfast(store, lease=LEASE_S) as app:
        app.run(acts, run_id="r")
        app.fork("r", at=1)
        rows = store._rows["r.f1"]
        rows[-1] = rows[-1]._replace(body=b"{}")
        before = list(rows)
        with pytest.raises(Refusal, match=r"of which it is a fork, is damaged; nothing was changed\. Fork 'r' again"):
            app.repair("r.f1", dry_run=False)
        assert store._rows["r.f1"] == before


def test_a_limit_that_was_reached_counts_what_is_superseded(app: hf.Holdfast) -> None:
    """What was spent stays spent: going back is no way around a budget."""

    @hf.agent(budget=hf.Budget(steps=3, on_limit="fail"))
    async def spends() -> str:
        first = await see("a")
        await see("b")
        await see("c")
        if first == "a":
            raise Crash
        return first

    crashes(app, spends)
    app.edit("r", 1, "z")
    with pytest.raises(hf.BudgetExceeded):
        app.run(spends, run_id="r")
    assert DONE == ["see a", "see b", "see c"]
