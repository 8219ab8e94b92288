"""The process that is killed: says `here` on standard output inside step KILLED_AT and waits there for SIGKILL.

Started again it does the same, and says `here` at the first step that was not recorded, which is that one.
"""

from __future__ import annotations

import signal
import sys

import holdfast as hf
from benchmarks.agents import reply


def killed_at() -> int:
    return int(sys.argv[2])


@hf.step
async def ask(number: int) -> str:
    if number == killed_at():
        sys.stdout.write("here\n")
        sys.stdout.flush()
        signal.pause()
    return reply(number)


@hf.agent
async def victim(count: int) -> None:
    for number in range(1, count + 1):
        await ask(number)


if __name__ == "__main__":
    hf.run(victim, 2 * killed_at(), run_id="victim", store=sys.argv[1])
