"""An agent that fails and undoes its three effects, made to be killed; it is served by `serving.py`.

Exit status: 0 the run is closed; 75 a person must settle a doubt; anything else is a defect.
"""

from __future__ import annotations

import holdfast as hf
from agents_for_tests import sweep_agent
from holdfast.running import undo

PAID = ("a", "b", "c")


def refund(receipt: str, what: str) -> str:
    assert receipt == f"pay-{what}"
    return sweep_agent.did("refund", what, key=hf.key())


@hf.effect(in_doubt="ask", undo=refund)
async def pay(what: str) -> str:
    return sweep_agent.did("pay", what, key=hf.key())


@hf.effect(name="pay", in_doubt="ask", undo=refund)
def pay_def(what: str) -> str:
    return sweep_agent.did("pay", what, key=hf.key())


@hf.agent(on_failure="undo")
async def buy() -> None:
    for what in PAID:
        await pay(what)
    raise ValueError("out of stock")


@hf.agent(name="buy", on_failure="undo")
def buy_def() -> None:
    for what in PAID:
        pay_def(what)
    raise ValueError("out of stock")


def run_once(variant: str, store: str = "") -> int:
    try:
        hf.run({"async": buy, "def": buy_def}[variant], run_id=sweep_agent.RUN_ID, store=store, wait=False)
    except hf.RunWaiting:
        return sweep_agent.NEEDS_A_PERSON
    except (ValueError, hf.RunCancelled):
        return 0
    raise AssertionError("it neither failed nor was cancelled")


def break_order() -> None:
    """The oldest is undone first."""
    right = undo.newest_first
    undo.newest_first = lambda run: right(run)[::-1]


BREAKS = {"intents": sweep_agent.break_intents, "order": break_order}
