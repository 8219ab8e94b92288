"""Which stores carry which part of a fleet, and what a worker refuses: each time a clear word, and no run is lost."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast as hf
from agents_for_tests.sites import StillClock
from holdfast import Holdfast
from holdfast.cli import main
from holdfast.errors import Refusal
from holdfast.fleet.scheduling import Timetable
from holdfast.fleet.worker import Worker
from holdfast.store import Query
from holdfast.stores.memory import MemoryStore
from object_proxy import proxy
from object_server import BUCKET

BOUND_S = 30
RUNS = 5
booked: Counter[str] = Counter()


@hf.step
async def book(order: str) -> str:
    booked[order] += 1
    return order


@hf.agent
async def books(order: str) -> str:
    return await book(order)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command sets up logging for its process, which is this one here."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@contextmanager
def worked(app: Holdfast) -> Iterator[None]:
    """Leave runs to a worker that executes them until all are done."""
    booked.clear()
    for number in range(RUNS):
        app.submit(books, f"o-{number}", run_id=f"run-{number}", priority=number, key=f"k{number % 2}")
    yield
    asyncio.run(_until_done(app))
    assert booked == {f"o-{number}": 1 for number in range(RUNS)}


async def _until_done(app: Holdfast) -> None:
    worker = Worker(app.engine, [books], concurrency=3)
    working = asyncio.create_task(worker.work())
    async with asyncio.timeout(BOUND_S):
        while len(app.store.heads(Query(statuses=["done"], limit=RUNS))) < RUNS:  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.05)
    worker.stop()
    await working


def test_a_worker_executes_what_was_left_to_it_in_files(tmp_path: Path) -> None:
    with Holdfast(f"file://{tmp_path}/runs") as app, worked(app):
        assert {run.status for run in app.runs()} == {"queued"}


def test_a_worker_executes_what_was_left_to_it_in_a_bucket_and_does_not_ask_it_all_the_time(object_endpoint: str, tmp_path: Path) -> None:
    prefix = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]
    with proxy(object_endpoint) as between, Holdfast(f"s3://{BUCKET}/w-{prefix}?endpoint={between.endpoint}") as app:
        with worked(app):
            pass
        asked = asyncio.run(_idled(app, 4.0, between.seen))
    assert asked < 30, "a worker that idles asks the bucket a few times a second at the most"


async def _idled(app: Holdfast, for_s: float, seen: Counter[str]) -> int:
    worker = Worker(app.engine, [books], concurrency=3)
    working = asyncio.create_task(worker.work())
    await asyncio.sleep(1.0)
    before = seen.total()
    await asyncio.sleep(for_s)
    asked = seen.total() - before
    worker.stop()
    await working
    return asked


APP = "import holdfast as hf\n@hf.agent\nasync def books(order: str) -> str: return order\n"


def refused(folder: Path, url: str, capsys: pytest.CaptureFixture[str], file: str = "app.py") -> str:
    code = main(["worker", str(folder / file), "--store", url])
    told = capsys.readouterr().err
    assert code == 1
    assert "Traceback" not in told
    return " ".join(told.split())


def test_a_limit_is_refused_where_the_store_cannot_count_for_all_and_the_runs_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/runs"
    (tmp_path / "app.py").write_text(f"{APP}LIMIT = hf.Limit(agent='books', running=1)\n")
    with Holdfast(url) as app:
        app.submit(books, "o-1", run_id="run")
        told = refused(tmp_path, url, capsys)
        assert "limits= needs a store that counts for all who share it" in told
        assert "nothing was opened. Use SQLite or PostgreSQL, or take the limits away" in told
        assert app.show("run").status == "queued"
        with pytest.raises(Refusal, match="its runs are executed all the same"):
            app.workers()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise RuntimeError('boom')", "cannot be loaded: RuntimeError (line 1): boom; no run was touched"),
        ("import sys\nsys.exit(0)", "cannot be loaded: SystemExit (line 2): 0; no run was touched"),
        ("import beside", "cannot be loaded: SyntaxError (line 1): '(' was never closed (beside.py, line 2); no run was touched"),
        ("x = 1", "app.py defines no agent, and a worker needs the agents that it is to execute; no run was touched. Define one"),
        (f"{APP}R = hf.Limit(resource='r', amount=0)", "amount of Limit(resource='r') is 0"),
        (f"{APP}S = hf.Schedule(books, every='1h')", "app.py: schedule 'books' cannot be run, and nothing was begun: books() missing"),
        (f"{APP}S = hf.Schedule(books, 7, every='1h')", "app.py: schedule 'books' cannot be run, and nothing was begun: argument 'order'"),
        (f"{APP}def holdfast_resources(): raise OSError('no client')", "holdfast_resources() of"),
        (None, "app.py is not a file; no run was touched"),
    ],
    ids=["raises", "exits", "imports what is no Python", "no agent", "a rate of zero", "a schedule without its argument",
         "a schedule with a wrong argument", "resources that fail", "no file"],
)  # fmt: skip
def test_an_app_file_that_is_no_use_is_told_and_the_runs_stay(
    code: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "runs.db")
    (tmp_path / "beside.py").write_text("\nx = (")
    (tmp_path / "app.py").mkdir() if code is None else (tmp_path / "app.py").write_text(code)
    with Holdfast(url) as app:
        app.submit(books, "o-1", run_id="run")
        assert words in refused(tmp_path, url, capsys)
        assert app.show("run").status == "queued"


def test_a_schedule_that_fails_is_told_and_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock = StillClock()
    good, bad = (hf.Schedule(books, name, every="1h", name=name) for name in ("good", "bad"))
    with Holdfast(MemoryStore(), clock=clock) as app:
        table = Timetable(app.engine, [bad, good])
        bad.times = None  # type: ignore[assignment]  # whatever may be wrong with it
        asyncio.run(_kept(table))
        clock.at_us += 3_600_000_000
        asyncio.run(_kept(table))
        assert [run.tags["schedule"] for run in app.runs()] == ["good"]
    assert "schedule bad: its time is not kept now: " in caplog.text


async def _kept(table: Timetable) -> None:
    keeping = asyncio.create_task(table.keep())
    done, _ = await asyncio.wait([keeping], timeout=0.5)
    assert not done
    keeping.cancel()
