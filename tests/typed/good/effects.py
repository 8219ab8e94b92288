"""An effect keeps its signature with every kind of in_doubt, as `def` and as `async def`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, assert_type

import holdfast as hf


@dataclass(frozen=True)
class Receipt:
    id: str


async def find_charge(order: str, cents: int) -> hf.Verdict[Receipt]:
    if cents < 0:
        return hf.Unknown()
    return hf.Landed(Receipt(order)) if cents else hf.NotLanded()


def find_charge_now(order: str, cents: int) -> hf.Verdict[Receipt]:
    return hf.Landed(Receipt(order)) if cents else hf.NotLanded()


async def drop_draft(order: str, cents: int) -> None: ...


def order_key(order: str, cents: int) -> str:
    return f"{order}-{cents}"


@hf.effect(in_doubt=hf.verify(find_charge))
async def charge(order: str, cents: int) -> Receipt:
    return Receipt(hf.key())


@hf.effect(in_doubt=hf.verify(find_charge_now, settle=timedelta(seconds=5)), key=order_key, timeout=30)
async def charge_probed_by_def(order: str, cents: int) -> Receipt:
    return Receipt(order)


@hf.effect(in_doubt=hf.verify(find_charge), key=lambda order, cents: f"{order}-{cents}")
def charge_now(order: str, cents: int) -> Receipt:
    return Receipt(order)


@hf.effect(in_doubt=hf.reset(drop_draft))
async def draft(order: str, cents: int) -> Receipt:
    return Receipt(order)


@hf.effect(in_doubt=hf.resend(within="24h"), retry=hf.Retry(attempts=2), raises=(ValueError,))
async def mail(to: str, *, subject: str = "") -> None:
    if not to:
        raise hf.NotLanded


@hf.effect(in_doubt="resend", key=lambda name: name)
def label(name: str) -> int:
    return len(name)


@hf.effect(in_doubt="ask", name="push the button")
def push(name: str) -> int:
    return len(name)


async def refund(receipt: Receipt, order: str, cents: int) -> None: ...


@hf.effect(in_doubt="resend", retry=hf.Retry(attempts=2))
def refund_now(receipt: Receipt, order: str, cents: int) -> str:
    return receipt.id


@hf.effect(in_doubt="ask", undo=refund)
async def charge_with_undo(order: str, cents: int) -> Receipt:
    return Receipt(order)


@hf.effect(in_doubt=hf.verify(find_charge), undo=refund_now, key=order_key)
async def charge_with_probe_and_undo(order: str, cents: int) -> Receipt:
    return Receipt(order)


@hf.effect(in_doubt=hf.reset(drop_draft), undo=refund_now)
def draft_with_undo(order: str, cents: int) -> Receipt:
    return Receipt(order)


@hf.agent(on_failure="undo")
async def buys(order: str) -> None:
    assert_type(await charge_with_undo(order, cents=5), Receipt)
    assert_type(await charge_with_probe_and_undo(order, 5), Receipt)
    assert_type(draft_with_undo(order, 5), Receipt)


def in_words(error: OSError) -> Literal["not_landed"] | None:
    return "not_landed" if error.errno else None


@hf.effect(in_doubt="ask", errors={TimeoutError: "unknown", (KeyError, IndexError): "answer", OSError: in_words})
def ship(name: str) -> int:
    return len(name)


@hf.effect(in_doubt=hf.verify(find_charge), errors={Exception: lambda error: "answer" if error.args else None})
async def charge_by_code(order: str, cents: int) -> Receipt:
    return Receipt(order)


@hf.effect(in_doubt="fail", key="once")
async def launch(name: str) -> int:
    return len(name)


class Bank:
    async def find(self, order: str) -> hf.Verdict[Receipt]:
        return hf.Landed(Receipt(order))

    @hf.effect(in_doubt=hf.verify(find))
    async def charge(self, order: str) -> Receipt:
        return Receipt(order)

    @hf.effect(in_doubt="ask")
    def refund(self, order: str) -> Receipt:
        return Receipt(order)


async def use(bank: Bank) -> None:
    assert_type(await charge("o-1", 5), Receipt)
    assert_type(await charge_probed_by_def(order="o-1", cents=5), Receipt)
    assert_type(charge_now("o-1", 5), Receipt)
    assert_type(await draft("o-1", cents=5), Receipt)
    assert_type(await hf.effect(charge, call_id="call_0")("o-1", 5), Receipt)
    assert_type(label("a"), int)
    assert_type(push("a"), int)
    assert_type(ship("a"), int)
    assert_type(await charge_by_code("o-1", 5), Receipt)
    assert_type(await launch("a"), int)
    assert_type(await bank.charge("o-1"), Receipt)
    assert_type(bank.refund("o-1"), Receipt)
    await mail("a@example.org", subject="hello")
