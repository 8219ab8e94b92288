"""What the state machine has found, reduced to plain cases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

import holdfast as hf
from crashing import LEASE_S, dies_at, play
from holdfast.errors import Refusal, StoreError


@pytest.fixture
def app() -> Iterator[hf.Holdfast]:
    with hf.Holdfast("memory:") as opened:
        yield opened


@hf.step
async def see(what: str) -> str:
    return what


def test_children_of_a_run_and_of_its_fork_do_not_share_keys(app: hf.Holdfast) -> None:
    keys = []

    @hf.effect(in_doubt="ask")
    async def pay() -> str:
        keys.append(hf.key())
        return "paid"

    @hf.agent
    async def pays() -> str:
        return await pay()

    @hf.agent
    async def orders() -> str:
        await see("a")
        if not await hf.ask("go on?"):
            return ""
        return await pays()

    with pytest.raises(hf.RunWaiting):
        app.run(orders, run_id="r", wait=False)
    app.fork("r", at=1)
    for run_id in ("r", "r.f1"):
        with suppress(hf.RunWaiting):
            app.run(orders, run_id=run_id, wait=False)
        app.answer(run_id, "2", yes=True)
        assert app.run(orders, run_id=run_id) == "paid"
    assert len(set(keys)) == 2


def test_a_message_is_received_again_as_it_was_sent_whatever_became_of_its_step(app: hf.Holdfast) -> None:
    @hf.agent
    async def hears() -> list[str]:
        found = [await see("a"), await hf.receive("news", str)]
        return [*found, str(await hf.ask("go on?"))]

    def heard(run_id: str) -> None:
        with pytest.raises(hf.RunWaiting, match="go on"):
            app.run(hears, run_id=run_id, wait=False)

    with pytest.raises(hf.RunWaiting):
        app.run(hears, run_id="r", wait=False)
    app.send("r", "news", "good")
    heard("r")
    app.edit("r", 2, "corrected")
    app.edit("r", 1, "other")
    app.fork("r", at=0)
    for run_id in ("r", "r.f1"):
        heard(run_id)
        app.answer(run_id, "3", yes=True)
    assert app.run(hears, run_id="r") == ["other", "good", "True"]
    assert app.run(hears, run_id="r.f1") == ["a", "good", "True"]


def test_a_message_that_a_fork_was_given_along_is_given_to_its_forks_too_before_it_has_taken_it(app: hf.Holdfast) -> None:
    @hf.agent
    async def hears() -> list[str]:
        return [await see("a"), await hf.receive("news", str)]

    with pytest.raises(hf.RunWaiting):
        app.run(hears, run_id="r", wait=False)
    app.send("r", "news", "good")
    app.run(hears, run_id="r")
    app.fork("r", at=1, new_id="first")
    app.fork("first", at=1, new_id="second")
    assert app.run(hears, run_id="second", wait=False) == ["a", "good"]
    assert app.run(hears, run_id="first", wait=False) == ["a", "good"]


def test_who_goes_back_to_an_effect_whose_doubt_is_settled_and_not_yet_recorded_is_told_to_take_the_run_up() -> None:
    @hf.effect(in_doubt=hf.verify(lambda: hf.Landed("paid"), settle=0))
    def pay() -> str:
        return "paid"

    @hf.agent
    def pays() -> str:
        return pay()

    store = dies_at("step.done")
    with pytest.raises(StoreError):
        play(store, pays)
    store.mend()
    store.fails = lambda row: row.kind == "step.done"
    with pytest.raises(StoreError):
        play(store, pays)
    store.mend()
    with hf.Holdfast(store, lease=LEASE_S) as app:
        with pytest.raises(Refusal, match=r"has no outcome yet, what became of it is known: holdfast resume r --here APP.py"):
            app.fork("r", at=1)
        with pytest.raises(Refusal, match="is not in doubt"):
            app.resolve("r", "1", landed="paid")
        assert app.run(pays, run_id="r") == "paid"
        assert app.fork("r", at=1) == "r.f1"
