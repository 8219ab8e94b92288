"""A person must agree first, to these very arguments: the first answer is for good, and without one nothing is executed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from crashing import Crash
from holdfast.codec.fingerprint import fingerprint
from holdfast.errors import Misuse, Refusal
from holdfast.life import effects
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore

HOUR_US = 3_600_000_000


class HandClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.at_us = 1_700_000_000_000_000

    def now_us(self) -> int:
        return self.at_us

    def monotonic_s(self) -> float:
        return self.at_us / 1e6

    def sleep(self, duration_s: float) -> None:
        self.at_us += int(duration_s * 1e6)


class Shop:
    """A run with one effect that needs an approval, and what was really paid."""

    def __init__(self, approve: Any, *, crash: Callable[[], None] = lambda: None) -> None:
        self.store, self.clock, self.paid = MemoryStore(), HandClock(), list[int]()

        @hf.effect(in_doubt="ask", approve=approve)
        def pay(cents: int) -> int:
            self.paid.append(cents)
            return cents

        @hf.agent
        def buy(cents: int) -> str:
            try:
                paid = pay(cents)
            except hf.Refused as no:
                return f"{no.by} {no.reason} {no.timed_out}"
            crash()
            return f"paid {paid}"

        self.buy = buy

    def run(self, cents: int = 5) -> str:
        with hf.Holdfast(self.store, clock=self.clock) as app:
            return app.run(self.buy, cents, run_id="r", wait=False)

    def answer(self, *, yes: bool, by: str = "ann", reason: str = "") -> str:
        with hf.Holdfast(self.store, clock=self.clock) as app:
            return app.answer("r", "approve:1", yes=yes, by=by, reason=reason)


def test_nothing_is_executed_before_somebody_agrees() -> None:
    shop = Shop(approve=True)
    with pytest.raises(hf.RunWaiting, match=r"may pay\(cents=5\) be executed at step 1\?"):
        shop.run()
    assert shop.paid == []
    shop.answer(yes=True)
    assert shop.run() == "paid 5"
    assert shop.run() == "paid 5"
    assert shop.paid == [5]


def test_a_no_is_raised_with_who_and_why_live_and_on_replay() -> None:
    shop = Shop(approve=True)
    with pytest.raises(hf.RunWaiting):
        shop.run()
    shop.answer(yes=False, reason="too dear")
    assert shop.run() == "ann too dear False"
    assert shop.paid == []


def test_the_first_answer_is_for_good() -> None:
    shop = Shop(approve=True)
    with pytest.raises(hf.RunWaiting):
        shop.run()
    shop.answer(yes=False)
    with pytest.raises(Refusal, match="was answered by ann: no; nothing was changed"):
        shop.answer(yes=True, by="bob")
    assert shop.run() == "ann  False"


def test_a_question_that_was_never_asked_cannot_be_answered() -> None:
    shop = Shop(approve=True)
    with pytest.raises(hf.RunWaiting):
        shop.run()
    with hf.Holdfast(shop.store) as app, pytest.raises(Refusal, match="has no question 'approve:9'"):
        app.answer("r", "approve:9", yes=True)


@pytest.mark.parametrize("limit", ["1h", timedelta(hours=1)])
def test_no_answer_in_time_is_a_no(limit: Any) -> None:
    shop = Shop(approve=limit)
    with pytest.raises(hf.RunWaiting):
        shop.run()
    shop.clock.at_us += HOUR_US + 2_000_000
    assert shop.run() == "the clock nobody answered in time True"
    assert shop.paid == []


def test_an_answer_after_the_time_is_refused() -> None:
    shop = Shop(approve="1h")
    with pytest.raises(hf.RunWaiting):
        shop.run()
    shop.clock.at_us += HOUR_US + 1
    with pytest.raises(Refusal, match="time to answer 'approve:1' of run 'r' is over"):
        shop.answer(yes=True)


def test_an_answer_in_time_beats_the_clock_that_comes_later() -> None:
    shop = Shop(approve="1h")
    with pytest.raises(hf.RunWaiting):
        shop.run()
    shop.clock.at_us += HOUR_US - 1
    shop.answer(yes=True)
    shop.clock.at_us += 5 * HOUR_US
    assert shop.run() == "paid 5"


def test_only_calls_that_the_predicate_names_need_a_person() -> None:
    shop = Shop(approve=lambda cents: cents > 100)
    assert shop.run(100) == "paid 100"
    dear = Shop(approve=lambda cents: cents > 100)
    with pytest.raises(hf.RunWaiting):
        dear.run(101)


def test_an_approval_is_not_asked_for_again_after_a_crash() -> None:
    crashes = [Crash()]

    def crash() -> None:
        if crashes:
            raise crashes.pop()

    shop = Shop(approve=True, crash=crash)
    with pytest.raises(hf.RunWaiting):
        shop.run()
    shop.answer(yes=True)
    with pytest.raises(Crash):
        shop.run()
    assert shop.run() == "paid 5"
    assert shop.paid == [5]


def test_other_arguments_need_an_approval_of_their_own() -> None:
    store, paid, wanted = MemoryStore(), list[int](), [5]

    @hf.effect(in_doubt="ask", approve=True)
    def pay(cents: int) -> int:
        paid.append(cents)
        return cents

    @hf.agent
    def buy() -> int:
        return pay(wanted[0])

    with pytest.raises(hf.RunWaiting):
        hf.run(buy, run_id="r", store=store, wait=False)
    with hf.Holdfast(store) as app:
        app.answer("r", "approve:1", yes=True)
    wanted[0] = 500
    with pytest.raises(hf.RunWaiting, match=r"pay\(cents=500\)"):
        hf.run(buy, run_id="r", store=store, wait=False)
    assert paid == []


def test_without_the_gate_the_effect_would_be_executed_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "_approved", lambda call: iter(()))
    shop = Shop(approve=True)
    assert shop.run() == "paid 5"


@pytest.mark.parametrize("wrong", [3, 0.5, "soon", ["ann"]])
def test_a_declaration_that_means_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(Misuse):
        hf.effect(in_doubt="ask", approve=wrong)(lambda: None)


def test_a_word_on_something_else_at_that_step_is_no_approval() -> None:
    """A repair had found traces of another effect there, and a person has said what became of it."""
    store, paid = MemoryStore(), list[str]()

    @hf.effect(in_doubt="ask", approve=True)
    async def pay(what: str) -> None:
        paid.append(what)

    @hf.agent
    async def agent() -> None:
        await pay("rent")

    found = rec.DoubtOpened(step_id="1", name="other", fingerprint="1:0", reason="found by a repair", action="ask", lost=True)
    journal = Journal("r")
    started = rec.RunStarted(agent="agent", fingerprint=fingerprint({}), origin="r")
    append = journal.seal([started, found, rec.DoubtSettled(step_id="1", verdict="landed", by="ann", value=b"1")], at_us=1)
    assert store.append([append]) == [None]
    with hf.Holdfast(store) as app, pytest.raises(hf.RunWaiting, match="may pay"):
        app.run(agent, run_id="r", wait=False)
    assert paid == []


def test_a_copy_of_an_effect_needs_no_agreement_where_it_says_so() -> None:
    done: list[str] = []

    @hf.effect(in_doubt="ask", approve=True)
    def pay(what: str) -> None:
        done.append(what)

    @hf.agent
    def buys() -> None:
        hf.effect(pay, approve=False)("small")
        hf.effect(pay, retry=hf.Retry(attempts=2))("large")

    with pytest.raises(hf.RunWaiting, match=r"pay\(what=\"large\"\)"):
        hf.run(buys, run_id="r", store=MemoryStore(), wait=False)
    assert done == ["small"]
