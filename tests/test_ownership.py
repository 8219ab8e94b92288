"""One writer per run: between processes, across pid namespaces, after SIGKILL and SIGSTOP; real processes, and a ledger that counts."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
import starting
from agents_for_tests.owner import working
from crashing import FailingStore, dies_at
from holdfast.errors import LeaseLost, StoreError
from holdfast.running import runner
from holdfast.running.lease import Keeper
from holdfast.store import Query
from holdfast.stores.sqlite import SqliteStore

HERE = Path(__file__).parent
PATHS = {"PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}
ENV = {**os.environ, **PATHS}
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def can_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


class Owner:
    """A process that runs the agent of `agents_for_tests.owner`."""

    def __init__(self, folder: Path, *words: str, lease_s: float = 15, inside: tuple[str, ...] = (), store: str = "") -> None:
        command = [
            *inside,
            sys.executable,
            "-m",
            "agents_for_tests.owner",
            store or str(folder / "runs.db"),
            str(folder / "ledger"),
            str(lease_s),
            *words,
        ]
        start = subprocess.Popen if inside else starting.Popen
        self.process = start(command, env={**os.environ, **PATHS}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def speaks(self, within_s: float) -> bool:
        """Whether it says something before that time is over."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], within_s)[0])

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """Kill it if it still lives, and take it away."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(20)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[..., Owner]]:
    """Starts owners, and ends those that still live after the test."""
    owners: list[Owner] = []

    def start(*words: str, **options: Any) -> Owner:
        owners.append(Owner(tmp_path, *words, **options))
        return owners[-1]

    yield start
    for one in owners:
        one.end()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def opened(tmp_path: Path, lease_s: float = 15) -> hf.Holdfast:
    return hf.Holdfast(tmp_path / "runs.db", lease=lease_s)


def charged(ledger: Path) -> list[str]:
    return ledger.read_text().split() if ledger.exists() else []


def held(started: Owner, run_id: str) -> Owner:
    """The owner, once it holds at its place in the run."""
    assert started.hear() == "ready"
    started.say(run_id)
    assert started.hear() == "holding"
    return started


# --- races ----------------------------------------------------------------------------------------------------------


def race(owners: list[Owner], run_ids: list[str], ledger: Path) -> None:
    """All owners are told the same run id at the same moment, again and again: one result, one charge."""
    for one in owners:
        assert one.hear() == "ready"
    for run_id in run_ids:
        for one in owners:
            one.say(run_id)
        results = {one.hear() for one in owners}
        assert len(results) == 1, f"{run_id}: {results}"
        assert next(iter(results)).startswith("["), f"{run_id}: {results}"
    assert sorted(charged(ledger)) == sorted(run_ids)


def test_two_processes_on_the_same_run_at_the_same_moment_give_one_result(owner: Callable[..., Owner], ledger: Path) -> None:
    race([owner(), owner()], [f"r{n}" for n in range(50)], ledger)


def test_two_fresh_processes_on_a_store_that_does_not_exist_yet(tmp_path: Path) -> None:
    for n in range(5):
        folder = tmp_path / str(n)
        folder.mkdir()
        pair = [Owner(folder), Owner(folder)]
        try:
            for one in pair:
                one.say("r")
            answers = [(one.hear(), one.hear()) for one in pair]
        finally:
            for one in pair:
                one.end()
        assert answers[0] == answers[1]
        assert answers[0][1].startswith("[")
        assert charged(folder / "ledger") == ["r"]


@pytest.mark.skipif(not can_unshare(), reason="pid namespaces need root")
def test_two_pid_namespaces_on_one_folder(owner: Callable[..., Owner], ledger: Path) -> None:
    race([owner("hold=lingering", inside=NAMESPACE) for _ in range(2)], [f"r{n}" for n in range(20)], ledger)


@pytest.mark.skipif(not can_unshare(), reason="pid namespaces need root")
def test_the_race_between_pid_namespaces_finds_out_who_takes_the_living_for_dead(owner: Callable[..., Owner], ledger: Path) -> None:
    """The negative control."""
    with pytest.raises(AssertionError, match=r"r\d+: "):
        race([owner("hold=lingering", "credulous", inside=NAMESPACE) for _ in range(2)], [f"r{n}" for n in range(20)], ledger)


def overlapping(owner: Callable[..., Owner], ledger: Path, *words: str) -> None:
    """The second begins while the first lives, in a pid namespace of its own, inside its effect and before its request."""
    first = held(owner("verify", "hold=request", inside=NAMESPACE), "r")
    second = owner("verify", *words, inside=NAMESPACE)
    assert second.hear() == "ready"
    second.say("r")
    second.speaks(within_s=1.5)
    first.say("go on")
    results = {first.hear(), second.hear()}
    assert charged(ledger) == ["r"]
    assert len(results) == 1
    assert results.pop().startswith("[")


@pytest.mark.skipif(not can_unshare(), reason="pid namespaces need root")
def test_a_live_owner_in_another_pid_namespace_is_waited_for(owner: Callable[..., Owner], ledger: Path) -> None:
    overlapping(owner, ledger)


@pytest.mark.skipif(not can_unshare(), reason="pid namespaces need root")
def test_who_takes_an_owner_in_another_pid_namespace_for_dead_repeats_its_effect(owner: Callable[..., Owner], ledger: Path) -> None:
    """The negative control: with a lock that proves too much, the probe is believed while the first request is yet to come."""
    with pytest.raises(AssertionError, match=r"\['r', 'r'\] == \['r'\]"):
        overlapping(owner, ledger, "credulous")
    assert charged(ledger) == ["r", "r"]


@pytest.mark.skipif(not can_unshare(), reason="pid namespaces need root")
def test_a_death_in_another_pid_namespace_is_proven_all_the_same(owner: Callable[..., Owner], ledger: Path) -> None:
    """Both processes have the same pid, so whoever looked at pids would take the dead one for itself."""
    first = held(owner("hold=step", inside=NAMESPACE), "r")
    first.process.kill()
    first.process.wait(20)
    second = owner(inside=NAMESPACE)
    assert second.hear() == "ready"
    began_s = time.monotonic()
    second.say("r")
    assert second.hear().startswith("[")
    assert time.monotonic() - began_s < 5
    assert charged(ledger) == ["r"]


def test_a_run_started_twice_in_one_process_has_one_result(tmp_path: Path, ledger: Path) -> None:
    async def pair(app: hf.Holdfast, run_id: str) -> list[Any]:
        handles = [await app.start(working(ledger), run_id, run_id=run_id) for _ in range(3)]
        return await asyncio.gather(*(handle.result(timeout=20) for handle in handles))

    run_ids = [f"r{n}" for n in range(20)]
    with opened(tmp_path) as app:
        for run_id in run_ids:
            results = asyncio.run(pair(app, run_id))
            assert results[0] == results[1] == results[2]
            assert app.show(run_id).attempt == 1
    assert charged(ledger) == run_ids


def test_whoever_comes_between_a_claim_and_its_first_step_waits_for_it(
    tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[list[int]] = []
    with opened(tmp_path) as app:
        second = threading.Thread(target=lambda: results.append(app.run(working(ledger), "r", run_id="r")))

        def reach(name: str) -> None:
            if name == "claim.after" and threading.current_thread() is not second:
                second.start()
                second.join(0.3)  # long enough for it to do what it may

        monkeypatch.setattr(runner, "reach", reach)
        results.append(app.run(working(ledger), "r", run_id="r"))
        second.join(20)
        assert results == [[os.getpid()] * 3] * 2
        assert app.show("r").attempt == 1
    assert charged(ledger) == ["r"]


def test_without_the_keeper_two_in_one_process_claim_the_same_run(tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: both are the same owner, so the store lets the second one in."""
    monkeypatch.setattr(Keeper, "takes", lambda *_: True)
    with pytest.raises(LeaseLost):
        test_whoever_comes_between_a_claim_and_its_first_step_waits_for_it(tmp_path, ledger, monkeypatch)


# --- owners that live, die and fall silent --------------------------------------------------------------------------


def test_a_live_owner_is_waited_for_and_its_result_returned(tmp_path: Path, owner: Callable[..., Owner], ledger: Path) -> None:
    other = held(owner("hold=step", lease_s=0.5), "r")
    results: list[list[int]] = []
    with opened(tmp_path, 0.5) as app:
        thread = threading.Thread(target=lambda: results.append(app.run(working(ledger), "r", run_id="r")))
        thread.start()
        thread.join(1.2)  # longer than the lease: only its beat keeps the owner the owner
        assert thread.is_alive()
        other.say("go on")
        thread.join(20)
        assert app.show("r").attempt == 1
    assert results == [[other.process.pid] * 3]
    assert charged(ledger) == ["r"]


def test_a_killed_owner_is_taken_over_at_once(tmp_path: Path, owner: Callable[..., Owner], ledger: Path) -> None:
    other = held(owner("hold=step"), "r")
    other.process.kill()
    other.process.wait(20)
    with opened(tmp_path) as app:
        began_s = time.monotonic()
        assert app.run(working(ledger), "r", run_id="r") == [os.getpid()] * 3
        assert time.monotonic() - began_s < 1
    assert charged(ledger) == ["r"]


def test_without_the_lock_file_a_killed_owner_is_not_proven_dead(tmp_path: Path, owner: Callable[..., Owner], ledger: Path) -> None:
    """The negative control: it is the lock that proves, and without it the lease must run out."""
    other = held(owner("hold=step"), "r")
    other.process.kill()
    other.process.wait(20)
    for lock in (tmp_path / "runs.db.owners").iterdir():
        lock.unlink()
    with opened(tmp_path, 0.6) as app:
        began_s = time.monotonic()
        assert app.run(working(ledger), "r", run_id="r") == [os.getpid()] * 3
        assert time.monotonic() - began_s >= 0.6


def test_recovery_repeats_after_a_second_death(tmp_path: Path, owner: Callable[..., Owner], ledger: Path) -> None:
    for place in ("step", "between"):
        one = held(owner(f"hold={place}"), "r")
        one.process.kill()
        one.process.wait(20)
    with opened(tmp_path) as app:
        result = app.run(working(ledger), "r", run_id="r")
        assert [line.state for line in app.history("r")].count("run resumed") == 2
        assert app.show("r").attempt == 3
    assert result[1:] == [os.getpid()] * 2
    assert charged(ledger) == ["r"]


@pytest.mark.parametrize("place", ["step", "between"])
def test_a_stopped_owner_cannot_commit_anything_when_it_wakes(
    tmp_path: Path, owner: Callable[..., Owner], ledger: Path, place: str
) -> None:
    """At `between` the first thing that the woken process wants to write is the intent of its effect."""
    other = held(owner(f"hold={place}", lease_s=0.5), "r")
    other.signal(signal.SIGSTOP)
    with opened(tmp_path, 0.5) as app:
        assert app.run(working(ledger), "r", run_id="r")[1:] == [os.getpid()] * 2
        rows = app.store.load("r")
        other.signal(signal.SIGCONT)
        other.say("go on")
        assert other.hear() == "LeaseLost"
        assert app.store.load("r") == rows
        assert [verdict.good for verdict in app.check()] == [True]
    assert charged(ledger) == ["r"]


def test_without_the_fence_the_woken_owner_repeats_the_effect(tmp_path: Path, owner: Callable[..., Owner], ledger: Path) -> None:
    """The negative control: the same scenario with a store that lets everything through."""
    other = held(owner("hold=between", "unfenced", lease_s=0.5), "r")
    other.signal(signal.SIGSTOP)
    with opened(tmp_path, 0.5) as app:
        app.run(working(ledger), "r", run_id="r")
        other.signal(signal.SIGCONT)
        other.say("go on")
        assert other.hear().startswith("[")
    assert charged(ledger) == ["r", "r"]


def test_an_effect_whose_owner_was_stopped_inside_it_is_a_doubt(tmp_path: Path, owner: Callable[..., Owner], ledger: Path) -> None:
    other = held(owner("hold=body", lease_s=0.5), "r")
    other.signal(signal.SIGSTOP)
    with opened(tmp_path, 0.5) as app:
        with pytest.raises(hf.RunWaiting, match="charge"):
            app.run(working(ledger), "r", run_id="r", wait=False)
        other.signal(signal.SIGCONT)
        other.say("go on")
        assert other.hear() == "LeaseLost"
        app.resolve("r", "2", landed=7, by="ann")
        assert app.run(working(ledger), "r", run_id="r")[1] == 7
    assert charged(ledger) == ["r"]


def test_a_busy_event_loop_keeps_its_lease(tmp_path: Path, owner: Callable[..., Owner], ledger: Path) -> None:
    other = held(owner("hold=loop", lease_s=0.5), "r")
    with opened(tmp_path, 0.5) as app:
        assert app.run(working(ledger), "r", run_id="r") == [other.process.pid] * 3
        assert app.show("r").attempt == 1
    assert charged(ledger) == ["r"]


def test_without_the_beat_a_busy_event_loop_loses_its_lease(tmp_path: Path, owner: Callable[..., Owner], ledger: Path) -> None:
    """The negative control: it is the thread that beats, not luck."""
    other = held(owner("hold=loop", "unbeating", lease_s=0.5), "r")
    with opened(tmp_path, 0.5) as app:
        assert app.run(working(ledger), "r", run_id="r") == [os.getpid()] * 3
    assert other.hear() == "LeaseLost"
    assert charged(ledger) == ["r"]


# --- owners ---------------------------------------------------------------------------------------------------------


def test_owner_ids_are_unique_per_process_and_opening(tmp_path: Path) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as two:
        assert one.engine.keeper.owner != two.engine.keeper.owner
        for app, run_id in ((one, "a"), (two, "b")):
            app.run(working(tmp_path / "ledger"), run_id, run_id=run_id)
    by = [line.note for app_id in ("a", "b") for line in hf.Holdfast(tmp_path / "runs.db").history(app_id) if line.state == "run started"]
    assert len(set(by)) == 2


def test_after_a_fork_the_child_has_no_store_and_the_parent_is_still_the_owner(tmp_path: Path, ledger: Path) -> None:
    def in_child() -> int:
        try:
            app.run(working(ledger), "child", run_id="child")
        except StoreError as error:
            return 7 if "fork" in str(error) else 8
        return 9

    with opened(tmp_path) as app, closing(SqliteStore(tmp_path / "runs.db")) as other:
        app.run(working(ledger), "r", run_id="r")
        pid = os.fork()
        if pid == 0:
            os._exit(in_child())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        pulse = other.pulse(app.engine.keeper.owner)
        assert pulse is not None
        assert not pulse.dead
        app.run(working(ledger), "again", run_id="again")
    assert charged(ledger) == ["r", "again"]


def test_an_owner_that_closes_its_store_while_a_run_executes_is_not_proven_dead(tmp_path: Path) -> None:
    """Its effect may be under way in a thread: whoever believed the death would believe "not landed" too soon."""
    began, go_on = threading.Event(), threading.Event()

    @hf.effect(in_doubt="ask")
    def charge() -> int:
        began.set()
        go_on.wait(20)
        return 1

    @hf.agent
    def agent() -> int:
        return charge()

    def run() -> None:
        with suppress(BaseException):
            app.run(agent, run_id="r")

    app = opened(tmp_path)
    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(10)
    app.close()
    with opened(tmp_path) as other:
        assert other.engine.observer.life_of(app.engine.keeper.owner) != "dead"
    go_on.set()
    thread.join(20)
    app.close()


def test_who_waited_for_a_failure_gets_it_and_does_not_try_the_step_again(tmp_path: Path) -> None:
    calls: list[str] = []

    async def race() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        @hf.effect(in_doubt="ask")
        async def charge() -> str:
            calls.append("charge")
            begun.set()
            await go_on.wait()
            raise hf.NotLanded

        @hf.agent
        async def buy() -> str:
            return await charge()

        with hf.Holdfast(tmp_path / "runs.db") as first, hf.Holdfast(tmp_path / "runs.db") as second:
            owner = await first.start(buy, run_id="r")
            await begun.wait()
            waiter = await second.start(buy, run_id="r")
            while not second.engine.observer._seen:  # noqa: ASYNC110 (until it has looked at the owner)
                await asyncio.sleep(0.005)
            go_on.set()
            with pytest.raises(hf.StepFailed):
                await owner.result()
            with pytest.raises(hf.RunFailed):
                await waiter.result()

    asyncio.run(race())
    assert calls == ["charge"]


@pytest.mark.parametrize("left_behind", [False, True])
def test_an_owner_is_forgotten_when_it_closes_unless_it_leaves_a_run_behind(*, left_behind: bool) -> None:
    @hf.agent
    async def agent() -> str:
        return "done"

    store = dies_at("run.done") if left_behind else FailingStore()
    with hf.Holdfast(store) as app:
        with suppress(StoreError):
            app.run(agent, run_id="r")
        owner = app.engine.keeper.owner
        assert store.pulse(owner) is not None
    assert (store.pulse(owner) is not None) is left_behind
    assert (store.heads(Query())[0].owner == owner) is left_behind
