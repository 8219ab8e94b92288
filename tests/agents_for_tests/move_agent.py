"""An agent with a child, an artifact and a message, and those who move it to another store, made to be killed.

It is served by `serving.py`. The variant of an order is an act and a place: `move`, `send`, `work here`, `work there`.
Exit status: 0 done; 75 it waits; 76 this place refuses it; 77 there is no such run; anything else is a defect.
"""

from __future__ import annotations

import json

import holdfast as hf
import holdfast.sync
from agents_for_tests import sweep_agent
from holdfast.errors import Refusal
from holdfast.moving import copying, moving
from holdfast.operating import telling, words
from holdfast.running import runner

RUN_ID, REFUSED, NOT_THERE = sweep_agent.RUN_ID, 76, 77
LEASE_S = 0.5


@hf.step
def draw() -> hf.Artifact:
    return hf.Artifact(b"a picture", media_type="image/png")


@hf.effect(in_doubt="ask")
def pay(what: str) -> str:
    return sweep_agent.did("pay", what, key=hf.key())


@hf.agent
def below(what: str) -> str:
    paid = pay(f"{what}1")
    word = holdfast.sync.receive("go", str)
    return f"{paid} {word} {pay(f'{what}2')}"


@hf.agent
def above(what: str) -> list[str]:
    picture = draw()
    return [picture.bytes().decode(), pay(what), below("b"), pay("end")]


@hf.agent
def brief() -> list[str]:
    return [pay("a"), pay("b")]


def run_once(variant: str, store: str = "") -> int:
    act, _, where = variant.partition(" ")
    here, there = json.loads(store)
    with hf.Holdfast(there if where == "there" else here, lease=LEASE_S) as app:
        try:
            match act:
                case "begin":
                    app.run(above, "a", run_id=RUN_ID, wait=False)
                case "brief":
                    app.run(brief, run_id=RUN_ID, wait=False)
                case "send":
                    app.send(f"{RUN_ID}.3", "go", "now", by="test")
                case "move":
                    app.move(RUN_ID, to=there, by="test", reason="a sweep")
                case "back":
                    app.move(RUN_ID, back=True, by="test")
                case _:
                    result = app.resume_here(RUN_ID, [above, below, brief], wait=False)
                    (sweep_agent.folder / "result.json").write_text(json.dumps([where, result]))
        except hf.RunWaiting:
            return sweep_agent.NEEDS_A_PERSON
        except hf.UnknownRun:
            return NOT_THERE
        except (hf.RunMoved, hf.RunFailed, Refusal) as error:
            sweep_agent.write("refusals", act=variant, said=str(error))
            return REFUSED
    return 0


def unseal() -> None:
    """Nobody heeds the seal."""
    for module in (runner, telling, words, moving, copying):
        vars(module)["refuse_away"] = lambda head: None


BREAKS = {"seal": unseal}
