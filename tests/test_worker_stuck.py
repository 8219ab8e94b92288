"""A worker ends when it is told to, whatever the code of a run or the database does, and tells when its event loop is stuck."""

from __future__ import annotations

import asyncio
import http.client
import logging
import multiprocessing
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
import starting
from agents_for_tests.sites import eventually
from chaos_fleet import command, surroundings
from holdfast import Holdfast
from holdfast.cli import health, signals
from holdfast.cli.health import Health, Pulse
from holdfast.cli.signals import Signals
from holdfast.fleet import worker as worker_room
from holdfast.fleet.worker import Worker
from parting_proxy import HOST, proxy

BOUND_S = 20.0

APP = """
import asyncio, atexit, sys, time
import holdfast as hf
from holdfast.fleet import worker

worker.BREAK_S = 0.2   # so that the test need not wait for long

@hf.step
async def look(what: str) -> str:
    print("inside", flush=True)
    time.sleep(300)     # somebody forgot to_thread
    return what

@hf.agent
async def blocks(what: str) -> str:
    return await look(what)

@hf.step(timeout="0.1s")
async def waits(what: str) -> str:
    await asyncio.to_thread(time.sleep, 300)
    return what

@hf.agent
async def gives_up(what: str) -> str:
    try:
        return await waits(what)
    except TimeoutError:
        return "too late"

atexit.register(print, "the handlers of its exit were called", flush=True)

async def leaves() -> None:
    sys.exit("no such customer")

@hf.agent
async def quits(what: str) -> str:
    await asyncio.gather(asyncio.create_task(leaves()))
    return what

@hf.agent
async def good(what: str) -> str:
    return what
"""


@hf.agent
async def blocks(what: str) -> str:
    return what


@hf.agent
async def gives_up(what: str) -> str:
    return what


@hf.agent
async def quits(what: str) -> str:
    return what


@hf.agent
async def good(what: str) -> str:
    return what


@contextmanager
def worker(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "app.py").write_text(APP)
    said = command(folder / "app.py", str(folder / "runs.db"), *words)
    process = starting.Popen(said, env=surroundings(0), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def signalled(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal, and wait until it is heard."""
    assert process.stderr is not None
    process.send_signal(number)
    while "stopping" not in (line := process.stderr.readline()):
        assert line, "it has ended"


def test_a_second_signal_ends_a_worker_whose_event_loop_is_blocked(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "runs.db") as app, worker(tmp_path) as process:
        app.submit(blocks, "it", run_id="run")
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        signalled(process, signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND_S) == 130


def test_who_takes_a_run_over_says_from_whom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Holdfast(tmp_path / "runs.db") as app, worker(tmp_path) as process, caplog.at_level(logging.INFO, "holdfast"):
        app.submit(blocks, "it", run_id="run")
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        owner = app.show("run").owner
        process.kill()
        process.wait()
        assert caplog.messages == []
        with suppress(hf.HoldfastError):  # its code is another one here
            app.run(blocks, "it", run_id="run")
        assert caplog.messages[0] == f"took run run over from {owner}, which is dead"


def test_one_signal_ends_it_a_few_seconds_after_the_grace_time_and_it_says_which_run_was_broken_off(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "runs.db") as app, worker(tmp_path, "--grace", "0.1s") as process:
        app.submit(blocks, "it", run_id="run")
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        process.terminate()
        _, errors = process.communicate(timeout=BOUND_S)
        assert process.returncode == 3
        assert "run run: step 1 (look) was broken off" in errors


def test_a_thread_that_a_step_has_given_up_does_not_keep_a_worker_from_stopping_well(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "runs.db") as app, worker(tmp_path, "--grace", "60s") as process:
        app.submit(gives_up, "it", run_id="run")
        eventually(lambda: app.show("run").status == "done")
        process.terminate()
        _, errors = process.communicate(timeout=BOUND_S)
        assert process.returncode == 0
        assert "did not let it" not in errors
        assert app.workers() == []


def test_a_worker_that_stops_well_calls_the_handlers_of_its_exit(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "runs.db") as app, worker(tmp_path) as process:
        app.submit(good, "it", run_id="run")
        eventually(lambda: app.show("run").status == "done")
        process.terminate()
        said, _ = process.communicate(timeout=BOUND_S)
        assert (process.returncode, said) == (0, "the handlers of its exit were called\n")


def test_a_task_of_its_own_that_raises_system_exit_ends_neither_the_worker_nor_other_runs(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "runs.db") as app, worker(tmp_path) as process:
        app.submit(quits, "it", run_id="quits")
        eventually(lambda: app.show("quits").status == "failed")
        app.submit(good, "it", run_id="good")
        eventually(lambda: app.show("good").status == "done")
        assert app.show("quits").note == "SystemExit: no such customer"
        process.terminate()
        assert process.wait(BOUND_S) == 0


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def test_a_worker_stops_in_time_though_the_database_does_not_answer(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_room, "BREAK_S", 0.2)

    async def main(app: Holdfast) -> float:
        opened = Worker(app.engine, [good], concurrency=1, grace_s=0.2)
        working = asyncio.create_task(opened.work())
        app.submit(good, "it", run_id="run")
        while app.show("run").status != "done":  # noqa: ASYNC110 (the store tells)
            await asyncio.sleep(0.01)
        between.part()
        await asyncio.sleep(2 * opened._look_s)  # it looks now, and hangs
        began_s = time.monotonic()
        opened.stop()
        await working
        took_s = time.monotonic() - began_s
        between.join()
        return took_s

    place = f"postgres?schema=t_{secrets.token_hex(6)}"
    with proxy(port_of(postgres_url)) as between, Holdfast(f"postgresql://postgres@{HOST}:{between.port}/{place}") as app:
        assert asyncio.run(main(app)) < 3.0


# --- what it tells ------------------------------------------------------------------------------------------------


def page(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=BOUND_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()
    finally:
        connection.close()


def until_refused(port: int, path: str) -> str:
    until_s, answer = time.monotonic() + BOUND_S, (200, "")
    while answer[0] != 503:
        assert time.monotonic() < until_s
        answer = page(port, path)
    return answer[1]


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_a_loop_that_is_blocked_for_long_is_told_and_one_that_turns_is_not(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TICK_S", 0.01)
    monkeypatch.setattr(health, "STUCK_S", 0.5)

    async def main() -> None:
        with Health(0, str, HOST, stuck=Pulse(asyncio.get_running_loop()).stuck) as opened:
            found: list[str] = []
            asking = threading.Thread(target=lambda: found.append(until_refused(opened.port, path)))
            assert (await asyncio.to_thread(page, opened.port, path)) == (200, "ok")
            asking.start()
            asking.join()  # on the loop itself, which does not turn meanwhile
            assert found[0].startswith("the code of a run has blocked the event loop for ")
            await asyncio.sleep(0.05)
            assert (await asyncio.to_thread(page, opened.port, path)) == (200, "ok")

    asyncio.run(main())


# --- how signals are heard ----------------------------------------------------------------------------------------


def test_signals_are_heard_while_they_are_listened_to_and_handlers_are_put_back() -> None:
    before, heard = signal.getsignal(signal.SIGTERM), threading.Semaphore(0)
    with Signals(heard.release):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert heard.acquire(timeout=BOUND_S)
        assert heard.acquire(timeout=BOUND_S)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("same_s", [BOUND_S * 10, 0.0], ids=["at once", "later"])
def test_the_same_signal_again_at_once_is_meant_once_and_another_one_is_heard(same_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "SAME_S", same_s)
    heard, heard_again = threading.Semaphore(0), same_s == 0
    with Signals(heard.release):
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.acquire(timeout=BOUND_S)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.acquire(timeout=BOUND_S if heard_again else 0.2) == heard_again
        os.kill(os.getpid(), signal.SIGINT)
        assert heard.acquire(timeout=BOUND_S)


def begins(begun: Any) -> None:
    begun.set()
    time.sleep(BOUND_S * 3)


def test_a_process_that_a_step_forks_is_ended_by_its_own_signal_and_does_not_tell_the_worker() -> None:
    heard, forking = threading.Semaphore(0), multiprocessing.get_context("fork")
    with Signals(heard.release):
        begun = forking.Event()
        forked = forking.Process(target=begins, args=(begun,))
        forked.start()
        assert begun.wait(BOUND_S)
        forked.terminate()
        forked.join(BOUND_S)
        assert forked.exitcode == -signal.SIGTERM
        assert not heard.acquire(timeout=0.2)
