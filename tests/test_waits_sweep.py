"""Those who wait, answer and send are killed at failpoints and flushes, and started again: nothing is lost or applied twice.

The same sweep over an engine that does not take a message in the transaction of what follows from it must find that out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agents_for_tests.sweep_agent import lines
from crashing import records
from holdfast._failpoints import WAITS
from holdfast.records import kinds as rec
from sweeping import KILLED, RESTARTS, RUN_ID, Death, Stage, death_at, misfits, result_of, said, staged, swept

RESULT = ["look-a", "red", "look-b", "1", "look-c", "2", "3"]
POINTS = {
    0: ("claim.after", "step.after_outcome", "ask.before", "ask.after", "park.before", "park.after"),
    1: ("answer.before", "answer.after"),
    2: ("send.before", "send.after"),
    3: ("claim.after", "send.before", "send.after", "run.before_done"),
    4: ("claim.after", "wait.before", "wait.after", "wait.before_outcome", "wait.after_outcome", "run.before_done", "run.after_done"),
}
"""Where each act is killed, at every occurrence."""
STAYS = (
    "claim.after", "step.after_outcome", "ask.before", "ask.after", "stay.begun", "answer.before", "answer.after", "send.before",
    "send.after", "wait.before", "wait.after", "wait.before_outcome", "wait.after_outcome", "run.before_done", "run.after_done",
)  # fmt: skip
"""Where one is killed that waits in place for what somebody says meanwhile."""

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(400)]

stage = staged("wait_agent")


def acts(variant: str, *, keyed: bool = False) -> list[str]:
    """What is done, each by a process of its own: it asks, is answered, gets messages from outside and from another run, and ends."""
    return [variant, "answer", "send keyed" if keyed else "send", "peer", variant, variant]


def wrong(stage: Stage, folder: Path) -> list[str]:
    """What is not as it must be at the end."""
    with stage.open(folder) as app:
        good = all(verdict.good for verdict in app.check())
        kinds = Counter(type(record) for record in records(app.store, RUN_ID))
        left = app.store.letters([RUN_ID])
    found: dict[str, object] = {
        "the result": result_of(folder),
        "taken and answered": (kinds[rec.MessageTaken], kinds[rec.AskAnswered], kinds[rec.AskOpened]),
        "before the wait": sum(line["what"] == "a" for line in lines(folder)),
        "letters left": left,
        "good": good,
    }
    due = {"the result": RESULT, "taken and answered": (3, 1, 1), "before the wait": 1, "letters left": [], "good": True}
    return misfits(folder, found, due)


def played(stage: Stage, variant: str, dying: int, folder: Path, death: Death) -> list[str] | None:
    """What is wrong after all acts were played, one of which was killed; None where it was not."""
    killed = stage.played(folder, acts(variant, keyed=dying == 2), dying, death)
    return wrong(stage, folder) if killed else None


@pytest.mark.parametrize(("variant", "dying"), [*(("async", act) for act in POINTS), ("def", 0), ("def", 4)])
def test_a_kill_at_every_failpoint_and_every_third_flush(stage: Stage, tmp_path: Path, variant: str, dying: int) -> None:
    kills, problems = swept(tmp_path, (*POINTS[dying], "sync"), partial(played, stage, variant, dying), flushes_every=3)
    assert problems == []
    assert set(kills) == {*POINTS[dying], "sync"}
    assert set(WAITS) <= {name for names in (*POINTS.values(), STAYS) for name in names}


@pytest.mark.parametrize("variant", ["async", "def"])
def test_the_sweep_finds_out_an_engine_that_takes_messages_beside_their_outcome(stage: Stage, tmp_path: Path, variant: str) -> None:
    problems = []
    for number in range(3, 6):
        found = played(replace(stage, broken="letters"), variant, 4, tmp_path / str(number), death_at(f"wait.after_outcome:{number}"))
        assert found is not None
        problems += found
    assert any("the result is" in problem for problem in problems), problems


def stayed(stage: Stage, variant: str, folder: Path, death: Death) -> list[str] | None:
    """What is wrong with a run that stays in place, was killed once and started again until it was done; None where it was not killed."""
    folder.mkdir()
    codes = [stage.run(folder, f"stay {variant}", death)]
    while codes[-1] == KILLED and len(codes) <= RESTARTS:
        codes.append(stage.run(folder, f"stay {variant}"))
    assert codes[-1] == 0, (codes, said(folder))
    return wrong(stage, folder) if codes[0] == KILLED else None


@pytest.mark.parametrize("variant", ["async", "def"])
def test_a_kill_at_failpoints_of_a_run_that_stays_in_place(stage: Stage, tmp_path: Path, variant: str) -> None:
    points = STAYS[::2] if variant == "async" else STAYS[1::2]  # each takes as long as people do; without staying all are tried for both
    kills, problems = swept(tmp_path, points, partial(stayed, stage, variant))
    assert problems == []
    assert set(kills) == set(points)
