"""What the code of one run may do to a worker: nothing. Whatever it raises, wherever, its run stops, is shown, and the others go on."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

import holdfast as hf
from holdfast import Holdfast
from holdfast.fleet import claiming
from holdfast.fleet import worker as worker_room
from holdfast.fleet.worker import Worker
from holdfast.operating import views
from holdfast.running import ending
from holdfast.stores.memory import MemoryStore

BOUND_S = 20


class Own(BaseException):
    """Somebody's own way out."""


RAISED: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit("no such customer"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "Own": lambda: Own("x"),
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
}
entered: Counter[str] = Counter()
mended: set[str] = set()
letting_on = asyncio.Event()


@pytest.fixture(autouse=True)
def anew() -> None:
    global letting_on  # noqa: PLW0603 (the agents of this file wait for it)
    entered.clear()
    mended.clear()
    letting_on = asyncio.Event()


def ends(kind: str) -> str:
    entered[kind] += 1
    if kind in mended:
        return kind
    error = RAISED[kind]()
    raise error


@hf.step
async def ending_step(kind: str) -> str:
    return ends(kind)


@hf.step
def ending_def_step(kind: str) -> str:
    return ends(kind)


@hf.agent
async def of_its_own(kind: str) -> str:
    return ends(kind)


@hf.agent
async def in_a_step(kind: str) -> str:
    return await ending_step(kind)


@hf.agent
async def in_a_branch(kind: str) -> str:
    return (await hf.gather(ending_step(kind), look("beside")))[0]


@hf.agent
async def in_a_race(kind: str) -> str:
    return await hf.first(ending_step(kind))


@hf.agent
async def in_a_child(kind: str) -> str:
    return await of_its_own(kind)


@hf.agent
async def in_a_started_child(kind: str) -> str:
    return str(await (await hf.start(of_its_own, kind)).result())


@hf.agent
def in_a_thread(kind: str) -> str:
    return ends(kind)


@hf.agent
def in_a_def_step(kind: str) -> str:
    return ending_def_step(kind)


@hf.step
async def look(what: str) -> str:
    return what


@hf.step
async def waits_there(what: str) -> str:
    entered[what] += 1
    await letting_on.wait()
    return what


@hf.agent
async def good(what: str) -> str:
    return await look(what)


@hf.agent
async def patient(what: str) -> str:
    await waits_there(what)
    return await look(what)


@hf.agent
async def patient_outside_of_steps(what: str) -> str:
    entered[what] += 1
    await letting_on.wait()
    return await look(what)


WAYS: list[Any] = [of_its_own, in_a_step, in_a_branch, in_a_race, in_a_child, in_a_started_child, in_a_thread, in_a_def_step]
ALL = [*WAYS, good, patient, patient_outside_of_steps]


@asynccontextmanager
async def worker(app: Holdfast, *agents: Callable[..., object], grace_s: float = 5.0) -> AsyncIterator[Worker]:
    """A worker that must be there still when the test is through with it."""
    opened = Worker(app.engine, agents or ALL, concurrency=50, grace_s=grace_s)
    working = asyncio.create_task(opened.work())
    try:
        yield opened
        assert opened.stopping or not working.done()
    finally:
        opened.stop()
        await working


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not true():  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.01)


def standing(app: Holdfast) -> dict[str, str]:
    return {run.run_id: run.status for run in app.runs(limit=1000)}


async def next_looks() -> None:
    await asyncio.sleep(3 * worker_room.POLL_S)


# --- what the code raises -------------------------------------------------------------------------------------------


def test_runs_whose_code_would_end_a_process_fail_once_and_are_shown_and_the_worker_goes_on() -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            runs = {f"{way.name}-{kind}": (way, kind) for way in WAYS for kind in RAISED}
            for run_id, (way, kind) in runs.items():
                app.submit(way, kind, run_id=run_id)
            async with worker(app):
                await until(lambda: all(standing(app)[run_id] == "failed" for run_id in runs))
                app.submit(good, "it", run_id="good")
                await until(lambda: standing(app)["good"] == "done")
                await next_looks()
            assert entered == dict.fromkeys(RAISED, len(WAYS))
            for run_id, (_, kind) in runs.items():
                assert kind in app.show(run_id).note or "cancelled from within" in app.show(run_id).note

    asyncio.run(main())


def test_they_go_on_once_their_code_is_mended_and_somebody_resumes_them() -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            for way in WAYS:
                app.submit(way, "SystemExit", run_id=way.name)
            async with worker(app):
                await until(lambda: all(standing(app)[way.name] == "failed" for way in WAYS))
                mended.add("SystemExit")
                for way in WAYS:
                    app.resume(way.name)
                await until(lambda: set(standing(app).values()) == {"done"})
            assert entered == {"SystemExit": 2 * len(WAYS)}

    asyncio.run(main())


def test_where_such_a_run_were_released_it_would_go_round_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_as_failure", lambda _, ended: ended)
    monkeypatch.setattr(worker_room, "AWAY_S", 0.05)

    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(of_its_own, "Own", run_id="run")
            async with worker(app):
                await until(lambda: entered["Own"] > 3)

    asyncio.run(main())


def test_whoever_runs_it_himself_is_ended_and_the_run_is_released() -> None:
    with Holdfast(MemoryStore()) as app:
        with pytest.raises(SystemExit, match="no such customer"):
            app.run(in_a_thread, "SystemExit", run_id="run")
        assert standing(app) == {"run": "queued"}


def test_a_step_that_a_time_out_of_asyncio_breaks_off_every_time_is_not_tried_without_end() -> None:
    @hf.agent
    async def impatient(what: str) -> str:
        async with asyncio.timeout(0.05):
            return await waits_there(what)

    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(impatient, "it", run_id="run")
            async with worker(app, impatient), worker(app, impatient):
                await until(lambda: standing(app)["run"] == "failed")
                await next_looks()
            assert app.show("run").note.startswith("RunInterrupted")

    asyncio.run(main())
    assert entered["it"] == 1


def test_a_worker_whose_program_cancels_everything_releases_its_runs() -> None:
    async def main(app: Holdfast) -> None:
        working = asyncio.create_task(Worker(app.engine, ALL, concurrency=2, grace_s=0.0).work())
        await until(lambda: entered["it"])
        working.cancel()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    with Holdfast(MemoryStore()) as app:
        app.submit(patient_outside_of_steps, "it", run_id="run")
        asyncio.run(main(app))
        assert standing(app) == {"run": "queued"}


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """As in a program that was started at a terminal: a shell's background job ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_that_meets_the_code_of_a_run_ends_the_program_and_releases_the_run() -> None:
    """Without asyncio.run, which handles Ctrl-C itself: Python raises it wherever its main thread is."""
    with Holdfast(MemoryStore()) as app, closing(asyncio.new_event_loop()) as loop:
        app.submit(of_its_own, "KeyboardInterrupt", run_id="run")
        working = loop.create_task(app.work([of_its_own]))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(working)
        assert standing(app) == {"run": "queued"}
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(working)
        loop.run_until_complete(loop.shutdown_default_executor())
    assert entered == {"KeyboardInterrupt": 1}


# --- arguments that the code does not take --------------------------------------------------------------------------

strict: list[BaseException] = []


@dataclasses.dataclass
class Customer:
    """One that has become pickier than it was."""

    name: str

    def __post_init__(self) -> None:
        if strict:
            raise strict[0]


@hf.agent
async def bill(customer: Customer) -> str:
    return customer.name


@pytest.mark.parametrize("error", [KeyError("region"), RuntimeError("region"), TypeError("region"), SystemExit("region"), Own("region")])
def test_arguments_whose_decoding_raises_anything_block_their_run_alone(error: BaseException) -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(bill, Customer("ann"), run_id="bad")
            strict.append(error)
            app.submit(good, "it", run_id="good")
            async with worker(app, bill, good):
                await until(lambda: standing(app) == {"bad": "blocked", "good": "done"})
            assert f"{type(error).__name__}: " in app.show("bad").note
            assert "region" in app.show("bad").note

    try:
        asyncio.run(main())
    finally:
        strict.clear()


def test_a_run_that_cannot_be_looked_at_is_left_alone_and_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable(engine: object, run_id: str) -> object:
        if run_id == "bad":
            entered["looked"] += 1
            sys.exit("a bug")
        return found(engine, run_id)  # type: ignore[arg-type]

    found = views.loaded
    monkeypatch.setattr(worker_room, "loaded", unreadable)

    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(good, "it", run_id="bad", priority=1)
            app.submit(good, "it", run_id="good")
            async with worker(app):
                await until(lambda: standing(app) == {"bad": "queued", "good": "done"})
                await next_looks()

    with caplog.at_level(logging.WARNING, "holdfast"):
        asyncio.run(main())
    assert entered["looked"] == 1
    assert "run bad cannot go on here: SystemExit: a bug" in caplog.text


def test_a_look_for_runs_that_fails_is_told_of_and_repeated(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*words: object) -> object:
        entered["looks"] += 1
        if entered["looks"] == 1:
            raise KeyError("tags")
        return found(*words)  # type: ignore[arg-type]

    found = claiming.claimable
    monkeypatch.setattr(worker_room, "claimable", broken)
    monkeypatch.setattr(worker_room, "AWAY_S", 0.05)

    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(good, "it", run_id="good")
            async with worker(app):
                await until(lambda: standing(app) == {"good": "done"})

    with caplog.at_level(logging.WARNING, "holdfast"):
        asyncio.run(main())
    assert "KeyError" in caplog.text


# --- a pause that meets a stop --------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", [patient, patient_outside_of_steps], ids=lambda agent: agent.name)
def test_a_run_that_was_paused_is_paused_even_if_its_worker_stops_before_its_step_has_ended(agent: Callable[..., str]) -> None:
    async def main() -> None:
        with Holdfast(MemoryStore()) as app:
            app.submit(agent, "it", run_id="run")
            async with worker(app, grace_s=0.1) as stopping:
                await until(lambda: entered["it"])
                app.pause("run", by="ann", reason="the price is wrong")
                await asyncio.to_thread(app.engine.keeper.take_letters)
                stopping.stop()
            assert app.show("run").status == "paused"
            assert app.show("run").note == "by ann: the price is wrong"

    asyncio.run(main())


let_threads_go = threading.Event()


@hf.agent
async def in_a_thread_of_the_loop(what: str) -> str:
    entered[what] += 1
    await asyncio.to_thread(let_threads_go.wait, BOUND_S)
    return what


def test_runs_that_fill_the_threads_of_the_event_loop_keep_a_worker_neither_from_others_nor_from_its_schedules() -> None:
    async def main(app: Holdfast) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        app.submit(in_a_thread_of_the_loop, "slow", run_id="slow")
        every_second = hf.Schedule(good, "timed", every="1s", catch_up="none")
        opened = Worker(app.engine, [in_a_thread_of_the_loop, good], concurrency=50, schedules=[every_second])
        working = asyncio.create_task(opened.work())
        try:
            await until(lambda: entered["slow"])
            app.submit(good, "quick", run_id="quick")
            await until(lambda: standing(app)["quick"] == "done")
            known = {*standing(app)}
            await until(lambda: {*standing(app)} - known)
            assert standing(app)["slow"] == "running"
        finally:
            let_threads_go.set()
            opened.stop()
            await working

    with Holdfast(MemoryStore()) as app:
        asyncio.run(main(app))


def test_a_cancellation_that_comes_in_the_moment_of_news_is_heard() -> None:
    async def cancelled() -> bool:
        with Holdfast(MemoryStore()) as app:
            worker = Worker(app.engine, ALL, concurrency=1)
            working = asyncio.create_task(worker.work())
            async with asyncio.timeout(BOUND_S):
                while not worker._news._waiters:  # noqa: ASYNC110 (it tells nobody that it rests)
                    await asyncio.sleep(0.001)
            worker._news.set()
            working.cancel()
            await asyncio.wait([working], timeout=BOUND_S / 4)
            heard = working.done()
            working.cancel()
            await asyncio.wait([working])
            return heard

    assert asyncio.run(cancelled())
