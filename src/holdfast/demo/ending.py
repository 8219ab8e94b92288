"""Requests to end, Ctrl-C too: everything is put away first, and no process is started and then forgotten."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending:
    """While entered, a signal raises SystemExit; inside `held`, only at its end."""

    def __init__(self) -> None:
        self._asked = 0
        self._held = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _frame: object) -> None:
        self._asked = number
        if not self._held:
            raise SystemExit(128 + number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What stands inside is not torn apart."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._asked:
            raise SystemExit(128 + self._asked)
