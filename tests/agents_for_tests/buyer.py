"""An agent that charges once at the bank and may kill itself in the middle; run as a program it is the process that dies.

buyer.py STORE PORT MODE DOUBT DEATH
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import holdfast as hf
from agents_for_tests import bank

QUICK = hf.Retry(attempts=3, base=0)
DOUBTS = ("resend", "verify", "reset", "ask", "fail")


def buyer(mode: str, doubt: str, port: int, death: str = "") -> Any:
    """The agent: `mode` is async or def, `doubt` one of the five, `death` where its effect kills the process."""

    def pay(order: str) -> str:
        if death == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        receipt = bank.charge(port, order, hf.key())
        if death == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return receipt

    def look(order: str) -> hf.Verdict[str]:
        found = bank.find(port, order)
        return hf.Landed(found) if found else hf.NotLanded()

    def refund(order: str) -> None:
        bank.charge(port, f"-{order}", f"reset {order}")

    in_doubt: Any = {"verify": hf.verify(look, settle=0), "reset": hf.reset(refund, settle=0)}.get(doubt, doubt)
    return charging(mode, pay, in_doubt, retry=QUICK)


def charging(mode: str, pay: Any, in_doubt: Any, **options: Any) -> Any:
    """An agent with one effect whose body is `pay`, as `async def` or as `def`."""

    async def charge_async(order: str) -> str:
        return str(pay(order))

    def charge_blocking(order: str) -> str:
        return str(pay(order))

    charge: Any = hf.effect(in_doubt=in_doubt, **{"name": "charge", **options})(charge_async if mode == "async" else charge_blocking)

    async def buy_async(order: str) -> str:
        return str(await charge(order))

    def buy_blocking(order: str) -> str:
        return str(charge(order))

    return hf.agent(name="buy")(buy_async if mode == "async" else buy_blocking)


if __name__ == "__main__":
    store, port, mode, doubt, death = sys.argv[1:]
    with hf.Holdfast(store) as app:
        print(app.run(buyer(mode, doubt, int(port), death), "o-1", run_id="r", wait=False))
