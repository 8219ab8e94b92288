"""Limits that processes share through PostgreSQL: how many runs may have an owner, and meters, by the clock of the database."""

# ruff: noqa: S608 (the fields that can have a ceiling stand in one place)

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.store import INSIDE, Append, Ceiling, Draft, Drawn
from holdfast.stores._meters import MOST_WINDOWS, moved_on, turn_meter
from holdfast.stores._postgres_line import Connection
from holdfast.stores._postgres_text import sql_text

SOON_OVER = "SELECT set_config('idle_in_transaction_session_timeout', '3s', true)"
"""Who has a lock that others wait for, and stops there, loses it: a process that was stopped, or whose machine is gone."""
ONE_AT_A_TIME = f"{SOON_OVER}, pg_advisory_xact_lock(hashtextextended('holdfast limit ' || current_schema() || ' ' || %b::text, 0))"
OTHERS = {
    field: f"SELECT count(*) FROM runs WHERE owner IS NOT NULL AND {field} = %b AND run_id <> %b AND strpos(tags, '{INSIDE}') = 0"
    for field in ("queue", "agent", "lane")
}
CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
TURN = f"""
    INSERT INTO meters AS m VALUES (%(meter)b, {CLOCK} + %(step)b::bigint)
    ON CONFLICT (meter) DO UPDATE SET stands_us = %(step)b::bigint + greatest({CLOCK}, CASE WHEN EXISTS (
        SELECT 1 FROM runs WHERE owner IS NULL AND status = 'queued' AND lane <> '' AND lane = %(lane)b AND queue = %(queue)b
    ) THEN m.stands_us END)
    RETURNING stands_us - %(step)b::bigint
"""
WITHIN = "%(within_us)b::bigint"
DRAW = f"""
    INSERT INTO meters AS m VALUES (%(meter)b, {CLOCK} + %(step_us)b::bigint)
    ON CONFLICT (meter) DO UPDATE SET stands_us = %(step_us)b::bigint + CASE
        WHEN m.stands_us > {CLOCK} + {MOST_WINDOWS} * {WITHIN} THEN {CLOCK} + {WITHIN} ELSE greatest(m.stands_us, {CLOCK}) END
    WHERE m.stands_us <= {CLOCK} + {WITHIN} OR m.stands_us > {CLOCK} + {MOST_WINDOWS} * {WITHIN}
    RETURNING stands_us - {WITHIN}, {CLOCK}
"""
"""What `moved_on` says of one meter, in one statement: when what is drawn may be used, and now; nothing where nothing was drawn."""
STANDS = f"SELECT stands_us - %b::bigint, {CLOCK} FROM meters WHERE meter = %b"
GIVE_BACK = "UPDATE meters SET stands_us = stands_us - %b::bigint WHERE meter = %b AND stands_us = %b::bigint"
LOCKED = f"""
    INSERT INTO meters AS m SELECT meter, 0 FROM unnest(%b::text[]) AS asked (meter) ORDER BY meter
    ON CONFLICT (meter) DO UPDATE SET stands_us = m.stands_us RETURNING meter, stands_us, {CLOCK}
"""
"""Where meters stand; who else draws from them waits until this transaction is over. In one order: no two wait for each other."""
MOVED = """
    UPDATE meters SET stands_us = moved.stands_us FROM unnest(%b::text[], %b::bigint[]) AS moved (meter, stands_us)
    WHERE meters.meter = moved.meter
"""
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


def turn(connection: Connection, queue: str, lane: str, step_us: int) -> int:
    """The place in line of one more run of a lane, by the clock of the database."""
    values = {"meter": turn_meter(queue, lane), "queue": queue, "lane": lane, "step": step_us}
    return int(connection.execute(TURN, values).fetchall()[0][0])


def draw(connection: Connection, drafts: Sequence[Draft]) -> Drawn:
    """Move meters onwards, by the clock of the database; whoever draws waits for the one before, and for nothing else."""
    return _drawn_from_one(connection, drafts[0]) if len(drafts) == 1 else _drawn_from_several(connection, drafts)


def _drawn_from_one(connection: Connection, draft: Draft) -> Drawn:
    drawn = connection.execute(DRAW, draft._asdict()).fetchall()
    ((when_us, at_us),) = drawn or connection.execute(STANDS, (draft.within_us, draft.meter)).fetchall()
    wait_us = max(when_us - at_us, 0 if drawn else 1)
    return Drawn(at_us + wait_us, wait_us, () if drawn else (draft,))


def _drawn_from_several(connection: Connection, drafts: Sequence[Draft]) -> Drawn:
    names = [draft.meter for draft in drafts]
    with connection.transaction():
        connection.execute(SOON_OVER)
        found = connection.execute(LOCKED, (names,)).fetchall()
        stood = {meter: stands_us for meter, stands_us, _ in found}
        drawn, stand = moved_on([stood[name] for name in names], drafts, max(at_us for *_, at_us in found))
        if len(drawn.left) < len(drafts):
            connection.execute(MOVED, (names, stand))
    return drawn


def stands(connection: Connection, meter: str, at_us: int) -> int:
    """Where a meter stands, which is there from now on if there was none."""
    return int(connection.execute(BEGIN, (meter, at_us)).fetchall()[0][0])


def advance(connection: Connection, meter: str, to_us: int) -> None:
    """Move a meter on to a point in time, unless it stands later."""
    connection.execute(ADVANCE, {"meter": meter, "to": to_us})
