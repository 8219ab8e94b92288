"""A resumed run that another model answers says so, and stops where it was told to; nothing is told twice, and nothing on replay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from crashing import Crash, dies_at, lines, play, records, status
from holdfast.errors import Refusal
from holdfast.life import door
from holdfast.records import kinds as rec
from holdfast.records import models
from holdfast.records.models import OnModelChange, Pair, is_reply, pairs_of, read
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore


class Thinker:
    """A run whose step `think` is answered by `model`; it dies after the first thought, and has three in all."""

    def __init__(self, policy: OnModelChange = "warn", *, store: Store | None = None, blocking: bool = False) -> None:
        self.store = MemoryStore() if store is None else store
        self.asked, self.model, self.thoughts, self.deaths = "m", "m-1", list[int](), {1}
        self.agent: Callable[..., Any] = self._blocking(policy) if blocking else self._awaiting(policy)

    def _thought(self, number: int) -> int:
        self.thoughts.append(number)
        hf.usage(model=self.model, asked=self.asked)
        return number

    def _die_after(self, thought: int) -> None:
        if thought in self.deaths:
            self.deaths.remove(thought)
            raise Crash

    def _blocking(self, policy: OnModelChange) -> Callable[..., Any]:
        @hf.step
        def think(number: int) -> int:
            return self._thought(number)

        @hf.agent(on_model_change=policy)
        def solve() -> int:
            for number in (1, 2):
                think(number)
                self._die_after(number)
            return 2 + think(3)

        return solve

    def _awaiting(self, policy: OnModelChange) -> Callable[..., Any]:
        @hf.step
        async def think(number: int) -> int:
            return self._thought(number)

        @hf.agent(on_model_change=policy)
        async def solve() -> int:
            for number in (1, 2):
                await think(number)
                self._die_after(number)
            return 2 + await think(3)

        return solve

    def died(self, *, then: str = "m-2") -> Thinker:
        with pytest.raises(Crash):
            self.run()
        self.model = then
        return self

    def run(self) -> Any:
        return play(self.store, self.agent)

    def changes(self) -> list[rec.Record]:
        return [record for record in records(self.store) if isinstance(record, rec.ModelChanged)]

    def answer(self, *, yes: bool) -> None:
        with hf.Holdfast(self.store) as app:
            app.answer("r", "model:think", yes=yes, by="ann", reason="seen")


BOTH = pytest.mark.parametrize("blocking", [False, True], ids=["async", "def"])


@BOTH
def test_another_model_is_logged_recorded_and_shown_once(blocking: bool, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001
    thinker = Thinker(blocking=blocking).died()
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert thinker.run() == 5
    [change] = thinker.changes()
    assert (change.step_id, change.kind) == ("2", "model.changed")
    assert [text for text in caplog.messages if "m (answered by m-2)" in text and "it was m (answered by m-1)" in text] == caplog.messages
    with hf.Holdfast(thinker.store) as app:
        assert app.show("r").model_changes == ["think: it was m (answered by m-1), it is m (answered by m-2) -> warn"]
        assert [line.state for line in app.history("r") if line.step_id == "2"] == ["model changed", "done"]


@pytest.mark.parametrize(("asked", "answered", "told"), [("m", "m-1", 0), ("n", "m-1", 1), ("n", "n-1", 1), ("", "m-1", 0), ("m", "", 0)])
def test_what_was_asked_and_what_answered_are_compared_as_far_as_both_are_known(asked: str, answered: str, told: int) -> None:
    thinker = Thinker().died(then=answered)
    thinker.asked = asked
    thinker.run()
    assert len(thinker.changes()) == told


def test_the_change_is_stored_with_the_answer_or_not_at_all() -> None:
    thinker = Thinker().died()
    thinker.run()
    told = lines(thinker.store)
    assert told[told.index("model.changed 2") + 1] == "step.done 2"


@BOTH
def test_ask_stops_before_the_next_step_and_a_yes_is_for_good(blocking: bool) -> None:  # noqa: FBT001
    thinker = Thinker("ask", blocking=blocking).died()
    for _ in range(2):
        with pytest.raises(hf.RunWaiting, match=r"step think has another model: it is m \(answered by m-2\)"):
            thinker.run()
    assert (thinker.thoughts, status(thinker.store)) == ([1, 2], "waiting")
    assert lines(thinker.store).count("ask.opened model:think") == 1
    thinker.answer(yes=True)
    assert thinker.run() == 5
    assert thinker.thoughts == [1, 2, 3]


def test_a_no_gives_up_and_the_next_start_asks_again() -> None:
    thinker = Thinker("ask").died()
    with pytest.raises(hf.RunWaiting):
        thinker.run()
    thinker.answer(yes=False)
    with pytest.raises(hf.ModelChanged, match="it was m"):
        thinker.run()
    with pytest.raises(hf.RunWaiting):
        thinker.run()
    assert thinker.thoughts == [1, 2]


@BOTH
def test_fail_stops_until_somebody_accepts(blocking: bool) -> None:  # noqa: FBT001
    thinker = Thinker("fail", blocking=blocking).died()
    for _ in range(2):
        with pytest.raises(hf.Drifted, match="holdfast resume r --accept"):
            thinker.run()
    with hf.Holdfast(thinker.store) as app:
        assert app.show("r").next_commands == ["holdfast resume r --accept --here APP.py"]
        assert app.accept("r", by="ann").startswith("the run goes on with m (answered by m-2) in step think; the run is ready")
    assert thinker.run() == 5
    assert thinker.thoughts == [1, 2, 3]


def test_accepting_answers_the_open_question_too() -> None:
    thinker = Thinker("ask").died()
    with pytest.raises(hf.RunWaiting):
        thinker.run()
    with hf.Holdfast(thinker.store) as app:
        app.accept("r", by="ann")
        assert app.inbox() == []
        with pytest.raises(Refusal, match="blocked neither by changed code nor by another model"):
            app.accept("r")
    assert thinker.run() == 5


def test_a_run_that_is_now_told_to_warn_goes_on() -> None:
    thinker = Thinker("fail").died()
    with pytest.raises(hf.ModelChanged):
        thinker.run()
    thinker.agent = thinker._awaiting("warn")
    assert thinker.run() == 5
    assert [record.by for record in records(thinker.store) if isinstance(record, rec.ModelAccepted)] == ["on_model_change='warn'"]


def test_the_policy_is_one_of_three() -> None:
    wrong: Any = "stop"
    with pytest.raises(hf.Misuse, match="'warn', 'ask' or 'fail'"):
        hf.agent(on_model_change=wrong)(lambda: None)


# --- no false alarms ------------------------------------------------------------------------------------------------


def test_several_models_in_one_life_are_no_change_and_all_of_them_are_remembered() -> None:
    store, deaths = MemoryStore(), [Crash()]

    @hf.step
    def think(model: str) -> str:
        hf.usage(model=f"{model}-1")
        return model

    @hf.agent(on_model_change="fail")
    def compare_them() -> str:
        first = think("big") + think("small")
        if deaths:
            raise deaths.pop()
        return first + think("small") + think("big")

    with pytest.raises(Crash):
        play(store, compare_them)
    assert play(store, compare_them) == "bigsmallsmallbig"
    assert not any(line.startswith("model.") for line in lines(store))


def test_a_step_that_is_called_for_the_first_time_after_a_restart_has_nothing_to_be_compared_with() -> None:
    thinker = Thinker("fail")
    for name in ("m-1", "m-2", "m-3"):
        thinker.model = name
        thinker.store, thinker.deaths = MemoryStore(), set()
        assert thinker.run() == 5
    assert thinker.changes() == []


def test_replay_compares_nothing() -> None:
    thinker = Thinker("warn").died()
    thinker.run()
    before = lines(thinker.store)
    assert thinker.run() == 5
    assert (lines(thinker.store), thinker.thoughts) == (before, [1, 2, 3])


def test_a_model_that_is_known_from_an_earlier_life_is_not_told_again() -> None:
    thinker = Thinker()
    thinker.deaths = {1, 2}
    thinker.died(then="m-2").died(then="m-2")
    assert thinker.run() == 5
    assert [change.step_id for change in thinker.changes()] == ["2"]


# --- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["model.changed", "ask.opened", "model.accepted"])
@BOTH
def test_a_crash_at_each_record_loses_nothing_and_asks_once(kind: str, written: bool, blocking: bool) -> None:  # noqa: FBT001
    store = dies_at(kind, written=written)
    thinker = Thinker("ask", store=store, blocking=blocking).died()
    if kind == "model.accepted":
        with pytest.raises(hf.RunWaiting):
            thinker.run()
        thinker.answer(yes=True)
    with pytest.raises(hf.StoreError):
        thinker.run()
    store.mend()
    if kind != "model.accepted":
        with pytest.raises(hf.RunWaiting):
            thinker.run()
        assert thinker.thoughts[-1] == 2
        thinker.answer(yes=True)
    assert thinker.run() == 5
    told = [line for line in lines(store) if line.startswith(("model", "ask"))]
    assert told == ["model.changed 2", "ask.opened model:think", "ask.answered model:think", "model.accepted"]
    assert thinker.thoughts == ([1, 2, 2, 3] if (kind, written) == ("model.changed", False) else [1, 2, 3])


# --- branches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("yes", [True, False])
def test_all_branches_wait_for_the_one_answer(yes: bool) -> None:  # noqa: FBT001
    store, deaths, thoughts, model = MemoryStore(), [Crash()], list[int](), ["m-1"]

    @hf.step
    async def think(number: int) -> int:
        thoughts.append(number)
        await asyncio.sleep(0)
        hf.usage(model=model[0])
        return number

    async def twice(number: int) -> int:
        return await think(number) + await think(number + 1)

    @hf.agent(on_model_change="ask")
    async def solve() -> list[int]:
        await think(0)
        if deaths:
            raise deaths.pop()
        return list(await hf.gather(twice(10), twice(20), twice(30)))

    with pytest.raises(Crash):
        play(store, solve)
    model[0] = "m-2"
    with pytest.raises(hf.RunWaiting):
        play(store, solve)
    assert (sorted(thoughts), status(store)) == ([0, 10, 20, 30], "waiting")
    with hf.Holdfast(store) as app:
        app.answer("r", "model:think", yes=yes, by="ann")
    if yes:
        assert play(store, solve) == [21, 41, 61]
        assert [line for line in lines(store) if line.startswith("model")].count("model.accepted") == 1
    else:
        with pytest.raises(hf.ModelChanged):
            play(store, solve)
        assert len(thoughts) == 4


def test_an_answer_wakes_every_branch_of_a_run_that_executes() -> None:
    thinker = Thinker("ask").died()

    @hf.step
    async def think(number: int) -> int:
        return thinker._thought(number)

    async def twice(number: int) -> int:
        return await think(number) + await think(number + 1)

    begun = asyncio.Event()

    @hf.step(name="other")
    async def other() -> int:
        begun.set()
        while len([line for line in lines(thinker.store) if line.startswith("model.accepted")]) < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return 0

    @hf.agent(name="solve", on_model_change="ask")
    async def solve() -> list[int]:
        await think(1)
        return list(await hf.gather(twice(10), twice(20), other()))

    async def both() -> list[int]:
        with hf.Holdfast(thinker.store, lease=0.02) as app:
            handle = await app.start(solve, run_id="r")
            await begun.wait()
            while "ask.opened model:think" not in lines(thinker.store):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            app.answer("r", "model:think", yes=True, by="ann")
            return await handle.result(timeout="30s")

    assert asyncio.run(both()) == [21, 41, 0]


# --- negative controls ----------------------------------------------------------------------------------------------


def test_without_the_comparison_the_change_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.Models, "news", lambda *_: [])
    thinker = Thinker("fail").died()
    assert thinker.run() == 5
    assert thinker.changes() == []


def test_without_the_look_at_the_door_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_models_accepted", lambda call: iter(()))
    thinker = Thinker("fail").died()
    assert thinker.run() == 5


def test_a_change_that_is_stored_after_the_answer_would_be_lost_in_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the atomic commit is for: with the change left out of it, a crash behind the answer hides the change for good."""
    store = dies_at("ask.opened")
    thinker = Thinker("ask", store=store).died()
    with monkeypatch.context() as broken, pytest.raises(hf.StoreError):
        broken.setattr("holdfast.life.outcomes.model_changes", lambda call, usage: [])
        store.fails = lambda row: row.kind == "step.done" and row.step_id == "3"
        thinker.run()
    store.mend()
    assert thinker.run() == 5
    assert thinker.changes() == []


# --- pairs ----------------------------------------------------------------------------------------------------------


def test_a_pair_reads_as_one_would_say_it() -> None:
    assert [str(Pair(*each)) for each in (("a", "a"), ("", "a"), ("a", ""), ("a", "a-1"))] == ["a", "a", "a", "a (answered by a-1)"]


def test_usage_without_models_tells_of_no_call() -> None:
    assert pairs_of([{"usd": 0.5}, {"model": "a"}, {"model": "a"}, {"asked": "b"}]) == [Pair("", "a"), Pair("b", "")]


@pytest.mark.parametrize("result", ["text", 7, None, {"model": "m", "usage": {}}, [1], object(), Pair("a", "b")])
def test_an_ordinary_result_is_no_reply(result: object) -> None:
    assert not is_reply(result)


def test_what_is_read_of_a_reply_is_only_what_it_tells() -> None:
    assert read({"model": "m", "usage": {"input_tokens": 3}}) == {"model": "m", "input_tokens": 3}
    assert read({"model": 7, "usage": {}}) == read({"model": "m"}) == read(None) == {}


def test_a_reply_that_cannot_be_read_costs_nobody_the_outcome() -> None:
    class Lazy:
        __module__ = "openai.lazy"

        @property
        def model(self) -> str:
            raise RuntimeError("read the body first")

    assert not is_reply(Lazy())
