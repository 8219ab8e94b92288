"""Limits that processes share through PostgreSQL: how many runs may have an owner, and meters, by the clock of the database."""

# ruff: noqa: S608 (the fields that can have a ceiling stand in one place)

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.store import Append, Ceiling, Drawn
from holdfast.stores._meters import moved_on
from holdfast.stores._postgres_line import Connection
from holdfast.stores._postgres_text import sql_text

ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast limit ' || current_schema() || ' ' || %b::text, 0))"
OTHERS = {
    field: f"SELECT count(*) FROM runs WHERE owner IS NOT NULL AND {field} = %b AND run_id <> %b" for field in ("queue", "agent", "lane")
}
CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
DRAW = f"""
    INSERT INTO meters AS m VALUES (%(meter)b, {CLOCK} + %(step)b::bigint)
    ON CONFLICT (meter) DO UPDATE SET stands_us = greatest(m.stands_us, {CLOCK}) + %(step)b::bigint
    WHERE %(within)b::bigint IS NULL OR m.stands_us <= {CLOCK} OR m.stands_us + %(step)b::bigint - {CLOCK} <= %(within)b::bigint
    RETURNING stands_us - %(step)b::bigint
"""
"""What `moved_on` says, in one statement: whoever draws waits for the one before, and for nothing else."""
STANDS = f"SELECT stands_us, {CLOCK} FROM meters WHERE meter = %b"

BEGIN = "INSERT INTO meters VALUES (%b, %b) ON CONFLICT (meter) DO UPDATE SET stands_us = meters.stands_us RETURNING stands_us"
ADVANCE = """
    INSERT INTO meters AS m VALUES (%(meter)b, %(to)b) ON CONFLICT (meter) DO UPDATE SET stands_us = %(to)b WHERE m.stands_us < %(to)b
"""


def reached(connection: Connection, batch: Sequence[Append]) -> dict[str, list[Ceiling]]:
    """The ceilings that each append of a batch would exceed; whoever else counts the same waits until this transaction is over."""
    for name in sorted({f"{ceiling.field} {ceiling.value}" for one in batch for ceiling in one.ceilings}):
        connection.execute(ONE_AT_A_TIME, (sql_text(name),))
    full: dict[str, list[Ceiling]] = {}
    let_in: Counter[tuple[str, str]] = Counter()
    for one in batch:
        counted = {ceiling: _others(connection, ceiling, sql_text(one.run_id)) for ceiling in one.ceilings}
        full[one.run_id] = [ceiling for ceiling, others in counted.items() if others + let_in[ceiling[:2]] >= ceiling.most]
        let_in.update(ceiling[:2] for ceiling in one.ceilings if not full[one.run_id])
    return full


def _others(connection: Connection, ceiling: Ceiling, run_id: str) -> int:
    return int(connection.execute(OTHERS[ceiling.field], (sql_text(ceiling.value), run_id)).fetchall()[0][0])


def draw(connection: Connection, meter: str, *, step_us: int, within_us: int | None) -> Drawn:
    """Move a meter onwards, by the clock of the database; where it stays, nothing is written."""
    moved = connection.execute(DRAW, {"meter": meter, "step": step_us, "within": within_us}).fetchall()
    if moved:
        return Drawn(granted=True, at_us=moved[0][0])
    ((stands_us, at_us),) = connection.execute(STANDS, (meter,)).fetchall()
    return moved_on(stands_us, step_us=step_us, within_us=within_us, at_us=at_us)[0]._replace(granted=False)


def stands(connection: Connection, meter: str, at_us: int) -> int:
    """Where a meter stands, which is there from now on if there was none."""
    return int(connection.execute(BEGIN, (meter, at_us)).fetchall()[0][0])


def advance(connection: Connection, meter: str, to_us: int) -> None:
    """Move a meter on to a point in time, unless it stands later."""
    connection.execute(ADVANCE, {"meter": meter, "to": to_us})
