"""Runs in a PostgreSQL database, in a schema of their own: for many processes on many machines.

One line writes, a few others read. An append is one statement, and so one transaction and one round trip: move the heads that stand
where the batch believes, add the rows of those, take their letters. A session that is lost is opened anew; whether the batch whose
reply was lost had gone in is looked up, and only what is proven not to be there is written again.

No session proves the death of an owner: the network, the server or its administrator can end it while the process lives on, and is in the
middle of an effect. The proof is a file lock, as it is for SQLite, in a folder of this machine; owners elsewhere are judged by their beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO

import psycopg

from holdfast._clock import Clock, SystemClock
from holdfast.errors import StoreBusy, StoreError, StoreFailed
from holdfast.store import (
    Append,
    Aside,
    Draft,
    Drawn,
    Enrolled,
    Finding,
    Head,
    Hold,
    Letter,
    Pulse,
    Query,
    Removal,
    Repair,
    Room,
    Row,
    Shedding,
    Stale,
    Swept,
    Tombstone,
    Transaction,
)
from holdfast.stores import _postgres_blobs as blobs
from holdfast.stores import _postgres_changed as changed
from holdfast.stores import _postgres_limits as limits
from holdfast.stores import _postgres_live as live
from holdfast.stores._machine_folder import machine_folder
from holdfast.stores._owners import OwnerLocks
from holdfast.stores._postgres_address import Address, address_of
from holdfast.stores._postgres_append import TOLD, get_ready, head_of, landed, row_of, written
from holdfast.stores._postgres_bell import Listening
from holdfast.stores._postgres_check import findings
from holdfast.stores._postgres_examined import examined
from holdfast.stores._postgres_heads import listed
from holdfast.stores._postgres_line import BUSY_LIMIT_S, PATIENCE_S, Connection, Line, Lines, Lost
from holdfast.stores._postgres_schema import VERSION, prepare, store_id, to_do
from holdfast.stores._postgres_text import plain, sql_text
from holdfast.stores._postgres_transaction import Transactions

__all__ = ["VERSION", "PostgresStore", "address_of", "migrate", "outstanding", "planned"]

READERS = 4
TRIES = 5
"""How often a batch that the server undid, because of a deadlock or the like, is written again."""

UNDONE = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
NOT_KNOWN = "It is not known whether the last records were written; whoever takes the runs next looks"

POST = f"""
    WITH kept AS (INSERT INTO letters VALUES (%b, %b, %b, %b, %b) RETURNING run_id)
    SELECT pg_notify('holdfast_' || md5(current_schema()), {TOLD}) FROM kept
"""  # noqa: S608 (a constant)
POSTED = "SELECT 1 FROM letters WHERE letter_id = %b"
LETTERS = "SELECT letter_id, run_id, at_us, kind, body FROM letters WHERE run_id = ANY(%b) ORDER BY letter_id"
ENROLL = "INSERT INTO owners VALUES (%b, 1) ON CONFLICT DO NOTHING"
RENEW = "UPDATE owners SET beat = beat + 1, renewed_at = clock_timestamp() WHERE owner = %b"
RETIRE = "DELETE FROM owners WHERE owner = %b"
INTRODUCE = "UPDATE owners SET about = %b WHERE owner = %b"
OWNERS = "SELECT owner, beat, about FROM owners ORDER BY owner"
PULSE = "SELECT beat FROM owners WHERE owner = %b"
HOLD = "INSERT INTO holds VALUES (%b, %b) ON CONFLICT (what) DO UPDATE SET about = excluded.about"
RELEASE = "DELETE FROM holds WHERE what = %b"
HELD = "SELECT what, about FROM holds ORDER BY what"
ONE_MOMENT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


def migrate(url: str) -> list[str]:
    """Make the tables, or bring them up to date; gives the names of what was applied. Opening the store does the same."""
    return _once(url, prepare)


def outstanding(url: str) -> list[str]:
    """What that would apply; nothing is changed."""
    return _once(url, to_do)


def planned(url: str) -> str:
    """The URL of the store that opening would make, without its password; empty where there is one. Older tables are left as they are."""
    address, files = address_of(url), outstanding(url)
    if files and len(files) < VERSION:
        reason = f"its tables are those of an older version ({', '.join(files)} to be applied); nothing was changed"
        raise StoreError(address.shown, f"{reason}. Bring them up to date: holdfast migrate")
    return address.shown if files else ""


def _once(url: str, work: Callable[[Connection, Address], list[str]]) -> list[str]:
    """Do something with a session that is not needed afterwards."""
    line = Line(address_of(url))
    try:
        with line.held():
            return line.attempt(lambda connection: work(connection, line.address), line.session())
    except Lost as lost:
        raise lost.said from lost.__cause__
    finally:
        line.close()


class PostgresStore:
    """Runs in the database that the URL names, in the schema that stands behind `?schema=`, or `holdfast`."""

    inline = False

    def __init__(self, url: str) -> None:
        self._address = address_of(url)
        self.url = self._address.shown
        migrate(url)
        self._writer = Line(self._address, get_ready)
        self._others = Lines(self._address, READERS)
        self._live = live.LiveLines(self._address)
        self._transactions = Transactions(self._address)
        self._listening = Listening(self._address)
        try:
            with self._os_errors():
                self._locks = OwnerLocks(machine_folder(self._others.run(store_id)))
        except BaseException:
            self._others.close()
            raise

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        if not batch:
            return []
        with self._writer.held(wait_s=BUSY_LIMIT_S if wait else 0):
            until_s = SystemClock().monotonic_s() + PATIENCE_S
            for left in range(TRIES, 0, -1):
                try:
                    return self._write(batch, until_s)
                except StoreBusy as busy:
                    if left == 1 or not isinstance(busy.__cause__, UNDONE):
                        raise
            raise AssertionError("the last try returns or raises")

    def _write(self, batch: Sequence[Append], until_s: float) -> list[Stale | None]:
        """Write the batch; where the reply is lost, look whether it went in, and write it again if it did not."""
        line = self._writer
        try:
            return line.attempt(lambda session: written(session, batch), line.session(until_s))
        except Lost:
            pass
        while True:
            try:
                return line.attempt(lambda session: _looked_up(session, batch), line.session(until_s))
            except Lost as lost:
                if SystemClock().monotonic_s() >= until_s:
                    raise StoreFailed(self.url, f"{lost.said.reason}. {NOT_KNOWN}") from lost.__cause__
            except StoreFailed as error:
                raise StoreFailed(self.url, f"{error.reason}. {NOT_KNOWN}") from error.__cause__
            except StoreBusy as error:
                if isinstance(error.__cause__, UNDONE):
                    raise
                said = self._address.without_secrets(str(error.__cause__))  # that nothing was written is true of the look alone
                raise StoreFailed(self.url, f"{said}. {NOT_KNOWN}") from error.__cause__

    def transaction(self) -> AbstractContextManager[Transaction]:
        return self._transactions.begun()

    def listen(self, hear: Callable[[str], object]) -> None:
        self._listening.begin(hear)

    def load(self, run_id: str) -> tuple[Head, list[Row]] | None:
        return self.rows_after(run_id, 0)

    def rows_after(self, run_id: str, seq: int) -> tuple[Head, list[Row]] | None:
        return self._others.run(lambda connection: _at_one_moment(connection, run_id, seq))

    def head(self, run_id: str) -> Head | None:
        return self._others.run(lambda connection: changed.found_head(connection, run_id))

    def heads(self, query: Query) -> list[Head]:
        return self._others.run(lambda connection: listed(connection, query))

    def post(self, run_id: str, kind: str, body: bytes, at_us: int) -> int:
        values = (sql_text(run_id), at_us, sql_text(kind), body)
        number: int = self._others.run(lambda connection: connection.execute("SELECT nextval('letter_ids')").fetchall()[0][0])
        try:
            self._others.run(lambda connection: connection.execute(POST, (number, *values)), again=False)
        except StoreFailed as error:
            if not self._others.run(lambda connection: connection.execute(POSTED, (number,)).fetchall()):
                raise StoreFailed(self.url, f"{error.reason}. The letter is not there, or its run has taken it") from error
        return number

    def letters(self, run_ids: Sequence[str]) -> list[Letter]:
        wanted = [sql_text(run_id) for run_id in run_ids]
        found = self._others.run(lambda connection: connection.cursor(binary=True).execute(LETTERS, (wanted,)).fetchall())
        return [Letter._make(map(plain, row)) for row in found]

    def draw(self, drafts: Sequence[Draft], *, at_us: int) -> Drawn:
        del at_us
        wanted = {draft._replace(meter=sql_text(draft.meter)): draft for draft in drafts}
        drawn = self._others.run(lambda connection: limits.draw(connection, [*wanted]))
        return drawn._replace(left=tuple(wanted[draft] for draft in drawn.left))

    def give_back(self, draft: Draft, at_us: int) -> None:
        values = (draft.step_us, sql_text(draft.meter), at_us + draft.within_us)
        self._others.run(lambda connection: connection.execute(limits.GIVE_BACK, values))

    def turn(self, queue: str, lane: str, *, step_us: int, at_us: int) -> int:
        del at_us
        return self._others.run(lambda connection: limits.turn(connection, sql_text(queue), sql_text(lane), step_us))

    def stands(self, meter: str, at_us: int) -> int:
        return self._others.run(lambda connection: limits.stands(connection, sql_text(meter), at_us))

    def advance(self, meter: str, to_us: int) -> None:
        self._others.run(lambda connection: limits.advance(connection, sql_text(meter), to_us))

    def enroll(self, owner: str) -> None:
        with self._os_errors():
            self._locks.hold(owner)
        try:
            self._owner(ENROLL, owner)
        except StoreError:
            self._locks.release(owner)
            raise

    def renew(self, owner: str) -> None:
        self._owner(RENEW, owner)
        self._others.run(live.swept)

    def retire(self, owner: str) -> None:
        self._owner(RETIRE, owner)
        with self._os_errors():
            self._locks.release(owner)

    def introduce(self, owner: str, about: bytes) -> None:
        self._others.run(lambda connection: connection.execute(INTRODUCE, (about, sql_text(owner))))

    def owners(self) -> list[Enrolled]:
        found = self._others.run(lambda connection: connection.cursor(binary=True).execute(OWNERS).fetchall())
        with self._os_errors():
            told = [Enrolled(*map(plain, row)) for row in found]
            return [one._replace(dead=self._locks.proves_dead(one.owner)) for one in told]

    def hold_back(self, what: str, about: bytes) -> None:
        self._others.run(lambda connection: connection.execute(HOLD, (sql_text(what), about)))

    def release(self, what: str) -> bool:
        return self._others.run(lambda connection: connection.execute(RELEASE, (sql_text(what),)).rowcount) > 0

    def held_back(self) -> list[Hold]:
        found = self._others.run(lambda connection: connection.cursor(binary=True).execute(HELD).fetchall())
        return [Hold._make(map(plain, row)) for row in found]

    def pulse(self, owner: str) -> Pulse | None:
        found = self._others.run(lambda connection: connection.execute(PULSE, (sql_text(owner),)).fetchall())
        with self._os_errors():
            return Pulse(found[0][0], dead=self._locks.proves_dead(owner)) if found else None

    def _owner(self, sql: str, owner: str) -> None:
        self._others.run(lambda connection: connection.execute(sql.encode(), (sql_text(owner),)))

    def check(self) -> list[str]:
        return self._others.run(findings)

    def examine(self, clock: Clock) -> list[Finding]:
        return self._others.run(lambda connection: examined(connection, clock), again=False)

    def found(self, run_id: str) -> tuple[Head | None, list[Row]]:
        return self._others.run(
            lambda connection: (changed.found_head(connection, run_id), changed.found_rows(connection, run_id, -(2**62)))
        )

    def set_aside(self, repair: Repair) -> bool:
        return self._others.run(lambda connection: changed.moved_aside(connection, repair), again=False)

    def aside(self, run_id: str) -> list[Aside]:
        return self._others.run(lambda connection: list(changed.aside(connection, run_id)))

    def publish(self, run_id: str, payload: bytes) -> None:
        self._live.publish(run_id, payload)

    def published(self, run_id: str, after: int) -> list[tuple[int, bytes]]:
        return self._others.run(lambda connection: live.published(connection, run_id, after))

    def remove(self, removals: Sequence[Removal]) -> list[bool]:
        return self._others.run(lambda connection: changed.removed(connection, removals), again=False)

    def shed(self, shedding: Shedding) -> bool:
        with self._writer.held():
            return self._writer.run(lambda connection: changed.shed(connection, shedding), again=False)

    def tombstone(self, run_id: str) -> Tombstone | None:
        return self._others.run(lambda connection: changed.tombstone(connection, run_id))

    def forget(self, before_us: int) -> int:
        return self._others.run(lambda connection: changed.forgotten(connection, before_us))

    def room(self) -> Room:
        return self._others.run(lambda connection: changed.measured(connection, self._address.schema))

    def compact(self) -> None:
        self._others.run(changed.compacted)

    def keep_blob(self, chunks: Iterable[bytes], *, at_us: int, parts: Sequence[str] = ()) -> str:
        return self._others.run(lambda connection: blobs.keep(connection, chunks, at_us, parts), again=False)

    def touch_blob(self, digest: str, *, at_us: int) -> bool:
        return self._others.run(lambda connection: blobs.touch(connection, digest, at_us))

    def open_blob(self, digest: str) -> BinaryIO | None:
        return blobs.opened(self._address, digest)

    def blob_refs(self, run_id: str) -> list[str]:
        return self._others.run(lambda connection: blobs.listed(connection, blobs.REFS, sql_text(run_id)))

    def blob_parts(self, digest: str) -> list[str]:
        return self._others.run(lambda connection: blobs.listed(connection, blobs.PARTS, digest))

    def sweep_blobs(self, before_us: int, *, dry_run: bool = False) -> Swept:
        return self._others.run(lambda connection: blobs.sweep(connection, before_us, dry_run=dry_run))

    def close(self) -> None:
        self._listening.close()
        self._live.close()
        self._transactions.close()
        self._writer.close()
        self._others.close()
        self._locks.close()

    @contextmanager
    def _os_errors(self) -> Iterator[None]:
        """Say what the operating system refuses of the lock files."""
        try:
            yield
        except OSError as error:
            raise StoreFailed(self.url, f"{error}. Make the folder for temporary files of this machine writable") from error


def _looked_up(connection: Connection, batch: Sequence[Append]) -> list[Stale | None]:
    """Behind a lost reply: what became of the batch, which is written now if it was not there."""
    return landed(connection, batch) or written(connection, batch)


def _at_one_moment(connection: Connection, run_id: str, seq: int) -> tuple[Head, list[Row]] | None:
    """The head and the rows behind `seq`, in one round trip."""
    head, rows = connection.cursor(binary=True), connection.cursor(binary=True)
    with connection.pipeline():
        connection.execute(ONE_MOMENT)
        head.execute(changed.HEAD, (sql_text(run_id),))
        rows.execute(changed.ROWS, (sql_text(run_id), seq))
        connection.execute("COMMIT")
    found = head.fetchone()
    return None if found is None else (head_of(found), [row_of(row) for row in rows])
