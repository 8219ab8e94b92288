"""Lines of history: what each record says to a person, and that nothing is said wrongly about time, effects and attempts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
import holdfast.sync as hf
from holdfast.operating import checkpoints


@pytest.fixture
def app(tmp_path: Path) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(tmp_path / "runs.db") as opened:
        yield opened


def notes(app: hf.Holdfast, state: str) -> list[str]:
    return [line.note for line in app.history("r") if line.state == state]


def test_a_step_took_as_long_as_its_body_even_where_its_start_was_written_late(app: hf.Holdfast) -> None:
    took: list[float] = []

    @hf.step
    def slow() -> None:
        began = time.monotonic()
        while time.monotonic() - began < 0.4:
            time.sleep(0.05)
        took.append(time.monotonic() - began)

    @hf.agent
    def work() -> None:
        slow()

    app.run(work, run_id="r")
    [line] = [line for line in app.history("r") if line.call]
    assert line.duration_s is not None
    assert line.duration_s >= took[0] - 0.01


def test_a_step_that_was_broken_off_took_as_long_as_its_body(app: hf.Holdfast) -> None:
    took: list[float] = []

    @holdfast.step
    async def slow() -> None:
        began = time.monotonic()
        try:
            await asyncio.sleep(60)
        finally:
            took.append(time.monotonic() - began)

    @holdfast.agent
    async def work() -> None:
        async with holdfast.timeout(0.3):
            await slow()

    with pytest.raises(TimeoutError):
        app.run(work, run_id="r")
    [line] = [line for line in app.history("r") if line.state == "broken off"]
    assert line.duration_s is not None
    assert took[0] - 0.01 <= line.duration_s < took[0] + 0.2


def test_a_probe_that_does_not_know_yet_settles_nothing(app: hf.Holdfast) -> None:
    looked: list[bool] = []

    def probe() -> hf.Landed[int] | hf.NotLanded:
        looked.append(True)
        return hf.NotLanded()

    @hf.effect(in_doubt=hf.verify(probe, settle="0.1s"))
    def pay() -> int:
        if not looked:
            raise OSError("the line went dead")
        return 7

    @hf.agent
    def work() -> int:
        return pay()

    assert app.run(work, run_id="r") == 7
    states = [line.state for line in app.history("r") if line.state.startswith(("still", "doubt settled"))]
    assert states == ["still in doubt"] * (len(looked) - 1) + ["doubt settled"]
    assert len(looked) > 1


def test_arguments_are_shown_as_they_were_when_the_step_was_called(app: hf.Holdfast) -> None:
    @hf.step
    def reply(messages: list[str]) -> str:
        messages.append("thinking")
        return "yes"

    @hf.agent
    def talk() -> None:
        reply(["hello"])

    app.run(talk, run_id="r")
    [line] = [line for line in app.history("r") if line.call]
    assert line.call == 'reply(messages=["hello"])'
    assert [verdict.good for verdict in app.check("r")] == [True]


def test_an_effect_whose_attempt_raised_is_an_effect_and_keeps_its_key(app: hf.Holdfast) -> None:
    @hf.effect(in_doubt="ask")
    def pay() -> None:
        raise OSError("the line went dead")

    @hf.agent
    def buy() -> None:
        pay()

    with pytest.raises(hf.RunWaiting):
        app.run(buy, run_id="r", wait=False)
    [line] = [line for line in app.history("r") if line.call]
    assert (line.state, line.effect, line.key[:3]) == ("in doubt", True, "hf-")


def test_an_error_is_never_cut(app: hf.Holdfast) -> None:
    told = "no " * 500 + "and here is what to do"

    @hf.step
    def fail() -> None:
        raise ValueError(told)

    @hf.agent
    def work() -> None:
        fail()

    with pytest.raises(ValueError, match="no no"):
        app.run(work, run_id="r")
    assert notes(app, "failed") == [f"ValueError: {told}"]
    assert app.show("r").last_error == f"ValueError: {told}"


def test_a_run_that_was_taken_up_again_tells_where_it_had_stood(app: hf.Holdfast) -> None:
    @hf.agent
    def work() -> None:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            app.run(work, run_id="r")
    (note,) = notes(app, "run resumed")
    assert note.startswith("after it had failed, by ")


def test_a_run_that_is_done_shows_no_error_of_its_past(app: hf.Holdfast) -> None:
    down = [True]

    @hf.step
    def read() -> int:
        if down:
            raise ValueError("not yet")
        return 1

    @hf.agent
    def work() -> int:
        return read()

    with pytest.raises(ValueError, match="not yet"):
        app.run(work, run_id="r")
    assert app.show("r").last_error == "ValueError: not yet"
    down.clear()
    assert app.run(work, run_id="r") == 1
    assert app.show("r").last_error == ""


@hf.effect(in_doubt="ask", approve=True)
def wire(cents: int) -> str:
    return f"wired {cents}"


@hf.agent
def transfer(cents: int) -> str:
    return wire(cents)


def test_questions_and_answers_read_well(app: hf.Holdfast) -> None:
    with pytest.raises(hf.RunWaiting):
        app.run(transfer, 5, run_id="r", wait=False)
    app.answer("r", "approve:1", yes=True, by="ann", reason="seen it")
    assert app.run(transfer, 5, run_id="r") == "wired 5"
    assert "wire(cents=5)" in notes(app, "asked")[0]
    assert notes(app, "answered") == ["ann: yes (seen it)"]


def test_what_was_watched_and_how_it_drifted_reads_well(app: hf.Holdfast, tmp_path: Path) -> None:
    file = tmp_path / "plan.txt"
    file.write_text("a")

    @hf.effect(in_doubt="ask", approve=True)
    def build() -> None:
        pass

    @hf.agent
    def work() -> None:
        hf.watch(file, on_change="warn")
        build()

    with pytest.raises(hf.RunWaiting):
        app.run(work, run_id="r", wait=False)
    file.write_text("b")
    app.answer("r", "approve:1", yes=True, by="ann")
    app.run(work, run_id="r")
    drifted = notes(app, "drifted")
    assert [note.partition(":")[0] for note in drifted] == ["changed"]
    assert drifted[0].endswith("-> warn")
    assert "accepted as it is" in notes(app, "watched")[-1]
    words = {"asked", "answered", "watched", "drifted", "model changed", "model accepted", "budget set"}
    words |= {"closed", "waiting", "message taken", "pruned", "child run"}
    assert set(checkpoints.STATES.values()) == words


def test_only_processes_that_took_the_run_up_are_counted(app: hf.Holdfast) -> None:
    seen: list[int] = []

    @hf.agent
    def work() -> str:
        seen.append(hf.current().attempt)
        return wire(7)

    with pytest.raises(hf.RunWaiting):
        app.run(work, run_id="r", wait=False)
    app.answer("r", "approve:1", yes=True, by="ann")
    app.resume("r", by="ann")
    assert app.show("r").attempt == 1
    app.run(work, run_id="r")
    assert (seen, app.show("r").attempt) == ([1, 2], 2)
