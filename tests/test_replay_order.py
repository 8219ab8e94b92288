"""Outcomes are released in recorded order: whatever raced when the run was recorded ends the same way on replay."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, play
from holdfast.errors import ReplayMismatch
from holdfast.life.turnstile import Turnstile
from holdfast.records import journal
from holdfast.stores.memory import MemoryStore

LETTERS = "abcde"
DELAYS: dict[str, float] = {}
"""How long after the last change of these the step of each letter is over; they change between the attempts of a run."""
CHANGED = "changed"


def delay(**letters: float) -> None:
    DELAYS.clear()
    DELAYS.update(letters, **{CHANGED: time.monotonic()})


@hf.step
async def slow(letter: str) -> str:
    """Those that run at the same time end in the order of their delays, however long the machine takes to begin them."""
    if letter not in DELAYS:
        await asyncio.sleep(0)
        return letter
    over = asyncio.Event()
    asyncio.get_running_loop().call_at(DELAYS[CHANGED] + DELAYS[letter], over.set)
    await over.wait()
    return letter


async def shared_list_in_gather(seen: list[str]) -> None:
    async def branch(letter: str) -> None:
        for turn in "12":
            seen.append(await slow(letter) + turn)  # noqa: PERF401 (one at a time, between awaits)

    await hf.gather(*(branch(letter) for letter in LETTERS))


async def raw_first_completed(seen: list[str]) -> None:
    pending = {asyncio.ensure_future(slow(letter)) for letter in LETTERS}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        seen += sorted(task.result() for task in done)


async def raw_as_completed(seen: list[str]) -> None:
    for next_one in asyncio.as_completed([slow(letter) for letter in LETTERS]):
        seen.append(await next_one)  # noqa: PERF401


async def nested_gathers(seen: list[str]) -> None:
    async def deep(letter: str, depth: int) -> None:
        if depth:
            await hf.gather(deep(letter, depth - 1))
            seen.append(f"{letter}{depth}")
        else:
            seen.append(await slow(letter))

    await hf.gather(*(deep(letter, depth) for depth, letter in enumerate("abc")))


async def a_queue_between(seen: list[str]) -> None:
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def produce(letter: str) -> None:
        await queue.put(await slow(letter))

    async def consume() -> None:
        for _ in LETTERS:
            seen.append(await slow("x") + await queue.get())  # noqa: PERF401

    await hf.gather(consume(), *(produce(letter) for letter in LETTERS))


async def mapped_with_a_limit(seen: list[str]) -> None:
    async def one(letter: str) -> None:
        seen.append(await slow(letter))
        seen.append(await slow(letter.upper()))

    await hf.map(one, LETTERS, limit=2)


async def steps_decided_by_the_order(seen: list[str]) -> None:
    async def branch(letter: str) -> None:
        await slow(letter)
        seen.append(letter)
        seen.append(await slow("-".join(seen)))

    await hf.gather(*(branch(letter) for letter in "abc"))


async def branches_of_unequal_depth(seen: list[str]) -> None:
    async def deep(letter: str, depth: int) -> None:
        if depth:
            await hf.gather(deep(letter, depth - 1))
            seen.append(f"{letter}{depth}")
        else:
            seen.append(await slow(letter))

    await hf.gather(*(deep(letter, depth * 3) for depth, letter in enumerate(LETTERS)))


async def code_that_takes_its_time(seen: list[str]) -> None:
    async def branch(letter: str, rounds: int) -> None:
        await slow(letter)
        for _ in range(rounds):
            await asyncio.sleep(0)
        seen.append(letter)

    await hf.gather(*(branch(letter, index * 5) for index, letter in enumerate(LETTERS)))


async def races_one_after_the_other(seen: list[str]) -> None:
    async def branch(letter: str) -> str:
        seen.append(f"begin {letter}")
        seen.append(await slow(letter))
        seen.append(await slow(letter.upper()))
        return letter

    seen.append(await hf.first(*(branch(letter) for letter in LETTERS)))
    seen.append(await hf.first(*(branch(letter) for letter in "abc")))


async def time_outs_beside_each_other(seen: list[str]) -> None:
    async def branch(letter: str) -> None:
        try:
            async with hf.timeout(0.003):
                for turn in "123":
                    seen.append(await slow(letter) + await slow(letter.upper()) + turn)  # noqa: PERF401
        except TimeoutError:
            seen.append(f"late {letter}")
        seen.append(await slow("x"))

    await hf.gather(*(branch(letter) for letter in "abc"))


async def races_under_time_outs(seen: list[str]) -> None:
    async def runner(letter: str) -> str:
        try:
            seen.append(await slow(letter))
            return await slow(letter.upper())
        finally:
            seen.append(f"left {letter}")

    async def branch(one: str, other: str) -> None:
        try:
            async with hf.timeout(0.004):
                seen.append(await hf.first(runner(one), runner(other)))
        except TimeoutError:
            seen.append(f"late {one}{other}")

    await hf.gather(branch("a", "b"), branch("c", "d"), branch("e", "x"))


RACES = [
    shared_list_in_gather, raw_first_completed, raw_as_completed, nested_gathers, a_queue_between, mapped_with_a_limit,
    steps_decided_by_the_order, branches_of_unequal_depth, code_that_takes_its_time, races_one_after_the_other,
    time_outs_beside_each_other, races_under_time_outs,
]  # fmt: skip


def seen_twice(race: Callable[[list[str]], Awaitable[None]], live: dict[str, float]) -> tuple[list[str], list[str]]:
    """What the agent sees live, and what it sees after a crash when every step would take another time."""
    views: list[list[str]] = []

    @hf.agent
    async def agent() -> int:
        seen: list[str] = []
        await race(seen)
        views.append(seen)
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    delay(**live)
    crashing(lambda: play(store, agent))
    delay()
    play(store, agent)
    return views[0], views[1]


def dice(seed: int) -> dict[str, float]:
    stream = random.Random(seed)
    return {letter: stream.random() / 250 for letter in LETTERS + LETTERS.upper() + "x"}


@pytest.mark.parametrize("race", RACES)
def test_outcomes_are_released_in_recorded_order(race: Callable[[list[str]], Awaitable[None]]) -> None:
    for seed in range(6):
        live, replayed = seen_twice(race, dice(seed))
        assert live == replayed


REVERSED = {letter: 0.002 * (len(LETTERS) - index) for index, letter in enumerate(LETTERS)}


def test_order_would_be_another_without_the_turnstile(monkeypatch: pytest.MonkeyPatch) -> None:
    live, replayed = seen_twice(shared_list_in_gather, REVERSED)
    assert live == replayed
    assert (live[0], live[-1]) == ("e1", "a2")

    async def release_at_once(self: Turnstile, seq: int) -> None:
        self._boundary(seq)

    monkeypatch.setattr(Turnstile, "turn", release_at_once)
    live, replayed = seen_twice(shared_list_in_gather, REVERSED)
    assert (live[0], live[-1]) == ("e1", "a2")
    assert replayed[0] == "a1"


def test_order_holds_when_only_a_part_was_recorded() -> None:
    views: list[list[str]] = []
    bodies: list[str] = []

    @hf.step
    async def work(letter: str) -> str:
        bodies.append(letter)
        await asyncio.sleep(REVERSED[letter])
        if letter == "b" and len(views) == 1:
            raise Crash
        return letter

    @hf.agent
    async def agent() -> list[str]:
        seen: list[str] = []
        views.append(seen)

        async def branch(letter: str) -> None:
            seen.append(await work(letter))

        await hf.gather(*(branch(letter) for letter in LETTERS))
        return seen

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    recorded = list(views[0])
    result = play(store, agent)
    assert result[: len(recorded)] == recorded
    assert sorted(result) == list(LETTERS)
    assert sorted(bodies) == sorted([*LETTERS, "b"])


def test_threads_see_the_recorded_order() -> None:
    views: list[list[str]] = []
    gates = {letter: threading.Event() for letter in LETTERS + "_"}

    @hfs.step
    def wait_for(letter: str, before: str) -> str:
        assert gates[before].wait(5)
        return letter

    @hfs.agent
    def agent() -> int:
        seen: list[str] = []

        def branch(letter: str, before: str) -> None:
            seen.append(wait_for(letter, before))
            gates[letter].set()

        hfs.gather(*(lambda pair=pair: branch(*pair) for pair in zip("abcde", "bcde_", strict=True)))
        views.append(seen)
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    gates["_"].set()
    crashing(lambda: play(store, agent))
    play(store, agent)
    assert views == [list("edcba"), list("edcba")]


def step_where_branches_were() -> tuple[list[str], str]:
    """What was noted by code that calls one effect where the journal holds a group of branches, and how its run stands."""
    store, calls = MemoryStore(), list[str]()

    @hf.effect(in_doubt="ask")
    async def note(word: str) -> str:
        calls.append(word)
        return word

    async def branch(word: str) -> str:
        return await note(word)

    @hf.agent(name="a")
    async def with_branches() -> None:
        await hf.gather(branch("x"), branch("y"))
        raise ValueError("and then it failed")

    @hf.agent(name="a")
    async def without() -> None:
        await note("z")

    with pytest.raises(ValueError, match="and then"):
        hf.run(with_branches, run_id="r", store=store)
    with suppress(hf.ReplayMismatch):
        hf.run(without, run_id="r", store=store)
    head = store.head("r")
    assert head is not None
    return calls, head.note


def test_a_step_where_branches_were_recorded_is_a_mismatch_and_is_not_executed() -> None:
    calls, note = step_where_branches_were()
    assert calls == ["x", "y"]
    assert "a group of branches" in note


def test_without_the_memory_of_groups_a_step_is_executed_where_branches_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: what the old code had noted twice, the new one notes once more."""
    monkeypatch.setattr(journal, "_groups_above", lambda step_id: iter(()))
    assert step_where_branches_were()[0] == ["x", "y", "z"]


def test_a_run_that_is_stopped_does_not_wait_for_what_nobody_will_ask_for_any_more(caplog: pytest.LogCaptureFixture) -> None:
    lives: list[int] = []
    delay(e=0.05)

    async def changing() -> None:
        for number in range(4):
            await slow("other" if len(lives) > 1 and number == 1 else str(number))

    @hf.agent
    async def agent() -> None:
        lives.append(1)
        await hf.gather(changing(), slow("e"))
        raise Crash

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    with pytest.raises(ReplayMismatch, match="other"):
        play(store, agent)
    assert "nobody asked" not in caplog.text
