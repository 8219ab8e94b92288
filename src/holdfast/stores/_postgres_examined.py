"""What a PostgreSQL store rests on: the server's settings, who may do what, its clock, for `holdfast doctor`."""

from __future__ import annotations

import psycopg
from psycopg import pq

from holdfast._clock import Clock
from holdfast.store import Finding, Grade
from holdfast.stores._examining import KILLED, NOTHING, commit_speed, in_bytes, in_ms, median_s
from holdfast.stores._postgres_line import Connection

CLOCK_S = 1.0
"""By how much the clocks of two machines may differ: more than those have that are set by a time server."""
FEW_CONNECTIONS = 0.8
LOCAL = ("127.0.0.1", "::1")
CONNECTIONS = "three as a rule, fifteen at the most"
"""Those of `PostgresStore`: see docs/stores.md."""
SETTINGS = ("fsync", "full_page_writes", "synchronous_standby_names", "autovacuum", "max_connections")
SETTING = "SELECT current_setting(%s, true)"
OUTSIDE = "SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'"
"""What would hold in this session, had the store not set it."""
UNLOGGED = """
    SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
    WHERE nspname = current_schema() AND relkind = 'r' AND relpersistence <> 'p' AND relname <> 'live' ORDER BY 1
"""
SIZE = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
    WHERE nspname = current_schema() AND relkind = 'r'
"""
RIGHTS = "SELECT current_user::text, rolsuper, has_schema_privilege(current_schema(), 'CREATE') FROM pg_roles WHERE rolname = current_user"
ENCRYPTED = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
SAME_AGAIN = "UPDATE meta SET value = value WHERE key = 'format'"
"""Writes a row anew and changes nothing: a commit to be timed, of which nothing stays, whenever it is broken off."""


def examined(connection: Connection, clock: Clock) -> list[Finding]:
    """All that can be said of the store in this session's schema, and of the server."""
    settings = {name: _one(connection, SETTING, name) for name in SETTINGS}
    outside = _one(connection, OUTSIDE)
    return [
        *_versions(connection),
        *_permissions(connection),
        _switch("fsync", settings["fsync"], "the server does not wait for its disk: a power failure can destroy the whole database"),
        _switch("full_page_writes", settings["full_page_writes"], "a page that is half written when the power fails stays damaged"),
        _synchronous(outside, str(_one(connection, SETTING, "synchronous_commit"))),
        *_standbys(settings["synchronous_standby_names"]),
        *_unlogged(connection),
        *_vacuum(settings["autovacuum"]),
        _clocks(connection, clock),
        *_room(connection, settings["max_connections"]),
        *_speed(connection, clock),
        *_costs(settings["fsync"] or "", settings["full_page_writes"] or "", settings["synchronous_standby_names"] or ""),
    ]


def _one(connection: Connection, sql: str, *values: object) -> str | None:
    """One value as text; None where this server does not tell."""
    try:
        found = connection.execute(sql.encode(), values or None, prepare=False).fetchone()
    except (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
        return None
    return None if found is None or found[0] is None else str(found[0])


def _versions(connection: Connection) -> list[Finding]:
    server = connection.info.parameter_status("server_version") or "unknown"
    form, migration = (_one(connection, "SELECT value FROM meta WHERE key = %s", key) for key in ("format", "migration"))
    client = f"{pq.version() // 10_000}.{pq.version() % 10_000}"
    return [
        Finding(topic="versions", what="PostgreSQL", value=server),
        Finding(topic="versions", what="libpq", value=client),
        Finding(topic="versions", what="format of the store", value=f"{form}, its tables at {migration}"),
    ]


def _permissions(connection: Connection) -> list[Finding]:
    user, superuser, creates = connection.execute(RIGHTS).fetchall()[0]
    meaning = "a superuser; one who owns the schema would do" if superuser else ""
    found = [Finding(topic="permissions", what="user", value=user, meaning=meaning)]
    if not creates:
        meaning = "a newer Holdfast cannot bring the tables up to date"
        advice = f"ALTER SCHEMA {_one(connection, 'SELECT current_schema()')} OWNER TO {user}"
        found += [Finding(topic="permissions", what="schema", value="of somebody else", grade="warn", meaning=meaning, advice=advice)]
    info = connection.info
    return [*found, _encryption(_one(connection, ENCRYPTED), info.host, info.hostaddr)]


def _encryption(encrypted: str | None, host: str, address: str) -> Finding:
    if encrypted == "True":
        return Finding(topic="permissions", what="connection", value="encrypted")
    if host.startswith("/") or address in LOCAL:
        return Finding(topic="permissions", what="connection", value="not encrypted", meaning="it does not leave this machine")
    meaning, advice = "whoever is on the way to the server can read what is recorded", "add sslmode=verify-full"
    return Finding(topic="permissions", what="connection", value="not encrypted", grade="warn", meaning=meaning, advice=advice)


def _switch(what: str, value: str | None, off: str) -> Finding:
    if value == "on":
        return Finding(topic="durability", what=what, value="on")
    if value is None:
        return Finding(topic="durability", what=what, value="unknown", meaning="this server does not tell")
    return Finding(
        topic="durability", what=what, value=value, grade="bad", meaning=off, advice=f"set {what} = on in postgresql.conf, then reload"
    )


def _synchronous(outside: str | None, inside: str) -> Finding:
    """The store has overruled `off` in its own sessions (`_postgres_line.SETTINGS`)."""
    grade: Grade = "bad" if inside == "off" else "ok"
    overruled = outside not in (None, inside)
    meaning = f"{outside} elsewhere; overruled in the sessions of Holdfast, so it costs nothing here" if overruled else ""
    meaning = "the last commits are lost when the server crashes" if grade == "bad" else meaning
    return Finding(topic="durability", what="synchronous_commit", value=inside, grade=grade, meaning=meaning)


def _standbys(names: str | None) -> list[Finding]:
    value = names or "none"
    meaning = "commits wait for them" if names else "one server has it all, or standbys may be behind"
    return [Finding(topic="durability", what="synchronous standbys", value=value, meaning=meaning)]


def _unlogged(connection: Connection) -> list[Finding]:
    tables = [str(name) for (name,) in connection.execute(UNLOGGED, prepare=False)]
    if not tables:
        return []
    advice = "; ".join(f"ALTER TABLE {name} SET LOGGED" for name in tables)
    meaning = "a crash of the server empties them"
    return [Finding(topic="durability", what="unlogged tables", value=", ".join(tables), grade="bad", meaning=meaning, advice=advice)]


def _vacuum(value: str | None) -> list[Finding]:
    if value in ("on", None):
        return []
    meaning = "the tables grow with every commit, and in the end the server refuses to write"
    return [Finding(topic="room", what="autovacuum", value=value, grade="warn", meaning=meaning, advice="set autovacuum = on")]


def _clocks(connection: Connection, clock: Clock) -> Finding:
    connection.execute(NOW)
    before_us = clock.now_us()
    there_us: int = connection.execute(NOW).fetchall()[0][0]
    after_us = clock.now_us()
    apart_s = (there_us - (before_us + after_us) / 2) / 1e6
    unsure_s = abs(after_us - before_us) / 2e6
    value = f"{_span(abs(apart_s))} {'ahead of' if apart_s > 0 else 'behind'} this machine"
    if abs(apart_s) - unsure_s <= CLOCK_S:
        return Finding(topic="clock", what="the server's clock", value=value)
    meaning = "times in the records are off by that, and runs that sleep wake too early or too late; who owns a run does not depend on it"
    return Finding(
        topic="clock", what="the server's clock", value=value, grade="warn", meaning=meaning,
        advice="let both machines set their clocks by a time server",
    )  # fmt: skip


def _span(duration_s: float) -> str:
    return in_ms(duration_s) if duration_s < 1 else f"{duration_s:,.1f} s"


def _room(connection: Connection, most: str | None) -> list[Finding]:
    size, sessions = _one(connection, SIZE), _one(connection, SESSIONS)
    untold = "the room on the server's disk is not told"
    found = [Finding(topic="room", what="store", value=in_bytes(int(size)), meaning=untold)] if size else []
    if sessions is None or most is None:
        return found
    scarce = int(sessions) > FEW_CONNECTIONS * int(most)
    return [
        *found,
        Finding(
            topic="room", what="connections", value=f"{sessions} of {most} in use", grade="warn" if scarce else "ok",
            meaning=f"a process of Holdfast takes {CONNECTIONS}",
            advice="raise max_connections, or close some" if scarce else "",
        ),
    ]  # fmt: skip


def _speed(connection: Connection, clock: Clock) -> list[Finding]:
    there_and_back_s = median_s(clock, lambda: connection.execute("SELECT 1"))
    return [
        Finding(topic="speed", what="round trip", value=in_ms(there_and_back_s)),
        commit_speed(median_s(clock, lambda: connection.execute(SAME_AGAIN))),
    ]


def _costs(fsync: str, full_page_writes: str, standbys: str) -> list[Finding]:
    lost: tuple[str, Grade, str] = (NOTHING, "ok", "as long as its disk keeps what it has flushed")
    if full_page_writes == "off":
        lost = ("pages that were being written", "bad", "because full_page_writes is off")
    if fsync == "off":
        lost = ("the last commits, or the whole database", "bad", "because fsync is off")
    value, grade, why = lost
    behind = "what it had not received" if not standbys else NOTHING
    why_behind = "because synchronous_standby_names is empty" if not standbys else f"commits wait for {standbys}"
    return [
        KILLED,
        Finding(topic="crash", what="a connection is cut", value=NOTHING, meaning="what became of the last commit is looked up"),
        Finding(topic="crash", what="the server is killed", value=NOTHING, meaning="but for what runs emitted to their followers"),
        Finding(topic="crash", what="the server's power fails", value=value, grade=grade, meaning=why),
        Finding(topic="crash", what="a standby takes over", value=behind, meaning=why_behind),
    ]
