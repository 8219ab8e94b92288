"""What the verbs inside a run give."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import assert_type

import holdfast as hf


@dataclass
class Notes:
    lines: list[str] = field(default_factory=list)


class Shop:
    name = "reef"


@hf.step
async def fetch(page: int) -> str:
    return str(page)


@hf.step
async def weigh(page: int) -> float:
    return page / 2


async def plan(page: int) -> bytes:
    return (await fetch(page)).encode()


def close(name: str, *, quiet: bool = False) -> None: ...


@hf.agent
async def read(pages: list[int]) -> list[str]:
    assert_type(await hf.gather(fetch(1), weigh(2)), tuple[str, float])
    assert_type(await hf.gather(fetch(1), weigh(2), plan(3)), tuple[str, float, bytes])
    assert_type(await hf.gather(fetch(1), weigh(2), plan(3), weigh(4)), tuple[str, float, bytes, float])
    assert_type(await hf.gather(fetch(1), weigh(2), plan(3), weigh(4), fetch(5)), tuple[str, float, bytes, float, str])
    three = await hf.gather(fetch(1), weigh(2), plan(3), errors="return")
    assert_type(three, tuple[str | Exception, float | Exception, bytes | Exception])
    assert_type(await hf.gather(*(fetch(page) for page in pages)), tuple[str, ...])
    assert_type(await hf.gather(*(fetch(page) for page in pages), errors="return"), tuple[str | Exception, ...])
    assert_type(await hf.map(fetch, pages, limit=4), list[str])
    assert_type(await hf.map(plan, range(3), errors="return"), list[bytes | Exception])
    assert_type(await hf.first(fetch(1), fetch(2)), str)
    assert_type(await hf.first(fetch(1), weigh(2)), str | float)
    async with hf.timeout("5s"):
        await fetch(1)
    assert_type(hf.state(Notes()), Notes)
    assert_type(hf.state({"a": 1}), dict[str, int])
    assert_type(hf.now(), datetime)
    assert_type(hf.key(), str)
    assert_type(hf.resource(Shop), Shop)
    assert_type(hf.current().id, str)
    assert_type(hf.current().replaying, bool)
    assert_type(hf.current().random.random(), float)
    hf.cleanup(close, "door", quiet=True)
    hf.usage(model="m", input_tokens=3, output_tokens=5, usd=0.01)
    return await hf.map(fetch, pages)


def use_plain() -> None:
    with hf.plain():
        pass
