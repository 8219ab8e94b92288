"""What the workers of a fleet under test execute; every body tells the ledger when it begins and ends.

`FLEET_LEDGER` is the ledger's port. `FLEET_BROKEN` names what is broken on purpose, so that it is seen that the tests notice.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import holdfast as hf
import holdfast.sync
from holdfast.life.run import Body, place
from holdfast.records.chain import chain
from holdfast.store import Append, Head, Stale

HOST = "127.0.0.1"
TIMEOUT_S = 30.0
TAKES_S = 0.15
NARROW, CALLS = 3, 20
LIMITS = [
    hf.Limit(queue="narrow", running=NARROW),
    hf.Limit(each_key=True, running=1),
    hf.Limit(resource="calls", amount=CALLS, per="1s"),
]


def tell(door: str, **told: object) -> str:
    """Tell the ledger, and give its answer."""
    connection = http.client.HTTPConnection(HOST, int(os.environ["FLEET_LEDGER"]), timeout=TIMEOUT_S)
    try:
        connection.request("POST", f"/{door}", json.dumps(told))
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@contextmanager
def inside() -> Iterator[None]:
    """Between these the ledger knows that the body executes, for whom, and what it counts for."""
    body = place.get()
    assert isinstance(body, Body)
    head, step = body.run.journal.head, body.call.step_id
    token = f"{head.run_id} {step} {head.epoch} {os.getpid()}"
    counts = {**({"queue narrow": NARROW} if head.queue == "narrow" else {}), **({f"key {head.lane}": 1} if head.lane else {})}
    tell("begin", token=token, run=head.run_id, step=step, epoch=head.epoch, pid=os.getpid(), owner=head.owner, limits=counts)
    try:
        yield
    finally:
        tell("end", token=token)


def booked(name: str, order: str, key: str, *, remembers: bool = False) -> str:
    """An effect: time passes before it happens, and before it is known that it did."""
    with inside():
        time.sleep(TAKES_S)
        receipt = tell("book", name=name, order=order, key=key, remembers=remembers)
        time.sleep(TAKES_S)
        return receipt


def found(order: str) -> hf.Verdict[str]:
    del order
    receipt = tell("find", key=hf.key())
    return hf.Landed(receipt) if receipt else hf.NotLanded()


async def find(order: str) -> hf.Verdict[str]:
    return await asyncio.to_thread(found, order)


def called() -> None:
    with inside():
        tell("call")
        time.sleep(TAKES_S)


@hf.step(uses="calls")
async def look(order: str, nr: int) -> int:
    await asyncio.to_thread(called)
    return nr


@hf.effect(in_doubt=hf.verify(find, settle="1s"))
async def charge(order: str) -> str:
    return await asyncio.to_thread(booked, "charge", order, hf.key())


@hf.effect(in_doubt="ask")
async def wire(order: str) -> str:
    return await asyncio.to_thread(booked, "wire", order, hf.key())


@hf.effect(in_doubt=hf.resend())
async def mail(order: str) -> str:
    return await asyncio.to_thread(partial(booked, "mail", order, hf.key(), remembers=True))


@hf.agent
async def packs(order: str) -> str:
    await look(order, 0)
    return await mail(order)


@hf.agent
async def buys(order: str, kind: str) -> str:
    """A purchase: looked at, charged, something that makes it wait or needs others, and shipped."""
    await look(order, 1)
    await charge(order)
    match kind:
        case "asks":
            assert await hf.ask(f"Ship {order}?", bool)
        case "sleeps":
            await hf.sleep(1.5)
        case "has a child":
            await packs(order)
        case _:
            await mail(order)
    await look(order, 2)
    await wire(order)
    return order


@hf.sync.effect(in_doubt=hf.verify(found, settle="1s"))
def collect(order: str) -> str:
    return booked("collect", order, hf.key())


@hf.sync.agent
def sells(order: str) -> str:
    """The same in a thread."""
    collect(order)
    holdfast.sync.sleep(1.2)
    return order


@hf.step
async def linger(order: str) -> str:
    with inside():
        await asyncio.to_thread(tell, "hold")
    return order


@hf.agent
async def lingers(order: str) -> str:
    """A step that ends when the ledger lets it."""
    await linger(order)
    return await mail(order)


@hf.effect(in_doubt="ask")
async def pay(order: str) -> str:
    with inside():
        await asyncio.to_thread(tell, "hold")
        return await asyncio.to_thread(partial(tell, "book", name="pay", order=order, key=hf.key(), remembers=False))


@hf.agent
async def pays(order: str) -> str:
    """The same as an effect."""
    return await pay(order)


@hf.agent
async def pays_and_mails(order: str) -> str:
    """An effect that ends when the ledger lets it, and another one behind it."""
    await pay(order)
    return await mail(order)


@hf.sync.effect(in_doubt="ask")
def block(order: str) -> str:
    with inside():
        tell("hold")
        return tell("book", name="block", order=order, key=hf.key(), remembers=False)


@hf.sync.agent
def blocks(order: str) -> str:
    """An effect in a thread, which nobody can break off."""
    return block(order)


@hf.step
async def die(order: str, after_s: float) -> str:
    await asyncio.sleep(after_s)
    os.kill(os.getpid(), signal.SIGKILL)
    return order


@hf.agent
async def kills(order: str, after_s: float) -> str:
    """A run that kills whoever executes it, as one does that needs too much memory."""
    await mail(order)
    return await die(order, after_s)


# --- broken on purpose ----------------------------------------------------------------------------------------------


def without_fence() -> None:
    """Whatever is refused is written all the same, behind what stands there."""
    from holdfast.stores.postgres import PostgresStore

    fenced = PostgresStore.append

    def append(store: PostgresStore, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        again, answers = partial(fenced, store), fenced(store, batch, wait=wait)
        return [_forced(again, one, answer) for one, answer in zip(batch, answers, strict=True)]

    PostgresStore.append = append  # type: ignore[method-assign, assignment]


def _forced(fenced: Callable[[Sequence[Append]], list[Stale | None]], one: Append, answer: Stale | None) -> Stale | None:
    while answer is not None and answer.head is not None and one.seq and not answer.full and not answer.missing:
        (answer,) = fenced([_behind(one, answer.head)])
    return answer


def _behind(one: Append, head: Head) -> Append:
    rows, seq, digest = [], head.seq, head.digest
    for row in one.rows:
        seq += 1
        digest = chain(digest, one.run_id, row._replace(seq=seq))
        rows.append(row._replace(seq=seq, digest=digest))
    return one._replace(epoch=head.epoch, seq=head.seq, rows=rows, head=one.head._replace(seq=seq, digest=digest), ceilings=())


def without_renewing() -> None:
    """The thread goes on, but beats no more."""
    from holdfast.stores.postgres import PostgresStore

    PostgresStore.renew = lambda *_: None  # type: ignore[method-assign]


def without_limits() -> None:
    """No claim says what must not be exceeded."""
    worker: Any = sys.modules["holdfast.fleet.worker"]
    worker.ceilings = lambda *_: ()


for _broken in filter(None, os.environ.get("FLEET_BROKEN", "").split(",")):
    {"fence": without_fence, "renewing": without_renewing, "limits": without_limits}[_broken]()
