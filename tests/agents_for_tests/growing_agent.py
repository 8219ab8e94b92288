"""An agent whose arguments and state grow and whose result is large, and somebody who sweeps with no grace at all, made to be killed.

It is served as `sweep_agent.py` serves its own. Exit status: 0 done; 74 the store gave up; anything else is a defect.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import holdfast as hf
from agents_for_tests import sweep_agent
from holdfast.errors import StoreError
from holdfast.large import packed
from holdfast.large.packing import Key, Known, Packer
from holdfast.store import Append, Head, Shelf

CALLS = 4
LATER_US = 1 << 60


def text(number: int, size: int = 24_000) -> str:
    """Other text for each number, of which little can be compressed away."""
    return random.Random(number).randbytes(size // 2).hex()


def find(letters: list[str]) -> hf.Verdict[int]:
    found = any(line["name"] == "post" for line in sweep_agent.lines(sweep_agent.folder))
    return hf.Landed(len(letters)) if found else hf.NotLanded()


@hf.step
def think(messages: list[str]) -> str:
    sweep_agent.did("think", str(len(messages)))
    return text(len(messages))


@hf.effect(in_doubt=hf.verify(find, settle=0))
def post(letters: list[str]) -> int:
    sweep_agent.did("post", str(len(letters)))
    return len(letters)


@hf.agent
def growing() -> list[str]:
    """In the end the list is larger than what is kept in a row."""
    messages: list[str] = []
    notes = hf.state({"before": messages})
    for _ in range(CALLS):
        messages.append(think(messages))
        notes["count"] = [str(len(messages))]
    return messages[: post(messages)]


def run_once(variant: str, store: str = "") -> int:
    with hf.Holdfast(store) as app:
        if variant == "sweep":
            assert isinstance(app.store, Shelf)
            app.store.sweep_blobs(LATER_US)
            return 0
        try:
            result = app.run(growing, run_id=sweep_agent.RUN_ID)
        except StoreError as error:
            (sweep_agent.folder / "store_error.json").write_text(json.dumps([type(error).__name__, str(error)]))
            return sweep_agent.STORE_GAVE_UP
        (sweep_agent.folder / "result.json").write_text(json.dumps(result))
    return 0


def break_references() -> None:
    """Appends do not say which blobs their packed values are in."""
    whole = packed._packed

    def without(one: Append, packer: Packer) -> Append:
        return whole(one, packer)._replace(refs=one.refs)

    packed._packed = without


def break_places() -> None:
    """Differences name another record than the one that they were taken from."""
    remember = packed.Trails.remember

    def elsewhere(self: packed.Trails, head: Head, known: Mapping[Key, Known]) -> None:
        remember(self, head, {key: each._replace(seq=each.seq + 1) for key, each in known.items()})

    packed.Trails.remember = elsewhere  # type: ignore[method-assign]


BREAKS = {"references": break_references, "places": break_places}
