"""What workers under test execute while they are told to stop: steps that take long, and a row of short ones.

`STOPPING_BROKEN` set means that workers do not see what is held back, so that it is seen that the tests notice.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial
from typing import Any

import holdfast as hf
from agents_for_tests.fleet_app import inside, tell
from holdfast.life.run import Body, place

LONG_S = 60.0
PACE_S = 0.04


@hf.step
async def nap(order: str) -> str:
    with inside():
        await asyncio.sleep(LONG_S)
    return order


@hf.effect(in_doubt="ask")
async def pay(order: str) -> str:
    with inside():
        await asyncio.sleep(LONG_S)
    return tell("book", name="pay", order=order, key=hf.key(), remembers=False)


@hf.effect(in_doubt=hf.resend())
async def pace(order: str, nr: int) -> None:
    await asyncio.sleep(PACE_S)
    await asyncio.to_thread(partial(tell, "book", name=order, order=str(nr), key=hf.key(), remembers=True))


@hf.sync.step
def dig(order: str) -> str:
    """It ends once the process has heard that the run is to stop."""
    body = place.get()
    assert isinstance(body, Body)
    with inside():
        until_s = time.monotonic() + LONG_S
        while body.run.cancelling is None and body.run.leaving is None and time.monotonic() < until_s:
            time.sleep(0.01)
    return order


@hf.sync.effect(in_doubt=hf.resend())
def fill(order: str) -> str:
    return tell("book", name="fill", order=order, key=hf.key(), remembers=True)


@hf.agent
async def naps(order: str) -> str:
    await nap(order)
    await pace(order, 0)
    return order


@hf.agent
async def pays(order: str) -> str:
    return await pay(order)


@hf.sync.agent
def digs(order: str) -> str:
    dig(order)
    return fill(order)


@hf.agent
async def walks(order: str, paces: int) -> str:
    for nr in range(paces):
        await pace(order, nr)
    return order


@hf.agent
async def leads(order: str, paces: int) -> str:
    """The same inside another run."""
    return await walks(order, paces)


if os.environ.get("STOPPING_BROKEN"):
    heeding: Any = sys.modules["holdfast.fleet.heeding"]
    heeding.held = lambda _: []
