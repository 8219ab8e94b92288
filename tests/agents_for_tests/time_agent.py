"""An agent that pays and asks, and those who edit, fork and answer it, made to be killed; served by `serving.py`.

Exit status: 0 done; 75 it waits; anything else is a defect.
"""

from __future__ import annotations

import json

import holdfast as hf
from agents_for_tests import sweep_agent
from holdfast.errors import Refusal
from holdfast.operating import timetravel
from holdfast.records import journal

RUN_ID, FORK = sweep_agent.RUN_ID, "branch"


@hf.step
def look(what: str) -> dict[str, int]:
    sweep_agent.did("look", what)
    return {"cents": 5, "version": 0}


@hf.effect(in_doubt="ask")
def pay(cents: int) -> str:
    return sweep_agent.did("pay", str(cents))


@hf.agent
async def paying() -> list[object]:
    offer = look("a")
    paid = pay(offer["cents"])
    return [offer["version"], paid, await hf.ask("done?")]


def run_once(variant: str, store: str = "") -> int:
    act, _, run_id = variant.partition(" ")
    with hf.Holdfast(store) as app:
        match act:
            case "edit":
                app.edit(RUN_ID, 1, {"cents": 5, "version": 1}, effects="reuse", by="test")
            case "fork":
                app.fork(RUN_ID, at=1, edits={1: {"cents": 5, "version": 2}}, effects="reuse", new_id=FORK, by="test")
            case "answer":
                try:
                    app.answer(run_id, "3", yes=True, by="test")
                except Refusal as error:
                    assert "was answered by test" in str(error)  # noqa: PT017 (not a test: it is the program under test)
            case _:
                return _played(app, run_id)
    return 0


def _played(app: hf.Holdfast, run_id: str) -> int:
    try:
        result = app.run(paying, run_id=run_id, wait=False)
    except hf.RunWaiting:
        return sweep_agent.NEEDS_A_PERSON
    (sweep_agent.folder / f"{run_id}.json").write_text(json.dumps(result))
    return 0


def forget() -> None:
    """Going back forgets what happened after the point."""
    for module in (journal, timetravel):
        vars(module)["happened"] = lambda histories, after: []


BREAKS = {"knowledge": forget}
