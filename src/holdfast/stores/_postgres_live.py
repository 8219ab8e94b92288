"""What runs say while they execute, in a table that is in no log: followers read it there, and a crash of the server empties it.

A line is lost rather than in the way: it has a session of its own that waits for no flush, a thread that would wait long for another
drops its line, and a server that is away is not waited for, nor asked again for a while. Of what a run said long ago only the last
megabytes stay.
"""

from __future__ import annotations

import logging

from holdfast._clock import SystemClock
from holdfast.errors import StoreBusy
from holdfast.stores._postgres_address import Address
from holdfast.stores._postgres_line import Connection, Line
from holdfast.stores._postgres_text import sql_text

log = logging.getLogger("holdfast")

SHARE_BYTES = 4 * 1024 * 1024
"""When a run has said so much more, what it said before the last such mark goes."""
RUNS = 256
"""For so many runs it is known how much they said; others may keep more for a while."""
PATIENCE_S = 0.5
"""How long a line waits for another thread's: the first of them opens the session."""
QUIET_S = 5.0
"""After an error no line is tried for so long."""
CONNECT_S = "2"
LAST_WORDS = "10 seconds"

SAY = "INSERT INTO live (run_id, payload) VALUES (%b, %b) RETURNING position"
SAID = "SELECT position, payload FROM live WHERE run_id = %b AND position > %b ORDER BY position"
DROP = "DELETE FROM live WHERE run_id = %b AND position <= %b"
SWEEP = f"""
    DELETE FROM live WHERE said_at < clock_timestamp() - interval '{LAST_WORDS}'
    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = live.run_id AND owner IS NOT NULL)
"""  # noqa: S608 (a constant)


class LiveLines:
    """The lines that this process publishes."""

    def __init__(self, address: Address) -> None:
        self._line = Line(address._replace(options=address.options | {"connect_timeout": CONNECT_S}), _unflushed)
        self._quiet_until_s = 0.0
        self._said: dict[str, tuple[int, int]] = {}
        self._complained = False

    def publish(self, run_id: str, payload: bytes) -> None:
        """Show one line to whoever follows the run, or lose it."""
        if SystemClock().monotonic_s() < self._quiet_until_s:
            return
        try:
            with self._line.held(wait_s=PATIENCE_S):
                connection = self._line.session()
                self._line.attempt(lambda session: self._say(session, sql_text(run_id), payload), connection)
        except Exception as error:  # noqa: BLE001 (whatever it is, the run goes on)
            self._quiet_until_s = SystemClock().monotonic_s() + (0 if isinstance(error, StoreBusy) else QUIET_S)
            if not self._complained:
                self._complained = True
                log.warning("what runs emit cannot be written and is lost to their followers; the runs go on: %s", error)

    def close(self) -> None:
        """Let go of the session."""
        self._line.close()

    def _say(self, connection: Connection, run_id: str, payload: bytes) -> None:
        position = connection.execute(SAY, (run_id, payload)).fetchall()[0][0]
        size, mark = self._said.pop(run_id, (0, 0))
        size += len(payload)
        if size >= SHARE_BYTES:
            connection.execute(DROP, (run_id, mark))
            size, mark = 0, position
        self._said[run_id] = (size, mark)
        if len(self._said) > RUNS:
            del self._said[next(iter(self._said))]


def published(connection: Connection, run_id: str, after: int) -> list[tuple[int, bytes]]:
    """What is there behind a position."""
    return list(connection.cursor(binary=True).execute(SAID, (sql_text(run_id), after)))


def swept(connection: Connection) -> None:
    """Drop what was said by runs that nobody owns, once their followers have had time to read it."""
    connection.execute(SWEEP)


def _unflushed(connection: Connection) -> None:
    connection.execute("SET synchronous_commit = off", prepare=False)

