"""Partial results: what a body saved is there for the attempt after one that was broken off, and for no other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import holdfast as hf
from crashing import Crash, crashing, dies_at, lines, play
from holdfast.stores.memory import MemoryStore
from holdfast.verbs import partials

SEEN: list[object] = []
BAD: list[BaseException] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()
    BAD.clear()


@dataclass
class Page:
    number: int
    words: list[str]


def trouble(number: int) -> None:
    if number == 1 and BAD:
        raise BAD.pop()


def read_pages() -> Page:
    so_far = hf.partial(Page)
    page = so_far.value or Page(0, [])
    SEEN.append(page.number)
    while page.number < 3:
        page = Page(page.number + 1, [*page.words, str(page.number)])
        so_far.save(page)
        trouble(page.number)
    assert so_far.value == page
    return page


@hf.step(retry=hf.Retry(base=0.001))
async def crawl() -> Page:
    return read_pages()


@hf.step
def crawl_def() -> Page:
    return read_pages()


@hf.effect(in_doubt=hf.resend(), retry=hf.Retry(base=0.001))
async def upload() -> Page:
    return read_pages()


@hf.agent
async def crawling() -> Page:
    return await crawl()


@hf.agent
def crawling_def() -> Page:
    return crawl_def()


@hf.agent
async def uploading() -> Page:
    return await upload()


WHOLE = Page(3, ["0", "1", "2"])


@pytest.mark.parametrize("agent", [crawling, crawling_def, uploading])
def test_an_attempt_goes_on_from_what_a_crashed_one_saved(agent: Any) -> None:
    store = MemoryStore()
    BAD.append(Crash())
    crashing(lambda: play(store, agent))
    assert play(store, agent) == WHOLE
    assert play(store, agent) == WHOLE
    assert SEEN == [0, 1]


@pytest.mark.parametrize("agent", [crawling, uploading])
def test_a_retry_in_the_same_life_goes_on_too(agent: Any) -> None:
    BAD.append(ConnectionResetError("once"))
    assert play(MemoryStore(), agent) == WHOLE
    assert SEEN == [0, 1]


def test_a_failure_that_is_gone_behind_leaves_it() -> None:
    store = MemoryStore()
    BAD.append(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        play(store, crawling_def)
    assert play(store, crawling_def) == WHOLE
    assert SEEN == [0, 1]


def test_a_save_is_on_the_disk_when_it_returns_and_a_lost_one_ends_the_run() -> None:
    store = dies_at("step.partial", "1")
    with pytest.raises(hf.StoreError):
        play(store, crawling)
    store.mend()
    assert play(store, crawling) == WHOLE
    assert SEEN == [0, 0]


def test_the_result_makes_it_void() -> None:
    store = MemoryStore()

    @hf.step
    async def once() -> int:
        so_far = hf.partial(int)
        SEEN.append(so_far.value)
        so_far.save(1)
        return 1

    @hf.agent
    async def twice() -> None:
        await once()
        await once()

    play(store, twice)
    assert SEEN == [None, None]
    with hf.Holdfast(store) as app:
        assert app.show_at("r", "1").partial == {}
        assert app.show_at("r", "1").result == 1


def test_several_are_told_apart_by_name_or_order() -> None:
    store = MemoryStore()

    @hf.step
    async def many() -> list[object]:
        parts: list[Any] = [hf.partial(int), hf.partial(str), hf.partial(str, name="left")]
        SEEN.append([part.value for part in parts])
        for part, value in zip(parts, (7, "a", "b"), strict=True):
            part.save(value)
        trouble(1)
        return SEEN

    @hf.agent
    async def run() -> int:
        return len(await many())

    BAD.append(Crash())
    crashing(lambda: play(store, run))
    play(store, run)
    assert SEEN == [[None, None, None], [7, "a", "b"]]


def test_it_is_shown_while_the_step_has_no_result() -> None:
    store = MemoryStore()
    BAD.append(Crash())
    crashing(lambda: play(store, crawling))
    with hf.Holdfast(store) as app:
        view = app.show_at("r", "1")
        assert (view.result, view.partial) == (None, {"1": {"number": 1, "words": ["0"]}})
        assert [line.note for line in app.history("r") if line.step_id] == ['saved so far: {"number":1,"words":["0"]}']


def test_code_that_calls_with_other_arguments_does_not_get_it() -> None:
    store, given = MemoryStore(), [1]

    @hf.step
    async def job(number: int) -> None:
        so_far = hf.partial(int)
        SEEN.append(so_far.value)
        so_far.save(number)
        raise Crash

    @hf.agent
    async def run() -> None:
        await job(given[0])

    fails = dies_at("step.broken_off")
    with pytest.raises((Crash, hf.StoreError)):
        play(fails, run)
    fails.mend()
    given[0] = 2
    crashing(lambda: play(fails, run))
    assert SEEN == [None, None]
    assert store.load("r") is None


def test_a_thread_that_outlives_its_step_saves_nothing() -> None:
    kept: list[partials.Partial[int]] = []

    @hf.step
    async def job() -> None:
        kept.append(hf.partial(int))
        await asyncio.to_thread(kept[0].save, 1)

    @hf.agent
    async def run() -> None:
        await job()
        with pytest.raises(hf.Misuse, match="has ended; nothing was saved"):
            kept[0].save(2)

    store = MemoryStore()
    play(store, run)
    assert lines(store).count("step.partial 1") == 1


def test_a_type_that_does_not_read_it_any_more_blocks_the_run() -> None:
    store, kinds = MemoryStore(), list[Any]([int, list])

    @hf.step
    async def job() -> None:
        so_far: Any = hf.partial(kinds.pop(0))
        so_far.save(1)
        raise Crash

    @hf.agent
    async def run() -> None:
        await job()

    crashing(lambda: play(store, run))
    with pytest.raises(hf.HoldfastError, match="partial result"):
        play(store, run)


def test_outside_a_step() -> None:
    @hf.agent
    async def run() -> None:
        hf.partial(int)

    with pytest.raises(hf.Misuse, match="belongs inside a step"):
        play(MemoryStore(), run)
    with hf.plain():
        assert read_pages() == WHOLE
    with hf.plain(), pytest.raises(hf.NotKept):
        hf.partial(int).save("x")  # type: ignore[arg-type]


def test_a_step_is_not_known_before_itself() -> None:
    store = MemoryStore()
    BAD.append(Crash())
    crashing(lambda: play(store, crawling))
    play(store, crawling)
    with hf.Holdfast(store) as app:
        assert app.show_at("r", "1").known == []
