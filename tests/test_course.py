"""The usual course of a step and its life are the same to everybody: to the journal, to the code, and to whoever takes the run up later."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests import course_programs as programs
from agents_for_tests.course_stage import ALWAYS_BUSY, MODES, Mode, Stage
from holdfast.life import course, drive, outcomes, steps
from holdfast.life.calls import Call
from holdfast.life.outcomes import entered
from holdfast.life.run import Body

Program = Callable[[Stage], None]


class Twice:
    """Plays a program by the usual course, and again by lives alone."""

    def __init__(self, patch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
        self.patch, self._log = patch, log

    def __call__(self, program: Program, mode: Mode, folder: Path | None = None) -> tuple[Any, Any]:
        by_course = self._played(program, Stage(mode, folder and folder / "course.db"))
        with self.patch.context() as patch:
            patch.setattr(drive, "begin", steps.life)
            return by_course, self._played(program, Stage(mode, folder and folder / "life.db"))

    def _played(self, program: Program, stage: Stage) -> Any:
        outcomes._looked_at.clear()
        gc.collect()  # what an earlier test left says its last word now,
        gc.freeze()  # and what is left is not looked through again
        self._log.clear()
        program(stage)
        assert stage.left_over() == []
        return stage.recorded(), stage.seen, [message for message in self._log.messages if "lease could not" not in message]


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Twice:
    return Twice(monkeypatch, caplog)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", programs.EVERYWHERE, ids=lambda program: program.__name__)
def test_by_its_course_a_step_leaves_and_gives_what_its_life_does(twice: Twice, program: Program, mode: Mode) -> None:
    by_course, by_life = twice(program, mode)
    assert by_course == by_life


@pytest.mark.parametrize("program", programs.IN_A_FILE, ids=lambda program: program.__name__)
def test_so_it_does_in_a_file(twice: Twice, program: Program, tmp_path: Path) -> None:
    by_course, by_life = twice(program, "async", tmp_path)
    assert by_course == by_life


@pytest.mark.parametrize("mode", MODES)
def test_a_plain_step_and_a_plain_effect_have_no_life(monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    lives: list[str] = []

    def counted(call: Call) -> Any:
        lives.append(call.step_id)
        return steps.life(call)

    monkeypatch.setattr(course, "life", counted)
    monkeypatch.setattr(drive, "life", counted)
    stage = Stage(mode)
    step, effect = stage.step(programs.look), stage.effect(programs.look)
    stage.play(stage.agent(lambda: step(1), lambda: effect(2), lambda: hf.now() and step(3), lambda: step(4)))
    assert (stage.seen[-1], lives) == (("returned", 4), [])


def acknowledges_only(call: Call, body: Body, result: Any) -> tuple[Any, None]:
    call.run.long_steps.pop(call.step_id, None)
    return result, None


def begins_without_an_intent(call: Call) -> Body:
    return entered(call, 0 if call.spec.effect else 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("broken", [{"end": acknowledges_only}, {"begin": begins_without_an_intent}])
def test_what_a_broken_course_does_not_write_is_missed(twice: Twice, broken: dict[str, Any], mode: Mode) -> None:
    def program(stage: Stage) -> None:
        step, effect = stage.step(programs.look), stage.effect(programs.look)
        stage.play(stage.agent(lambda: step(1), lambda: effect(2)))

    for name, instead in broken.items():
        twice.patch.setattr(drive, name, instead)
    by_course, by_life = twice(program, mode)
    assert by_course[0] != by_life[0]


@pytest.mark.parametrize("busy", [0, ALWAYS_BUSY])
def test_an_effect_whose_run_is_cancelled_while_its_intent_is_written_does_not_begin(busy: int) -> None:
    stage, begun = Stage("async"), list[int]()

    async def pay(n: int) -> int:
        begun.append(n)
        return n

    def cancelled() -> None:
        stage.app.cancel(stage.run_id, by="me")
        stage.hear()

    look, paying = stage.step(programs.look), hf.effect(pay, in_doubt="ask")
    stage.plan.before, stage.plan.busy = {"step.started 2": cancelled}, {"step.started 2": busy}
    stage.play(stage.agent(lambda: look(1), lambda: paying(2)))
    assert (begun, stage.seen[-1]) == ([], ("raised", "RunCancelled", "('r', 'me', '')", (), "NoneType", None))
