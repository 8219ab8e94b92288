"""An agent that charges once at a bank that loses things, and the process that executes it, which is made to die in the middle.

    payer.py    fork a child for every order that comes in as a line of JSON: a start without an import

A child's exit status says how the run ended there: 0 done, 75 a person is asked, 76 InDoubt, 77 another failure, 78 the lease is lost.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import holdfast as hf
from agents_for_tests import bank
from agents_for_tests.forking import forked, prepare
from agents_for_tests.sites import HandClock
from agents_for_tests.sweep_agent import break_intents
from holdfast import _failpoints
from holdfast.life import doubt as doubt_room

RUN_ID, ORDER = "r", "o-1"
ENDS = {0: "done", 75: "asks", 76: "InDoubt", 77: "failed", 78: "lease lost", -signal.SIGKILL: "killed"}
STATUS = {end: status for status, end in ENDS.items()}
BROKEN_OFF = ("timeout after", "timeout before", "race")
GAVE_UP = "gave up"
SETTLE_S = 3600.0
"""Nobody waits for it: the clock is set forward instead, and what is under way arrives meanwhile."""
LEASE_S = 60.0
BREAK_OFF_S = 0.01
WITHIN_S = 3600.0
PATIENCE_S = 20


class BankClock(HandClock):
    """Sleeping takes no time here; at the bank, time has passed."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port

    def sleep(self, duration_s: float) -> None:
        if duration_s >= 1:
            bank.find(self.port, "time")
        self.ahead_s += duration_s


# --- the effect and its five actions --------------------------------------------------------------------------------


class Payer:
    """What the effect does, and what is done in doubt, as the order says."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.port, self.first = order["port"], order["first"]
        self.keyed = order["action"].startswith("resend")
        self.calls = 0

    def pay(self, order: str) -> str:
        self.calls += 1
        first = self.first if self.calls == 1 else ""
        if first == "frozen":
            os.kill(os.getpid(), signal.SIGSTOP)
        port = bank.closed_port() if first == "refused" else self.port
        return bank.charge(port, order, hf.key() if self.keyed else "", impatient=first == "impatient")

    def look(self, order: str) -> hf.Verdict[str]:
        found = bank.find(self.port, order)
        return hf.Landed(found) if found else hf.NotLanded()

    def refund(self, order: str) -> None:
        bank.charge(self.port, f"-{order}", "")

    def raises(self, order: str) -> hf.Verdict[str]:
        raise OSError("the bank is closed")

    def times_out(self, order: str) -> hf.Verdict[str]:
        return hf.Landed(bank.find(self.port, "never", timeout_s=bank.IMPATIENCE_S))

    def unsure(self, order: str) -> hf.Verdict[str]:
        return hf.Unknown("two charges look alike")


def in_doubt(payer: Payer, action: str) -> Any:
    match action:
        case "resend" | "ask" | "fail":
            return action
        case "resend, too late":
            return hf.resend(within=WITHIN_S)
        case "reset":
            return hf.reset(payer.refund, settle=SETTLE_S)
        case "verify":
            return hf.verify(payer.look, settle=SETTLE_S)
    return hf.verify(getattr(payer, action.removeprefix("probe ").replace(" ", "_")), settle=SETTLE_S)


def patient(payer: Payer, action: str) -> Any:
    """The agent whose effect nobody breaks off."""

    @hf.effect(in_doubt=in_doubt(payer, action), retry=hf.Retry(attempts=3, base=0))  # type: ignore[untyped-decorator]
    def charge(order: str) -> str:
        return payer.pay(order)

    @hf.agent(name="buy")
    def buy(order: str) -> str:
        return str(charge(order))

    return buy


def hurried(payer: Payer, action: str) -> Any:
    """The agent that breaks its effect off. The loop stands still until the request is out, so that the time-out never comes before."""
    begun = asyncio.Event()

    @hf.effect(in_doubt=in_doubt(payer, action))  # type: ignore[untyped-decorator]
    async def charge(order: str) -> str:
        receipt = "" if payer.first == "timeout before" else payer.pay(order)
        begun.set()
        await asyncio.sleep(PATIENCE_S)
        return receipt

    @hf.step
    async def overtake() -> str:
        await begun.wait()
        return GAVE_UP

    @hf.agent(name="buy")
    async def buy(order: str) -> str:
        if payer.first == "race":
            return await hf.first(charge(order), overtake())
        try:
            async with hf.timeout(BREAK_OFF_S):
                return str(await charge(order))
        except TimeoutError:
            return GAVE_UP

    return buy


# --- engines that are broken on purpose -----------------------------------------------------------------------------


def break_asking() -> None:
    """Where a person would be asked, or the agent told, the effect is run again."""

    def repeat(call: Any, doubt: Any, why: str = "") -> Any:
        yield from ()
        return doubt_room.Attempt(doubt.number + 1)

    doubt_room._ask = doubt_room.give_up = repeat


def break_settling() -> None:
    """Nothing is ever under way."""
    doubt_room._settle_wait_s = lambda call, settle_s: 0.0


BREAKS = {"": lambda: None, "no intents": break_intents, "repeats unasked": break_asking, "does not settle": break_settling}


# --- running it -----------------------------------------------------------------------------------------------------


def run_once(order: dict[str, Any]) -> str:
    payer = Payer(order)
    agent = (hurried if payer.first in BROKEN_OFF else patient)(payer, order["action"])
    clock = BankClock(payer.port)
    clock.ahead_s = order["ahead_s"]
    with hf.Holdfast(order["store"], lease=LEASE_S, clock=clock) as app:
        try:
            app.run(agent, ORDER, run_id=RUN_ID, wait=False)
        except hf.RunWaiting:
            return "asks"
        except hf.InDoubt:
            return "InDoubt"
        except hf.StepFailed:
            return "failed"
        except hf.LeaseLost:
            return "lease lost"
    return "done"


def obey(order: dict[str, Any]) -> int:
    log = os.open(Path(order["store"]).parent / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    try:
        BREAKS[order["broken"]]()
        if "failpoint" in order:
            _failpoints.arm(order["failpoint"])
        return STATUS[run_once(order)]
    except BaseException:  # noqa: BLE001 (whatever it is, it is shown)
        traceback.print_exc()
        return 1


def waited_for(pid: int) -> str:
    """How a child ended; a frozen one, its pid."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return str(pid)
    code = os.waitstatus_to_exitcode(status)
    return ENDS.get(code, f"exit status {code}")


def serve() -> None:
    prepare()
    for line in sys.stdin:
        order = json.loads(line)
        pid = order.get("wake") or forked()
        if pid == 0:
            os._exit(obey(order))
        if "wake" in order:
            os.kill(pid, signal.SIGCONT)
        print(waited_for(pid), flush=True)


if __name__ == "__main__":
    serve()
