"""Who waits for a run is told when there is news of it; a store that does not ring is looked at as often as ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast._clock import SystemClock
from holdfast.life.bell import Bell
from holdfast.running import runner
from holdfast.store import Ringing
from holdfast.stores.memory import MemoryStore

LONG_S = 60.0


class RingingStore(MemoryStore):
    """A store in memory that rings when somebody posts."""

    def __init__(self) -> None:
        super().__init__()
        self.hear: list[Callable[[str], object]] = []

    def listen(self, hear: Callable[[str], object]) -> None:
        self.hear.append(hear)

    def post(self, run_id: str, kind: str, body: bytes, at_us: int) -> int:
        number = super().post(run_id, kind, body, at_us)
        for hear in self.hear:
            hear(run_id)
        return number


class Slept(SystemClock):
    """A clock that notes how long it was slept by."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)


def test_a_ring_ends_the_wait_of_those_who_wait_for_that_run_and_of_no_others() -> None:
    store = RingingStore()
    bell, ended = Bell(store), list[str]()
    waits = [bell.news(["mine"]), bell.news(["other"])]

    def wait(place: int, name: str) -> None:
        waits[place].wait(SystemClock(), LONG_S)
        ended.append(name)

    threads = [threading.Thread(target=wait, args=pair, daemon=True) for pair in enumerate(["mine", "other"])]
    for thread in threads:
        thread.start()
    bell.ring("mine")
    threads[0].join(20)
    assert ended == ["mine"]
    bell.ring("")  # some may have been missed
    threads[1].join(20)
    assert ended == ["mine", "other"]


def test_what_is_told_between_two_waits_is_not_missed() -> None:
    bell = Bell(RingingStore())

    async def twice() -> None:
        with bell.news(["r"]) as news:
            bell.ring("r")
            await asyncio.wait_for(news.wait_async(LONG_S), 20)
            threading.Timer(0.01, bell.ring, ["r"]).start()
            await asyncio.wait_for(news.wait_async(LONG_S), 20)

    asyncio.run(twice())
    assert bell._waiting == {}


def test_the_store_is_listened_to_once_and_only_when_somebody_waits() -> None:
    store = RingingStore()
    bell = Bell(store)
    with bell.news(["r"]) as news:
        assert store.hear == []
        for _ in range(2):
            news.wait(SystemClock(), 0.001)
    assert len(store.hear) == 1


def test_a_store_that_does_not_ring_is_waited_for_by_the_clock() -> None:
    assert not isinstance(MemoryStore(), Ringing)
    clock = Slept()
    with Bell(MemoryStore()).news(["r"]) as news:
        news.wait(clock, LONG_S)
    assert clock.slept == [LONG_S]


@pytest.mark.timeout(40)
@pytest.mark.parametrize("park_after", [0, LONG_S])
def test_a_run_that_waits_hears_a_message_without_looking_for_it(monkeypatch: pytest.MonkeyPatch, park_after: float) -> None:
    monkeypatch.setattr(runner, "POLL_S", LONG_S)
    monkeypatch.setattr("holdfast.running.lease.LETTERS_S", LONG_S)
    store = RingingStore()

    @hf.agent
    async def waiting() -> str:
        return await hf.receive("word", str)

    async def converse(app: hf.Holdfast) -> str:
        handle = await app.start(waiting, run_id="r", park_after=park_after)
        while not store.hear:  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.005)
        app.send("r", "word", "hello")
        return await handle.result()

    with hf.Holdfast(store) as app:
        assert asyncio.run(converse(app)) == "hello"
