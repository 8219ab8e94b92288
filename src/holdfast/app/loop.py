"""The event loop of an app: its blocking runs are executed on one, so that a client which the first run used still serves the next.

A client keeps connections open, and they belong to the loop on which they were made. With a loop for each run, as `asyncio.run` makes them,
the second run would find them dead, and in the body of an effect that is a doubt. Between two runs nothing goes on: what the code left
behind is ended as `asyncio.run` would end it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def on_a_loop() -> bool:
    """Whether an event loop executes the caller."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Loop:
    """Executes one coroutine at a time; a second thread meanwhile gets a loop of its own."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._taken = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine gives, as `asyncio.run` would give it."""
        if not self._taken.acquire(blocking=False):
            return asyncio.run(work)
        try:
            return _run_alone(self._opened(), work)
        finally:
            self._taken.release()

    def close(self) -> None:
        """Let go of it; one that executes is left to whoever waits for that."""
        if self._runner is None or not self._taken.acquire(blocking=False):
            return
        loop, self._runner = self._runner.get_loop(), None
        self._taken.release()
        if not on_a_loop():
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()  # its tasks and threads have ended with the last run

    def _opened(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            weakref.finalize(self, self._runner.get_loop().close).atexit = False
        return self._runner


def _run_alone(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    loop, threads = runner.get_loop(), ThreadPoolExecutor(thread_name_prefix="asyncio")
    loop.set_default_executor(threads)
    try:
        return runner.run(work, context=contextvars.copy_context())
    finally:
        _end_tasks(loop)
        threads.shutdown()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what the code left behind, and tell of errors in it that nobody asked for."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    for task in left:
        if not task.cancelled() and task.exception() is not None:
            context = {"message": "unhandled exception in a task that a run left behind", "exception": task.exception(), "task": task}
            loop.call_exception_handler(context)
