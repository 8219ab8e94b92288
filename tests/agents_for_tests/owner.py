"""An agent that writes to a ledger file, and the process that owns it: raced, stopped, killed and taken over by tests.

    owner.py STORE LEDGER LEASE [unfenced] [unbeating] [credulous] [verify] [hold=PLACE]

Reads run ids from standard input, one per line, runs the agent under each and prints what came of it. `hold=PLACE` makes it say
"holding" at that place of the agent ("step", "between", "loop", "request" or "body") and wait there for a line; at "lingering" it
only takes a moment, so that runs overlap. `verify` makes the effect look into the ledger when it is in doubt, instead of asking a person.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.store import Append, Pulse, Stale
from holdfast.stores.opening import open_store
from holdfast.stores.sqlite import SqliteStore

BUSY_S = 1.5
LINGER_S = 0.01


class Unfenced(SqliteStore):
    """A store without a fence, and without a tail: whatever is appended goes behind what stands there now."""

    def enroll(self, owner: str) -> None:
        super().enroll(owner)
        self._tails.owner = ""

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        return super().append([self._moved(one) for one in batch], wait=wait)

    def _moved(self, one: Append) -> Append:
        head = self.head(one.run_id)
        if head is None:
            return one
        rows = [row._replace(seq=head.seq + n, epoch=head.epoch) for n, row in enumerate(one.rows, 1)]
        moved = one.head._replace(seq=head.seq + len(rows), epoch=head.epoch)
        return one._replace(epoch=head.epoch, seq=head.seq, rows=rows, head=moved)


class Unbeating(SqliteStore):
    """A store in which an owner never beats again after it has enrolled."""

    def renew(self, owner: str) -> None:
        """Nothing."""


class Credulous(SqliteStore):
    """A store that takes every owner for dead."""

    def pulse(self, owner: str) -> Pulse | None:
        found = super().pulse(owner)
        return found and found._replace(dead=True)


KINDS = {"unfenced": Unfenced, "unbeating": Unbeating, "credulous": Credulous}


def line() -> str:
    return sys.stdin.readline().strip()


def hold(here: str, places: Sequence[str]) -> None:
    if here in places:
        print("holding", flush=True)
        line()


def working(ledger: Path, places: Sequence[str] = (), *, verify: bool = False) -> Any:
    """The agent: a step, an effect that adds one line to the ledger, a step."""

    def look(order: str) -> hf.Verdict[int]:
        return hf.Landed(0) if ledger.exists() and order in ledger.read_text().split() else hf.NotLanded()

    @hf.step
    async def prepare(order: str) -> int:
        hold("step", places)
        if "loop" in places:
            print("holding", flush=True)
            time.sleep(BUSY_S)  # noqa: ASYNC251 (a busy event loop is the point)
        if "lingering" in places:
            await asyncio.sleep(LINGER_S)
        if "async" in places:
            print("holding", flush=True)
            await asyncio.sleep(60)
        return os.getpid()

    @hf.effect(in_doubt=hf.verify(look, settle=0) if verify else "ask")
    async def charge(order: str) -> int:
        hold("request", places)
        with ledger.open("a") as file:
            file.write(f"{order}\n")
        hold("body", places)
        return os.getpid()

    @hf.step
    async def report(order: str) -> int:
        return os.getpid()

    @hf.agent
    async def work(order: str) -> list[int]:
        first = await prepare(order)
        hold("between", places)
        return [first, await charge(order), await report(order)]

    return work


def main(store: str, ledger: str, lease: str, *words: str) -> None:
    places = [word.removeprefix("hold=") for word in words if word.startswith("hold=")]
    kind = next((KINDS[word] for word in words if word in KINDS), open_store)
    agent = working(Path(ledger), places, verify="verify" in words)
    with hf.Holdfast(kind(store), lease=float(lease)) as app:
        print("ready", flush=True)
        while run_id := line():
            try:
                print(app.run(agent, run_id, run_id=run_id, wait=False), flush=True)
            except BaseException as error:  # noqa: BLE001 (whatever it is, the test wants to know)
                print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
