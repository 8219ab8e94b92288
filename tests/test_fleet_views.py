"""What `show`, `runs`, `inbox` and `workers` say where workers share the runs: what helps there, and what is held back."""

from __future__ import annotations

import asyncio
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from cli_stage import Stage
from holdfast import Holdfast
from holdfast.cli.fleet import fleet_page
from holdfast.cli.terminal import draw
from holdfast.cli.views import Setting
from holdfast.fleet.worker import Drained, Worker
from holdfast.operating.holding import Fleet
from holdfast.operating.roster import introduction
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore

BOUND_S = 30.0


@hf.agent
def buys(number: int) -> int:
    if number < 0:
        raise ValueError("nothing to buy")
    return number


@hf.step
async def lingers() -> None:
    await asyncio.Event().wait()


@hf.agent
async def inner() -> None:
    await lingers()


@hf.agent
async def outer() -> None:
    await inner()


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    """One run that has failed, one that is blocked by its code, one in line and one that was paused."""
    with Holdfast(tmp_path / "runs.db") as app:
        with pytest.raises(ValueError, match="nothing to buy"):
            app.run(buys, -1, run_id="failed")
        for run_id in ("queued", "paused", "blocked"):
            app.submit(buys, 1, run_id=run_id)
        app.pause("paused", by="ann", reason="look")
        misfit = rec.RunBlocked(step_id="1", error={"type": "ReplayMismatch", "message": "another path"})
        journal = Journal.load(*loaded(app.engine, "blocked"))
        app.engine.committer.commit(journal, [rec.RunResumed(owner="", why="taken"), misfit])
    return Stage(tmp_path, capsys)


@contextmanager
def worker(stage: Stage, *, agents: tuple[str, ...] = ("buys",), queues: tuple[str, ...] = ("default",)) -> Iterator[Holdfast]:
    """This process says that it is a worker, and takes nothing."""
    with Holdfast(stage.store) as app:
        app.engine.keeper.enroll()
        told = introduction(app.engine, agents=agents, queues=queues, concurrency=1, stopping=False)
        app.engine.store.introduce(app.engine.keeper.owner, told)  # type: ignore[attr-defined]
        yield app


def proposed(stage: Stage, run_id: str) -> list[str]:
    commands: list[str] = stage.document("show", run_id)["run"]["next_commands"]
    return commands


# --- what to do next ------------------------------------------------------------------------------------------------

ALONE = {
    "failed": ["holdfast resume failed --here APP.py"],
    "queued": ["holdfast resume queued --here APP.py", "holdfast worker APP.py"],
    "paused": ["holdfast resume paused"],
    "blocked": ["holdfast resume blocked --here OLD_APP.py", "holdfast resume blocked --accept --here APP.py", "holdfast cancel blocked"],
}
SERVED = {
    "failed": ["holdfast resume failed", "holdfast resume failed --here APP.py"],
    "queued": ["holdfast workers"],
    "paused": ["holdfast resume paused"],
    "blocked": ["holdfast resume blocked --accept", "holdfast resume blocked --here OLD_APP.py", "holdfast cancel blocked"],
}
HELD = {
    "failed": ["holdfast resume failed"],
    "queued": [],
    "paused": ["holdfast resume paused"],
    "blocked": ["holdfast resume blocked --accept", "holdfast cancel blocked"],
}


def test_without_a_worker_for_it_a_run_goes_on_where_one_says_so(stage: Stage) -> None:
    assert {run_id: proposed(stage, run_id) for run_id in ALONE} == ALONE
    with worker(stage, agents=("other",)), worker(stage, queues=("mail",)):
        assert {run_id: proposed(stage, run_id) for run_id in ALONE} == ALONE


def test_where_a_worker_serves_it_a_run_is_left_to_workers_first(stage: Stage) -> None:
    with worker(stage):
        assert {run_id: proposed(stage, run_id) for run_id in SERVED} == SERVED
        (item,) = stage.document("inbox")["items"]
        assert item["commands"] == SERVED["blocked"]


@pytest.mark.parametrize("words", [("--queue", "default"), ("--fleet",)])
def test_nothing_is_proposed_that_goes_on_in_spite_of_a_pause(stage: Stage, words: tuple[str, ...]) -> None:
    stage.told("pause", *words)
    with worker(stage):
        assert {run_id: proposed(stage, run_id) for run_id in HELD} == HELD
        assert stage.told("show", "queued").splitlines()[-1] == f"  holdfast resume {' '.join(words)} --store {stage.store}"


def test_a_child_is_in_the_hands_of_those_who_take_the_run_that_it_is_inside_of(stage: Stage) -> None:
    with worker(stage) as app:
        above = {"run": "queued", "step": "1"}
        inside = rec.RunStarted(agent="other", fingerprint="1:f", origin="child", tags={"child_of": "queued"}, parent=above, queue="mail")
        app.engine.committer.commit(Journal("child"), [inside])
        assert Fleet(app.engine).hands(loaded(app.engine, "child")[0]) == "workers"


# --- where a run stands ---------------------------------------------------------------------------------------------


def test_runs_in_line_are_counted_where_nobody_works_at_all(stage: Stage) -> None:
    assert stage.document("workers")["unserved"] == {"no worker has agent buys": 1}
    lines = stage.told("workers").splitlines()
    assert lines == ["nobody works on this store. Start one: holdfast worker APP.py", "no worker has agent buys: 1 run in line"]


def test_why_no_worker_takes_a_run_stands_right_below_where_it_stands(stage: Stage) -> None:
    assert "no worker" not in stage.told("show", "queued")
    with worker(stage, queues=("mail",)):
        lines = stage.told("show", "queued").splitlines()
    assert lines[0].startswith("ready to go on, and nobody runs it")
    assert lines[1:3] == ["no worker that has agent buys takes runs of queue default: none would go on with it", ""]


def test_a_place_in_line_is_shown_where_it_was_said_and_always_in_documents(stage: Stage) -> None:
    with Holdfast(stage.store) as app:
        app.submit(buys, 1, run_id="said", queue="mail", priority=-5, key="ann")
    assert "  queue     mail, priority -5, key ann" in stage.told("show", "said").splitlines()
    assert "  queue  " not in stage.told("show", "queued")
    shown = [stage.document("show", run_id)["run"] for run_id in ("said", "queued")]
    listed = {run["run_id"]: run for run in stage.document("runs")["runs"]}
    places = [("mail", -5, "ann"), ("default", 0, "")]
    assert [(run["queue"], run["priority"], run["key"]) for run in shown] == places
    assert [(run["queue"], run["priority"], run["key"]) for run in (listed["said"], listed["queued"])] == places


def test_who_has_paused_a_run_and_why_is_told_first(stage: Stage) -> None:
    assert stage.told("show", "paused").splitlines()[0] == "paused by ann: look"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("pause",), "; told to stop by ann: look, before its next step"),
        (("pause", "--now"), "; told to stop by ann: look, at once"),
        (("cancel",), "; told to end for good by ann: look"),
    ],
    ids=["pause", "now", "cancel"],
)
def test_a_word_that_the_step_under_way_has_yet_to_obey_is_told(stage: Stage, words: tuple[str, ...], told: str) -> None:
    with worker(stage) as app:
        journal = Journal.load(*loaded(app.engine, "queued"))
        app.engine.committer.commit(journal, [rec.RunResumed(owner=app.engine.keeper.owner, why="queued")])
        assert stage.told("show", "queued").splitlines()[0] == "running"
        stage.told(words[0], "queued", *words[1:], "--by", "ann", "--reason", "look")
        assert stage.told("show", "queued").splitlines()[0] == f"running{told}"


# --- who works ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_agents_of_a_worker_stand_under_their_name_and_runs_are_said_to_be_executed(stage: Stage, width: int) -> None:
    with worker(stage, queues=("mail", "slow")) as app:
        owner = app.engine.keeper.owner
        for run_id in ("queued", "blocked"):
            app.engine.committer.commit(Journal.load(*loaded(app.engine, run_id)), [rec.RunResumed(owner=owner, why="taken")])
        page = fleet_page(app.workers(), Setting(app.engine.clock.now_us()), {})
    drawn = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        draw(page, drawn)
    head, *rows = drawn.getvalue().splitlines()
    assert head.endswith("CODE  AGENTS")
    assert " ".join(rows).endswith(" buys of queue mail, slow; executes blocked, queued")


# --- words ----------------------------------------------------------------------------------------------------------


def test_pausing_what_is_paused_says_by_whom_it_was_and_changes_nothing(stage: Stage) -> None:
    before = stage.records("paused")
    told = stage.told("pause", "paused", "--by", "bob")
    assert told.startswith("the run is paused already, by ann: look; nothing was changed. It goes on after: holdfast resume paused")
    assert stage.records("paused") == before


def test_who_waits_for_a_blocked_run_is_not_told_that_it_failed(stage: Stage) -> None:
    with Holdfast(stage.store) as app, pytest.raises(hf.RunFailed) as raised:
        app.handle("blocked").wait(timeout=5)
    text = str(pickle.loads(pickle.dumps(raised.value)))
    assert text.startswith("blocked: ReplayMismatch: another path (run 'blocked' is blocked; ")
    assert "failed" not in text


@pytest.mark.parametrize(("room", "told"), [(1, "buys, one run at a time"), (2, "buys, up to 2 runs at a time")])
def test_a_worker_says_of_one_run_that_it_is_one(room: int, told: str) -> None:
    with Holdfast(MemoryStore()) as app:
        assert Worker(app.engine, [buys], concurrency=room).told() == told


@pytest.mark.parametrize(("agent", "told"), [(inner, "1 (lingers)"), (outer, "1 (lingers) of run run.1")], ids=["step", "child"])
def test_a_worker_that_breaks_steps_off_names_them(agent: Callable[..., Any], told: str) -> None:
    async def main(app: Holdfast) -> Drained:
        worker = Worker(app.engine, [inner, outer], concurrency=1, grace_s=0.0)
        working = asyncio.create_task(worker.work())
        async with asyncio.timeout(BOUND_S):
            while told not in worker.under_way().values():  # noqa: ASYNC110 (another part of the process gets there)
                await asyncio.sleep(0.01)
            worker.stop()
            return await working

    with Holdfast(MemoryStore()) as app:
        app.submit(agent, run_id="run")
        assert asyncio.run(main(app)) == Drained(("run",), (), {"run": told})
