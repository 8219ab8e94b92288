"""An agent with a budget whose every step costs a dollar; run as a program it is the process that dies at a failpoint.

spender.py STORE LEDGER
"""

from __future__ import annotations

import sys
from pathlib import Path

import holdfast.sync as hf

STEPS = 6


@hf.step
def spend(ledger: str, number: int) -> int:
    hf.usage(usd=1.0, input_tokens=10)
    with Path(ledger).open("a") as file:
        file.write(f"{number}\n")
    return number


@hf.agent(budget=hf.Budget(usd=4))
def work(ledger: str) -> int:
    return sum(spend(ledger, number) for number in range(STEPS))


if __name__ == "__main__":
    store, ledger = sys.argv[1:]
    with hf.Holdfast(store) as app:
        try:
            print(app.run(work, ledger, run_id="r", wait=False))
        except hf.RunWaiting:
            print("waiting")
