"""Following a run: in order, live, from another process, through crashes; and a follower ends when the run has."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
import starting
from crashing import FailingStore, dies_at, play, status
from holdfast.cli.exits import Exit
from holdfast.errors import Refusal, StoreError
from holdfast.operating import follow
from holdfast.operating.follow import Event
from holdfast.store import Append, Head, Row
from holdfast.stores.memory import MemoryStore
from holdfast.verbs import emit

LIMIT_S = 60

TALKER = """
import os, pathlib, signal, sys, time
import holdfast.sync as hf

folder = pathlib.Path(sys.argv[1])

def until(name):
    while not (folder / name).exists():
        time.sleep(0.005)

@hf.step
def talk(what: str) -> str:
    hf.emit(f"{what}-1")
    if hf.current().attempt == 1 and (folder / "die").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    until(f"go-{what}")
    hf.emit(f"{what}-2")
    return what

@hf.agent
def chat() -> str:
    hf.emit("begin")
    first = talk("a")
    hf.emit("between")
    return first + talk("b")

print(hf.run(chat, run_id="r", store=folder / "runs.db"))
"""


def talker(folder: Path) -> subprocess.Popen[str]:
    return starting.Popen[str]([sys.executable, "-c", TALKER, str(folder)], stdout=subprocess.PIPE, text=True)


@contextmanager
def tailing(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The real command in a process of its own; what is left of it at the end hears Ctrl-C."""
    words = [sys.executable, "-m", "holdfast", "tail", "r", "--json", "--store", str(folder / "runs.db")]
    with starting.Popen[str](words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        alarm = threading.Timer(LIMIT_S, process.kill)
        alarm.start()
        try:
            yield process
        finally:
            alarm.cancel()
            process.send_signal(signal.SIGINT)


def lines_of(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    return map(json.loads, process.stdout)


def said_by(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=LIMIT_S)[0]


def until_emitted(lines: Iterator[dict[str, Any]], value: object) -> list[dict[str, Any]]:
    """The events up to the one that emits this value; a follower that ends without it fails."""
    seen = []
    for line in lines:
        seen.append(line)
        if line["kind"] == "emit" and line["value"] == value:
            return seen
    raise AssertionError(f"{value!r} never came, only {seen}")


def until_begun(folder: Path) -> None:
    """Until the other process has its first record."""
    while True:
        if (folder / "runs.db").exists():
            with hf.Holdfast(folder / "runs.db") as app:
                if app.runs():
                    return


def test_another_process_sees_tokens_while_the_step_still_runs(tmp_path: Path) -> None:
    with talker(tmp_path) as running:
        until_begun(tmp_path)
        with tailing(tmp_path) as follower:
            lines = lines_of(follower)
            seen = until_emitted(lines, "a-1")
            assert "step.done" not in [one["kind"] for one in seen], "the step cannot be done: it waits for the next line"
            (tmp_path / "go-a").touch()
            seen += until_emitted(lines, "b-1")
            (tmp_path / "go-b").touch()
            seen += lines
        assert said_by(running) == "ab\n"
    assert [one["value"] for one in seen if one["kind"] == "emit"] == ["begin", "a-1", "a-2", "between", "b-1", "b-2"]
    records = [one["kind"] for one in seen if one["kind"] not in ("emit", "step.started")]
    assert records == ["run.started", "step.done", "step.done", "run.done"]
    assert [one["seq"] for one in seen] == sorted(one["seq"] for one in seen)


def test_a_follower_goes_on_through_a_crash(tmp_path: Path) -> None:
    for name in ("die", "go-a", "go-b"):
        (tmp_path / name).touch()
    with talker(tmp_path) as first:
        assert first.wait() == -signal.SIGKILL
    with tailing(tmp_path) as follower:
        lines = lines_of(follower)
        seen = until_emitted(lines, "a-1")
        with talker(tmp_path) as second:
            assert said_by(second) == "ab\n"
        seen += lines
    assert [one["value"] for one in seen if one["kind"] == "emit"] == ["begin", "a-1", "begin", "a-1", "a-2", "between", "b-1", "b-2"]
    assert "run.resumed" in [one["kind"] for one in seen]


@hf.step
async def double(number: int) -> int:
    hf.emit({"doubling": number})
    return 2 * number


@hf.agent
async def doubles(count: int) -> int:
    total = 0
    for number in range(count):
        hf.emit(f"before {number}")
        total += await double(number)
    return total


def shown(events: list[Event]) -> list[object]:
    """Emitted values, and of records the kind and the step."""
    return [event.value if event.kind == "emit" else f"{event.kind} {event.step_id}".strip() for event in events]


def tail(store: MemoryStore, *, after: int = 0) -> list[Event]:
    with hf.Holdfast(store) as app:
        return list(app.tail("r", after=after))


def test_a_run_that_has_ended_is_shown_in_order_and_the_follower_ends() -> None:
    store = MemoryStore()
    play(store, doubles, 2)
    wanted = ["run.started", "before 0", {"doubling": 0}, "step.done 1", "before 1", {"doubling": 1}, "step.done 2", "run.done"]
    events = tail(store)
    assert shown(events) == wanted
    assert shown(tail(store, after=2)) == wanted[4:]
    done = [event for event in events if event.kind == "step.done"]
    assert [(event.value, event.call, event.state) for event in done] == [(0, "double(number=0)", "done"), (2, "double(number=1)", "done")]
    assert events == sorted(events, key=lambda event: event.at)


class Late(MemoryStore):
    """A run that emits and records something whenever its follower has read the one and not yet the other."""

    next: Append

    def rows_after(self, run_id: str, seq: int) -> tuple[Head, list[Row]] | None:
        found = super().rows_after(run_id, seq)
        assert found is not None
        if found[0].seq == 1:
            self.publish(run_id, b'[1,0,"","early"]')
            self.append([self.next])
            self.publish(run_id, b'[2,0,"","late"]')
        return found


def test_what_is_emitted_behind_a_record_that_is_not_read_yet_is_held_back() -> None:
    store, late = MemoryStore(), Late()
    play(store, doubles, 0)
    head, rows = store.load("r") or pytest.fail("there is a run")
    begun = head._replace(seq=1, status="running", owner="me", digest=rows[0].digest)
    late.append([Append("r", 0, 0, rows[:1], begun)])
    late.next = Append("r", 1, 1, rows[1:], head)
    assert [event for event in shown(tail(late)) if not str(event).startswith("before")] == ["run.started", "early", "run.done", "late"]


def test_without_holding_back_it_would_come_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow.Follower, "_holds", staticmethod(lambda event, head: False))
    with pytest.raises(AssertionError):
        test_what_is_emitted_behind_a_record_that_is_not_read_yet_is_held_back()


def emitted_on_resuming() -> list[object]:
    """What a run of two steps emits when its second outcome was lost."""
    store = dies_at("step.done", "2")
    with pytest.raises(StoreError):
        play(store, doubles, 2)
    store.mend()
    position = store.published("r", 0)[-1][0]
    assert play(store, doubles, 2) == 2
    return [json.loads(payload)[3] for _, payload in store.published("r", position)]


def test_a_resumed_run_does_not_emit_again_what_it_replays() -> None:
    assert emitted_on_resuming() == ["before 1", {"doubling": 1}], "what is executed again, behind the last record, is shown again"


def test_who_does_not_know_of_the_replay_emits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "_replays", lambda where: False)
    assert "before 0" in emitted_on_resuming()


def test_the_follower_of_a_run_here_sees_its_end_before_the_store_is_closed(tmp_path: Path) -> None:
    async def main() -> list[object]:
        handle = await hf.start(doubles, 1, store=tmp_path / "runs.db")
        return shown([event async for event in handle.events()])

    assert asyncio.run(main()) == ["run.started", "before 0", {"doubling": 0}, "step.done 1", "run.done"]


@pytest.mark.parametrize("how", ["failed", "cancelled", "waiting"])
def test_a_follower_ends_with_a_run_that_failed_or_was_cancelled_and_stays_with_one_that_waits(how: str) -> None:
    @hf.agent
    async def stops() -> None:
        hf.emit("last words")
        if how == "failed":
            raise ValueError("no")
        await hf.ask("Go on?")

    store = MemoryStore()
    with pytest.raises((ValueError, hf.RunWaiting)):
        play(store, stops)
    with hf.Holdfast(store) as app:
        if how == "cancelled":
            app.cancel("r")
        follower = follow.Follower(app.engine, "r", 0)
        assert "last words" in shown(follower.look())
        assert follower.ended == (how != "waiting")
        assert status(store) == how


def test_a_run_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with hf.Holdfast(tmp_path / "runs.db") as app:
        with pytest.raises(hf.UnknownRun):
            next(app.tail("nobody"))
        with pytest.raises(hf.Misuse):
            next(app.tail("nobody", after=-1))


@pytest.mark.parametrize("change", ["value", "cut off", "another"])
def test_a_run_whose_records_are_not_those_that_were_read_is_not_followed_further(change: str) -> None:
    store, other = MemoryStore(), MemoryStore()
    play(store, doubles, 2)
    play(other, doubles, 3)
    head, rows = store.load("r") or pytest.fail("there is a run")
    with hf.Holdfast(store) as app:
        follower = follow.Follower(app.engine, "r", 0)
        if change == "value":
            store._rows["r"][1] = rows[1]._replace(value=b"7")
        else:
            follower.look()
        if change == "cut off":
            store._heads["r"], store._rows["r"] = head._replace(seq=3, digest=rows[2].digest), rows[:3]
        if change == "another":
            store._heads["r"], store._rows["r"] = other.load("r") or pytest.fail("there is a run")
        with pytest.raises(Refusal, match="repaired or pruned, or is damaged"):
            follower.look()


def test_a_store_that_is_not_live_shows_records_alone() -> None:
    class Silent(FailingStore):
        publish = None  # type: ignore[assignment]

    store = Silent()
    assert play(store, doubles, 1) == 0
    assert shown(tail(store)) == ["run.started", "step.done 1", "run.done"]


def test_ctrl_c_ends_the_command_and_leaves_the_run_alone(tmp_path: Path) -> None:
    with talker(tmp_path) as running:
        until_begun(tmp_path)
        with tailing(tmp_path) as follower:
            until_emitted(lines_of(follower), "a-1")
        for name in ("go-a", "go-b"):
            (tmp_path / name).touch()
        assert said_by(running) == "ab\n"
    assert follower.returncode == Exit.INTERRUPTED
