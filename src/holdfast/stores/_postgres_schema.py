"""The tables of a PostgreSQL store: made and brought up to date under a lock, and refused where they are not ours or too new."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from holdfast.errors import StoreError, StoreForeign, StoreNewer
from holdfast.store import FORMAT
from holdfast.stores._postgres_address import Address
from holdfast.stores._postgres_errors import granting, owning
from holdfast.stores._postgres_line import BUSY_LIMIT_S, Connection

FILES = sorted(Path(__file__).parent.glob("postgres_[0-9]*.sql"), key=lambda path: int(path.stem.rpartition("_")[2]))
"""The migrations, in order. One that was released is never changed."""
VERSION = len(FILES)
OLDEST = 14
PATIENCE = "SET LOCAL lock_timeout = '5min'"
"""Whoever comes while another one changes the tables waits for that, longer than for an ordinary lock."""
IMPATIENCE = f"SET LOCAL lock_timeout = '{BUSY_LIMIT_S:.0f}s'"
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast migrate ' || %s, 0))"
TAKEN = """
    SELECT relname FROM pg_class
    WHERE relname = ANY(%s) AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s) AND relkind = 'r'
"""
"""By their names tables are looked up with an index: a database may have tens of thousands of others."""
META = """
    SELECT count(*) FROM pg_attribute WHERE attname IN ('key', 'value') AND attrelid = (
        SELECT oid FROM pg_class WHERE relname = 'meta' AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)
    )
"""
MADE = [frozenset(re.findall(r"CREATE (?:UNLOGGED )?TABLE (\w+)", path.read_text(encoding="utf-8"))) for path in FILES]
NAMES = frozenset[str]().union(*MADE)
READABLE = """
    SELECT has_schema_privilege(relnamespace, 'USAGE') AND has_table_privilege(oid, 'SELECT') FROM pg_class
    WHERE relname = 'meta' AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)
"""
CHANGEABLE = """
    SELECT has_schema_privilege(n.oid, 'CREATE') AND NOT EXISTS (
        SELECT 1 FROM pg_class WHERE relnamespace = n.oid AND relkind = 'r' AND relname = ANY(%s) AND NOT pg_has_role(relowner, 'USAGE')
    ) FROM pg_namespace n WHERE nspname = %s
"""
CREATABLE = "SELECT has_database_privilege(current_database(), 'CREATE')"


def prepare(connection: Connection, address: Address) -> list[str]:
    """Make sure that the tables are there and the newest; gives the names of the migrations that it applied."""
    _refuse_server(connection, address)
    if _applied(connection, address) == len(FILES):
        return []
    with connection.transaction():
        connection.execute(PATIENCE)
        connection.execute(LOCK, (address.schema,))
        connection.execute(IMPATIENCE.encode())
        done = _applied(connection, address)
        if not connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (address.schema,)).fetchall()[0][0]:
            connection.execute(f"CREATE SCHEMA {address.schema}".encode())
        for number, path in enumerate(FILES[done:], done + 1):
            connection.execute(path.read_bytes(), prepare=False)
            _note(connection, number)
    return [path.stem for path in FILES[done:]]


def to_do(connection: Connection, address: Address) -> list[str]:
    """The names of the migrations that `prepare` would apply, or what hinders it."""
    _refuse_server(connection, address)
    names = [path.stem for path in FILES[_applied(connection, address) :]]
    found = connection.execute(CHANGEABLE, (list(NAMES), address.schema)).fetchall()
    if names and not (found or connection.execute(CREATABLE).fetchall())[0][0]:
        what = "change the tables of" if found else "create"
        raise StoreError(address.shown, f"the user may not {what} the schema; nothing was changed. {owning(address, there=bool(found))}")
    return names


def store_id(connection: Connection) -> str:
    """The id that this store got when it was made."""
    return str(connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchall()[0][0])


def _note(connection: Connection, number: int) -> None:
    first = {"format": str(FORMAT), "store_id": secrets.token_hex(8)}
    for key, value in first.items():
        connection.execute("INSERT INTO meta VALUES (%s, %s) ON CONFLICT DO NOTHING", (key, value))
    keep = "INSERT INTO meta VALUES ('migration', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    connection.execute(keep, (str(number),))


def _applied(connection: Connection, address: Address) -> int:
    """How many migrations have been applied here."""
    there = {name for (name,) in connection.execute(TAKEN, (list(NAMES), address.schema))}
    if not there:
        return 0
    _refuse_unreadable(connection, address, there)
    columns = connection.execute(META, (address.schema,)).fetchall()
    kept: dict[str, str] = dict(connection.execute("SELECT key, value FROM meta").fetchall()) if columns == [(2,)] else {}
    if not {"format", "store_id", "migration"} <= kept.keys():
        taken = ", ".join(sorted(there))
        raise StoreForeign(
            address.shown, f"the schema has tables of other people ({taken}); it was left as it is. Write ?schema=NAME for one of its own"
        )
    if int(kept["format"]) > FORMAT or int(kept["migration"]) > len(FILES):
        theirs, ours = f"format {kept['format']}, version {kept['migration']}", f"format {FORMAT}, version {len(FILES)}"
        raise StoreNewer(address.shown, f"its tables are those of a newer Holdfast ({theirs}; this one knows {ours}). Install that one")
    return int(kept["migration"])


def _refuse_unreadable(connection: Connection, address: Address, there: set[str]) -> None:
    """Tables of ours that the user may not read are known by their names: whoever took them for foreign would begin every run anew."""
    if there >= MADE[0] and connection.execute(READABLE, (address.schema,)).fetchall() == [(False,)]:
        raise StoreError(address.shown, f"the runs are here, and the user may not read them; nothing was changed. {granting(address)}")


def _refuse_server(connection: Connection, address: Address) -> None:
    version = connection.info.server_version
    if version < OLDEST * 10_000:
        raise StoreError(address.shown, f"PostgreSQL {version // 10_000} is too old; nothing was done. Use version {OLDEST} or later")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(address.shown, f"the database is in {encoding}, which cannot hold all text. Create one with ENCODING 'UTF8'")
