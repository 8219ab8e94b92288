"""Many orders at once: each branch looks up, then charges; one that fails does not stop the others."""

import asyncio
from dataclasses import dataclass

import holdfast as hf

CARDS = {"ann": 4000, "bob": 900, "cy": 7000}
BOOKED: dict[str, int] = {}


@dataclass
class Order:
    customer: str
    cents: int


class Declined(Exception):
    """The bank's answer: no."""


@hf.step
async def limit_of(customer: str) -> int:
    await asyncio.sleep(0.05)
    return CARDS[customer]


async def find_charge(customer: str, cents: int) -> hf.Verdict[str]:
    """The probe: what the bank knows."""
    return hf.Landed(f"charged {customer} {cents}") if BOOKED.get(customer) == cents else hf.NotLanded()


@hf.effect(in_doubt=hf.verify(find_charge, settle="1s"), raises=Declined)
async def charge(customer: str, cents: int) -> str:
    if cents > CARDS[customer]:
        raise Declined(f"{customer} cannot pay {cents}")
    BOOKED[customer] = cents
    return f"charged {customer} {cents}"


async def settle(order: Order) -> str:
    limit = await limit_of(order.customer)
    return f"{await charge(order.customer, order.cents)} of {limit}"


@hf.agent
async def settle_all(orders: list[Order]) -> list[str]:
    results = await hf.map(settle, orders, limit=2, errors="return")
    return [f"not charged: {result}" if isinstance(result, Exception) else result for result in results]


if __name__ == "__main__":
    for line in hf.run(settle_all, [Order("ann", 1500), Order("bob", 1500), Order("cy", 1500)], run_id="orders"):
        print(line)
