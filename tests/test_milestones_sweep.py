"""A run with milestones, partial results and several generations is killed at failpoints and flushes, and started again.

Its steps never give the same twice, so that whatever an effect or a milestone relied on and the engine then lost shows at the end. The same
sweep over engines that are broken on purpose must find them out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agents_for_tests.sweep_agent import lines
from holdfast._failpoints import MILESTONES
from sweeping import KILLED, RESTARTS, Death, Stage, death_at, result_of, said, staged, swept

POINTS = (
    "claim.after", "step.after_body", "step.after_outcome", "effect.before_intent", "effect.after_intent", "effect.after_body",
    "effect.after_outcome", "run.before_done", "run.after_done", *MILESTONES,
)  # fmt: skip
CHARGED = ("c", "d", "e")

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(400)]

stage = staged("mile_agent")


def wrong(stage: Stage, folder: Path, generations: int) -> list[str]:
    """What is not as it must be at the end."""
    result = result_of(folder)
    if result is None:
        return [f"{folder.name}: it did not come to its end"]
    charged = sorted(line["what"] for line in lines(folder) if line["name"] == "charge")
    relied_on = sorted(note.removeprefix("charge-") for notes in result for note in notes if note.startswith("charge-"))
    problems = [] if charged == relied_on else [f"charged {charged}, the run knows of {relied_on}"]
    problems += [] if len(charged) == len(CHARGED) * generations else [f"{len(charged)} charges in {generations} generations"]
    for ack in lines(folder, "acks"):
        value, number = json.loads(ack["value"]), int(ack["what"])
        notes = result[number - 1] if ack["name"] == "milestone" else result[number][-3:]
        if notes[: len(value)] != value:
            problems.append(f"{ack['name']} {value} was acknowledged and is lost: {notes}")
    with stage.open(folder) as app:
        problems += [f"damaged: {verdict.what}" for verdict in app.check() if not verdict.good]
    return [f"{folder.name}: {problem}" for problem in problems]


def killed(stage: Stage, variant: str, folder: Path, death: Death) -> list[str] | None:
    """What is wrong with a run that was killed there and started again until it was done; None where it did not come to the place."""
    folder.mkdir()
    code = first = stage.run(folder, variant, death)
    for _ in range(RESTARTS):
        if code == 0:
            break
        code = stage.run(folder, variant)
    assert code == 0 or stage.broken, said(folder)
    return wrong(stage, folder, int(variant.split()[1])) if first == KILLED else None


@pytest.mark.parametrize("variant", ["async 2", "def 2"])
def test_a_kill_at_every_failpoint_every_second_time_and_every_third_flush(stage: Stage, tmp_path: Path, variant: str) -> None:
    kills, problems = swept(tmp_path, (*POINTS, "sync"), partial(killed, stage, variant), every=2, flushes_every=3)
    assert problems == []
    assert set(kills) == {*POINTS, "sync"}
    assert kills["sync"] >= 4


@pytest.mark.parametrize("variant", ["async 5", "def 5"])
@pytest.mark.parametrize("name", ["continue.before", "continue.after"])
def test_no_generation_is_lost_or_repeated(stage: Stage, tmp_path: Path, variant: str, name: str) -> None:
    for number in range(1, 5):
        assert killed(stage, variant, tmp_path / str(number), death_at(f"{name}:{number}")) == []


@pytest.mark.parametrize("variant", ["async 2", "def 2"])
@pytest.mark.parametrize(
    ("broken", "place"), [("flush", "effect.after_body:3"), ("generation", "effect.after_body:4"), ("partial", "partial.after:2")]
)
def test_the_sweep_finds_out_a_broken_engine(stage: Stage, tmp_path: Path, variant: str, broken: str, place: str) -> None:
    """It writes intents without what came before, gives two generations the same keys, or does not write what a body saves."""
    assert killed(stage, variant, tmp_path / "sound", death_at(place)) == []
    assert killed(replace(stage, broken=broken), variant, tmp_path / "broken", death_at(place))
