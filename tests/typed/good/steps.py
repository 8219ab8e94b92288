"""A decorated step is called as it was written, and gives what it gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import holdfast as hf


@dataclass(frozen=True)
class Offer:
    name: str
    cents: int


@hf.step
async def search(query: str, *, limit: int = 3) -> list[Offer]:
    return [Offer(query, limit)]


@hf.step(name="price of one", retry=hf.Retry(attempts=3), timeout="10s", raises=(LookupError,), ignore=("trace",))
async def price(name: str, trace: str = "") -> int:
    return len(name)


@hf.step
def parse(text: str) -> Offer:
    return Offer(text, 0)


@hf.step(name="again")
def parse_again(text: str) -> Offer:
    return Offer(text, 0)


def third_party(text: str, times: int = 1) -> list[str]:
    return [text] * times


async def third_party_async(text: str) -> bytes:
    return text.encode()


class Shop:
    @hf.step
    async def find(self, name: str) -> Offer:
        return Offer(name, 1)

    @hf.step(name="find at once")
    def find_now(self, name: str) -> Offer:
        return Offer(name, 1)

    @staticmethod
    @hf.step
    def clean(name: str) -> str:
        return name.strip()


async def use(shop: Shop) -> None:
    assert_type(await search("kelp"), list[Offer])
    assert_type(await search("kelp", limit=2), list[Offer])
    assert_type(await price("kelp"), int)
    assert_type(parse("kelp"), Offer)
    assert_type(parse_again(text="kelp"), Offer)
    assert_type(hf.step(third_party)("kelp", times=2), list[str])
    assert_type(await hf.step(third_party_async, name="fetch", call_id="call_0")("kelp"), bytes)
    assert_type(await hf.step(search, name="search again")("kelp", limit=1), list[Offer])
    assert_type(await shop.find("kelp"), Offer)
    assert_type(shop.find_now(name="kelp"), Offer)
    assert_type(Shop.clean(" kelp "), str)
