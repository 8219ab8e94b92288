"""Words on one doubt that come at the same moment, or before the owner has read the first: the first counts, and the others are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests.sites import StillClock
from crashing import LEASE_S, loaded
from holdfast.errors import Refusal
from holdfast.operating import telling, words
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore

paid: list[str] = []


@hf.effect(in_doubt="ask")
async def pay(order: str) -> str:
    paid.append(order)
    raise TimeoutError


@hf.agent
async def pays(order: str) -> str:
    return await pay(order)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def silent(store: MemoryStore) -> Iterator[hf.Holdfast]:
    """Somebody who owns the run `r`, whose doubt was put to a person, and never reads a letter; for the observer it lives."""
    paid.clear()
    store.enroll("silent")
    with hf.Holdfast(store) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(pays, "o-1", run_id="r", wait=False)
        owned = Journal.load(*loaded(store)).seal([rec.RunResumed(owner="silent", why="test")], at_us=app.engine.clock.now_us())
        assert store.append([owned]) == [None]
        yield app


def test_a_word_whose_owner_dies_is_kept_for_the_next_and_is_the_first(
    silent: hf.Holdfast, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "LOOKS", 2)
    assert silent.resolve("r", "1", landed="seen", by="ann") == "the word is kept, and the run reads it when it goes on"
    with pytest.raises(Refusal, match=r"step 1 of run 'r' is settled: ann said landed, which the run has yet to read; nothing was changed"):
        silent.resolve("r", "1", not_landed=True, by="bob")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        assert app.run(pays, "o-1", run_id="r") == "seen"
    assert paid == ["o-1"]


def test_without_a_look_at_the_first_word_the_effect_is_done_again(
    silent: hf.Holdfast, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: two words that say the opposite, and nobody is told."""
    monkeypatch.setattr(words, "_refuse_second_word", lambda *_, **__: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_word_whose_owner_dies_is_kept_for_the_next_and_is_the_first(silent, store, monkeypatch)


def test_a_word_that_the_owner_took_away_unheard_is_refused_with_what_holds(silent: hf.Holdfast, store: MemoryStore) -> None:
    def owner(*letter: Any) -> int:
        number = MemoryStore.post(store, *letter)
        settled = rec.DoubtSettled(step_id="1", verdict="not_landed", by="ann")
        assert store.append([Journal.load(*loaded(store)).seal([settled], at_us=1, takes=[number])]) == [None]
        return number

    store.post = owner  # type: ignore[method-assign, assignment]
    with pytest.raises(Refusal, match=r"step 1 of run 'r' is not in doubt any more: ann said not landed; nothing was changed"):
        silent.resolve("r", "1", landed="seen", by="bob")


def test_a_word_that_the_owner_took_is_told_as_taken(silent: hf.Holdfast, store: MemoryStore) -> None:
    def owner(*letter: Any) -> int:
        number = MemoryStore.post(store, *letter)
        settled = rec.DoubtSettled(step_id="1", verdict="landed", value=b'"seen"', by="bob", reason="looked")
        assert store.append([Journal.load(*loaded(store)).seal([settled], at_us=1, takes=[number])]) == [None]
        return number

    store.post = owner  # type: ignore[method-assign, assignment]
    assert silent.resolve("r", "1", landed="seen", by="bob", reason="looked") == "the run executes now and takes this into account"


def test_to_resume_a_run_takes_back_a_pause_that_nobody_has_read(silent: hf.Holdfast, store: MemoryStore) -> None:
    silent.pause("r", by="ann")
    clock = StillClock()
    with hf.Holdfast(store, lease=LEASE_S, clock=clock) as app:
        assert app.engine.observer.life_of("silent") == "alive"
        clock.sleep(2 * LEASE_S)
        app.resume("r", by="bob")
        assert store.letters(["r"]) == []
        with pytest.raises(hf.RunWaiting):
            app.run(pays, "o-1", run_id="r", wait=False)
        assert app.show("r").status == "waiting"
