"""The agents that are measured: every step takes one small argument and returns a text of 1 KB."""

from __future__ import annotations

from time import perf_counter

import holdfast as hf

SIZE = 1024
REPLY = "a reply of a model, one kilobyte long. " * 40

flushes: list[float] = []
"""Seconds of every flush of a group so far."""
ended: dict[int, tuple[float, int]] = {}
"""When the body of a step was at its end, and how many flushes there had been, by its number."""
acknowledged: list[tuple[float, int]] = []
"""Seconds and flushes from the end of a body until its step had returned to the agent."""


class Broken(Exception):
    """What ends a run in the middle, so that it can be taken up again."""


def reply(number: int) -> str:
    return f"{number:08d}{REPLY}"[:SIZE]


@hf.step
async def ask(number: int) -> str:
    return reply(number)


@hf.step(name="ask")
def ask_blocking(number: int) -> str:
    return reply(number)


@hf.effect(in_doubt="resend")
async def send(number: int) -> str:
    return reply(number)


@hf.step(name="ask")
async def ask_timed(number: int) -> str:
    text = reply(number)
    ended[number] = (perf_counter(), len(flushes))
    return text


@hf.agent
async def asking(count: int) -> float:
    """Seconds for `count` steps, one after another."""
    began = perf_counter()
    for number in range(count):
        await ask(number)
    return perf_counter() - began


@hf.agent
async def sending(count: int) -> float:
    """Seconds for `count` effects, one after another."""
    began = perf_counter()
    for number in range(count):
        await send(number)
    return perf_counter() - began


@hf.agent
def asking_blocking(count: int) -> float:
    """Seconds for `count` steps of a `def` agent, one after another."""
    began = perf_counter()
    for number in range(count):
        ask_blocking(number)
    return perf_counter() - began


@hf.agent
async def one_of_many(first: int, count: int) -> None:
    """`count` steps with the numbers from `first` on; notes how long each acknowledgement took."""
    for number in range(first, first + count):
        await ask_timed(number)
        began_s, before = ended[number]
        acknowledged.append((perf_counter() - began_s, len(flushes) - before))


@hf.agent
async def relying(count: int, folder: str, files: int) -> float:
    """The same as `breaking`, relying on `files` files."""
    for number in range(files):
        hf.watch(f"{folder}/{number}", on_change="fail")
    for number in range(count):
        await ask(number)
    if hf.current().attempt == 1:
        raise Broken
    await ask_timed(count)
    return ended[count][0]


@hf.agent
async def breaking(count: int) -> float:
    """`count` steps, then an error; run again, it gives the moment at which the first new step began."""
    for number in range(count):
        await ask(number)
    if hf.current().attempt == 1:
        raise Broken
    await ask_timed(count)
    return ended[count][0]
