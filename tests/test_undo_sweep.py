"""A process that undoes three effects is killed at every failpoint and every flush, and started again until the run is closed.

The ledger, which the bodies write, must show each effect done once and undone once, the newest first. The same sweep over engines that
are broken on purpose must find them out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agents_for_tests.sweep_agent import lines
from holdfast._failpoints import NAMES
from sweeping import KILLED, NEEDS_A_PERSON, RUN_ID, Death, Stage, death_at, staged, swept

RESTARTS = 8
DONE = [("pay", "a"), ("pay", "b"), ("pay", "c"), ("refund", "c"), ("refund", "b"), ("refund", "a")]

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(400)]

stage = staged("undo_agent")


def answer(stage: Stage, folder: Path) -> None:
    """Settle what is open, as a person would who looks for the key in the ledger."""
    with stage.open(folder) as app:
        for item in app.inbox():
            seen = [f"{line['name']}-{line['what']}" for line in lines(folder) if line["key"] == item.key]
            if seen:
                app.resolve(RUN_ID, item.step_id, landed=seen[0], by="test")
            else:
                app.resolve(RUN_ID, item.step_id, not_landed=True, by="test")


def finished(stage: Stage, folder: Path, variant: str) -> list[str]:
    """Start it again until it is closed; what is wrong then."""
    code = NEEDS_A_PERSON
    for _ in range(RESTARTS):
        code = stage.run(folder, variant)
        if code != NEEDS_A_PERSON:
            break
        answer(stage, folder)
    done = [(line["name"], line["what"]) for line in lines(folder)]
    with stage.open(folder) as app:
        status = app.show(RUN_ID).status
        assert [verdict.good for verdict in app.check()] == [True]
    return [] if (code, status, done) == (0, "cancelled", DONE) else [f"{variant} {folder.name}: ended with {code} as {status}: {done}"]


def killed(stage: Stage, variant: str, folder: Path, death: Death) -> list[str] | None:
    """What is wrong with a run that was killed there and started again until it was closed; None where it was not killed."""
    folder.mkdir()
    return finished(stage, folder, variant) if stage.run(folder, variant, death) == KILLED else None


@pytest.mark.parametrize("variant", ["async", "def"])
def test_a_kill_at_every_failpoint_leaves_each_effect_undone_once_newest_first(stage: Stage, tmp_path: Path, variant: str) -> None:
    kills, problems = swept(tmp_path, NAMES, partial(killed, stage, variant))
    assert problems == []
    of_effects = {name: kills[name] for name in NAMES if name.startswith("effect.")}
    assert of_effects == dict.fromkeys(of_effects, 6)


@pytest.mark.parametrize("variant", ["async", "def"])
def test_a_kill_at_every_flush_leaves_each_effect_undone_once_newest_first(stage: Stage, tmp_path: Path, variant: str) -> None:
    kills, problems = swept(tmp_path, ("sync",), partial(killed, stage, variant))
    assert problems == []
    assert kills["sync"] >= 15


@pytest.mark.parametrize("variant", ["async", "def"])
@pytest.mark.parametrize("broken", ["intents", "order"])
def test_the_sweep_finds_out_a_broken_engine(stage: Stage, tmp_path: Path, variant: str, broken: str) -> None:
    """Killed in each undo: only there does it show."""
    wrong = []
    for number in (4, 5, 6):
        found = killed(replace(stage, broken=broken), variant, tmp_path / str(number), death_at(f"effect.after_body:{number}"))
        assert found is not None
        wrong += found
    assert any("('refund', 'c'), ('refund', 'c')" in line or "('refund', 'a'), ('refund', 'b')" in line for line in wrong), wrong
