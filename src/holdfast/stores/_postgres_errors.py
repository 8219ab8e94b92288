"""What a PostgreSQL server or libpq says, in our words: whose fault it is, what is true now, and what to do."""

from __future__ import annotations

import re

import psycopg

from holdfast.errors import StoreBusy, StoreDamaged, StoreError, StoreFailed, StoreFull, StoreReadOnly
from holdfast.stores._postgres_address import Address

Kinds = tuple[type[StoreError], str]

UNSAID = "unsaid"
"""A state of ours: no password was given. The server has only one for a wrong one."""
BY_STATE: dict[str, Kinds] = {
    "28P01": (StoreError, "Check the user name and the password"),
    UNSAID: (StoreError, "Set PGPASSWORD, or put it into ~/.pgpass, or into the URL: commands that were printed have none"),
    "28000": (StoreError, "Check the user name, and whether pg_hba.conf of the server lets it in"),
    "3D000": (StoreError, "Create the database, or write the name of another one"),
    "42501": (StoreError, "{rights}"),
    "25006": (StoreReadOnly, "This is a standby, or its settings forbid writing. Use the primary"),
    "53100": (StoreFull, "Free some space on the server"),
    "53200": (StoreFailed, "The server has run out of memory"),
    "53300": (StoreBusy, "The server has no connection left. Raise max_connections, or close some"),
    "57014": (StoreBusy, "The server broke it off, by a time-out or an administrator's word; nothing was written. Try again"),
    "55P03": (StoreBusy, "Somebody else held a lock for too long; nothing was written. Try again"),
    "40P01": (StoreBusy, "Nothing was written. Try again"),
    "40001": (StoreBusy, "Nothing was written. Try again"),
    "XX001": (StoreDamaged, "Restore a backup"),
    "XX002": (StoreDamaged, "Build the index anew with REINDEX, or restore a backup"),
}
BY_WORDS: tuple[tuple[str, str], ...] = (
    ("password authentication failed", "28P01"),
    ("no password supplied", UNSAID),
    ("no pg_hba.conf entry", "28000"),
    ("too many clients", "53300"),
    ("too many connections", "53300"),
    ('role "', "28000"),
    ("does not exist", "3D000"),
    ("remaining connection slots", "53300"),
)
"""At the door libpq gives no state, only words."""
UNREACHABLE = "The server cannot be reached, or hung up. Check that it runs, and the host and the port"
LASTING = frozenset({"28P01", UNSAID, "28000", "3D000", "42501"})
"""What waiting does not change."""


def from_postgres(error: psycopg.Error, address: Address) -> StoreError:
    """The error of ours that says it."""
    kind, remedy = BY_STATE.get(_state(error), (StoreFailed, ""))
    if not remedy and isinstance(error, psycopg.OperationalError) and (not error.sqlstate or ended(error)):
        remedy = UNREACHABLE
    said = address.without_secrets(error.diag.message_primary or str(error)).rstrip(".")
    remedy = remedy.replace("{rights}", _rights(said, address))
    return kind(address.shown, f"{said}. {remedy}".rstrip(". ") if said else remedy)


def owning(address: Address, *, there: bool) -> str:
    """What lets the user of a store make its tables, and change them."""
    make = f"ALTER SCHEMA {address.schema} OWNER TO" if there else f"CREATE SCHEMA {address.schema} AUTHORIZATION"
    return f"Let the user of the store own its schema: {make} {_user(address)}. Or let another user make the tables: holdfast migrate"


def granting(address: Address) -> str:
    """What lets the user of a store work with tables that somebody else has made."""
    schema, user = f"SCHEMA {address.schema}", _user(address)
    return (
        f"Let their owner grant them: GRANT USAGE ON {schema} TO {user}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN {schema} "
        f"TO {user}; GRANT USAGE ON ALL SEQUENCES IN {schema} TO {user}"
    )


def _rights(said: str, address: Address) -> str:
    if "for database" in said:
        return owning(address, there=False)
    return owning(address, there=True) if "for schema" in said or "must be owner" in said else granting(address)


def _user(address: Address) -> str:
    user = address.options.get("user", "the_user")
    return user if re.fullmatch(r"[a-z_][a-z0-9_]*", user) else '"' + user.replace('"', '""') + '"'


def passes(error: psycopg.Error) -> bool:
    """Whether an error at the door may pass: a server that starts, or is out of reach."""
    return isinstance(error, psycopg.OperationalError) and _state(error) not in LASTING


def ended(error: psycopg.Error) -> bool:
    """Whether the server says that it has ended the session: whatever is fatal does, such as a transaction that was idle for too long."""
    return _state(error).startswith(("57P0", "08")) or error.diag.severity_nonlocalized in ("FATAL", "PANIC")


def _state(error: psycopg.Error) -> str:
    if error.sqlstate:
        return error.sqlstate
    words = str(error)
    return next((state for part, state in BY_WORDS if part in words), "")
