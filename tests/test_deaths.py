"""What counts as getting on, so that a run which kills its workers is set aside and one that only has bad luck is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import starting
from agents_for_tests import deadly_app
from chaos_fleet import command, surroundings
from holdfast import Holdfast
from holdfast.fleet import deaths as deaths_room
from holdfast.fleet.deaths import MOST_DEATHS, deaths, deaths_of, too_deadly
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore
from test_records import FULL

BOUND_S = 60.0
TAKEN = rec.RunResumed(owner="w", why="taken over")
STARTED = rec.RunStarted(agent="a", fingerprint="f", origin="run", owner="w", args=b"{}", args_sha="")
BESIDE = {
    "step.started", "step.attempt_failed", "doubt.opened", "doubt.settled", "child.started", "state.saved", "time.read", "watch.taken",
    "watch.drifted", "model.changed", "run.pruned",
}  # fmt: skip
"""Records that a life can leave behind which comes no further than the one before it."""


def counted(*records: rec.Record) -> int:
    return len(deaths(Journal("run").seal([STARTED, *records], at_us=1).rows))


@pytest.mark.parametrize("record", [one for one in FULL if one.kind != "run.resumed"], ids=lambda record: record.kind)
def test_a_run_got_on_where_something_is_settled_and_not_where_it_only_began_or_was_looked_at(record: rec.Record) -> None:
    assert counted(TAKEN, TAKEN, record) == (2 if record.kind in BESIDE else 0)


def partial(value: bytes, name: str = "1") -> rec.Record:
    return rec.StepPartial(step_id="1", name=name, about="look f", value=value)


def test_a_body_that_saves_what_it_had_saved_before_does_not_get_on() -> None:
    first, second = partial(b"[1]"), partial(b"[1,2]")
    assert counted(first, second, TAKEN, first, second, TAKEN, first, second) == 2
    assert counted(first, TAKEN, first, second, TAKEN) == 1
    assert counted(first, TAKEN, partial(b"[1]", name="2"), TAKEN) == 1


# --- runs inside runs -----------------------------------------------------------------------------------------------

SLOW_US = 3_600_000_000
"""By so much the clock of a machine may be behind those of the others."""


def write(store: MemoryStore, run_id: str, *records: rec.Record, at_us: int) -> None:
    found = store.load(run_id)
    journal = Journal.load(*found) if found else Journal(run_id)
    assert store.append([journal.seal(records, at_us=at_us)]) == [None]


def family(store: MemoryStore, depth: int) -> list[str]:
    """Runs inside runs, begun by the first owner; the innermost comes last."""
    names = [f"run{'.1' * level}" for level in range(depth + 1)]
    for name, parent in zip(names, ["", *names], strict=False):
        above = {"run": parent, "step": "1"} if parent else {}
        begun = rec.RunStarted(agent="a", fingerprint="f", origin=name, owner="far.0", parent=above)
        child = rec.ChildStarted(step_id="1", child=f"{name}.1", name="a", fingerprint="f")
        write(store, name, begun, *([child] if name != names[-1] else []), at_us=SLOW_US)
    return names


def die(store: MemoryStore, names: list[str], nr: int) -> None:
    """The next owner takes all of them from the one that died."""
    for name in names:
        write(store, name, rec.RunResumed(owner=f"far.{nr}", why="taken over"), at_us=SLOW_US + nr)


def gets_on(store: MemoryStore, name: str, nr: int) -> None:
    """A step has an outcome, on a machine whose clock is behind."""
    write(store, name, rec.StepDone(step_id=f"{100 + nr}", name="look", fingerprint="f", value=b"1"), at_us=nr)


def found_deadly(store: MemoryStore) -> list[str]:
    with Holdfast(store) as app:
        found = store.load("run")
        assert found is not None
        died = deaths_of(app.engine, *found)
        return [death.owner for death in died] if too_deadly(died) else []


@pytest.mark.parametrize("depth", [1, 3])
def test_a_run_gets_on_while_one_inside_it_does_whatever_the_clocks_say(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = family(store := MemoryStore(), depth)
    for nr in range(1, 8):
        die(store, names, nr)
        gets_on(store, names[-1], nr)
        assert found_deadly(store) == []
    monkeypatch.setattr(deaths_room, "_got_on_under", lambda *_: set())
    assert found_deadly(store), "without the rule it would be set aside"


def test_a_run_is_set_aside_once_the_one_inside_it_has_not_got_on_for_as_many_deaths_as_any_other() -> None:
    names = family(store := MemoryStore(), 2)
    for nr in (1, 2, 3, 4):
        die(store, names, nr)
        gets_on(store, names[-1], nr) if nr == 2 else None
    assert found_deadly(store) == []
    die(store, names, 5)
    assert found_deadly(store) == ["far.2", "far.3", "far.4", "far.5"]


def test_a_run_inside_that_has_ended_well_says_no_more_than_its_outcome() -> None:
    names = family(store := MemoryStore(), 1)
    write(store, "run", rec.StepDone(step_id="1", name="a", fingerprint="f", value=b"1"), at_us=SLOW_US)
    for nr in (1, 2, 3):
        die(store, names[:1], nr)
        write(store, names[-1], rec.RunResumed(owner=f"far.{nr}", why="resumed"), at_us=SLOW_US)
        gets_on(store, names[-1], nr)
    assert found_deadly(store) == ["far.0", "far.1", "far.2", "far.3"]


def test_a_run_whose_child_gets_on_outlives_more_workers_than_one_that_kills_may(tmp_path: Path) -> None:
    file, url, lives = Path(deadly_app.__file__), str(tmp_path / "runs.db"), MOST_DEATHS + 1
    with Holdfast(url) as app:
        app.submit(deadly_app.sends, str(tmp_path), lives, run_id="run")
        for _ in range(lives):
            ended = starting.run(command(file, url), env=surroundings(1), timeout=BOUND_S)
            assert ended.returncode == -9
        with starting.Popen(command(file, url), env=surroundings(1), stderr=subprocess.DEVNULL) as process:
            try:
                assert app.handle("run").wait(timeout=BOUND_S) == lives
            finally:
                process.kill()
    assert sorted(path.name for path in tmp_path.glob("noted-*")) == [f"noted-{nr}" for nr in range(lives)]
