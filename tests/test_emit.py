"""`hf.emit`: what it shows, what it refuses, and that nothing that goes wrong with it hurts a run."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import BaseModel

import holdfast as hf
import holdfast.sync
from crashing import play, status
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.verbs import emit


class Page(BaseModel):
    number: int


@dataclasses.dataclass
class Progress:
    done: int


def emitted(store: MemoryStore | SqliteStore) -> list[object]:
    return [json.loads(payload)[3] for _, payload in store.published("r", 0)]


def said(value: object, *, store: MemoryStore | None = None) -> list[object]:
    """What a follower sees of a value that the body of an effect emits; the run must be done."""

    @hf.effect(in_doubt="fail")
    async def speak() -> str:
        hf.emit(value)
        return "spoken"

    @hf.agent
    async def speaker() -> str:
        return await speak()

    store = store or MemoryStore()
    assert play(store, speaker) == "spoken"
    return emitted(store)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, None),
        ("kelp \n ü", "kelp \n ü"),
        ({"done": 3, "of": [1.5, True]}, {"done": 3, "of": [1.5, True]}),
        (Page(number=7), {"number": 7}),
        (Progress(3), {"done": 3}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (float("nan"), "NaN"),
        (b"kelp", "a2VscA=="),
    ],
)
def test_a_value_is_shown_as_json(value: object, seen: object) -> None:
    assert said(value) == [seen]


def circle() -> list[object]:
    around: list[object] = []
    around.append(around)
    return around


@pytest.mark.parametrize("value", [object(), circle(), "\ud800", "x" * (emit.MAX_BYTES + 1), threading.Lock()])
def test_what_cannot_be_shown_is_told_in_words_and_the_effect_is_done(value: object, caplog: pytest.LogCaptureFixture) -> None:
    emit._complaints.clear()
    (seen,) = said(value)
    assert "hf.emit was given" in str(seen)
    assert "Emit plain JSON data" in caplog.text


def test_a_def_agent_and_its_steps_emit_too() -> None:
    @holdfast.sync.step
    def work() -> int:
        holdfast.sync.emit("in the step")
        return 1

    @holdfast.sync.agent
    def blocking() -> int:
        holdfast.sync.emit("in the agent")
        return work()

    store = MemoryStore()
    play(store, blocking)
    assert [(json.loads(payload)[2], json.loads(payload)[3]) for _, payload in store.published("r", 0)] == [
        ("", "in the agent"), ("1", "in the step"),
    ]  # fmt: skip


def test_outside_a_run_there_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    emit._complaints.clear()
    for _ in range(3):
        hf.emit("nobody hears")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_in_a_unit_test_a_value_without_json_form_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with hf.plain():
        hf.emit("fine")
        with pytest.raises(hf.Misuse):
            hf.emit(object())
    assert caplog.records == []


def test_nothing_is_emitted_once_the_run_has_parked() -> None:
    @hf.agent
    async def waits() -> None:
        try:
            await hf.ask("Go on?")
        finally:
            hf.emit("unwound")

    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, waits)
    assert emitted(store) == []


BREAKS: dict[str, Callable[[Path], object]] = {
    "a file in place of the folder": lambda path: path.with_name(f"{path.name}.live").write_text("in the way"),
    "a run id that is too long for a file": lambda path: None,
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_run_is_done_where_nothing_can_be_emitted(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "runs.db"
    BREAKS[how](path)
    run_id = "r" if "file in place" in how else "r" + ":" * 127

    @hf.agent
    async def speaker() -> str:
        for _ in range(3):
            hf.emit("lost")
        return "done"

    with hf.Holdfast(path) as app:
        assert app.run(speaker, run_id=run_id) == "done"
    assert caplog.text.count("cannot be written") == 1


def test_emitting_writes_no_record() -> None:
    @hf.agent
    async def speaker() -> None:
        for number in range(100):
            hf.emit(number)

    store = MemoryStore()
    play(store, speaker)
    assert status(store) == "done"
    head = store.head("r")
    assert head is not None
    assert head.seq == 2
