"""What sharing one PostgreSQL costs: a limit that every claim passes, a rate that every step draws from, and workers that idle."""

from __future__ import annotations

import os
import secrets
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import psycopg

import holdfast as hf
from holdfast.store import Append, Ceiling, Draft, Head, Row
from holdfast.stores.postgres import PostgresStore

ROOT = Path(__file__).parent.parent
WORKERS_LIMIT_S = 300.0
TICK = os.sysconf("SC_CLK_TCK")
NEVER_US = 10**15
"""So far ahead a meter may be, and so many runs may execute, that nobody ever waits."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int = 3
    runs: int = 400
    drawing_s: float = 0.7
    drawers: int = 4
    idle: int = 4
    idling_s: float = 12.0


TINY = Size(rounds=1, runs=6, drawing_s=0.1, drawers=2, idle=1, idling_s=1.0)


# --- workers as processes -------------------------------------------------------------------------------------------


@contextmanager
def working(where: str, count: int, **said: str) -> Iterator[list[int]]:
    """So many workers as processes of their own."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    words = [sys.executable, "-m", "holdfast", "worker", str(ROOT / "benchmarks" / "fleet_app.py"), "--store", where, "--concurrency", "50"]
    env = {**os.environ, "PYTHONPATH": paths, **said}
    started = [subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait()


def until(true: Callable[[], object]) -> None:
    until_s = perf_counter() + WORKERS_LIMIT_S
    while not true():
        if perf_counter() > until_s:
            raise SystemExit("the workers did not come to an end")
        threading.Event().wait(0.02)


def introduced(app: hf.Holdfast, count: int) -> None:
    """Wait until so many workers look for runs."""
    until(lambda: len([one for one in app.workers() if one.agents]) == count)


def cpu_s(pids: Sequence[int]) -> float:
    """What these processes have used so far, those of their children that have ended included."""
    used = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used += sum(map(int, fields[11:15])) / TICK
    return used


def fine_cpu_s(pids: Sequence[int]) -> float:
    """The same to the nanosecond, without those that have ended."""
    used = 0.0
    for pid in pids:
        try:
            used += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue
    return used


def family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *map(int, children)]


def server_pid(url: str) -> int | None:
    """The server's first process, where it is on this machine."""
    with closing(psycopg.connect(url)) as raw:
        try:
            (found,) = raw.execute("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)").fetchall()[0]
        except psycopg.Error:
            return None
    return int(found) if Path(f"/proc/{found}").exists() else None


# --- a limit and a rate, at the store -------------------------------------------------------------------------------


def per_s(where: str, count: int, for_s: float, act: Callable[[PostgresStore, int, int], object]) -> float:
    """How often per second so many at a time do something, each with a connection of its own."""
    with ExitStack() as opened:
        stores = [opened.enter_context(closing(PostgresStore(where))) for _ in range(count)]
        for number, store in enumerate(stores):
            act(store, number, 0)
        until_s = perf_counter() + for_s
        times = [0] * count

        def again(number: int) -> None:
            while perf_counter() < until_s:
                times[number] += 1
                act(stores[number], number, times[number])

        threads = [threading.Thread(target=again, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(times) / for_s


def draws(store: PostgresStore, _number: int, _time: int) -> None:
    """Use one of a resource of which there is enough."""
    assert store.draw([Draft("resource calls", 1, NEVER_US)], at_us=0).wait_us == 0


def claims(name: str, ceilings: Sequence[Ceiling]) -> Callable[[PostgresStore, int, int], None]:
    """Take a run from whoever has it: one of its own for each who does so, made at first."""

    def act(store: PostgresStore, number: int, time: int) -> None:
        run_id, before, after = f"{name}-{number}", time, time + 1
        row = Row(after, after, 1, "run.resumed", "", b"{}", None, None, b"")
        head = Head(run_id, "a", "running", "me", after, after, b"", None, 1, 1, "{}", 0.0, "")._replace(queue="one")
        assert store.append([Append(run_id, before, before, [row], head, ceilings=ceilings)]) == [None]

    return act


# --- workers that idle ----------------------------------------------------------------------------------------------


def idling(url: str, where: str, count: int, for_s: float) -> tuple[float, float | None]:
    """Transactions per second and the server's share of a core, for each of so many workers that have nothing to do."""
    with hf.Holdfast(where) as app, working(where, count):
        introduced(app, count)
        threading.Event().wait(1.0)
        postmaster = server_pid(url)
        server = family(postmaster) if postmaster else []
        before = _committed(url), fine_cpu_s(server), perf_counter()
        threading.Event().wait(for_s)
        took_s = perf_counter() - before[2]
        share = (fine_cpu_s(server) - before[1]) / took_s / count if server else None
        return (_committed(url) - before[0]) / took_s / count, share


def _committed(url: str) -> int:
    """Transactions of the server so far; backends tell about once a second."""
    with closing(psycopg.connect(url, autocommit=True)) as raw:
        return int(raw.execute("SELECT sum(xact_commit) FROM pg_stat_database").fetchall()[0][0])


# --- the lines ------------------------------------------------------------------------------------------------------


def new_schema(schemas: list[str]) -> str:
    schemas.append(f"bench_{secrets.token_hex(4)}")
    return schemas[-1]


def ranged(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} per second ({min(values):,.0f} .. {max(values):,.0f})"


def rates_and_idlers(url: str, schemas: list[str], size: Size) -> list[str]:
    """What one limit and one rate carry, and what idling costs, a line each."""
    asks = "&" if "?" in url else "?"
    where = f"{url}{asks}schema={new_schema(schemas)}"
    under: dict[str, Sequence[Ceiling]] = {"without a limit": (), "under one limit": (Ceiling("queue", "one", NEVER_US),)}
    found: dict[str, list[float]] = {}
    for turn in range(size.rounds):
        for count in (1, size.drawers):
            for name, ceilings in under.items():
                act = claims(f"{turn}-{count}-{len(ceilings)}", ceilings)
                found.setdefault(f"Claims at the store, {count} at a time, {name}", []).append(per_s(where, count, size.drawing_s, act))
            found.setdefault(f"Uses of one rate, {count} at a time", []).append(per_s(where, count, size.drawing_s, draws))
    transactions, share = idling(url, f"{url}{asks}schema={new_schema(schemas)}", size.idle, size.idling_s)
    cpu = "" if share is None else f", {share * 1e3:.2f} ms of the server's CPU per second"
    idle = f"A worker that idles, one of {size.idle}: {transactions:.1f} transactions per second{cpu}"
    return [*(f"{what}: {ranged(values)}" for what, values in found.items()), idle]
