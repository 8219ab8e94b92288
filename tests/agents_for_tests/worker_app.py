"""What a worker executes that is made to be killed: orders of customers who take turns, runs that wait and call, and one that kills.

Bodies and acknowledgements stand in one ledger, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import os
import signal

import holdfast as hf
import holdfast.sync as hfs
from agents_for_tests import sweep_agent
from agents_for_tests.sweep_agent import charge, charge_def, look, look_def, mail, sign

NARROW = 2
NAP_S = 0.01
LINGERS_S = 0.02
LIMITS = [hf.Limit(queue="narrow", running=NARROW), hf.Limit(each_key=True, running=1)]


def noted(name: str, what: str) -> None:
    sweep_agent.write("ledger", name=name, what=what, key="")


def acked(name: str, what: str, value: str) -> str:
    """The engine has said that it is done: from here on it must never be done again."""
    noted(f"ack {name}", what)
    return value


@hf.agent
async def order(what: str) -> str:
    noted("enter", what)
    found = [acked("look", what, await look(what)), acked("charge", what, await charge(what)), acked("mail", what, await mail(what))]
    noted("leave", what)
    return " ".join(found)


@hf.agent
async def tick(name: str) -> str:
    """The run of a schedule's time."""
    what = hf.current().id
    return f"{name} {acked('charge', what, await charge(what))}"


@hf.agent
async def asking(what: str) -> str:
    return " ".join([acked("charge", what, await charge(what)), await hf.ask("colour?", str), acked("look", what, await look(what))])


@hf.sync.agent
def napping(what: str) -> str:
    found = [acked("look", what, look_def(what))]
    hfs.sleep(NAP_S)
    return " ".join([*found, acked("charge", what, charge_def(what))])


@hf.agent
async def calling(what: str) -> str:
    return " ".join([await order(f"{what}-inner"), acked("look", what, await look(what))])


@hf.agent
async def signing(what: str) -> str:
    return " ".join([acked("look", what, await look(what)), acked("sign", what, await sign(what))])


@hf.step
async def ring(what: str) -> str:
    """Once in a case, whoever executes this is told to stop, as a deploy does."""
    try:
        (sweep_agent.folder / "rung").touch(exist_ok=False)
    except FileExistsError:
        pass
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(LINGERS_S)
    return sweep_agent.did("ring", what)


@hf.agent
async def ringing(what: str) -> str:
    return " ".join([await ring(what), acked("look", what, await look(what)), acked("charge", what, await charge(what))])


@hf.step
async def die(what: str) -> str:
    """Kills whoever executes it, as one does that needs too much memory, until it is spared."""
    if not (sweep_agent.folder / "spared").exists():
        noted("dies", what)
        os.kill(os.getpid(), signal.SIGKILL)
    return sweep_agent.did("die", what)


@hf.agent
async def killing(what: str) -> str:
    return " ".join([acked("charge", what, await charge(what)), await die(what)])


SCHEDULES = [
    hf.Schedule(tick, "all", every="1h", catch_up="all", name="hourly", queue="narrow"),
    hf.Schedule(tick, "last", every="1h", name="late"),
]
