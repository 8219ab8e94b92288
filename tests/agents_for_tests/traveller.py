"""An agent that is begun in one store and finished in another, each time by another process.

`traveller.py begin STORE LEDGER` begins it, and is killed in the middle of a payment; `traveller.py work STORE LEDGER` goes on with it and
prints its result.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import holdfast as hf

RUN_ID = "journey"
DIES = False


def wrote(what: str) -> str:
    with Path(sys.argv[3]).open("a") as ledger:
        ledger.write(json.dumps([what, hf.key()]) + "\n")
    return f"paid {what}"


def was_paid(what: str) -> hf.Verdict[str]:
    ledger = [json.loads(line) for line in Path(sys.argv[3]).read_text().splitlines()]
    return hf.Landed(f"paid {what}") if [what, hf.key()] in ledger else hf.NotLanded()


@hf.step
def look() -> dict[str, int]:
    return {"cents": 5}


@hf.effect(in_doubt=hf.verify(was_paid, settle=0))
def pay(what: str) -> str:
    done = wrote(what)
    if DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    return done


@hf.agent
def travelling() -> list[str]:
    offer = look()
    return [pay("first"), pay(f"second {offer['cents']}")]


if __name__ == "__main__":
    DIES = sys.argv[1] == "begin"
    with hf.Holdfast(sys.argv[2]) as app:
        if DIES:
            app.run(travelling, run_id=RUN_ID)
        print(json.dumps(app.resume_here(RUN_ID, [travelling])))
