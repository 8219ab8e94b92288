"""A run that waits stays in place as long as it was told to, its code open and its lease held; after that it holds nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
import starting
from agents_for_tests.sites import StillClock, eventually
from crashing import lines, status
from holdfast.errors import Misuse
from holdfast.stores.sqlite import SqliteStore

MODES = ("async", "def")
OPENED: list[str] = []
LONG, LONG_S = "60s", 60


@pytest.fixture(autouse=True)
def _nothing_opened() -> None:
    OPENED.clear()


@contextmanager
def session() -> Iterator[None]:
    OPENED.append("open")
    try:
        yield
    finally:
        OPENED.append("close")


def agents(one: Callable[..., Any], other: Callable[..., Any]) -> dict[str, Any]:
    return {"async": hf.agent(name="staying")(one), "def": hf.agent(name="staying")(other)}


async def _asks() -> str:
    with session():
        return await hf.ask("code?", str)


def _asks_blocking() -> str:
    with session():
        return hfs.ask("code?", str)


ASKING = agents(_asks, _asks_blocking)


async def _receives() -> str:
    with session():
        return await hf.receive("note", str, timeout="40s")


def _receives_blocking() -> str:
    with session():
        return hfs.receive("note", str, timeout="40s")


RECEIVING = agents(_receives, _receives_blocking)


class Ticking(StillClock):
    """A clock of which every look takes a second."""

    def monotonic_s(self) -> float:
        self.at_us += 1_000_000
        return super().monotonic_s()


def elsewhere(*words: str, path: Path) -> None:
    """Somebody in another process says something."""
    command = [sys.executable, "-m", "holdfast", *words, "--store", str(path)]
    starting.run(command, timeout=60).check_returncode()


@contextmanager
def when_asked(path: Path, *words: str, parked: str = "") -> Iterator[Callable[..., None]]:
    """An `on_ask` that has a process say something as soon as the question is put, and a run that is named has parked."""
    threads: list[threading.Thread] = []

    def say() -> None:
        with closing(SqliteStore(path)) as store:
            eventually(lambda: not parked or status(store, parked) == "waiting")
        elsewhere(*words, path=path)

    def on_ask(*_: object) -> None:
        threads.append(threading.Thread(target=say))
        threads[-1].start()

    yield on_ask
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_an_answer_from_another_process_wakes_the_code_in_place(tmp_path: Path, mode: str, wait: bool) -> None:  # noqa: FBT001
    path = tmp_path / "runs.db"
    with when_asked(path, "answer", "r/1", "1234", "--by", "ann") as on_ask, hf.Holdfast(path, on_ask=on_ask) as app:
        assert app.run(ASKING[mode], run_id="r", wait=wait, park_after=LONG) == "1234"
        assert OPENED == ["open", "close"]
        assert "run.waiting" not in lines(app.store)
        assert app.show("r").attempt == 1


@hf.agent
async def _calls() -> str:
    with session():
        return f"child {await ASKING['async']()}"


@hf.agent(name="_calls")
def _calls_blocking() -> str:
    with session():
        return f"child {ASKING['def']()}"


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_run_whose_child_waits_does_not_stay(tmp_path: Path, mode: str, wait: bool) -> None:  # noqa: FBT001
    path, agent = tmp_path / "runs.db", {"async": _calls, "def": _calls_blocking}[mode]
    with when_asked(path, "answer", "r.1/1", "1234", "--by", "ann", parked="r") as on_ask, hf.Holdfast(path, on_ask=on_ask) as app:
        begun_s = time.monotonic()
        if not wait:
            with pytest.raises(hf.RunWaiting, match=r"child run 'r\.1' waits"):
                app.run(agent, run_id="r", wait=False, park_after=LONG)
        assert app.run(agent, run_id="r", park_after=LONG) == "child 1234"
        assert time.monotonic() - begun_s < LONG_S / 2
        assert "run.waiting" in lines(app.store)


@pytest.mark.parametrize("mode", MODES)
def test_a_message_and_the_end_of_a_time_wake_the_code_in_place(tmp_path: Path, mode: str) -> None:
    sender = threading.Timer(0.3, lambda: elsewhere("send", "r", "note", '"hello"', path=tmp_path / "runs.db"))
    with hf.Holdfast(tmp_path / "runs.db", park_after=LONG) as app:
        sender.start()
        assert app.run(RECEIVING[mode], run_id="r") == "hello"
        sender.join()
        assert OPENED == ["open", "close"]


async def _sleeps() -> None:
    with session():
        await hf.sleep(1.2)


def _sleeps_blocking() -> None:
    with session():
        hfs.sleep(1.2)


@pytest.mark.parametrize("mode", MODES)
def test_a_sleep_that_ends_in_time_ends_in_place(mode: str) -> None:
    with hf.Holdfast("memory:", park_after=LONG) as app:
        app.run(agents(_sleeps, _sleeps_blocking)[mode], run_id="r")
        assert OPENED == ["open", "close"]
        assert "run.waiting" not in lines(app.store)


@pytest.mark.parametrize("mode", MODES)
def test_after_its_time_the_run_holds_nothing_and_goes_on_by_replay(tmp_path: Path, mode: str) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    with hf.Holdfast(store, clock=Ticking()) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(ASKING[mode], run_id="r", wait=False, park_after="30s")
        head = app.store.head("r")
        assert head is not None
        assert (head.status, head.owner) == ("waiting", None)
        assert OPENED == ["open", "close"]
        app.answer("r", "1", "1234")
        assert app.run(ASKING[mode], run_id="r", park_after=LONG) == "1234"
        assert OPENED == ["open", "close"] * 2


async def _asks_below() -> str:
    return str(await ASKING["async"]())


def _asks_below_blocking() -> str:
    return str(ASKING["def"]())


@pytest.mark.parametrize("mode", MODES)
def test_a_parent_stays_in_place_for_its_child_no_longer_than_it_may(mode: str) -> None:
    parent = hf.agent(name="parent")(_asks_below if mode == "async" else _asks_below_blocking)
    with hf.Holdfast("memory:", clock=Ticking()) as app:
        with pytest.raises(hf.RunWaiting):
            app.run(parent, run_id="r", wait=False, park_after="30s")
        assert status(app.store) == status(app.store, "r.1") == "waiting"


@pytest.mark.parametrize("mode", MODES)
def test_where_nobody_waits_a_run_parks_at_once_unless_it_was_told_otherwise_itself(mode: str) -> None:
    with hf.Holdfast("memory:", park_after="1d") as app:
        with pytest.raises(hf.RunWaiting):
            app.run(ASKING[mode], run_id="r", wait=False)
        assert status(app.store) == "waiting"


@pytest.mark.parametrize("mode", MODES)
def test_a_run_can_be_cancelled_in_place(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "runs.db"
    with when_asked(path, "cancel", "r", "--by", "ann") as on_ask, hf.Holdfast(path, on_ask=on_ask, park_after=LONG) as app:
        with pytest.raises(hf.RunCancelled):
            app.run(ASKING[mode], run_id="r")
        assert OPENED == ["open", "close"]


async def _hurried() -> str:
    try:
        async with hf.timeout("1.5s"):
            return await hf.ask("code?", str)
    except TimeoutError:
        return "too late"


def _hurried_blocking() -> str:
    try:
        with hfs.timeout("1.5s"):
            return hfs.ask("code?", str)
    except TimeoutError:
        return "too late"


@pytest.mark.parametrize("mode", MODES)
def test_a_time_out_around_a_wait_in_place_fires(mode: str) -> None:
    with hf.Holdfast("memory:", park_after="1d") as app:
        assert app.run(agents(_hurried, _hurried_blocking)[mode], run_id="r") == "too late"
        assert app.inbox() == []


def test_every_branch_that_is_answered_begins_the_time_anew() -> None:
    @hf.agent
    async def both() -> list[str]:
        with session():
            return list(await hf.gather(hf.ask("one?", str), hf.ask("two?", str)))

    with hf.Holdfast("memory:", park_after=LONG) as app:
        threads = [threading.Timer(0.2 + 0.3 * n, lambda n=n: app.answer("r", str(n), str(n))) for n in (1, 2)]
        for thread in threads:
            thread.start()
        assert app.run(both, run_id="r") == ["1", "2"]
        assert OPENED == ["open", "close"]


@pytest.mark.parametrize("wrong", [-1, "soon", True, None])
def test_what_is_no_duration_is_refused_before_anything_begins(wrong: Any) -> None:
    with pytest.raises(Misuse, match="park_after"):
        hf.Holdfast("memory:", park_after=wrong)
    if wrong is not None:
        with hf.Holdfast("memory:") as app, pytest.raises(Misuse, match="park_after"):
            app.run(ASKING["async"], park_after=wrong)
