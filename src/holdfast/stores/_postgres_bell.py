"""NOTIFY and LISTEN: who posts to a run, or lets it rest, says so in the same transaction; one session per process hears it.

A notification holds up every other transaction of the cluster that has one while it commits, and wakes all who listen. So a step that is
recorded in a run that goes on tells nobody, nor does a line that is emitted. The session is opened when somebody waits for the first
time. Where it is lost it is opened anew, and everybody looks once; until then they look as often as they would without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable

from holdfast.stores._postgres_address import Address
from holdfast.stores._postgres_line import PAUSES_S, Connection, connect
from holdfast.stores._postgres_text import plain

log = logging.getLogger("holdfast")

CHANNEL = "SELECT 'holdfast_' || md5(current_schema())"
PATIENCE_S = PAUSES_S[-1]
"""How long after a lost session the next one is tried."""


class Listening:
    """The one session of this process that hears what others tell of runs."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._nudged = self._nudge = -1
        self._complained = False
        self._hearers: list[Callable[[str], object]] = []
        self._pid = 0

    def begin(self, hear: Callable[[str], object]) -> None:
        """Hear from now on, in a thread of its own."""
        self._hearers.append(hear)
        if self._thread is not None:
            hear("")
            return
        self._nudged, self._nudge = os.pipe()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="holdfast-bell", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hear nothing more."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread is not None and self._pid == os.getpid():  # a child that was forked has neither thread nor pipe of its own
            os.write(self._nudge, b".")
            self._thread.join()
            os.close(self._nudge)
            os.close(self._nudged)

    def _loop(self) -> None:
        while not self._closing.is_set():
            try:
                with contextlib.closing(connect(self._address)) as connection:
                    self._hear_all(connection)
            except Exception as error:  # noqa: BLE001 (whatever it is, everybody goes on looking)
                self._complain(error)
                self._closing.wait(PATIENCE_S)

    def _hear_all(self, connection: Connection) -> None:
        """Hear until the session is lost, or nobody wants to any more."""
        ((channel,),) = connection.execute(CHANNEL).fetchall()
        connection.execute(f"LISTEN {channel}".encode(), prepare=False)
        self._tell("")  # what was told before is missed
        ready = select.poll()
        ready.register(connection.pgconn.socket, select.POLLIN)
        ready.register(self._nudged, select.POLLIN)
        while not self._closing.is_set():
            ready.poll()
            connection.pgconn.consume_input()
            while (told := connection.pgconn.notifies()) is not None:
                self._tell(plain(told.extra.decode()))

    def _tell(self, run_id: str) -> None:
        for hear in list(self._hearers):
            hear(run_id)

    def _complain(self, error: Exception) -> None:
        if not self._complained and not self._closing.is_set():
            self._complained = True
            said = self._address.without_secrets(str(error))
            log.warning("news of runs cannot be heard for now; who waits looks as often as before: %s", said)
