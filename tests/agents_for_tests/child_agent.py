"""An agent with children, one of them beside it, one below another and one that asks, made to be killed.

It is served by `serving.py`. Exit status: 0 done, or cancelled; 75 it waits; anything else is a defect.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

import holdfast as hf
import holdfast.sync as hfs
from agents_for_tests import sweep_agent
from holdfast.app import child
from holdfast.errors import Refusal

RUN_ID, ASKED = sweep_agent.RUN_ID, f"{sweep_agent.RUN_ID}.5"


@hf.agent
async def buy(what: str) -> str:
    return await sweep_agent.charge(what) + await sweep_agent.look(what)


@hf.agent
async def below(what: str) -> str:
    return await buy(what)


@hf.agent
async def asking(what: str) -> str:
    return await sweep_agent.charge(what) + await hf.ask("colour?", str)


@hf.agent(name="family")
async def family() -> list[str]:
    handle = await hf.start(buy, "1")
    found = [await below("2"), await handle.result()]
    found += await hf.gather(buy("3"), buy("4"))
    return [*found, await asking("5"), await sweep_agent.look("end")]


@hf.agent(name="buy")
def buy_def(what: str) -> str:
    return sweep_agent.charge_def(what) + sweep_agent.look_def(what)


@hf.agent(name="below")
def below_def(what: str) -> str:
    return buy_def(what)


@hf.agent(name="asking")
def asking_def(what: str) -> str:
    return sweep_agent.charge_def(what) + hfs.ask("colour?", str)


@hf.agent(name="family")
def family_def() -> list[str]:
    found = [buy_def("1"), below_def("2"), buy_def("3")]
    found += hfs.gather(lambda: buy_def("4"), lambda: buy_def("4b"))
    return [*found, asking_def("5"), sweep_agent.look_def("end")]


def run_once(variant: str, store: str = "") -> int:
    with hf.Holdfast(store) as app:
        match variant:
            case "answer":
                return _said(lambda: app.answer(_asked(app), "2", "red", by="test"))
            case "cancel":
                return _said(lambda: app.cancel(RUN_ID, by="test"))
        try:
            result = app.run(family if variant == "async" else family_def, run_id=RUN_ID, wait=False)
        except hf.RunWaiting:
            return sweep_agent.NEEDS_A_PERSON
    (sweep_agent.folder / "result.json").write_text(json.dumps(result))
    return 0


def _asked(app: hf.Holdfast) -> str:
    return next((run.run_id for run in app.runs(agent="asking")), RUN_ID)


def _said(say: Any) -> int:
    try:
        say()
    except Refusal as error:
        assert "answered by test" in str(error) or "is cancelled" in str(error)  # noqa: PT017 (not a test: the program under test)
    return 0


def break_children() -> None:
    """A child is begun without a word to the parent, under an id that nobody will find again."""

    def begun(self: Any, call: Any, plan: Any) -> Any:
        yield from ()

    child.planned = lambda *_: child.Plan(f"lost-{secrets.token_hex(4)}")
    child.Calling._begun = begun  # type: ignore[method-assign]


BREAKS = {"children": break_children}
REHEARSED = ("async", "def")
