"""Which runs there are: the heads that match a query, found through the indexes and without a look at any journal."""

from __future__ import annotations

from typing import Any

from holdfast.store import Head, Query
from holdfast.stores._postgres_append import FIELDS, head_of, tag
from holdfast.stores._postgres_line import Connection
from holdfast.stores._postgres_text import sql_text

STATUSES = """
    WITH RECURSIVE known (status) AS (
        SELECT (SELECT status FROM runs WHERE owner IS NULL ORDER BY status LIMIT 1)
        UNION ALL
        SELECT (SELECT status FROM runs WHERE owner IS NULL AND status > known.status ORDER BY status LIMIT 1)
        FROM known WHERE known.status IS NOT NULL
    ) SELECT status FROM known WHERE status IS NOT NULL
"""
"""One jump through the index per status, instead of reading it all."""
GIVEN = "SELECT unnest(%(statuses)b::text[]) AS status"
LISTED = """
    SELECT {fields} FROM (
        SELECT * FROM runs WHERE owner IS NOT NULL AND {filters}
        UNION ALL
        SELECT found.* FROM ({statuses}) AS wanted CROSS JOIN LATERAL (
            SELECT * FROM runs WHERE owner IS NULL AND runs.status = wanted.status AND {resting}
            ORDER BY rested_us DESC, run_id LIMIT %(offset)b::bigint + %(limit)b::bigint
        ) AS found
    ) AS both_kinds ORDER BY updated_us DESC, run_id
"""
BEHIND = "SELECT {fields} FROM runs WHERE run_id > %(after)b AND {filters} ORDER BY run_id"
DUE = "SELECT {fields} FROM runs WHERE owner IS NULL AND wake_us <= %(due)b AND wake_us IS NOT NULL AND {filters} ORDER BY wake_us, run_id"
IN_TURN = "SELECT {fields} FROM runs WHERE owner IS NULL AND status = %(status)b AND queue = %(queue)b AND {filters} ORDER BY turn, run_id"
ADDRESSED = """
    SELECT {fields} FROM (SELECT DISTINCT run_id FROM letters WHERE run_id > %(after)b) AS addressed JOIN runs USING (run_id)
    WHERE owner IS NULL AND {filters} ORDER BY run_id
"""
PAGE = " LIMIT %(limit)b OFFSET %(offset)b"


def listed(connection: Connection, query: Query) -> list[Head]:
    """The heads that match, in the order that the query asks for."""
    sql, values = statement(query)
    return [head_of(row) for row in connection.cursor(binary=True).execute(sql, values)]


def statement(query: Query) -> tuple[bytes, dict[str, Any]]:
    """The SQL of a query, and what it is given."""
    filters = " AND ".join(_filters(query)) or "true"
    resting = filters.replace("updated_us", "rested_us")  # the same while nobody owns the run, and in the index
    sql = _order(query).format(fields=FIELDS, filters=filters, resting=resting, statuses=GIVEN if query.statuses else STATUSES)
    return (sql + PAGE).encode(), _values(query)


def _order(query: Query) -> str:
    if query.due_by_us is not None:
        return DUE
    if query.queue is not None:
        return IN_TURN
    if query.addressed:
        return ADDRESSED
    return LISTED if query.after is None else BEHIND


def _filters(query: Query) -> list[str]:
    in_turn = _order(query) is IN_TURN
    asked = {
        "runs.status = ANY(%(statuses)b)": bool(query.statuses) and not in_turn,
        "agent = %(agent)b": query.agent is not None,
        "hashtextextended(agent, 0) = hashtextextended(%(agent)b, 0)": query.agent is not None and in_turn,
        "owner = %(owner)b": query.owner is not None,
        "updated_us < %(idle)b": query.idle_before_us is not None,
        "tagged @> %(tags)b": bool(query.tags),
        "queue = %(queue)b": query.queue is not None and not in_turn,
        "(wake_us, run_id) > (%(place)b, %(behind)b)": query.behind is not None and not in_turn,
        "(turn, run_id) > (%(place)b, %(behind)b)": query.behind is not None and in_turn,
        "lane <> ALL(%(lanes)b)": bool(query.not_lanes),
    }
    return [sql for sql, is_asked in asked.items() if is_asked]


def _values(query: Query) -> dict[str, Any]:
    place, behind = query.behind or ("", "")
    return {
        "statuses": [sql_text(status) for status in query.statuses],
        "agent": sql_text(query.agent or ""),
        "owner": sql_text(query.owner or ""),
        "idle": query.idle_before_us,
        "tags": [tag(*pair) for pair in query.tags],
        "after": sql_text(query.after or ""),
        "due": query.due_by_us,
        "status": sql_text(query.statuses[0] if query.statuses else ""),
        "queue": sql_text(query.queue or ""),
        "place": sql_text(place) if isinstance(place, str) else place,
        "behind": sql_text(behind),
        "lanes": [sql_text(lane) for lane in query.not_lanes],
        "limit": query.limit,
        "offset": query.offset,
    }
