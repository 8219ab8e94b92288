"""`python -m benchmarks.fleet [URL]`: what it takes to claim a run among very many, and what several workers do on one PostgreSQL.

Without a URL it starts a server of its own, with `fsync` on, in a temporary folder. The CPU shares of a server elsewhere are not seen.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psycopg

import holdfast as hf
from benchmarks.fleet_app import gives
from benchmarks.postgres import somewhere
from benchmarks.sharing import TINY as TINY_SHARING
from benchmarks.sharing import Size, cpu_s, family, introduced, new_schema, ranged, rates_and_idlers, server_pid, until, working
from benchmarks.table import Line, as_table, ratio_line, time_line
from holdfast._turns import turn_of
from holdfast.fleet.worker import Worker
from holdfast.records.chain import chain
from holdfast.running.runner import attend_blocking
from holdfast.store import Append, Head, Query, Row

FEW, MANY, MANY_SQLITE, CLAIMS, BATCH = 1_000, 1_000_000, 100_000, 40, 2_000
RUNS, STEPS, FLEETS = 400, 50, (1, 2, 4)
TINY = (10, 40, 40, 3, 4, 3, (2,))
REACHED = 4
"""Runs at a time, where a limit holds all others up."""
_began = list[float]()


@hf.agent
def claimed(number: int) -> int:
    """Nothing: that it was begun is all that is measured."""
    _began.append(perf_counter())
    return number


# --- very many runs in line -----------------------------------------------------------------------------------------

FILL = """
    WITH fresh AS (
        SELECT 'w' || lpad(n::text, 7, '0') AS id, n, %(at_us)s::bigint + n AS at_us FROM generate_series(1, %(count)s - 1) AS n
    ), told AS (
        SELECT id, n, fresh.at_us, convert_to(
            replace(replace(convert_from(j.body, 'UTF8'), 'w0000000', id), '"kept"', '"default"'), 'UTF8'
        ) AS body, j.value, j.args
        FROM fresh, journal j WHERE j.run_id = 'w0000000'
    ), sealed AS (
        SELECT *, sha256(
            decode(repeat('00', 32), 'hex') || convert_to(id, 'UTF8') || '\\x00'::bytea || '1'::bytea || '\\x00'::bytea || '1'::bytea
            || '\\x00'::bytea || convert_to(at_us::text, 'UTF8') || '\\x00'::bytea || 'run.started'::bytea || '\\x00'::bytea
            || '\\x00'::bytea || convert_to(length(body)::text, 'UTF8') || '\\x00'::bytea || '-1'::bytea || '\\x00'::bytea || body
        ) AS digest FROM told
    ), known AS (
        INSERT INTO ids SELECT id FROM sealed
    ), noted AS (
        INSERT INTO journal SELECT id, 1, 1, at_us, 'run.started', '', body, value, args, digest FROM sealed
    )
    INSERT INTO runs (
        run_id, agent, status, owner, epoch, seq, digest, wake_us, created_us, updated_us, tags, usd, note, queue, turn, lane, tagged
    )
    SELECT id, r.agent, r.status, r.owner, 1, 1, s.digest, r.wake_us, s.at_us, s.at_us, r.tags, r.usd, r.note, 'default',
        left(r.turn, 6) || lpad(s.at_us::text, 17, '0'), r.lane, r.tagged
    FROM sealed s, runs r WHERE r.run_id = 'w0000000'
"""


def first_of(app: hf.Holdfast, agent: Callable[[int], Any] = claimed, argument: int = 1, queue: str = "default") -> tuple[Head, Row]:
    """The run that all others are made after; in the queue "kept" nobody takes it."""
    app.submit(agent, argument, run_id="w0000000", queue=queue)
    found = app.store.load("w0000000")
    assert found is not None
    return found[0], found[1][0]


def multiply(url: str, schema: str, head: Head, count: int) -> None:
    """So many runs in line, made by the server itself after this one."""
    with closing(psycopg.connect(url, autocommit=True)) as raw:
        raw.execute(f"SET search_path = {schema}".encode())
        raw.execute(FILL.encode(), {"count": count, "at_us": head.created_us})


def fill_postgres(app: hf.Holdfast, url: str, schema: str, count: int) -> None:
    """So many runs in line, and a server that has come to rest."""
    multiply(url, schema, first_of(app)[0], count)
    with closing(psycopg.connect(url, autocommit=True)) as raw:
        raw.execute(f"SET search_path = {schema}".encode())
        for table in ("runs", "journal", "ids"):
            raw.execute(f"VACUUM ANALYZE {table}".encode())  # as it is some time later: not while the server still digests all that
        raw.execute(b"CHECKPOINT")


def fill_sqlite(app: hf.Holdfast, count: int) -> None:
    """The same through the store, many at a time."""
    made = _made(*first_of(app), count)
    while batch := [Append(head.run_id, 0, 0, [row], head) for head, row in itertools.islice(made, BATCH)]:
        app.store.append(batch)


def _made(head: Head, row: Row, count: int) -> Iterator[tuple[Head, Row]]:
    for number in range(1, count):
        run_id, at_us = f"w{number:07d}", head.created_us + number
        fresh = row._replace(at_us=at_us, body=row.body.replace(b"w0000000", run_id.encode()))
        fresh = fresh._replace(digest=chain(b"\0" * 32, run_id, fresh))
        moved = head._replace(run_id=run_id, digest=fresh.digest, created_us=at_us, updated_us=at_us, turn=turn_of(0, at_us))
        yield moved, fresh


def claiming(app: hf.Holdfast, times: int) -> list[float]:
    """Seconds from a worker's look for a run until that run's code begins, one after the other."""
    found: list[float] = []

    async def made() -> Worker:
        return Worker(app.engine, [claimed], concurrency=1)

    worker = asyncio.run(made())
    for _ in range(times):
        _began.clear()
        looked = perf_counter()
        (order,) = worker._orders(1)  # its own look, without the rest between two
        attend_blocking(app.engine, order)
        found.append(_began[0] - looked)
    return found[3:] or found


# --- several workers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pace:
    """What so many workers did on one PostgreSQL; shares are of one core."""

    workers: int
    runs_per_s: float
    steps_per_s: float
    worker_share: float
    server_share: float | None


def paced(url: str, schema: str, count: int, runs: int, steps: int, *, limit: str = "") -> Pace:
    """Leave runs to so many workers that wait for them, and take the time until the last has ended."""
    where = f"{url}{'&' if '?' in url else '?'}schema={schema}"
    with hf.Holdfast(where) as app:
        head, _ = first_of(app, gives, steps, "kept")
        with working(where, count, FLEET_LIMIT=limit) as pids:
            postmaster = server_pid(url)
            introduced(app, count)
            before = cpu_s(pids), cpu_s(family(postmaster)) if postmaster else 0.0, perf_counter()
            multiply(url, schema, head, runs + 1)
            until(lambda: len(app.store.heads(Query(statuses=["queued", "running"], limit=2))) == 1)
            took_s = perf_counter() - before[2]
            shares = (cpu_s(pids) - before[0]) / took_s, (cpu_s(family(postmaster)) - before[1]) / took_s if postmaster else None
    return Pace(count, runs / took_s, runs * steps / took_s, shares[0], shares[1])


def limited(url: str, schemas: list[str], size: Size) -> list[str]:
    """What two workers take that ends at once, without a limit, under one that is never reached, and under one that is; a line each."""
    cases = {"without a limit": "", "under a limit that is never reached": "100000", f"under a limit of {REACHED}": str(REACHED)}
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(size.rounds):
        for name, most in cases.items():
            found[name].append(paced(url, new_schema(schemas), 2, size.runs, 0, limit=most).runs_per_s)
    return [f"Runs that end at once, taken by 2 workers {name}: {ranged(values)}" for name, values in found.items()]


# --- the table ------------------------------------------------------------------------------------------------------


def measured(url: str, size: tuple[int, int, int, int, int, int, Sequence[int]]) -> tuple[list[Line], list[Pace]]:
    few, many, many_sqlite, claims, runs, steps, fleets = size
    latencies: dict[str, list[float]] = {}
    with dropped(url) as schemas, tempfile.TemporaryDirectory() as folder:
        for count in (few, many):
            new_schema(schemas)
            with hf.Holdfast(f"{url}{'&' if '?' in url else '?'}schema={schemas[-1]}") as app:
                fill_postgres(app, url, schemas[-1], count)
                latencies[f"PostgreSQL {count}"] = claiming(app, claims)
        for count in (few, many_sqlite):
            path = Path(folder) / f"{count}.db"
            with hf.Holdfast(path) as app:
                fill_sqlite(app, count)
                latencies[f"SQLite {count}"] = claiming(app, claims)
        paces = [paced(url, new_schema(schemas), count, runs, steps) for count in fleets]
    lines = [
        ratio_line(f"{name}: a claim among {count:,}", latencies[f"{name} {count}"], _median(latencies[f"{name} {few}"], claims), bar=3.0)
        for name, count in (("PostgreSQL", many), ("SQLite", many_sqlite))
    ]
    lines += [time_line(f"{name}: a claim among {few:,}", latencies[f"{name} {few}"], unit=" ms") for name in ("PostgreSQL", "SQLite")]
    return lines, paces


def _median(values: Sequence[float], times: int) -> list[float]:
    return [statistics.median(values)] * len(range(times)[3:] or range(times))


@contextmanager
def dropped(url: str) -> Iterator[list[str]]:
    """Schemas that go in the end."""
    schemas: list[str] = []
    try:
        yield schemas
    finally:
        with closing(psycopg.connect(url, autocommit=True)) as raw:
            for schema in schemas:
                raw.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


def main(words: list[str]) -> None:
    tiny = "--tiny" in words
    with somewhere([word for word in words if word != "--tiny"]) as url:
        lines, paces = measured(url, TINY if tiny else (FEW, MANY, MANY_SQLITE, CLAIMS, RUNS, STEPS, FLEETS))
        size = TINY_SHARING if tiny else Size()
        with dropped(url) as schemas:
            shared = [*limited(url, schemas, size), *rates_and_idlers(url, schemas, size)]
    print("A claim: from a worker's look until the code of the run begins; the floor is the same among few runs.", "")
    print("\n".join(as_table(lines)), "")
    print(f"Workers on one PostgreSQL, {os.cpu_count()} cores for all of it; shares are of one core.")
    for pace in paces:
        server = "" if pace.server_share is None else f", PostgreSQL {pace.server_share:.0%}"
        per_step = f", {pace.worker_share / pace.steps_per_s * 1e3:.2f} ms of a worker's CPU per step"
        per_step += "" if pace.server_share is None else f", {pace.server_share / pace.steps_per_s * 1e3:.2f} ms of the server's"
        who = f"{pace.workers} {'worker' if pace.workers == 1 else 'workers'}"
        print(f"  {who}: {pace.steps_per_s:,.0f} steps per second, workers {pace.worker_share:.0%}{server}{per_step}")
    print("", "What sharing costs; medians of interleaved rounds, with the least and the most.", *shared, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
