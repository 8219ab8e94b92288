"""Identity: which call is which, live and after a crash. One test for each rule of the design."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

import holdfast as hf
from crashing import Crash, crashing, dies_at, lines, play, records, status
from holdfast.errors import KeyReused, StoreFailed
from holdfast.life import effects
from holdfast.life.run import Scope
from holdfast.records import kinds as rec
from holdfast.stores.memory import MemoryStore


@hf.step
async def search(query: str, delay_s: float = 0.0) -> str:
    await asyncio.sleep(delay_s)
    return query.upper()


def step_ids(store: MemoryStore) -> dict[str, str]:
    """The step id of every finished step, by its result."""
    return {(record.value or b"").decode(): record.step_id for record in records(store) if isinstance(record, rec.StepDone)}


def test_number_is_reserved_when_called_not_when_awaited() -> None:
    @hf.agent
    async def agent() -> list[str]:
        first, second, third = search("a", 0.003), search("b"), search("c")
        return [await third, await second, await first]

    store = MemoryStore()
    assert play(store, agent) == ["C", "B", "A"]
    assert step_ids(store) == {'"A"': "1", '"B"': "2", '"C"': "3"}


def test_raw_asyncio_gather_is_deterministic() -> None:
    @hf.agent
    async def agent() -> list[str]:
        return list(await asyncio.gather(*(search(letter, random.random() / 500) for letter in "abcd")))

    for _ in range(3):
        store = MemoryStore()
        assert play(store, agent) == ["A", "B", "C", "D"]
        assert step_ids(store) == {'"A"': "1", '"B"': "2", '"C"': "3", '"D"': "4"}


def test_path_names_branch_and_place() -> None:
    async def branch(letter: str) -> str:
        await search(letter)
        inner = await hf.gather(two(letter + "x"), two(letter + "y"))
        return inner[1]

    async def two(text: str) -> str:
        await search(text + "1")
        return await search(text + "2")

    @hf.agent
    async def agent() -> str:
        await search("before")
        return (await hf.gather(branch("a"), branch("b")))[0]

    store = MemoryStore()
    play(store, agent)
    ids = step_ids(store)
    assert ids['"BEFORE"'] == "1"
    assert (ids['"A"'], ids['"B"']) == ("2.1.1", "2.2.1")
    assert (ids['"AX1"'], ids['"AX2"'], ids['"BY2"']) == ("2.1.2.1.1", "2.1.2.1.2", "2.2.2.2.2")


def test_step_from_foreign_task_is_an_error() -> None:
    async def stray() -> str:
        return await search("a")

    @hf.agent
    async def agent() -> str:
        return await asyncio.create_task(stray())

    store = MemoryStore()
    with pytest.raises(hf.LostContext, match=r"hf\.gather or hf\.map.*call_id="):
        play(store, agent)
    assert lines(store) == ["run.started", "run.failed"]


@pytest.mark.parametrize("verb", [hf.now, lambda: hf.state({}), hf.gather, lambda: hf.timeout(1)])
def test_verb_from_foreign_task_is_an_error(verb: Callable[[], object]) -> None:
    async def stray() -> None:
        verb()

    @hf.agent
    async def agent() -> None:
        await asyncio.create_task(stray())

    with pytest.raises(hf.LostContext):
        play(MemoryStore(), agent)


def test_step_from_foreign_thread_is_an_error() -> None:
    @hf.step
    def compute(x: int) -> int:
        return x

    @hf.agent
    def agent() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(compute, 1).result()

    with pytest.raises(hf.LostContext, match="does not see the run"):
        play(MemoryStore(), agent)


def test_foreign_task_may_call_with_an_identity_of_its_own() -> None:
    calls: list[str] = []

    @hf.step(call_id=lambda name: name)
    async def tool(name: str) -> str:
        calls.append(name)
        return name

    async def stray(name: str) -> str:
        return await tool(name)

    @hf.agent
    async def agent() -> list[str]:
        await search("reply")
        result = list(await asyncio.gather(asyncio.create_task(stray("x")), asyncio.create_task(stray("y"))))
        if len(calls) == 2:
            calls.append("crash")
            raise Crash
        return result

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == ["x", "y"]
    assert sorted(calls) == ["crash", "x", "y"]
    assert step_ids(store)['"x"'] == "1:x"


@hf.step
async def model(turn: int) -> list[str]:
    return ["call_0"] if turn < 3 else []


def test_call_id_is_scoped_to_the_reply() -> None:
    calls: list[int] = []

    @hf.step(call_id=lambda call, turn: call, ignore=())
    async def tool(call: str, turn: int) -> int:
        calls.append(turn)
        return turn

    @hf.agent
    async def agent() -> list[int]:
        results = []
        for turn in (1, 2):
            results += [await tool(call, turn) for call in await model(turn)]
        if len(calls) == 2:
            calls.append(0)
            raise Crash
        return results

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == [1, 2]
    assert calls == [1, 2, 0]
    assert (step_ids(store)["1"], step_ids(store)["2"]) == ("1:call_0", "2:call_0")


def call_0_in_two_replies() -> list[str]:
    """The keys of two mails that a provider asked for under the same call id, in two replies."""

    @hf.effect(in_doubt="fail", call_id="call_0")
    async def mail(number: int) -> str:
        return hf.key()

    @hf.agent
    async def agent() -> list[str]:
        await model(1)
        first = await mail(1)
        await model(2)
        return [first, await mail(1)]

    return list(play(MemoryStore(), agent))


def test_provider_reusing_call_0_in_a_later_reply_is_a_new_call() -> None:
    assert len(set(call_0_in_two_replies())) == 2


def test_without_the_reply_a_call_id_that_comes_again_has_the_key_of_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the other side would take the second mail for the first."""
    monkeypatch.setattr(Scope, "reserve_call", lambda scope, call_id: f"0:{call_id}")
    assert len(set(call_0_in_two_replies())) == 1


def call_0_twice_in_one_reply(*, together: bool) -> list[int]:
    """What was done for two calls that a reply asked for under the same call id, with a crash behind them."""
    done: list[int] = []

    @hf.effect(in_doubt="fail", call_id="call_0")
    async def tool(number: int) -> int:
        done.append(number)
        await asyncio.sleep(0)
        return number

    @hf.agent
    async def agent() -> list[int]:
        await model(1)
        result = list(await hf.gather(tool(1), tool(2))) if together else [await tool(1), await tool(2)]
        if len(done) == 2:
            done.append(0)
            raise Crash
        return result

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == [1, 2]
    return done


@pytest.mark.parametrize("together", [False, True])
def test_same_call_id_twice_in_one_reply_is_two_calls(*, together: bool) -> None:
    assert call_0_twice_in_one_reply(together=together) == [1, 2, 0]


def test_without_its_index_a_call_id_that_comes_twice_in_one_reply_is_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the second call is found recorded with the arguments of the first."""
    monkeypatch.setattr(Scope, "reserve_call", lambda scope, call_id: f"{scope.count}:{call_id}")
    with pytest.raises(hf.ReplayMismatch):
        call_0_twice_in_one_reply(together=False)


def test_call_id_whose_call_failed_may_be_called_again() -> None:
    tried: list[int] = []

    @hf.step(call_id="call_0")
    async def tool() -> int:
        tried.append(1)
        if len(tried) == 1:
            raise ValueError("not yet")
        return 7

    @hf.agent
    async def agent() -> int:
        try:
            return await tool()
        except ValueError:
            return await tool()

    assert play(MemoryStore(), agent) == 7


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\nb", 7])
def test_call_id_that_cannot_be_part_of_a_step_id_is_refused(bad: object) -> None:
    @hf.step(call_id=lambda: bad)  # type: ignore[arg-type, return-value]
    async def tool() -> int:
        raise AssertionError("executed")

    @hf.agent
    async def agent() -> int:
        return await tool()

    with pytest.raises(hf.Misuse, match="call_id="):
        play(MemoryStore(), agent)


def keys_of_three_attempts() -> list[str]:
    """What the other side saw of an effect that was tried, tried again, and once more after a crash."""
    keys: list[str] = []

    @hf.effect(in_doubt="resend", retry=hf.Retry(base=0.001))
    async def pay() -> str:
        keys.append(hf.key())
        if len(keys) == 1:
            raise TimeoutError
        if len(keys) == 2:
            raise Crash
        return hf.key()

    @hf.agent
    async def agent() -> str:
        return await pay()

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert len(keys) == 3
    return keys


def test_key_is_the_same_in_every_attempt_and_after_every_restart() -> None:
    assert len(set(keys_of_three_attempts())) == 1


def test_without_the_origin_a_key_is_another_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a key that is drawn, and not derived, makes a resent effect a new one."""
    monkeypatch.setattr(effects, "_key", lambda call: uuid.uuid4().hex)
    assert len(set(keys_of_three_attempts())) == 2


def test_key_differs_between_runs_and_between_calls() -> None:
    @hf.effect(in_doubt="fail")
    async def pay() -> str:
        return hf.key()

    @hf.agent
    async def agent() -> list[str]:
        return [await pay(), await pay()]

    store = MemoryStore()
    assert len({*play(store, agent, run_id="a"), *play(store, agent, run_id="b")}) == 4


def test_business_key_is_sent_as_it_is() -> None:
    @hf.effect(in_doubt="fail", key=lambda order, cents: f"order-{order}")
    async def pay(order: str, cents: int) -> str:
        return hf.key()

    @hf.agent
    async def agent() -> str:
        return await pay("o-1", cents=5)

    store = MemoryStore()
    assert play(store, agent) == "order-o-1"
    assert [record.key for record in records(store) if isinstance(record, rec.StepStarted)] == ["order-o-1"]


def one_key_for_two_calls(*, crash_between: bool) -> tuple[list[int], str]:
    """What was paid under a business key that the code gives to two payments, and what the code was told."""
    paid: list[int] = []

    @hf.effect(in_doubt="fail", key="order-1")
    async def pay(cents: int) -> int:
        paid.append(cents)
        return cents

    @hf.agent
    async def agent() -> int:
        await pay(5)
        if crash_between and len(paid) == 1:
            paid.append(0)
            raise Crash
        return await pay(6)

    store = MemoryStore()
    if crash_between:
        crashing(lambda: play(store, agent))
    try:
        play(store, agent)
    except KeyReused as error:
        return paid, str(error)
    return paid, ""


@pytest.mark.parametrize("crash_between", [False, True])
def test_same_business_key_with_other_arguments_is_an_error(*, crash_between: bool) -> None:
    paid, told = one_key_for_two_calls(crash_between=crash_between)
    assert 6 not in paid
    assert "order-1" in told
    assert "step 1" in told


def test_without_the_look_at_keys_one_key_is_sent_for_two_payments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the other side would take the second payment for the first."""
    monkeypatch.setattr(effects, "_key", lambda call: call.spec.key)
    assert one_key_for_two_calls(crash_between=False) == ([5, 6], "")


def test_same_business_key_with_the_same_arguments_is_allowed() -> None:
    @hf.effect(in_doubt="fail", key="order-1")
    async def pay(cents: int) -> int:
        return cents

    @hf.agent
    async def agent() -> int:
        return await pay(5) + await pay(5)

    assert play(MemoryStore(), agent) == 10


def stepping_around_a_doubt() -> tuple[list[str], str]:
    """A model that asks for the same charge again, under a new call id, while the first one is in doubt."""
    charged: list[str] = []

    @hf.effect(in_doubt="fail", call_id=lambda call, cents: call, ignore=("call",))
    async def charge(call: str, cents: int) -> str:
        charged.append(call)
        if call == "call_1":
            raise ConnectionResetError("it may have happened")
        return call

    @hf.agent
    async def agent() -> str:
        try:
            return await charge("call_1", 5)
        except hf.InDoubt:
            return await charge("call_2", 5)

    store = MemoryStore()
    with suppress(hf.RunWaiting):
        play(store, agent)
    return charged, status(store)


def test_same_call_while_an_earlier_one_is_in_doubt_goes_to_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stepping_around_a_doubt() == (["call_1"], "waiting")
    monkeypatch.setattr(effects, "_same_in_doubt", lambda call: "")
    assert stepping_around_a_doubt()[0] == ["call_1", "call_2"]


def test_other_arguments_than_the_doubt_are_not_held_back() -> None:
    charged: list[int] = []

    @hf.effect(in_doubt="fail")
    async def charge(cents: int) -> int:
        charged.append(cents)
        if cents == 5:
            raise ConnectionResetError
        return cents

    @hf.agent
    async def agent() -> int:
        try:
            return await charge(5)
        except hf.InDoubt:
            return await charge(6)

    with pytest.raises(hf.RunWaiting, match="charge"):
        play(MemoryStore(), agent)
    assert charged == [5, 6]


def test_model_answers_are_recorded_before_the_tools_they_ask_for_start() -> None:
    asked: list[str] = []
    store = dies_at("step.started")

    @hf.effect(in_doubt="fail", call_id="call_0")
    async def tool() -> int:
        asked.append("tool")
        return 1

    @hf.agent
    async def agent() -> int:
        await model(1)
        return await tool()

    with pytest.raises(StoreFailed):
        play(store, agent)
    assert asked == []
    assert lines(store) == ["run.started", "step.done 1"]
