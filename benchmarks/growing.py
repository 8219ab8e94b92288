"""A model is called with a list of messages that grows by 1 KB each time: what is stored, and what a call costs when the list is long.

Whatever is done, such a list has to be encoded and hashed once per call (so does the SDK that sends it). This is measured in that run, by
`json.dumps` and SHA-256, before every other call, and the calls that are measured are those in between: both come right after a flush, when
the processor has lost its caches. The disk is to see only what is new.
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import holdfast as hf
from benchmarks.agents import SIZE, Broken

LAST = 100
"""Calls at the end of a run that are looked at, every other of them."""

Message = dict[str, str]

_words = random.Random(7).choices(["ask", "before", "given", "however", "it", "keep", "model", "question", "reply", "the", "to"], k=20_000)
_calls_s: list[float] = []
_sums_s: list[float] = []


class Growing(NamedTuple):
    """One run: bytes in its store; seconds of one of its last calls, and of encoding and hashing its list; the same of all, replayed."""

    size: int
    call_s: float
    sum_s: float
    replayed_s: float
    mean_sum_s: float


def text(number: int) -> str:
    """Words, 1 KB of them, other ones each time."""
    return f"{number:06d} {' '.join(_words[number * 17 : number * 17 + 240])}"[: SIZE - 40]


@hf.step
async def think(messages: list[Message]) -> str:
    return text(len(messages))


@hf.agent
async def conversing(calls: int) -> float:
    """So many calls, then an error; run again, it gives the moment at which all of them had been replayed."""
    messages: list[Message] = []
    live = hf.current().attempt == 1
    for number in range(calls):
        if live and number % 2:
            _sums_s.append(_timed(lambda: hashlib.sha256(json.dumps(messages).encode()).digest()))
        began = perf_counter()
        reply = await think(messages)
        if live and not number % 2:
            _calls_s.append(perf_counter() - began)
        messages.append({"role": "assistant", "content": reply})
    if live:
        raise Broken
    return perf_counter()


def measure(folder: Path, calls: int) -> Growing:
    """A run in a store of its own, and its replay from the call of `hf.run` on."""
    store, run_id = folder / f"growing-{len(list(folder.iterdir()))}" / "runs.db", "growing"
    store.parent.mkdir()
    _calls_s.clear()
    _sums_s.clear()
    with suppress(Broken):
        hf.run(conversing, calls, run_id=run_id, store=store)
    size = sum(path.stat().st_size for path in store.parent.rglob("*") if path.is_file())
    began = perf_counter()
    replayed_s = hf.run(conversing, calls, run_id=run_id, store=store) - began
    last = slice(-LAST // 2, None)
    return Growing(size, statistics.mean(_calls_s[last]), statistics.mean(_sums_s[last]), replayed_s / calls, statistics.mean(_sums_s))


def _timed(action: Callable[[], object]) -> float:
    began = perf_counter()
    action()
    return perf_counter() - began
