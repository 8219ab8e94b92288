"""What is swept on SQLite is killed on every other store that outlives a process as well: in fewer places, of every kind.

Every failpoint of a run is one of them, every effect before and after its body, and the own failpoints of the store; a kill
during the recovery from another; kills at random times; and, of those who wait, call, go back, prune, keep artifacts, go on for generations
and undo, what is written in each of their steps. The engines and the store that are broken on purpose must be found out here too.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import test_artifact_sweep as artifacts
import test_child_sweep as children
import test_milestones_sweep as milestones
import test_pruning_sweep as pruning
import test_timetravel_sweep as timetravel
import test_undo_sweep as undoing
import test_waits_sweep as waits
from holdfast._failpoints import NAMES
from sweeping import KILLED, MOST, OTHERS, Death, Home, Server, Stage, death_at, said
from test_sweep import CONTROLS, EFFECTS, VARIANTS, Crew, killed_at, new_case, refuse_any, sweep

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(400)]

EACH_KIND = [f"{name}:1" for name in NAMES if not name.startswith("doubt.")]
IN_EFFECTS = [f"{name}:{number}" for name in ("effect.after_intent", "effect.after_body") for number in range(1, len(EFFECTS) + 1)]
TWICE = [
    ("effect.after_body:2", "doubt.before_settle:1"),
    ("effect.after_intent:2", "doubt.after_settle:1"),
    ("effect.after_body:3", "claim.after:1"),
    ("effect.after_intent:1", "effect.after_body:1"),
]
RANDOM_KILLS = 6
WRITES = 20
"""That a run makes at the least."""

Trial = Callable[[Stage, Path, Death], list[str] | None]


def waiter(variant: str, dying: int) -> Trial:
    return lambda stage, folder, death: waits.played(stage, variant, dying, folder, death)


def traveller(dying: int) -> Trial:
    return lambda stage, folder, death: timetravel.played(stage, dying, folder, death)


def keeper(dying: str) -> Trial:
    return lambda stage, folder, death: artifacts.played(stage, dying, folder, death)


FEW: dict[str, tuple[str, Trial, list[str]]] = {
    "asks": ("wait_agent", waiter("async", 0), ["ask.after:1", "park.before:1"]),
    "answers": ("wait_agent", waiter("def", 1), ["answer.before:1", "answer.after:1"]),
    "sends": ("wait_agent", waiter("async", 2), ["send.before:2", "send.after:1"]),
    "receives": ("wait_agent", waiter("def", 4), ["wait.before_outcome:2", "wait.after_outcome:3"]),
    "stays": ("wait_agent", lambda stage, *case: waits.stayed(stage, "async", *case), ["stay.begun:1", "wait.after_outcome:2"]),
    "calls": (
        "child_agent", lambda stage, *case: children.played(stage, "async", 0, *case),
        ["child.after:1", "child.before_take:2", "effect.after_body:3", "park.after:1"],
    ),
    "cancels": ("child_agent", children.cancelled, ["child.before_cancel:1"]),
    "edits": ("time_agent", traveller(1), ["edit.before:1", "edit.after:1"]),
    "forks": ("time_agent", traveller(3), ["fork.before:1", "fork.after:1"]),
    "uses again": ("time_agent", traveller(4), ["effect.before_reuse:1", "effect.after_reuse:1"]),
    "prunes": (
        "prune_agent", lambda stage, folder, death: pruning.killed(stage, pruning.make(stage, folder), death),
        ["prune.before:2", "prune.after:1", "shed.before:2", "shed.after:1", "forget.before:1"],
    ),
    "keeps": ("artifact_agent", keeper("run"), ["blob.before:3", "blob.after:2", "step.after_outcome:2"]),
    "sweeps": ("artifact_agent", keeper("sweep"), ["sweep.before:1", "sweep.after:1"]),
    "goes on": (
        "mile_agent", lambda stage, *case: milestones.killed(stage, "def 2", *case),
        ["milestone.after:1", "partial.before:2", "partial.after:1", "continue.before:1", "continue.after:1"],
    ),
    "undoes": (
        "undo_agent", lambda stage, *case: undoing.killed(stage, "async", *case), ["effect.after_intent:4", "effect.after_body:5"],
    ),
}  # fmt: skip
"""Who is killed, as what he does, how his case is played, and where."""


@pytest.fixture(params=OTHERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def home(request: pytest.FixtureRequest, name: str) -> Home:
    return OTHERS[name].home(request)


@pytest.fixture(scope="session")
def crews(server: Server, second_server: Server) -> Callable[[str, Home, Path], Crew]:
    """One for each store."""
    made: dict[str, Crew] = {}

    def crew_of(name: str, home: Home, folder: Path) -> Crew:
        if name not in made:
            made[name] = Crew(server, second_server, home=home)
            for variant in VARIANTS:
                (folder / variant).mkdir()
                made[name].undisturbed(folder / variant, variant)
        return made[name]

    return crew_of


@pytest.fixture
def crew(crews: Callable[[str, Home, Path], Crew], name: str, home: Home, tmp_path: Path) -> Crew:
    return crews(name, home, tmp_path)


def test_a_kill_at_every_failpoint(crew: Crew, tmp_path: Path) -> None:
    refuse_any(crew.map(killed_at(crew, tmp_path, "async"), EACH_KIND))


def test_a_kill_in_every_effect(crew: Crew, tmp_path: Path, name: str) -> None:
    refuse_any(crew.map(killed_at(crew, tmp_path, "def"), IN_EFFECTS[:: OTHERS[name].share]))


def test_a_kill_inside_the_store_at_every_fourth_write(crew: Crew, tmp_path: Path, name: str) -> None:
    places = [[f"{place}:{number}" for number in range(1, MOST, 4)] for place in OTHERS[name].inside]
    found = crew.map(sweep(crew, tmp_path, "async", "failpoint"), places)
    refuse_any(wrong for _, wrong in found)
    assert all(WRITES / 4 <= kills < MOST / 4 for kills, _ in found)


def test_a_second_kill_during_the_recovery_from_the_first(crew: Crew, tmp_path: Path) -> None:
    def kill_twice(server: Server, places: tuple[str, str]) -> list[str]:
        case = new_case(crew, tmp_path / "+".join(places), "async")
        for place in places:
            assert server.obey(case.order(failpoint=place)) == KILLED, (places, said(case.folder))
            case.killed(place)
        case.finish(server)
        return case.judge(crew.expected)

    refuse_any(crew.map(kill_twice, TWICE))


def test_kills_at_random_times(crew: Crew, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    dice = random.Random(seed)

    def kill_twice(server: Server, drawn: tuple[int, float]) -> tuple[int, list[str]]:
        case = new_case(crew, tmp_path / str(drawn[0]), VARIANTS[drawn[0] % 2])
        for after_s in (drawn[1], 0.7 * drawn[1]):
            if server.obey(case.order(kill_after_s=after_s)) == KILLED:
                case.killed(f"{after_s:.4f} s (seed {seed})")
        case.finish(server)
        return len(case.kills), case.judge(crew.expected)

    found = crew.map(kill_twice, [(number, dice.uniform(0.005, 0.05)) for number in range(RANDOM_KILLS)])
    refuse_any(wrong for _, wrong in found)
    assert sum(kills for kills, _ in found) >= RANDOM_KILLS


@pytest.mark.parametrize("broken", CONTROLS)
def test_what_is_broken_is_found_out(crew: Crew, tmp_path_factory: pytest.TempPathFactory, broken: str) -> None:
    point, noticed = CONTROLS[broken]
    on_disk = tmp_path_factory.mktemp(broken)  # in memory a write would be over before the kill comes
    found = crew.map(killed_at(crew, on_disk, "async", broken), [f"{point}:{number}" for number in range(1, len(EFFECTS) + 1)])
    assert any(noticed in line for wrong in found for line in wrong), found


@pytest.mark.parametrize("who", FEW)
def test_those_who_do_more_than_run_are_killed_too(home: Home, name: str, server: Server, tmp_path: Path, who: str) -> None:
    agent, tried, places = FEW[who]
    places = places[:: OTHERS[name].share]
    found = {place: tried(Stage(server, agent, home), tmp_path / place, death_at(place)) for place in places}
    assert found == {place: [] for place in places}
