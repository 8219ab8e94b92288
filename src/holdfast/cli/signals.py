"""Signals that are heard at once, whatever the main thread does: a thread of their own reads them.

Python calls a handler in its main thread, and asyncio on its event loop: where the code of a run blocks them, nobody would hear.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

STOPPING = (signal.SIGTERM, signal.SIGINT)
"""Those by which a process is told to stop."""

SAME_S = 0.5
"""The same signal again within this time is meant once: `timeout` and shells tell a process, and its group too."""


class Signals:
    """Calls `heard` for each signal that tells this process to stop, one after the other, while it is entered; in the main thread."""

    def __init__(self, heard: Callable[[], None]) -> None:
        self._heard = heard

    def __enter__(self) -> Self:
        self._ear, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        self._before_fd = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _is_read_elsewhere) for number in STOPPING}
        os.register_at_fork(after_in_child=_as_others_have_them)
        threading.Thread(target=self._listen, name="holdfast-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        self._mouth.close()

    def _listen(self) -> None:
        heard_s: dict[int, float] = {}
        with self._ear:
            while numbers := self._ear.recv(64):
                for number in numbers:
                    now_s = time.monotonic()
                    if number in STOPPING and now_s - heard_s.get(number, -SAME_S) >= SAME_S:
                        heard_s[number] = now_s
                        self._heard()


def _is_read_elsewhere(*_: object) -> None:
    """A signal must have a handler to be written where the thread reads it."""


def _as_others_have_them() -> None:
    """What a step forks is told to stop by its own signals, and does not tell the worker."""
    for number in STOPPING:
        if signal.getsignal(number) is _is_read_elsewhere:
            signal.set_wakeup_fd(-1)
            signal.signal(number, signal.SIG_DFL)
