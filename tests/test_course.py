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
from holdfast.life import course, drive, effects, outcomes, steps
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


# --- what is raised in the middle of our own code ----------------------------------------------------------------------

PLACES = ("effect.after_intent", "effect.after_body", "effect.after_outcome")
RAISED = {"a handler's": TimeoutError, "Ctrl-C": KeyboardInterrupt}


def interrupting(patch: pytest.MonkeyPatch, place: str, error: type[BaseException]) -> None:
    """As if a signal came there, whose handler raises."""
    left = [error("from a handler")]

    def reach(name: str) -> None:
        if name == place and left:
            raise left.pop()

    for module in (course, effects):
        patch.setattr(module, "reach", reach)


@pytest.mark.parametrize("by", ["course", "life"])
@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("place", PLACES)
def test_who_catches_what_came_in_the_middle_of_an_effect_cannot_do_it_again(
    monkeypatch: pytest.MonkeyPatch, place: str, error: str, by: str
) -> None:
    did: list[int] = []
    kind = RAISED[error]

    @hf.effect(in_doubt="ask")
    def pay(n: int) -> int:
        did.append(n)
        return n

    @hf.agent
    def stubborn() -> int:
        for _ in range(3):
            try:
                return pay(7)
            except kind:
                continue
        return 0

    if by == "life":
        monkeypatch.setattr(drive, "begin", steps.life)
    with hf.Holdfast("memory:") as app:
        with monkeypatch.context() as patch:
            interrupting(patch, place, kind)
            with pytest.raises(hf.RunInterrupted, match=f"{kind.__name__} came in the middle of pay"):
                app.run(stubborn, run_id="r", wait=False)
        if place == "effect.after_outcome":
            assert app.run(stubborn, run_id="r", wait=False) == 7
        else:
            with pytest.raises(hf.RunWaiting, match="did pay"):
                app.run(stubborn, run_id="r", wait=False)
    assert did == [7] * (place != "effect.after_intent")


def test_without_that_look_it_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[int] = []

    @hf.effect(in_doubt="ask")
    async def pay(n: int) -> int:
        did.append(n)
        return n

    @hf.agent
    async def stubborn() -> int:
        try:
            return await pay(7)
        except TimeoutError:
            return await pay(7)

    monkeypatch.setattr(drive, "caught_between", lambda *_: None)
    interrupting(monkeypatch, "effect.after_body", TimeoutError)
    with hf.Holdfast("memory:") as app, pytest.raises(hf.RunWaiting):
        app.run(stubborn, run_id="r", wait=False)
    assert did == [7, 7]


def test_ctrl_c_that_nobody_catches_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.effect(in_doubt="ask")
    async def pay(n: int) -> int:
        return n

    @hf.agent
    async def paying() -> int:
        return await pay(7)

    interrupting(monkeypatch, "effect.after_body", KeyboardInterrupt)
    with hf.Holdfast("memory:") as app, pytest.raises(KeyboardInterrupt, match="pay at step 1"):
        app.run(paying, run_id="r")


class Unshown:
    """What can be neither kept nor shown."""

    def __repr__(self) -> str:
        raise RuntimeError("detached")


@pytest.mark.parametrize("result", [Unshown(), [Unshown()], 10**5000], ids=["an object", "in a list", "a number"])
def test_a_result_that_can_be_neither_kept_nor_shown_is_known_to_have_happened(result: Any) -> None:
    @hf.effect(in_doubt="ask", returns=Any)
    def pay() -> Any:
        return result

    @hf.agent
    def paying() -> None:
        pay()

    with hf.Holdfast("memory:") as app:
        for _ in range(2):
            with pytest.raises(hf.ResultNotKept, match="which cannot be shown either"):
                app.run(paying, run_id="r")
