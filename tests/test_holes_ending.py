"""What ends a run from outside: Ctrl-C, task groups, races whose loser came late; nothing is swallowed and nothing is left running."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import holdfast as hf
import holdfast.sync as hfs
from crashing import HEARS_CTRL_C, Crash, crashing, lines, play, status
from holdfast.store import Append, Stale
from holdfast.stores.memory import MemoryStore

pytestmark = pytest.mark.timeout(20)

INTERRUPTED = """
import sys, time
import holdfast as hf
import holdfast.sync as hfs

@hf.effect(in_doubt="ask")
def pay(n: int) -> int:
    print("begins", flush=True)
    time.sleep(0.5)
    print("landed", flush=True)
    return n

@hf.agent
def agent() -> int:
    return sum(hfs.gather(lambda: pay(1)))

with hf.Holdfast(sys.argv[1]) as app:
    try:
        print(app.run(agent, run_id="r", wait=False), flush=True)
    except BaseException as error:
        print(type(error).__name__, flush=True)
    print(app.show("r").status, flush=True)
"""


def test_ctrl_c_waits_for_the_threads_of_branches_and_stays_an_interruption(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    with subprocess.Popen([*HEARS_CTRL_C, sys.executable, script, tmp_path / "runs.db"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begins\n"
        child.send_signal(signal.SIGINT)
        told = child.stdout.read().split()
    assert told == ["landed", "KeyboardInterrupt", "queued"]
    with hf.Holdfast(tmp_path / "runs.db") as app:
        assert "step.done 1.1.1" in lines(app.store)


def test_ctrl_c_before_the_start_of_a_branch_has_returned_waits_for_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Interrupted(threading.Thread):
        """Ctrl-C comes when the branch is in its effect, and `start` has not returned yet."""

        def start(self) -> None:
            super().start()
            if self.name.startswith("holdfast-1."):
                begun.wait(10)
                threading.Timer(0.1, go_on.set).start()
                raise KeyboardInterrupt

    @hf.effect(in_doubt="ask")
    def pay(n: int) -> int:
        begun.set()
        go_on.wait(10)
        return n

    @hf.agent
    def agent() -> int:
        return sum(hfs.gather(lambda: pay(1)))

    store = MemoryStore()
    with hf.Holdfast(store) as app:
        monkeypatch.setattr(threading, "Thread", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            app.run(agent, run_id="r", wait=False)
        monkeypatch.undo()
        assert "step.done 1.1.1" in lines(store)


class Meanwhile(MemoryStore):
    """While it writes an outcome, something else goes on in the event loop, and it waits for that."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.then: dict[str, tuple[asyncio.Event, threading.Event]] = {}

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        for step_id in {row.step_id for one in batch for row in one.rows if row.kind == "step.done"} & self.then.keys():
            begin, done = self.then.pop(step_id)
            assert self.loop is not None
            self.loop.call_soon_threadsafe(begin.set)
            assert done.wait(10)
        return super().append(batch, wait=wait)


def test_an_outcome_of_a_loser_that_was_stored_after_the_race_does_not_block_the_run() -> None:
    store, lives = Meanwhile(), list[str]()
    may_begin = may_return = asyncio.Event()
    begun, returned = threading.Event(), threading.Event()

    @hf.step
    async def nap(name: str) -> str:
        if name == "loser":
            begun.set()
            await may_return.wait()
            asyncio.get_running_loop().call_soon(returned.set)  # after its outcome was handed to the committer
        return name

    async def winner() -> str:
        return await nap("winner")

    async def loser() -> str:
        await may_begin.wait()  # no step: a lock, a connection
        return await nap("loser")

    @hf.agent
    async def agent() -> str:
        nonlocal may_begin, may_return
        may_begin, may_return, store.loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
        if not lives:
            store.then = {"1.1.1": (may_begin, begun), "1": (may_return, returned)}
        won = await hf.first(winner(), loser())
        lives.append("lived")
        if len(lives) == 1:
            raise Crash
        return won

    crashing(lambda: play(store, agent))
    assert [line for line in lines(store) if "done" in line] == ["step.done 1.1.1", "step.done 1", "step.done 1.2.1"]
    assert play(store, agent) == "winner"


def test_a_task_group_whose_errors_the_agent_swallows_interrupts_the_run_and_does_not_cancel_its_caller() -> None:
    store = MemoryStore()

    @hf.step
    async def fails() -> int:
        raise OSError("no")

    @hf.step
    async def slow() -> int:
        await asyncio.sleep(60)
        return 1

    @hf.agent
    async def agent() -> int:
        with contextlib.suppress(BaseExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                group.create_task(slow())
        return 1

    with pytest.raises(hf.RunInterrupted):
        play(store, agent)
    assert status(store) == "queued"


def test_an_error_that_is_no_exception_is_not_swallowed_by_parking() -> None:
    store = MemoryStore()

    @hf.effect(in_doubt="ask")
    async def pay() -> int:
        raise TimeoutError

    @hf.step
    async def dies() -> int:
        await asyncio.sleep(0.02)
        raise Crash

    @hf.agent
    async def agent() -> int:
        await hf.gather(pay(), dies())
        return 1

    crashing(lambda: play(store, agent))
