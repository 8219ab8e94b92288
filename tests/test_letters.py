"""Operators (`telling`) never write an owned run's journal: they post a letter, and the owner records what it took, exactly once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests.sites import eventually
from holdfast.errors import Refusal
from holdfast.operating import telling
from holdfast.running.runner import moved, resting


class Background:
    """A run in a thread; `ended` is what it returned or raised."""

    def __init__(self, app: hf.Holdfast, agent: Any, *args: Any) -> None:
        self.ended: Any = None
        self._thread = threading.Thread(target=self._run, args=(app, agent, args), daemon=True)
        self._thread.start()

    def _run(self, app: hf.Holdfast, agent: Any, args: tuple[Any, ...]) -> None:
        try:
            self.ended = app.run(agent, *args, run_id="r")
        except BaseException as error:  # noqa: BLE001 (what it raised is what the test wants to know)
            self.ended = error

    def join(self, within_s: float = 10) -> Any:
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "the run still goes on"
        return self.ended


@pytest.fixture
def app(tmp_path: Path) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(tmp_path / "runs.db") as opened:
        yield opened


@pytest.fixture
def operator(tmp_path: Path, app: hf.Holdfast) -> Iterator[hf.Holdfast]:
    """Somebody else who has opened the same store."""
    with hf.Holdfast(tmp_path / "runs.db") as opened:
        yield opened


def kinds(app: hf.Holdfast) -> list[str]:
    loaded = app.store.load("r")
    return [row.kind for row in loaded[1]] if loaded else []


@hf.effect(in_doubt="ask")
async def charge(order: str) -> int:
    raise ConnectionResetError(order)


def asking(go_on: threading.Event) -> Any:
    """An agent with a doubt in one branch and a long step in the other, which keeps it from parking."""

    @hf.step
    async def slow() -> int:
        await asyncio.to_thread(go_on.wait, 20)
        return 2

    @hf.agent
    async def agent() -> list[int]:
        return list(await hf.gather(charge("o-1"), slow()))

    return agent


def word_about_an_owned_run(app: hf.Holdfast, operator: hf.Holdfast) -> tuple[Any, list[str]]:
    """What the owner's run comes to when somebody else speaks about it, and who has claimed it."""
    go_on = threading.Event()
    run = Background(app, asking(go_on))
    eventually(lambda: "doubt.opened" in kinds(operator))
    step_id = next(line.step_id for line in operator.history("r") if line.state == "doubt opened")
    before = kinds(operator)
    operator.resolve("r", step_id, landed=1, by="ann")
    eventually(lambda: "doubt.settled" in kinds(operator))
    go_on.set()
    ended = run.join()
    assert kinds(operator)[: len(before)] == before
    return ended, [kind for kind in kinds(operator) if kind.startswith("run.")]


def test_a_word_about_an_owned_run_is_a_letter_that_the_owner_records(app: hf.Holdfast, operator: hf.Holdfast) -> None:
    assert word_about_an_owned_run(app, operator) == ([1, 2], ["run.started", "run.done"])
    assert {line.note for line in operator.history("r") if line.state == "doubt settled"} == {"ann: landed"}
    assert operator.store.letters(["r"]) == []


def test_an_operator_who_writes_an_owned_run_takes_it_from_its_owner(
    app: hf.Holdfast, operator: hf.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: without a letter the owner is shut out in the middle of its steps."""
    monkeypatch.setattr(telling, "is_owned", lambda engine, head: False)
    ended, claims = word_about_an_owned_run(app, operator)
    assert isinstance(ended, hf.LeaseLost)
    assert claims == ["run.started", "run.resumed"]


def test_a_letter_is_taken_exactly_once(app: hf.Holdfast, operator: hf.Holdfast) -> None:
    go_on = threading.Event()
    run = Background(app, asking(go_on))
    eventually(lambda: "doubt.opened" in kinds(operator))
    step_id = next(line.step_id for line in operator.history("r") if line.state == "doubt opened")
    operator.resolve("r", step_id, landed=1, by="ann")
    for _ in range(5):
        app.engine.keeper.take_letters()
    go_on.set()
    assert run.join() == [1, 2]
    assert kinds(operator).count("doubt.settled") == 1
    assert operator.store.letters(["r"]) == []


def test_an_effect_that_runs_is_not_in_doubt_and_cannot_be_resolved(app: hf.Holdfast, operator: hf.Holdfast) -> None:
    go_on = threading.Event()

    @hf.effect(in_doubt="ask")
    async def pay() -> int:
        await asyncio.to_thread(go_on.wait, 20)
        return 1

    @hf.agent
    async def agent() -> int:
        return await pay()

    run = Background(app, agent)
    eventually(lambda: "step.started" in kinds(operator))
    with pytest.raises(Refusal, match="not in doubt"):
        operator.resolve("r", "1", not_landed=True, by="ann")
    go_on.set()
    assert run.join() == 1
    assert operator.store.letters(["r"]) == []


def test_a_person_cannot_contradict_a_probe_that_is_under_way(app: hf.Holdfast, operator: hf.Holdfast) -> None:
    """Otherwise "it landed" would be recorded, and the probe's "not landed" would run the effect all the same."""
    go_on, calls = threading.Event(), []

    async def probe() -> hf.Verdict[int]:
        await asyncio.to_thread(go_on.wait, 20)
        return hf.NotLanded()

    @hf.effect(in_doubt=hf.verify(probe, settle=0), retry=hf.Retry(base=0))
    async def pay() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionResetError
        return len(calls)

    @hf.agent
    async def agent() -> int:
        return await pay()

    run = Background(app, agent)
    eventually(lambda: "doubt.opened" in kinds(operator))
    with pytest.raises(Refusal, match="finding out"):
        operator.resolve("r", "1", landed=1, by="ann")
    go_on.set()
    assert run.join() == 2


def test_a_word_that_was_posted_while_the_run_parked_is_not_lost(app: hf.Holdfast, operator: hf.Holdfast) -> None:
    @hf.agent
    async def agent() -> int:
        try:
            return await charge("o-1")
        finally:
            if not posted:
                posted.append(operator.resolve("r", "1", landed=5, by="ann"))

    posted: list[str] = []
    try:
        result = app.run(agent, run_id="r", wait=False)
    except hf.RunWaiting:
        result = app.run(agent, run_id="r", wait=False)
    assert result == 5
    assert "takes this into account" in posted[0]
    assert operator.store.letters(["r"]) == []


# --- cancelling -----------------------------------------------------------------------------------------------------


def test_cancelling_reaches_a_running_async_step_within_a_second(app: hf.Holdfast, operator: hf.Holdfast) -> None:
    began = threading.Event()

    @hf.step
    async def endless() -> int:
        began.set()
        await asyncio.sleep(60)
        return 1

    @hf.agent
    async def agent() -> int:
        return await endless()

    run = Background(app, agent)
    assert began.wait(10)
    began_s = time.monotonic()
    assert "told to stop" in operator.cancel("r", by="ann", reason="too late")
    ended = run.join()
    assert time.monotonic() - began_s < 2
    assert isinstance(ended, hf.RunCancelled)
    assert ended.by == "ann"
    assert kinds(operator)[-2:] == ["step.broken_off", "run.cancelled"]
    assert operator.store.letters(["r"]) == []
    with pytest.raises(hf.RunCancelled):
        app.run(agent, run_id="r")


def test_cancelling_reaches_a_blocking_run_at_its_next_step(app: hf.Holdfast, operator: hf.Holdfast) -> None:
    began, go_on, calls = threading.Event(), threading.Event(), []

    @hf.step
    def slow(n: int) -> int:
        calls.append(n)
        began.set()
        go_on.wait(20)
        return n

    @hf.agent
    def agent() -> int:
        try:
            slow(1)
        except Exception:  # noqa: BLE001 (agent code that swallows what it can)
            return -1
        return slow(2)

    run = Background(app, agent)
    assert began.wait(10)
    operator.cancel("r", by="ann")
    eventually(lambda: app.engine.keeper.runs["r"].cancelling is not None)
    go_on.set()
    assert isinstance(run.join(), hf.RunCancelled)
    assert calls == [1]
    assert "step.done" in kinds(operator)
    assert kinds(operator)[-1] == "run.cancelled"


def test_cancelling_an_effect_in_its_body_leaves_it_broken_off(app: hf.Holdfast, operator: hf.Holdfast) -> None:
    began = threading.Event()

    @hf.effect(in_doubt="resend")
    async def pay() -> int:
        began.set()
        await asyncio.sleep(60)
        return 1

    @hf.agent
    async def agent() -> int:
        return await pay()

    run = Background(app, agent)
    assert began.wait(10)
    operator.cancel("r", by="ann")
    assert isinstance(run.join(), hf.RunCancelled)
    assert kinds(operator)[-2:] == ["step.broken_off", "run.cancelled"]


def test_a_run_that_nobody_owns_is_cancelled_at_once(app: hf.Holdfast) -> None:
    with pytest.raises(hf.RunWaiting):
        app.run(asking_alone, run_id="r", wait=False)
    assert app.cancel("r", by="ann").startswith("the run is cancelled; step 1 charge(")
    assert kinds(app)[-2:] == ["run.resumed", "run.cancelled"]
    with pytest.raises(Refusal, match="stays so"):
        app.cancel("r", by="ann")


@hf.agent
async def asking_alone() -> int:
    return await charge("o-1")


def posted_to(app: hf.Holdfast) -> None:
    """A letter whose owner died before it read it."""
    app.store.post("r", "cancel", b'{"by": "ann", "reason": ""}', 1)


@pytest.mark.parametrize("mode", ["async", "def"])
def test_a_cancellation_that_was_not_read_in_time_stops_whoever_takes_the_run(app: hf.Holdfast, mode: str) -> None:
    calls: list[int] = []

    @hf.effect(in_doubt="ask")
    async def pay(n: int) -> int:
        calls.append(n)
        return n

    @hf.effect(in_doubt="ask", name="pay")
    def pay_blocking(n: int) -> int:
        calls.append(n)
        return n

    @hf.agent
    async def agent() -> int:
        return await pay(1)

    @hf.agent(name="agent")
    def blocking() -> int:
        return pay_blocking(1)

    posted_to(app)
    with pytest.raises(hf.RunCancelled):
        app.run(agent if mode == "async" else blocking, run_id="r")
    assert calls == []
    assert kinds(app) == ["run.started", "run.cancelled"]
    assert app.store.letters(["r"]) == []


@pytest.mark.parametrize("mode", ["async", "def"])
def test_a_cancellation_that_arrives_while_the_run_parks_is_not_lost(app: hf.Holdfast, mode: str) -> None:
    def cancel() -> None:
        app.cancel("r", by="ann")
        app.engine.keeper.take_letters()

    @hf.effect(in_doubt="ask", name="charge")
    def charge_blocking(order: str) -> int:
        raise ConnectionResetError(order)

    @hf.agent
    async def agent() -> int:
        try:
            return await charge("o-1")
        finally:
            cancel()

    @hf.agent(name="agent")
    def blocking() -> int:
        try:
            return charge_blocking("o-1")
        finally:
            cancel()

    with pytest.raises(hf.RunCancelled):
        app.run(agent if mode == "async" else blocking, run_id="r", wait=False)
    assert app.show("r").status == "cancelled"


def test_a_cancellation_that_arrives_while_the_run_fails_closes_it(app: hf.Holdfast) -> None:
    @hf.step
    async def broken() -> int:
        raise ValueError("no")

    @hf.agent
    async def agent() -> int:
        try:
            return await broken()
        finally:
            app.cancel("r", by="ann")
            app.engine.keeper.take_letters()

    with pytest.raises(hf.RunCancelled):
        app.run(agent, run_id="r")
    assert app.show("r").status == "cancelled"


def test_a_letter_that_cannot_be_read_does_not_stop_the_beat(app: hf.Holdfast, operator: hf.Holdfast) -> None:
    began, go_on = threading.Event(), threading.Event()

    @hf.step
    def slow() -> int:
        began.set()
        go_on.wait(20)
        return 1

    @hf.agent
    def agent() -> int:
        return slow()

    run = Background(app, agent)
    assert began.wait(10)
    operator.store.post("r", "settle", b"not JSON", 1)
    operator.store.post("r", "weather", b"{}", 1)
    operator.cancel("r", by="ann")
    eventually(lambda: app.engine.keeper.runs["r"].cancelling is not None, within_s=5)
    go_on.set()
    assert isinstance(run.join(), hf.RunCancelled)


def test_a_message_that_nobody_waits_for_does_not_move_a_parked_run() -> None:
    @hf.agent
    async def waiting() -> str:
        return await hf.receive("wanted", str)

    with hf.Holdfast("memory:") as app:
        with pytest.raises(hf.RunWaiting):
            app.run(waiting, run_id="r", wait=False)
        parking = resting(app.engine, "r")
        assert parking is not None
        app.send("r", "other", "early")
        assert not moved(app.engine, parking)
        app.send("r", "wanted", "now")
        assert moved(app.engine, parking)
        assert app.run(waiting, run_id="r") == "now"


def test_a_message_moves_a_parked_run_unless_it_was_taken_before() -> None:
    @hf.agent
    async def waiting() -> list[str]:
        return [await hf.receive("wanted", str) for _ in range(2)]

    with hf.Holdfast("memory:") as app:

        def is_moved(body: bytes) -> bool:
            parking = resting(app.engine, "r")
            assert parking is not None
            app.store.post("r", "message", body, 1)
            return moved(app.engine, parking)

        with pytest.raises(hf.RunWaiting):
            app.run(waiting, run_id="r", wait=False)
        assert is_moved(b'{"by": "ann", "name": "wanted", "value": "a", "key": "k"}')
        with pytest.raises(hf.RunWaiting):
            app.run(waiting, run_id="r", wait=False)
        assert not is_moved(b'{"by": "ann", "name": "wanted", "value": "a", "key": "k"}')
        for unreadable in (b"not JSON", b"[]", b"{}"):
            assert is_moved(unreadable), "whoever has the run takes it away"
        assert "wanted" in app.show("r").waits
        app.send("r", "wanted", "b", key="another")
        assert app.run(waiting, run_id="r", wait=False) == ["a", "b"]
