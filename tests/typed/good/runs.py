"""A run gives its agent's result, whether the agent is `async def` or `def`, and a handle knows its type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

import holdfast as hf


@hf.agent
async def buy(order: str, cents: int = 100) -> list[str]:
    return [order] * cents


@hf.agent(name="sell", version="2")
async def sell(names: Sequence[str]) -> None: ...


@hf.agent
def count(order: str) -> int:
    return len(order)


@hf.agent
async def nothing() -> float:
    return 0.5


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name


def use() -> None:
    assert_type(hf.run(buy, "o-1", 5), list[str])
    assert_type(hf.run(buy, "o-1", run_id="order-o-1", store="memory:", wait=False, tags={"customer": "7"}), list[str])
    assert_type(hf.run(count, "o-1"), int)
    assert_type(hf.run(nothing, run_id="once"), float)
    hf.run(sell, ["kelp"])


async def use_handle() -> None:
    handle = await hf.start(buy, "o-1", run_id="order-o-1")
    assert_type(handle, hf.Handle[list[str]])
    assert_type(handle.id, str)
    assert_type(await handle.result(timeout="5s"), list[str])
    assert_type(await (await hf.start(count, "o-1")).result(), int)


def use_app() -> None:
    with hf.Holdfast("memory:", resources=[Shop("reef")]) as app:
        assert_type(app.run(buy, "o-1"), list[str])
        assert_type(app.run(count, "o-1", run_id="c"), int)
        assert_type(app.handle("c", count).wait(timeout="5s"), int)
        assert_type(app.handle("b", buy), hf.Handle[list[str]])
        assert_type([event.seq for event in app.tail("c", after=3)], list[int])


async def use_as_child() -> None:
    assert_type(await buy("o-1"), list[str])
    assert_type(count("o-1"), int)
