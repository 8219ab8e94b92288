"""A worker is killed at failpoints and flushes, and started again until all is done: nothing it was left is lost or done twice.

It executes runs of two queues under limits, fires schedules, parks, is answered, hands over when it is told to stop, and sets a run aside
that kills. Those who leave runs to it, hold a queue back or cancel many are killed as well. The same sweep over workers that are broken on
purpose must find that out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agents_for_tests.sweep_agent import lines
from agents_for_tests.worker_agent import CASTS, FURTHER
from chaos_judging import Stored, damaged, owned_twice, stored
from holdfast import Holdfast
from holdfast.fleet.deaths import MOST_DEATHS, TAKEN_OVER
from holdfast.records import kinds as rec
from holdfast.records.chain import record_of
from sweeping import KILLED, OTHERS, Death, Server, Stage, death_at, said, staged, swept

LIVES = 8
"""Workers that are started one after the other; who is not through then never will be."""
ONCE = ("charge", "sign")
ORDERS = [left.run_id for left in CASTS["orders"].runs]
BODIES = ("look", "charge", "mail", "sign", "ring", "die")
IN_RUNS = (
    "claim.before", "claim.after", "step.after_outcome", "effect.after_intent", "effect.after_body", "effect.after_outcome",
    "run.before_done", "run.after_done",
)  # fmt: skip
IN_WAITS = (
    "ask.after", "answer.before", "answer.after", "wait.after", "wait.before_outcome", "park.before", "park.after", "child.before",
    "child.after", "child.before_take", "child.after_take",
)  # fmt: skip

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(400)]

stage = staged("worker_agent")


def made(order: str, *names: str) -> str:
    return " ".join(f"{name}-{order}" for name in names)


def results(cast: str, ids: Sequence[str]) -> dict[str, str]:
    """What each run of a cast gives, without a crash as with one."""
    known = {
        "asks": "charge-asks red look-asks",
        "naps": made("naps", "look", "charge"),
        "calls": f"{made('calls-inner', 'look', 'charge', 'mail')} look-calls",
        "calls.1": made("calls-inner", "look", "charge", "mail"),
        "signs": made("signs", "look", "sign"),
        "rings": made("rings", "ring", "look", "charge"),
        "kills": made("kills", "charge", "die"),
    }
    wanted = [*(left.run_id for left in CASTS[cast].runs), FURTHER, *(["calls.1"] if cast == "talks" else [])]
    ticks = {run_id: f"{'all' if run_id.startswith('hourly') else 'last'} charge-{run_id}" for run_id in ids if "Z" in run_id}
    return {run_id: known.get(run_id, made(run_id, "look", "charge", "mail")) for run_id in wanted} | ticks


# --- what must be true in the end -------------------------------------------------------------------------------------


def wrong(stage: Stage, folder: Path, cast: str, kills: int) -> list[str]:
    """What is not as it must be, in words."""
    with stage.open(folder) as app:
        runs = stored(app.store)
        told = [*unfinished(runs, cast), *owned_twice(runs), *damaged(app), *blamed(runs, kills), *rested(app, runs)]
    written = lines(folder)
    told += [*repeated(written), *forgotten(written), *crowded(written)]
    return [f"{folder.name}: {each}" for each in told]


def unfinished(runs: Sequence[Stored], cast: str) -> Iterator[str]:
    """Every run is done, with its result; each time of a schedule has one run."""
    ids = [run.head.run_id for run in runs]
    due = results(cast, ids)
    found = {run.head.run_id: json.loads(run.rows[-1].value or b"null") if run.head.status == "done" else run.head.status for run in runs}
    yield from (f"run {run_id} gave {found.get(run_id)!r}" for run_id in {*due, *found} if found.get(run_id) != due.get(run_id))
    hours = CASTS[cast].hours
    times = Counter(run_id.partition("-")[0] for run_id in ids if "Z" in run_id)
    if times != Counter({"hourly": hours, "late": 1} if hours else {}):
        yield f"the schedules have left {dict(times)}"


def rested(app: Holdfast, runs: Sequence[Stored]) -> Iterator[str]:
    """Nobody has a run any more, and nothing is under way to one or wants a person."""
    yield from (f"run {run.head.run_id} is still owned by {run.head.owner}" for run in runs if run.head.owner is not None)
    yield from (f"a letter to {letter.run_id} is left" for letter in app.store.letters([run.head.run_id for run in runs]))
    yield from (f"the inbox has {item.kind} of run {item.run_id}" for item in app.inbox())


def repeated(written: Sequence[dict[str, Any]]) -> Iterator[str]:
    """No effect happened twice that does not say that it may."""
    done = Counter((line["name"], line["what"]) for line in written if line["name"] in ONCE)
    yield from (f"{name} of {what} happened {count} times" for (name, what), count in done.items() if count > 1)
    keys = {(line["what"], line["key"]) for line in written if line["name"] == "mail"}
    yield from (f"mail of {what} had two keys" for what, count in Counter(what for what, _ in keys).items() if count > 1)


def forgotten(written: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What was acknowledged is never done again."""
    acked: set[tuple[str, str]] = set()
    for line in written:
        name, what = line["name"].removeprefix("ack "), line["what"]
        if name in BODIES and name == line["name"] and (name, what) in acked:
            yield f"{name} of {what} was done again though it had been acknowledged"
        acked |= {(name, what)} if name != line["name"] else set()


def crowded(written: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A customer's orders are executed one at a time, by each process."""
    inside: dict[tuple[int, str], str] = {}
    for line in written:
        who = (line["pid"], line["what"].partition("-")[0])
        if line["name"] == "enter" and inside.setdefault(who, line["what"]) != line["what"]:
            yield f"{line['what']} began while {inside[who]} was executed"
        if line["name"] == "leave":
            inside.pop(who, None)


def blamed(runs: Sequence[Stored], kills: int) -> Iterator[str]:
    """A kill counts once at the most for each run; nobody is set aside who does not kill, and who does, after as many as may die."""
    for run in runs:
        taken, aside, owner, since = list[str](), list[int](), "", 0
        for record in map(record_of, run.rows):
            if isinstance(record, rec.RunResumed) and record.why in (TAKEN_OVER, "set aside"):
                taken, since = [*taken, owner], since + 1
            owner = record.owner if isinstance(record, rec.RunStarted | rec.RunResumed) else owner
            since = 0 if isinstance(record, rec.StepDone) else since
            aside += [since] if isinstance(record, rec.RunBlocked) else []
        if len(taken) > kills or len(set(taken)) < len(taken) or "" in taken:
            yield f"run {run.head.run_id} was taken from {taken}, and {kills} were killed"
        if aside != [MOST_DEATHS] * (run.head.run_id == "kills"):
            yield f"run {run.head.run_id} was set aside after {aside} deaths"


# --- lives ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Killed:
    """A cast that is played by one worker after the other: how the first ones end, or live to their own end where nothing is said."""

    stage: Stage
    cast: str
    earlier: tuple[Death, ...] = ()
    between: str = ""
    """What is said once the first is gone."""
    patience: Death = field(default_factory=dict)

    def __call__(self, folder: Path, death: Death) -> list[str] | None:
        """What is wrong once all is done; None where one that was to be killed was not."""
        self.stage.begun(folder, [f"submit {self.cast}"])
        return self._ended(folder, [*self.earlier, death])

    def worked(self, folder: Path) -> list[str] | None:
        """What is wrong in a folder where something was done already, and nobody is killed any more."""
        assert self.stage.run(folder, f"submit {self.cast}") == 0, said(folder)
        return self._ended(folder, ())

    def _ended(self, folder: Path, deaths: Sequence[Death]) -> list[str] | None:
        codes = list[int]()
        while not (folder / "over").exists() and len(codes) < LIVES:
            death = deaths[len(codes)] if len(codes) < len(deaths) else {}
            codes.append(self.stage.run(folder, f"work {self.cast}", {**self.patience, **death}))
            if self.between and len(codes) == 1:
                assert self.stage.run(folder, self.between) == 0, said(folder)
            if codes[-1] not in (0, KILLED):
                ended = f"{folder.name}: worker {len(codes)} ended with {codes[-1]}: {said(folder)}"
                return [ended, *wrong(self.stage, folder, self.cast, codes.count(KILLED))]
        by_itself = sum(line["name"] == "dies" for line in lines(folder))
        killed = codes.count(KILLED) - by_itself == sum(map(bool, deaths))
        return wrong(self.stage, folder, self.cast, codes.count(KILLED)) if killed else None


def test_a_worker_under_limits_with_schedules_is_killed_anywhere(stage: Stage, tmp_path: Path) -> None:
    points = (*IN_RUNS, "submit.before", "submit.after", "sync")
    kills, problems = swept(tmp_path, points, Killed(stage, "sells"), every=14, flushes_every=16)
    assert problems == []
    assert set(kills) == set(points)


def test_a_worker_whose_runs_wait_and_call_is_killed_anywhere(stage: Stage, tmp_path: Path) -> None:
    points = (*IN_WAITS, "effect.after_intent", "effect.after_body", "sync")
    kills, problems = swept(tmp_path, points, Killed(stage, "talks"), every=12, flushes_every=16)
    assert problems == []
    assert set(kills) == set(points)


def test_the_worker_that_takes_over_is_killed_as_well(stage: Stage, tmp_path: Path) -> None:
    points = ("claim.before", "claim.after", "doubt.before_settle", "doubt.after_settle", "sync")
    kills, problems = swept(tmp_path, points, Killed(stage, "talks", (death_at("effect.after_body:1"),)), every=6, flushes_every=16)
    assert problems == []
    assert set(kills) == set(points)


def test_a_worker_that_finds_the_queue_of_a_dead_one_held_back_is_killed_as_well(stage: Stage, tmp_path: Path) -> None:
    tried = Killed(stage, "sells", (death_at("effect.after_body:3"),), between="hold")
    kills, problems = swept(tmp_path, ["claim.before", "sync"], tried, every=14, flushes_every=16)
    assert problems == []
    assert set(kills) == {"claim.before", "sync"}


@pytest.mark.parametrize("before", [(), ({},)], ids=["while it hands over", "the next one"])
def test_a_worker_that_is_told_to_stop_is_killed_anywhere(stage: Stage, tmp_path: Path, before: tuple[Death, ...]) -> None:
    points = ("claim.after", "step.after_outcome", "sync")
    kills, problems = swept(tmp_path, points, Killed(stage, "stops", before), every=6, flushes_every=16 if before else 6)
    assert problems == []
    assert set(kills) == set(points)


@pytest.mark.parametrize("life", [1, 4])
def test_a_worker_with_a_run_that_kills_is_killed_beside_it(stage: Stage, tmp_path: Path, life: int) -> None:
    points = ("claim.before", "claim.after", "sync")
    kills, problems = swept(tmp_path, points, Killed(stage, "kills", ({},) * (life - 1)), every=5, flushes_every=15)
    assert problems == []
    assert set(kills) == set(points)


# --- those who leave runs, hold back and cancel ------------------------------------------------------------------------


def found(stage: Stage, folder: Path) -> tuple[dict[str, str], list[str | None]]:
    """The runs that are there, whole, by their status, and the queues that are held back."""
    with stage.open(folder) as app:
        assert list(damaged(app)) == []
        return {run.run_id: run.status for run in app.runs()}, [view.queue for view in app.held()]


def submitted(stage: Stage, folder: Path, death: Death) -> list[str] | None:
    """What is wrong after somebody was killed who leaves runs, and leaves them again; None where he was not."""
    folder.mkdir()
    if stage.run(folder, "submit sells", death) != KILLED:
        return None
    there, _ = found(stage, folder) if (folder / "runs.db").exists() else ({}, [])
    half = [] if there.items() <= dict.fromkeys(ORDERS, "queued").items() else [f"{folder.name}: there are {there}"]
    return [*half, *(Killed(stage, "sells").worked(folder) or [])]


def test_who_leaves_runs_is_killed_anywhere_and_leaves_them_again(stage: Stage, tmp_path: Path) -> None:
    points = ("submit.before", "submit.after", "sync")
    kills, problems = swept(tmp_path, points, partial(submitted, stage), every=2, flushes_every=3)
    assert problems == []
    assert set(kills) == set(points)


def held(stage: Stage, act: str, folder: Path, death: Death) -> list[str] | None:
    """What is wrong after somebody was killed who holds a queue back, or lets it go on, and says so again; None where he was not."""
    stage.begun(folder, ["submit sells", *(["hold"] if act == "release" else [])])
    if stage.run(folder, act, death) != KILLED:
        return None
    half, again, (_, whole) = found(stage, folder)[1], stage.run(folder, act), found(stage, folder)
    assert (half in ([], ["narrow"]), again, whole) == (True, 0, ["narrow"] if act == "hold" else []), said(folder)
    assert stage.run(folder, "release") == 0
    return Killed(stage, "sells").worked(folder)


@pytest.mark.parametrize("act", ["hold", "release"])
def test_who_holds_a_queue_back_or_lets_it_go_on_is_killed_at_every_flush_and_says_it_again(stage: Stage, tmp_path: Path, act: str) -> None:
    kills, problems = swept(tmp_path, ["sync"], partial(held, stage, act))
    assert problems == []
    assert kills["sync"] >= 1


def cancelled(stage: Stage, folder: Path, death: Death) -> list[str] | None:
    """What is wrong after somebody was killed who cancels all orders, some of which a dead worker had, and cancels again."""
    stage.begun(folder, ["submit orders"])
    assert stage.run(folder, "work orders", death_at("claim.after:2")) == KILLED
    if stage.run(folder, "cancel", death) != KILLED:
        return None
    half = set(found(stage, folder)[0].values())
    assert [stage.run(folder, each) for each in ("cancel", "work further")] == [0, 0], said(folder)
    ended, due = found(stage, folder)[0], {**dict.fromkeys(ORDERS, "cancelled"), FURTHER: "done"}
    problems = [] if half <= {"queued", "running", "cancelled"} and ended == due else [f"{folder.name}: {half}, then {ended}"]
    return [*problems, *(f"{folder.name}: {each}" for each in repeated(lines(folder)))]


def test_who_cancels_many_is_killed_at_every_flush_and_cancels_again(stage: Stage, tmp_path: Path) -> None:
    kills, problems = swept(tmp_path, ["sync"], partial(cancelled, stage))
    assert problems == []
    assert kills["sync"] >= len(ORDERS)


# --- workers that are broken on purpose --------------------------------------------------------------------------------

SHORT_S = 2
"""So long is waited for a worker that will never be through."""
CONTROLS = {
    "schedules": ("submit.before:3", "the schedules have left"),
    "limits": ("run.after_done:2", "began while"),
    "deaths": ("effect.after_body:1", "was set aside after [1]"),
    "intents": ("effect.after_body:1", "happened 2 times"),
}
"""What is broken, where the worker is killed then, and what is to be noticed."""


@pytest.mark.parametrize("broken", CONTROLS)
def test_the_sweep_finds_out_a_worker_that_is_broken(stage: Stage, tmp_path: Path, broken: str) -> None:
    place, noticed = CONTROLS[broken]
    problems = Killed(replace(stage, broken=broken), "sells", patience={"patience_s": SHORT_S})(tmp_path / broken, death_at(place))
    assert problems is not None
    assert any(noticed in problem for problem in problems), problems


# --- on PostgreSQL -----------------------------------------------------------------------------------------------------

FEW = {
    "sells": ["claim.after:3", "submit.before:2", "effect.after_body:4"],
    "talks": ["answer.after:1", "park.before:1", "child.after_take:1"],
    "stops": ["step.after_outcome:2"],
    "kills": ["claim.after:2"],
}
"""Where a worker is killed there."""


@pytest.mark.parametrize("cast", FEW)
def test_a_worker_on_postgresql_is_killed_too(request: pytest.FixtureRequest, server: Server, tmp_path: Path, cast: str) -> None:
    home = OTHERS["postgres"].home(request)
    for place in FEW[cast]:
        assert Killed(Stage(server, "worker_agent", home), cast)(tmp_path / place, death_at(place)) == [], place
