"""Answers that come at the same moment, late, or for something else than was seen: each is told what became of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

import holdfast as hf
from agents_for_tests.sites import StillClock
from crashing import LEASE_S, lines, loaded, records
from holdfast.errors import Refusal
from holdfast.operating import telling, words
from holdfast.records import kinds as rec
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

HOUR_US = 3_600_000_000


@hf.agent
async def asks() -> str:
    return await hf.ask("colour?", str)


class Together:
    """Several people who answer at once: none of them has seen a letter of another when it posts its own."""

    def __init__(self, path: Path, count: int) -> None:
        self.gate, self.path, self.count = threading.Barrier(count), path, count

    def answer(self, number: int) -> str:
        store = SqliteStore(self.path)
        post = store.post

        def posted(*args: Any) -> int:
            self.gate.wait(10)
            return post(*args)

        store.post = posted  # type: ignore[method-assign, assignment]
        with hf.Holdfast(store) as app:
            try:
                return app.answer("r", "1", f"colour {number}", by=f"person {number}")
            except Refusal as refusal:
                return str(refusal)

    def __enter__(self) -> list[str]:
        self.said: list[str] = []
        self.pool = ThreadPoolExecutor(self.count)
        return self.said

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()

    def begin(self, *_: object) -> None:
        for number in range(self.count):
            self.pool.submit(self._tell, number)

    def _tell(self, number: int) -> None:
        self.said.append(self.answer(number))


def test_of_answers_at_the_same_moment_one_counts_and_the_others_are_refused_naming_it(tmp_path: Path) -> None:
    people = Together(tmp_path / "runs.db", 3)
    with people as said, hf.Holdfast(tmp_path / "runs.db", on_ask=people.begin) as app:
        colour = app.run(asks, run_id="r", park_after="60s")
    number = colour.removeprefix("colour ")
    taken = "the run executes now and takes this into account"
    refused = f"question '1' of run 'r' was answered by person {number}: \"{colour}\"; nothing was changed"
    assert sorted(said) == sorted([taken, refused, refused])


def test_without_waiting_for_the_owner_all_of_them_are_told_that_they_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above notices an engine that does not look what became of a letter."""
    monkeypatch.setattr(words, "_heard", lambda *_: telling.EXECUTES)
    people = Together(tmp_path / "runs.db", 2)
    with people as said, hf.Holdfast(tmp_path / "runs.db", on_ask=people.begin) as app:
        app.run(asks, run_id="r", park_after="60s")
    assert said == [telling.EXECUTES] * 2


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def silent(store: MemoryStore) -> Iterator[hf.Holdfast]:
    """Somebody who owns the run `r`, which has asked, and never reads a letter; for the observer it lives."""
    store.enroll("silent")
    with hf.Holdfast(store) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(asks, run_id="r", wait=False)
        own(app, "silent")
        yield app


def own(app: hf.Holdfast, owner: str) -> None:
    from holdfast.records.journal import Journal

    journal = Journal.load(*loaded(app.store))
    assert app.store.append([journal.seal([rec.RunResumed(owner=owner, why="test")], at_us=app.engine.clock.now_us())]) == [None]


def test_an_answer_whose_owner_dies_is_kept_for_the_next_and_is_the_first(
    silent: hf.Holdfast, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "LOOKS", 2)
    assert silent.answer("r", "1", "red", by="ann") == "the answer is kept, and the run reads it when it goes on"
    with pytest.raises(Refusal, match='was answered by ann: "red"; nothing was changed'):
        silent.answer("r", "1", "blue", by="bob")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        assert app.run(asks, run_id="r") == "red"
    assert store.letters(["r"]) == []


def test_an_answer_that_the_owner_took_away_unheard_is_refused_with_what_holds(silent: hf.Holdfast, store: MemoryStore) -> None:
    from holdfast.records.journal import Journal

    def owner(*letter: Any) -> int:
        number = MemoryStore.post(store, *letter)
        answered = rec.AskAnswered(step_id="1", yes=True, by="ann", value=b'"red"', letter=99)
        store.append([Journal.load(*loaded(store)).seal([answered], at_us=1, takes=[number])])
        return number

    store.post = owner  # type: ignore[method-assign, assignment]
    with pytest.raises(Refusal, match='was answered by ann: "red"; nothing was changed'):
        silent.answer("r", "1", "blue", by="bob")


def test_an_answer_that_the_owner_left_unread_at_its_end_is_refused_with_the_one_that_counted(
    silent: hf.Holdfast, store: MemoryStore
) -> None:
    from holdfast.records.journal import Journal

    def owner(*letter: Any) -> int:
        MemoryStore.post(store, "r", "answer", json.dumps({"ask": "1", "by": "cat", "yes": True, "value": '"grey"'}).encode(), 1)
        number = MemoryStore.post(store, *letter)
        answered = rec.AskAnswered(step_id="1", yes=True, by="ann", value=b'"red"', letter=99)
        store.append([Journal.load(*loaded(store)).seal([answered, rec.RunDone(value=b'"red"')], at_us=1)])
        return number

    store.post = owner  # type: ignore[method-assign, assignment]
    with pytest.raises(Refusal, match='was answered by ann: "red"; nothing was changed'):
        silent.answer("r", "1", "blue", by="bob")


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("it is odd")
        return number


@hf.agent
async def wants_even() -> int:
    return (await hf.ask("which?", Even, timeout="2h", default=Even(number=0))).number


def park(app: hf.Holdfast, agent: Any = wants_even) -> None:
    with pytest.raises(hf.RunWaiting):
        app.run(agent, run_id="r", wait=False)


def test_a_question_that_is_put_anew_keeps_the_end_of_its_time(store: MemoryStore) -> None:
    clock = StillClock()
    with hf.Holdfast(store, clock=clock) as app:
        park(app)
        clock.at_us += HOUR_US
        app.answer("r", "1", {"number": 3})
        park(app)
        ends = [record.until_us for record in records(store) if isinstance(record, rec.AskOpened)]
        assert len(ends) == 2
        assert len(set(ends)) == 1
        clock.at_us += HOUR_US + 2_000_000
        assert app.run(wants_even, run_id="r") == 0


def test_an_answer_to_what_was_seen_is_not_taken_for_one_to_a_later_question(store: MemoryStore) -> None:
    with hf.Holdfast(store) as app:
        park(app)
        [seen] = app.inbox()
        app.answer("r", "1", {"number": 3}, by="ann", about=seen.about)
        park(app)
        before = loaded(store)
        with pytest.raises(Refusal, match="is not the one that was seen, it asks something else by now: which"):
            app.answer("r", "1", {"number": 4}, about=seen.about)
        assert loaded(store) == before
        [now] = app.inbox()
        app.answer("r", "1", {"number": 4}, about=now.about)
        assert app.run(wants_even, run_id="r") == 4


def test_a_letter_to_an_earlier_question_does_not_answer_the_later_one(store: MemoryStore) -> None:
    with hf.Holdfast(store) as app:
        park(app)
        [seen] = app.inbox()
        app.answer("r", "1", {"number": 3})
        park(app)
        late = {"ask": "1", "by": "mallory", "yes": True, "value": '{"number": 8}', "about": seen.about}
        store.post("r", "answer", json.dumps(late).encode(), app.engine.clock.now_us())
        park(app)
        assert "mallory" not in str(records(store))
        assert store.letters(["r"]) == []


def test_who_only_sleeps_is_not_sent_to_the_inbox(store: MemoryStore) -> None:
    @hf.agent
    async def sleeps() -> None:
        await hf.sleep("1h")

    with hf.Holdfast(store) as app:
        with pytest.raises(hf.RunWaiting) as sleeping:
            app.run(sleeps, run_id="s", wait=False)
        with pytest.raises(hf.RunWaiting) as asking:
            app.run(asks, run_id="r", wait=False)
    assert "inbox" not in f"{sleeping.value} {sleeping.value.while_it_waits()}"
    assert "sleeps until" in str(sleeping.value)
    assert "inbox" in str(asking.value)


def test_on_ask_may_answer_at_once(store: MemoryStore) -> None:
    with hf.Holdfast(store, on_ask=lambda run_id, ask_id, *_: app.answer(run_id, ask_id, "red")) as app:
        assert asyncio.run(_started(app)) == "red"
    assert "run.waiting" not in lines(store)


async def _started(app: hf.Holdfast) -> str:
    return await (await app.start(asks, run_id="r")).result(timeout=20)
