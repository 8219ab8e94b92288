"""An agent with milestones, partial results and several generations, whose steps never give the same twice, made to be killed.

It is served by `serving.py`. What a step gave and the engine then lost shows at the end: the ledger holds what
effects were called with, the acks what the agent was told is safe.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

import holdfast as hf
import holdfast.sync as hfs
from agents_for_tests import sweep_agent
from agents_for_tests.sweep_agent import acked, did, lines
from holdfast._failpoints import reach
from holdfast.records import kinds as rec
from holdfast.records.chain import record_of
from holdfast.records.journal import Journal
from holdfast.running import ending
from holdfast.store import Append
from holdfast.verbs.partials import Partial

RUN_ID = sweep_agent.RUN_ID
REHEARSED = ("async 2", "def 2")
PIECES = 3


def find(what: str) -> hf.Verdict[str]:
    """The other side remembers what was charged under which key."""
    charged = [line for line in lines(sweep_agent.folder) if line["key"] == hf.key()]
    return hf.Landed(f"charge-{charged[0]['what']}") if charged else hf.NotLanded()


@hf.step
def think(what: str) -> str:
    return did("think", f"{what}:{secrets.token_hex(4)}")


@hf.step
def collect() -> list[str]:
    so_far = hf.partial(list[str])
    found = list(so_far.value or [])
    while len(found) < PIECES:
        found.append(secrets.token_hex(4))
        so_far.save(found)
        acked("saved", f"{hf.current().generation}", json.dumps(found))
    return found


@hf.effect(in_doubt=hf.verify(find, settle=0))
def charge(what: str) -> str:
    return did("charge", what, key=hf.key())


def reached(generation: int, thoughts: list[str]) -> None:
    hf.milestone("thought")
    acked("milestone", f"{generation}", json.dumps(thoughts))


@hf.agent(name="rounds", durability="milestone")
async def rounds(generation: int, last: int, told: list[list[str]]) -> list[list[str]]:
    notes: list[str] = hf.state([])
    notes += [think("a"), think("b")]
    reached(generation, notes[:])

    async def branch(what: str) -> str:
        return charge(think(what))

    pieces = collect()
    paid = await hf.gather(branch("c"), branch("d"))
    notes += [*paid, charge(think("e")), think("f")]
    told = [*told, [*notes, *pieces]]
    if generation < last:
        hf.continue_as(generation + 1, last, told)
    return told


@hf.agent(name="rounds", durability="milestone")
def rounds_def(generation: int, last: int, told: list[list[str]]) -> list[list[str]]:
    notes: list[str] = hfs.state([])
    notes += [think("a"), think("b")]
    reached(generation, notes[:])
    pieces = collect()
    paid = hfs.gather(lambda: charge(think("c")), lambda: charge(think("d")))
    notes += [*paid, charge(think("e")), think("f")]
    told = [*told, [*notes, *pieces]]
    if generation < last:
        hfs.continue_as(generation + 1, last, told)
    return told


def run_once(variant: str, store: str = "") -> int:
    colour, _, last = variant.partition(" ")
    with hf.Holdfast(store) as app:
        agent: Any = rounds if colour == "async" else rounds_def
        result = app.run(agent, 1, int(last), [], run_id=RUN_ID, wait=False)
    (sweep_agent.folder / "result.json").write_text(json.dumps(result))
    return 0


def break_flush() -> None:
    """What is held back does not go to the disk with an intent, only with what comes later."""
    seal, take_over = Journal.seal, Journal._take_over
    aside: list[rec.Record] = []

    def hold(journal: Journal, records: Sequence[rec.Record], *, at_us: int) -> int:
        aside.extend(records)
        return journal.head.seq

    def sealed(journal: Journal, records: Sequence[rec.Record], **given: Any) -> Any:
        if any(isinstance(record, rec.StepStarted) for record in records):
            return seal(journal, records, **given)
        records = [*aside, *records]
        aside.clear()
        return seal(journal, records, **given)

    def taken_over(journal: Journal, append: Append, _: Sequence[rec.Record]) -> None:
        take_over(journal, append, [record_of(row) for row in append.rows])

    broken: Any = Journal
    broken.hold, broken.seal, broken._take_over = hold, sealed, taken_over


def break_generation() -> None:
    """The next generation has the number of this one, and so its keys."""
    broken: Any = ending
    continuation = broken.continuation
    broken.continuation = lambda run, ended: continuation(run, ended).but(generation=run.journal.generation)


def break_partial() -> None:
    """What a body saves stays in memory."""
    broken: Any = Partial
    broken._store = lambda partial, body, data: reach("partial.after")


BREAKS = {"flush": break_flush, "generation": break_generation, "partial": break_partial}
