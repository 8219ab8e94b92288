"""What the workers of the fleet benchmark execute: steps that compute nothing and give 1 KB."""

from __future__ import annotations

import os

import holdfast as hf
from benchmarks.agents import SIZE

VALUE = "x" * (SIZE - 2)
LIMITS = [hf.Limit(queue="default", running=int(most))] if (most := os.environ.get("FLEET_LIMIT")) else []


@hf.step
async def give(number: int) -> str:
    return VALUE if number else ""


@hf.agent
async def gives(count: int) -> None:
    for number in range(1, count + 1):
        await give(number)
