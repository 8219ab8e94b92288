"""`holdfast worker` as a process: how it stops, what it leaves behind, what it answers, and what it refuses."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast as hf
import starting
from agents_for_tests import fleet_app
from agents_for_tests.fleet_ledger import Ledger, Server
from chaos_fleet import APP, command, surroundings
from holdfast import Holdfast

BOUND_S = 60.0


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def desk(ledger: Ledger) -> Iterator[Server]:
    with Server(ledger) as opened:
        yield opened


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(tmp_path / "runs.db") as opened:
        yield opened


@contextmanager
def worker(folder: Path, desk: Server, *words: str, file: Path = APP) -> Iterator[subprocess.Popen[str]]:
    said, env = command(file, str(folder / "runs.db"), *words), surroundings(desk.port)
    start = subprocess.Popen if "--watch" in words else starting.Popen  # whoever watches starts the interpreter that it was started with
    process = start(said, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(true: Callable[[], object]) -> None:
    until_s = time.monotonic() + BOUND_S
    while not true():
        assert time.monotonic() < until_s, "it did not come to that"
        time.sleep(0.02)


def ended(process: subprocess.Popen[str], within_s: float = BOUND_S) -> tuple[int, str]:
    _, errors = process.communicate(timeout=within_s)
    return process.returncode, errors


# --- stopping -------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_told_to_stop_lets_the_effect_end_hands_the_run_over_and_ends_with_0(
    app: Holdfast, ledger: Ledger, desk: Server, tmp_path: Path
) -> None:
    app.submit(fleet_app.pays_and_mails, "o-1", run_id="run")
    with worker(tmp_path, desk) as process:
        until(lambda: ledger.inside)
        process.terminate()
        until(lambda: [one.stopping for one in app.workers()] == [True])
        ledger.held.set()
        code, errors = ended(process)
    assert (code, "a new store was made" in errors) == (0, False)
    assert errors.splitlines()[-1].endswith("INFO stopped: every run was let go of, no step was broken off")
    assert app.show("run").status == "queued"
    assert [one["name"] for one in ledger.booked] == ["pay"]
    assert app.workers() == []
    with worker(tmp_path, desk):
        until(lambda: app.show("run").status == "done")
    assert [one["name"] for one in ledger.booked] == ["pay", "mail"]


def test_what_outlasts_the_grace_time_is_broken_off_told_and_ends_it_with_3(
    app: Holdfast, ledger: Ledger, desk: Server, tmp_path: Path
) -> None:
    app.submit(fleet_app.pays, "o-1", run_id="async")
    app.submit(fleet_app.blocks, "o-2", run_id="blocking")
    with worker(tmp_path, desk, "--grace", "0.2s") as process:
        until(lambda: len(ledger.inside) == 2)
        process.terminate()
        code, errors = ended(process)
    assert code == 3
    assert "run async: step 1 (pay) was broken off" in errors
    assert "run blocking: step 1 (block) was broken off" in errors
    assert "INFO stopped: 2 runs broken off in a step, for others to take over: " in errors.splitlines()[-1]
    assert ledger.booked == []
    with worker(tmp_path, desk):
        until(lambda: {item.run_id for item in app.inbox()} == {"async", "blocking"})


def test_a_worker_warns_of_a_store_that_it_made(desk: Server, tmp_path: Path) -> None:
    for made in (True, False):
        with worker(tmp_path, desk) as process:
            assert process.stderr is not None
            first = process.stderr.readline()
            assert (f"WARNING a new store was made, sqlite:///{tmp_path / 'runs.db'}" in first) == made
            assert ("INFO working on" in first) != made
            process.terminate()
            assert ended(process)[0] == 0


def test_a_second_signal_ends_it_at_once(app: Holdfast, ledger: Ledger, desk: Server, tmp_path: Path) -> None:
    app.submit(fleet_app.pays, "o-1", run_id="run")
    with worker(tmp_path, desk, "--grace", "10m") as process:
        until(lambda: ledger.inside)
        process.terminate()
        until(lambda: [one.stopping for one in app.workers()] == [True])
        until(lambda: _told_again(process))  # at first that is taken for the same signal
        assert ended(process, within_s=10)[0] == 130
    assert [one.life for one in app.workers()] == ["dead"]


def _told_again(process: subprocess.Popen[str]) -> bool:
    process.terminate()
    return process.poll() is not None


# --- a run that kills -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_s", [0.0, 0.4], ids=["at once", "once its step was seen to begin"])
def test_a_run_that_kills_its_workers_is_set_aside_with_the_evidence(
    app: Holdfast, ledger: Ledger, desk: Server, tmp_path: Path, after_s: float
) -> None:
    app.submit(fleet_app.kills, "o-1", after_s, run_id="run")
    died = 0
    while app.show("run").status != "blocked":
        assert died < 4
        with worker(tmp_path, desk) as process:
            until(lambda process=process: process.poll() is not None or app.show("run").status == "blocked")  # type: ignore[misc]
            died += process.poll() == -signal.SIGKILL
    assert died == 3
    assert app.show("run").note.startswith("DeadlyRun: 3 processes that executed it died, and it did not get on meanwhile; the last were ")
    begun = "The last to begin, without an outcome: step 2." if after_s else "No step was seen to begin behind step 1 (mail)"
    assert begun in app.show("run").note
    assert [item.kind for item in app.inbox()] == ["blocked"]
    assert len(ledger.booked) == 1
    app.resume("run", by="ann")
    assert app.show("run").status == "queued"


# --- being watched --------------------------------------------------------------------------------------------------


def page(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()
    except ConnectionRefusedError:
        return 0, ""
    finally:
        connection.close()


def test_its_health_can_be_asked_and_a_worker_that_stops_is_not_ready(
    app: Holdfast, ledger: Ledger, desk: Server, tmp_path: Path
) -> None:
    app.submit(fleet_app.pays, "o-1", run_id="run")
    port = free_port()
    with worker(tmp_path, desk, "--health", str(port)) as process:
        until(lambda: ledger.inside)
        assert page(port, "/health") == (200, "ok")
        assert page(port, "/ready") == (200, "ok")
        assert page(port, "/else")[0] == 404
        process.terminate()
        until(lambda: page(port, "/ready") == (503, "it is stopping"))
        assert page(port, "/health") == (200, "ok")


def free_port() -> int:
    with Server(Ledger()) as taken:
        return taken.port


WATCHED = """
import holdfast as hf
@hf.agent
async def told() -> str:
    return {answer!r}
"""


def test_a_watching_worker_starts_anew_when_its_file_changes_and_ends_with_its_parent(app: Holdfast, desk: Server, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    file = tmp_path / "app" / "watched.py"
    file.write_text(WATCHED.format(answer="old"))
    told = hf.agent(name="told")(watched_told)
    with worker(tmp_path, desk, "--watch", file=file) as process:
        app.submit(told, run_id="before")
        until(lambda: app.show("before").status == "done")
        file.write_text(WATCHED.format(answer="new and longer"))
        os.utime(file, (1, 1))
        until(lambda: [one.pid for one in app.workers()] and app.show("before").status == "done" and _is_new(app, told))
        process.terminate()
        assert ended(process)[0] == 0
    until(lambda: app.workers() == [])


async def watched_told() -> str:
    return ""


_asked = iter(range(1000))


def _is_new(app: Holdfast, told: Callable[[], object]) -> bool:
    """Whether a run that is left to whoever works now gets the new answer."""
    run_id = f"after-{next(_asked)}"
    handle = app.submit(told, run_id=run_id)
    return bool(handle.wait(timeout=BOUND_S) == "new and longer")


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_of_that_name", "cannot be loaded: ModuleNotFoundError"),
        ("x = (", "cannot be loaded: SyntaxError"),
        ("import holdfast as hf\n@hf.agent\ndef a(): ...\nb = hf.agent(name='a')(lambda: 1)", "two agents are named 'a'"),
        ("x = 1", "a worker needs the agents that it is to execute"),
        ("import holdfast as hf\n@hf.agent\ndef a(): ...\nL = hf.Limit(queue='q', running=0)", "a whole number from 1 on"),
        ("import holdfast as hf\n@hf.agent\ndef a(): ...\nS = hf.Schedule(a, cron='0 0 30 2 *')", "by which nothing would ever run"),
    ],
    ids=["an import that fails", "no Python", "two agents of one name", "no agent", "a limit of zero", "a schedule that never fires"],
)
def test_an_app_file_that_cannot_work_is_refused_and_no_run_is_touched(app: Holdfast, tmp_path: Path, code: str, words: str) -> None:
    (tmp_path / "bad.py").write_text(code)
    app.submit(fleet_app.pays, "o-1", run_id="run")
    said = command(tmp_path / "bad.py", str(tmp_path / "runs.db"))
    done = starting.run(said, env=surroundings(1), text=True, timeout=BOUND_S)
    assert done.returncode == 1
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert app.show("run").status == "queued"


def test_a_run_whose_agent_no_worker_has_stays_in_line_and_those_who_look_are_told(
    app: Holdfast, ledger: Ledger, desk: Server, tmp_path: Path
) -> None:
    @hf.agent
    async def unheard_of() -> None: ...

    app.submit(unheard_of, run_id="strange")
    app.submit(fleet_app.pays, "o-1", run_id="known")
    with worker(tmp_path, desk):
        until(lambda: ledger.inside)
        assert app.show("strange").status == "queued"
        shown = holdfast(tmp_path, "show", "strange")
        assert "no worker has agent unheard_of" in shown
        assert "unheard_of" in holdfast(tmp_path, "workers")
        assert "no worker has agent" not in holdfast(tmp_path, "show", "known")


def holdfast(folder: Path, *words: str) -> str:
    said = [sys.executable, "-m", "holdfast", *words, "--store", str(folder / "runs.db")]
    done = starting.run(said, env=surroundings(1), text=True, timeout=BOUND_S)
    done.check_returncode()
    return " ".join(done.stdout.split())


CLIENT = """
import asyncio
import holdfast as hf

class Client:
    def __init__(self):
        self.loop = asyncio.get_running_loop()

async def holdfast_resources():
    return [Client()]

@hf.step
async def call() -> bool:
    return hf.resource(Client).loop is asyncio.get_running_loop()

@hf.agent
async def calls() -> bool:
    return await call()
"""


def test_a_client_that_needs_an_event_loop_is_made_on_that_of_the_worker(app: Holdfast, desk: Server, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(CLIENT)

    @hf.agent
    async def calls() -> bool:
        return False

    handle = app.submit(calls, run_id="run")
    with worker(tmp_path, desk, file=tmp_path / "app.py"):
        assert handle.wait(timeout=BOUND_S) is True


def test_a_port_that_is_taken_is_told(app: Holdfast, desk: Server, tmp_path: Path) -> None:
    del app
    with worker(tmp_path, desk, "--health", str(desk.port)) as process:
        code, errors = ended(process)
    assert code == 1
    assert f"port {desk.port}" in errors
    assert "working on" not in errors
    assert "Traceback" not in errors


def test_a_lease_that_is_no_duration_is_told(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "holdfast", "worker", str(APP), "--lease", "soon", "--store", str(tmp_path / "runs.db")]
    done = starting.run(words, env=surroundings(1), text=True, timeout=BOUND_S)
    assert done.returncode == 2
    assert "--lease" in done.stderr
    assert json.dumps("soon")[1:-1] in done.stderr
