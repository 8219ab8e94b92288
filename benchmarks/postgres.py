"""`python -m benchmarks.postgres [URL]`: what a step costs on PostgreSQL, as a multiple of one raw insert through psycopg.

Without a URL it starts a server of its own, with `fsync` on, in a temporary folder.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import statistics
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter

import psycopg

import holdfast as hf
from benchmarks import agents
from benchmarks.table import Line, as_table, ratio_line, time_line
from holdfast.store import Append, Head, Query, Row
from holdfast.stores.postgres import PostgresStore

ROUNDS, STEPS, RUNS, STEPS_OF_MANY, LISTED, BATCH = 9, 300, 100, 20, 100_000, 500
TINY = (2, 5, 3, 2, 20, 10)
_numbers = itertools.count(1)


def floor(connection: psycopg.Connection[tuple[object, ...]], count: int) -> float:
    """Seconds per raw insert of 1 KB, each committed by itself."""
    connection.execute("CREATE TABLE IF NOT EXISTS holdfast_floor (place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value bytea)")
    value = b"x" * agents.SIZE
    for _ in range(10):
        connection.execute("INSERT INTO holdfast_floor (value) VALUES (%s)", (value,))
    began = perf_counter()
    for _ in range(count):
        connection.execute("INSERT INTO holdfast_floor (value) VALUES (%s)", (value,))
    return (perf_counter() - began) / count


def many_runs(app: hf.Holdfast, runs: int, count: int) -> float:
    """Seconds per step of many runs in one event loop, from the first start to the last result."""

    async def together() -> float:
        began = perf_counter()
        handles = [await app.start(agents.one_of_many, index * count, count) for index in range(runs)]
        await asyncio.gather(*(handle.result() for handle in handles))
        return perf_counter() - began

    return asyncio.run(together()) / (runs * count)


@hf.transaction
def write(number: int) -> int:
    hf.connection().execute("INSERT INTO holdfast_floor (value) VALUES (%s)", (b"x" * agents.SIZE,))
    return number


@hf.agent
def writing(count: int) -> float:
    """Seconds for `count` transactions, one after another."""
    began = perf_counter()
    for number in range(count):
        write(number)
    return perf_counter() - began


def fill(store: PostgresStore, count: int, batch: int) -> None:
    """So many runs at rest, of three statuses."""
    digest = b"\0" * 32
    for first in range(0, count, batch):
        heads = [
            Head(f"rest{n}", "a", ("done", "failed", "waiting")[n % 3], None, 1, 1, digest, None, n, n * 7 % count, "{}", 0.0, "")
            for n in range(first, min(count, first + batch))
        ]
        store.append([Append(head.run_id, 0, 0, [Row(1, 1, 1, "run.started", "", b"{}", None, None, digest)], head) for head in heads])


def listing(store: PostgresStore) -> float:
    """Seconds to list 50 runs of one status, the newest first."""
    began = perf_counter()
    assert store.heads(Query(statuses=["done"], limit=50))
    return perf_counter() - began


def measured(url: str, size: tuple[int, ...]) -> tuple[list[Line], list[float]]:
    """The lines of the table, and the floors; what it made is dropped again."""
    rounds, steps, runs, steps_of_many, listed, batch = size
    schema = f"bench_{secrets.token_hex(4)}"
    where = f"{url}{'&' if '?' in url else '?'}schema={schema}"
    one, blocking, sent, written, many, floors, lists = (list[float]() for _ in range(7))
    with closing(psycopg.connect(url, autocommit=True)) as raw:
        with hf.Holdfast(where) as app:
            app.run(agents.asking, steps)
            for _ in range(rounds):
                before = floor(raw, steps)
                one.append(app.run(agents.asking, steps) / steps)
                blocking.append(app.run(agents.asking_blocking, steps) / steps)
                sent.append(app.run(agents.sending, steps) / steps)
                written.append(app.run(writing, steps) / steps)
                many.append(many_runs(app, runs, steps_of_many))
                floors.append(statistics.mean([before, floor(raw, steps)]))
            assert isinstance(app.store, PostgresStore)
            fill(app.store, listed, batch)
            lists += [listing(app.store) for _ in range(rounds)]
        raw.execute(f"DROP SCHEMA {schema} CASCADE; DROP TABLE holdfast_floor".encode())
    lines = [
        ratio_line("PostgreSQL: async step", one, floors, bar=2.5),
        ratio_line("PostgreSQL: sync step", blocking, floors, bar=2.5),
        ratio_line("PostgreSQL: effect", sent, floors),
        ratio_line("PostgreSQL: transaction with an insert", written, floors),
        ratio_line(f"PostgreSQL: {runs} runs x {steps_of_many} steps", many, floors, bar=0.5),
        time_line(f"PostgreSQL: listing 50 of {listed:,}", lists, unit=" ms", bar=10),
    ]
    return lines, floors


@contextmanager
def somewhere(given: list[str]) -> Iterator[str]:
    """The URL that was given, or that of a server which lives as long as this."""
    if given:
        yield given[0]
        return
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from postgres_server import server

    with server("fsync=on", "max_wal_size=1GB") as started:
        yield started.url().partition("?")[0]


def main(words: list[str]) -> None:
    with somewhere([word for word in words if word != "--tiny"]) as url:
        lines, floors = measured(url, TINY if "--tiny" in words else (ROUNDS, STEPS, RUNS, STEPS_OF_MANY, LISTED, BATCH))
    print(f"PostgreSQL: medians of {len(floors)} rounds, spread = quartiles. The floor is one raw insert of 1 KB with its commit.", "")
    print("\n".join(as_table(lines)))


if __name__ == "__main__":
    main(sys.argv[1:])
