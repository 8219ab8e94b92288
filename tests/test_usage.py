"""What a step says of its cost is kept whatever it is, and adds up as people reckon."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from crashing import Crash, crashing, lines, play, records
from holdfast.records import kinds as rec
from holdfast.stores.memory import MemoryStore


def test_cents_add_up() -> None:
    """Three times 0.30 is 0.8999999999999999 in binary fractions; to people it is 0.90."""

    @hf.step
    async def think(number: int) -> int:
        hf.usage(usd=0.3)
        return number

    @hf.agent(budget=hf.Budget(usd=0.9, on_limit="fail"))
    async def agent() -> None:
        for number in range(9):
            await think(number)

    store = MemoryStore()
    with pytest.raises(hf.BudgetExceeded, match=r"\$0\.90 of \$0\.90"):
        play(store, agent)
    assert lines(store).count("step.done 3") == 1
    assert not any("step.done 4" in line for line in lines(store))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"note": object()}, {"note": "<object>"}),
        ({"note": b"\xff"}, {"note": "<bytes>"}),
        ({"note": 10**5000}, {"note": "<int>"}),
        ({"note": float("nan")}, {"note": "<float>"}),
        ({"note": [[1]]}, {"note": "<list>"}),
        ({"cached": True, "tier": "flex", "share": 0.5}, {"cached": True, "tier": "flex", "share": 0.5}),
    ],
)
def test_what_is_told_beside_a_cost_never_hinders_the_outcome(given: dict[str, Any], kept: dict[str, Any]) -> None:
    calls: list[int] = []
    lives: list[int] = []

    @hf.effect(in_doubt="ask")
    async def pay() -> int:
        calls.append(1)
        hf.usage(usd=0.5, **given)
        return 7

    @hf.agent
    async def agent() -> int:
        paid = await pay()
        lives.append(1)
        if len(lives) == 1:
            raise Crash
        return paid

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == 7
    assert calls == [1]
    (done,) = [record for record in records(store) if isinstance(record, rec.StepDone)]
    assert done.usage == [{"usd": 0.5, **kept}]


@pytest.mark.parametrize("amount", [10**400, -1, float("inf"), float("nan"), "three"])
def test_an_amount_that_is_none_is_refused(amount: Any) -> None:
    @hf.step(raises=hf.Misuse)
    async def think() -> None:
        hf.usage(usd=amount)

    @hf.agent
    async def agent() -> None:
        await think()

    with pytest.raises(hf.Misuse, match="is no amount"):
        play(MemoryStore(), agent)
