"""A run that changed code blocks goes on with it when somebody says so; effects that happened are not done again unasked."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash
from holdfast._ids import effect_key
from holdfast.errors import Refusal
from holdfast.life import effects
from holdfast.life.run import Run
from holdfast.stores.memory import MemoryStore


class Shop:
    """Two versions of one agent over one store, and what was really done."""

    def __init__(self) -> None:
        self.store, self.done = MemoryStore(), list[str]()

        @hf.step
        def look(what: str) -> str:
            self.done.append(f"look {what}")
            return what

        @hf.effect(in_doubt="ask")
        def pay(what: str) -> str:
            self.done.append(f"pay {what} {hf.key()}")
            return what

        @hf.agent(name="shop")
        def old() -> str:
            look("a")
            look("b")
            pay("rent")
            raise Crash

        @hf.agent(name="shop")
        def new() -> str:
            look("a")
            look("c")
            return pay("rent") + pay("water")

        self.old, self.new = old, new

    def run(self, agent: Any) -> str:
        return str(hf.run(agent, run_id="r", store=self.store, wait=False))

    def blocked(self) -> Shop:
        with pytest.raises(Crash):
            self.run(self.old)
        with pytest.raises(hf.ReplayMismatch, match="resume r --accept"):
            self.run(self.new)
        return self


def test_the_new_code_goes_on_from_the_step_that_differs() -> None:
    shop = Shop().blocked()
    with hf.Holdfast(shop.store) as app:
        told = app.accept("r", by="ann", reason="better look")
    assert told.startswith("the run goes on with the new code from step 2; 2 recorded steps are superseded; the run is ready to go on")
    assert told.endswith("else: holdfast resume r --here APP.py")
    with pytest.raises(hf.RunWaiting, match=r"pay\(what=\"rent\"\) at step 3.*was made at step 3, before the code changed"):
        shop.run(shop.new)
    assert [line.split()[:2] for line in shop.done] == [["look", "a"], ["look", "b"], ["pay", "rent"], ["look", "c"]]


def test_a_person_says_that_the_effect_counts_and_it_is_not_done_again() -> None:
    shop = Shop().blocked()
    with hf.Holdfast(shop.store) as app:
        app.accept("r")
        with pytest.raises(hf.RunWaiting):
            app.run(shop.new, run_id="r", wait=False)
        app.resolve("r", "3", landed="rent")
        assert app.run(shop.new, run_id="r") == "rentwater"
        assert [verdict.good for verdict in app.check("r")] == [True]
    assert [line.split()[1] for line in shop.done if line.startswith("pay")] == ["rent", "water"]


def keys_of_payments() -> set[str]:
    """The keys of three payments: one before the change, two after it."""
    shop = Shop().blocked()
    with hf.Holdfast(shop.store) as app:
        app.accept("r")
        with pytest.raises(hf.RunWaiting):
            app.run(shop.new, run_id="r", wait=False)
        app.resolve("r", "3", not_landed=True)
        app.run(shop.new, run_id="r")
    keys = [line.split()[2] for line in shop.done if line.startswith("pay")]
    assert len(keys) == 3
    return set(keys)


def test_keys_after_the_change_are_not_those_of_effects_that_happened() -> None:
    assert len(keys_of_payments()) == 3


def test_without_the_generation_a_new_effect_gets_the_key_of_one_that_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the bank would take a payment that is wanted for the one it has."""
    monkeypatch.setattr(Run, "key_of", lambda run, step_id: effect_key(run.origin, step_id))
    assert len(keys_of_payments()) == 2


def test_an_effect_that_had_begun_before_the_change_is_tried_again_under_its_own_key() -> None:
    store, keys, path = MemoryStore(), list[str](), ["old"]

    @hf.effect(in_doubt="ask")
    async def pay() -> str:
        keys.append(hf.key())
        if len(keys) == 1:
            raise RuntimeError("no reply")
        return "paid"

    @hf.step
    async def look(what: str) -> str:
        return what

    async def looks() -> str:
        while not keys:  # noqa: ASYNC110 (the payment begins first)
            await asyncio.sleep(0)
        return await look(path[0])

    @hf.agent
    async def shop() -> tuple[str, ...]:
        return await hf.gather(pay(), looks())

    with hf.Holdfast(store) as app:
        for end in (hf.RunWaiting, hf.ReplayMismatch):
            with pytest.raises(end):
                app.run(shop, run_id="r", wait=False)
            path[0] = "new"
        app.accept("r")
        app.resolve("r", "1", not_landed=True)
        assert app.run(shop, run_id="r", wait=False) == ("paid", "new")
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_without_the_memory_of_superseded_effects_rent_would_be_paid_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "made_before", lambda call: None)
    shop = Shop().blocked()
    with hf.Holdfast(shop.store) as app:
        app.accept("r")
        assert app.run(shop.new, run_id="r") == "rentwater"
    assert sum(line.startswith("pay rent") for line in shop.done) == 2


def test_only_a_run_that_is_blocked_by_its_code_can_be_accepted() -> None:
    shop = Shop()
    with pytest.raises(Crash):
        shop.run(shop.old)
    with hf.Holdfast(shop.store) as app, pytest.raises(Refusal, match="is blocked neither by changed code nor by another model"):
        app.accept("r")


def test_a_doubt_in_what_would_be_superseded_is_settled_first() -> None:
    store, paths = MemoryStore(), ["old"]

    @hf.effect(in_doubt="fail")
    def pay(what: str) -> str:
        raise RuntimeError("no reply")

    @hf.step
    def look(what: str) -> str:
        return what

    @hf.agent
    def shop() -> None:
        look(paths[0])
        try:
            pay("rent")
        except hf.InDoubt:
            raise Crash from None

    with pytest.raises(Crash):
        hf.run(shop, run_id="r", store=store)
    paths[0] = "new"
    with pytest.raises(hf.ReplayMismatch):
        hf.run(shop, run_id="r", store=store)
    with hf.Holdfast(store) as app:
        with pytest.raises(Refusal, match=r"step 2 of run 'r' is in doubt: settle it first.*holdfast resolve r 2 --landed RESULT"):
            app.accept("r")
        assert app.resolve("r", "2", not_landed=True) == "it is recorded, and run 'r' stays blocked. What helps is: holdfast show r"
        assert (app.show("r").status, [item.kind for item in app.inbox()]) == ("blocked", ["blocked"])
        assert app.accept("r").startswith("the run goes on with the new code from step 1")


def test_an_answer_does_not_mend_what_blocks_a_run() -> None:
    store, names = MemoryStore(), ["look"]

    def look(what: str) -> str:
        return what

    @hf.agent
    def shop() -> str:
        hf.step(look, name=names[0])("a")
        return hfs.ask("colour?", str)

    with pytest.raises(hf.RunWaiting):
        hf.run(shop, run_id="r", store=store, wait=False)
    names[0] = "see"
    with pytest.raises(hf.ReplayMismatch):
        hf.run(shop, run_id="r", store=store)
    with hf.Holdfast(store) as app:
        assert "stays blocked" in app.answer("r", "2", "red", by="ann")
        assert app.show("r").status == "blocked"
        names[0] = "look"
        assert app.run(shop, run_id="r") == "red"


def test_who_takes_a_question_for_a_doubt_is_told_the_other_verb() -> None:
    store = MemoryStore()

    @hf.effect(in_doubt="ask")
    def pay() -> str:
        raise RuntimeError("no reply")

    @hf.agent
    def shop() -> str:
        return hfs.ask("colour?", str) + pay()

    with hf.Holdfast(store) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(shop, run_id="r", wait=False)
        with pytest.raises(Refusal, match=r"'1' of run 'r' is a question, and not in doubt; .*holdfast answer r/1 ANSWER"):
            app.resolve("r", "1", not_landed=True)
        app.answer("r", "1", "red", by="ann")
        with pytest.raises(hf.RunWaiting):
            app.run(shop, run_id="r", wait=False)
        with pytest.raises(Refusal, match=r"step '2' of run 'r' is in doubt, and no question; .*holdfast resolve r 2 --landed RESULT"):
            app.answer("r", "2", "red", by="ann")


def test_show_does_not_tell_of_a_mismatch_that_was_accepted() -> None:
    shop = Shop().blocked()
    with hf.Holdfast(shop.store) as app:
        assert "the run is blocked" in app.show("r").last_error
        app.accept("r")
        with pytest.raises(hf.RunWaiting):
            app.run(shop.new, run_id="r", wait=False)
        assert (app.show("r").status, app.show("r").last_error) == ("waiting", "")


RENAMED = "If it was only renamed, keep the old name: @hf."


@pytest.mark.parametrize(("declare", "written"), [(hf.step, "step"), (hf.effect(in_doubt="ask"), "effect")])
def test_a_renamed_step_is_told_how_to_keep_its_name(declare: Any, written: str) -> None:
    store, calls = MemoryStore(), [("gather", "a")]

    @hf.agent
    def agent() -> str:
        name, what = calls[-1]
        found = hf.step(declare(lambda what: what), name=name)(what)
        if len(calls) == 1:
            raise Crash
        return str(found)

    def run() -> str:
        return str(hf.run(agent, run_id="r", store=store))

    with pytest.raises(Crash):
        run()
    for name, what in (("collect", "a"), ("collect", "b"), ("gather", "b")):
        calls.append((name, what))
        with pytest.raises(hf.ReplayMismatch) as told:
            run()
        renamed = f"{RENAMED}{written}(name='gather'). Go on with" in str(told.value)
        assert renamed == ((name, what) == ("collect", "a"))
        assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)
    calls.append(("gather", "a"))
    assert run() == "a"
