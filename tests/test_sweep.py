"""The process is killed at every flush and every failpoint of a run, and started again until it is done.

After each kill the store is opened and read: what has an outcome there must never run again. At the end the result must be that of
a run without a crash, and the ledger, which the bodies themselves write, must show every effect once unless it says otherwise.
The same sweep over two engines that are broken on purpose must find them out.
"""

from __future__ import annotations

import json
import os
import queue
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pytest

from agents_for_tests.serving import FLUSHES
from agents_for_tests.sweep_agent import lines
from holdfast import Holdfast
from holdfast._failpoints import NAMES, TAILS
from holdfast.records.journal import Journal
from holdfast.store import Store
from holdfast.stores.opening import SQLITE, open_store
from sweeping import COUNTED, KILLED, NEEDS_A_PERSON, RUN_ID, Home, Server, reached, result_of, said, sqlite_in

AGENT = Path(__file__).parent / "agents_for_tests" / "sweep_agent.py"
VARIANTS = ("async", "def")
PROCESSES = 2
RESTARTS = 8
"""A run that is not done after so many undisturbed starts never will be."""
PATIENCE_S = 10
MOST_FLUSHES = 60
RANDOM_KILLS = 30
OUTCOMES = ("step.done", "step.failed", "step.broken_off")
ONCE = ("charge", "sign", "wire")
"""Effects that nobody may repeat once the ledger shows them: they are verified, asked about, or left alone."""
FOR_A_PERSON = ("sign", "wire")
EFFECTS = (*ONCE, "mail", "book")

pytestmark = pytest.mark.sweep

Order = dict[str, Any]


class Obeying(Protocol):
    """Whoever plays an order and gives its exit status."""

    def obey(self, order: Order) -> int: ...


class Crew:
    """Two servers, a pool that hands one to each task, where the stores of cases are, and what each agent gives when nobody kills it.

    How often each agent came to the places where it can be killed is counted then.
    """

    def __init__(self, *servers: Server, home: Home = sqlite_in) -> None:
        self.home, self.servers = home, servers
        self.expected: dict[str, list[str]] = {}
        self.reached: dict[str, Mapping[str, int]] = {}
        self._free: queue.Queue[Server] = queue.Queue()
        for server in self.servers:
            self._free.put(server)

    def undisturbed(self, folder: Path, variant: str) -> None:
        """See what this agent gives."""
        case = Case(folder, variant, self.home(folder))
        self.reached[variant] = case.counted(self.servers[0])
        self.expected[variant] = result_of(folder)
        assert len(self.expected[variant]) == 18
        assert case.judge(self.expected) == []

    def map(self, task: Callable[[Server, Any], Any], items: Any) -> list[Any]:
        def with_server(item: Any) -> Any:
            server = self._free.get()
            try:
                return task(server, item)
            finally:
                self._free.put(server)

        with ThreadPoolExecutor(len(self.servers)) as pool:
            return list(pool.map(with_server, items))


# --- what is on the disk --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """What the store holds: the steps that have begun, and those that have an outcome."""

    begun: frozenset[str] = frozenset()
    done: frozenset[str] = frozenset()


def stored(where: str | Store) -> Stored:
    """Open the store, verify the chain, and read it; where there is no file yet, none is made."""
    if isinstance(where, Store):
        loaded = where.load(RUN_ID)
    elif where.startswith(SQLITE) and not Path(where.removeprefix(SQLITE)).exists():
        loaded = None
    else:
        with closing(open_store(where)) as store:
            loaded = store.load(RUN_ID)
    if loaded is None:
        return Stored()
    Journal.load(*loaded)
    names: dict[str, str] = {}
    done = set()
    for row in loaded[1]:
        body = json.loads(row.body)
        if row.args is not None and "name" in body:
            names[row.step_id] = f"{body['name']}:{json.loads(row.args)['what']}"
        if row.kind == "timeout.fired":
            done.add("timeout:late")
        elif row.kind in OUTCOMES and body["name"] == "hf.first":
            done.add("first:race")
        elif row.kind in OUTCOMES and not body.get("doubt") and row.step_id in names:
            done.add(names[row.step_id])
    return Stored(frozenset(names.values()), frozenset(done))


@dataclass
class Case:
    """One run that is killed, once or more often, and what is wrong with it."""

    folder: Path
    variant: str
    store: str | Store
    broken: str = ""
    kills: list[tuple[str, int, Stored]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def order(self, **more: Any) -> Order:
        patience_s = 1 if self.broken else PATIENCE_S
        told = {"agent": "sweep_agent", "folder": str(self.folder), "variant": self.variant, "store": self.store, "broken": self.broken}
        return {**told, "patience_s": patience_s, **more}

    def killed(self, how: str) -> None:
        """Look at what is left: all that was acknowledged must be there, and no effect may have begun without its intent."""
        found = stored(self.store)
        ledger = lines(self.folder)
        self.kills.append((how, len(ledger), found))
        lost = {f"{line['name']}:{line['what']}" for line in lines(self.folder, "acks")} - found.done
        if lost:
            self.wrong.append(f"acknowledged but not stored after the kill at {how}: {sorted(lost)}")
        unannounced = {f"{line['name']}:{line['what']}" for line in ledger if line["name"] in EFFECTS} - found.begun
        if unannounced:
            self.wrong.append(f"begun without an intent before the kill at {how}: {sorted(unannounced)}")

    def counted(self, server: Obeying) -> Mapping[str, int]:
        """How often one that nobody kills comes to each place."""
        server.obey(self.order(**COUNTED))
        return reached(self.folder)

    def finish(self, server: Obeying) -> None:
        """Start it again, and play the person where one is needed, until it is done; in a process that has seen others, if it is sound."""
        undisturbed = {} if self.broken else {"here": True}
        for _ in range(RESTARTS):
            code = server.obey(self.order(**undisturbed))
            if code == 0:
                return
            if code != NEEDS_A_PERSON:
                self.wrong.append(f"a restart ended with {code}: {said(self.folder)}")
                return
            self.answer()
        self.wrong.append(f"not done after {RESTARTS} restarts")

    def answer(self) -> None:
        """Settle what is open, as a person would who looks into the ledger."""
        ledger = lines(self.folder)
        with Holdfast(self.store) as app:
            doubts = [item for item in app.inbox() if item.kind == "doubt"]
            keys = {line.step_id: line.key for line in app.history(RUN_ID) if line.key}
            for doubt in (doubt for doubt in doubts if any(f"did {name}(" in doubt.what for name in FOR_A_PERSON)):
                seen = [line for line in ledger if line["key"] == keys[doubt.step_id] and line["name"] in EFFECTS]
                if seen:
                    app.resolve(RUN_ID, doubt.step_id, landed=f"{seen[0]['name']}-{seen[0]['what']}", by="test")
                else:
                    app.resolve(RUN_ID, doubt.step_id, not_landed=True, by="test")

    def judge(self, expected: Mapping[str, list[str]]) -> list[str]:
        """Everything that is wrong, with what happened to the run."""
        ledger = lines(self.folder)
        result = result_of(self.folder)
        if result != expected[self.variant]:
            self.wrong.append(f"the result is {result}")
        self._judge_repeats(ledger)
        self._judge_effects(ledger)
        self._judge_acks()
        story = f"{self.variant}, killed at {', '.join(how for how, _, _ in self.kills)} (kept in {self.folder})"
        if not self.wrong:
            shutil.rmtree(self.folder)
        return [f"{story}: {what}" for what in self.wrong]

    def _judge_repeats(self, ledger: list[dict[str, str]]) -> None:
        for how, length, found in self.kills:
            again = {f"{line['name']}:{line['what']}" for line in ledger[length:]} & found.done
            if again:
                self.wrong.append(f"stored at the kill at {how}, and run again: {sorted(again)}")

    def _judge_effects(self, ledger: list[dict[str, str]]) -> None:
        counts = Counter(line["name"] for line in ledger)
        if {name: counts[name] for name in ONCE} != dict.fromkeys(ONCE, 1):
            self.wrong.append(f"effects ran more or less than once: {counts}")
        if not 1 <= counts["mail"] <= 1 + len(self.kills):
            self.wrong.append(f"mail was sent {counts['mail']} times")
        bookings = [line["name"] for line in ledger if line["name"] in ("book", "unbook")]
        if ("book", "book") in pairwise(bookings) or bookings[-1:] != ["book"]:
            self.wrong.append(f"booked again without a reset: {bookings}")
        keys = {(line["name"], line["key"]) for line in ledger if line["name"] in EFFECTS}
        if len(keys) != len(EFFECTS):
            self.wrong.append(f"an effect has changed its key: {sorted(keys)}")

    def _judge_acks(self) -> None:
        values: dict[str, set[str]] = {}
        for line in lines(self.folder, "acks"):
            drawn = "time" if line["what"].startswith("20") else line["what"].partition(" ")[0]
            values.setdefault(f"{line['name']}:{drawn}", set()).add(line["value"])
        moved = {name: found for name, found in values.items() if len(found) > 1}
        if moved:
            self.wrong.append(f"told the agent different things before and after: {moved}")


# --- sweeps ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def crew(server: Server, second_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Crew:
    crew = Crew(server, second_server)
    for variant in VARIANTS:
        crew.undisturbed(tmp_path_factory.mktemp(variant), variant)
    return crew


def new_case(crew: Crew, folder: Path, variant: str, broken: str = "") -> Case:
    folder.mkdir()
    return Case(folder, variant, crew.home(folder), broken)


def sweep(crew: Crew, parent: Path, variant: str, how: str, tries: int = 1) -> Callable[[Server, Any], tuple[int, list[str]]]:
    """Something that kills at each of the points, or until one is not reached in so many runs: the kills, and what was wrong."""

    def shot(server: Server, point: Any, tries: int) -> tuple[Case, int]:
        case = new_case(crew, parent / f"{how}-{point}-{tries}", variant)
        code = server.obey(case.order(**{how: point}))
        return (case, code) if code not in {0, NEEDS_A_PERSON} or tries == 1 else shot(server, point, tries - 1)

    def swept(server: Server, points: Any) -> tuple[int, list[str]]:
        wrong: list[str] = []
        for kills, point in enumerate(points):
            case, code = shot(server, point, tries)
            if code not in {KILLED, 0, NEEDS_A_PERSON}:
                return kills, [*wrong, f"{variant} {how}={point} ended with {code}: {said(case.folder)}"]
            if code != KILLED:
                return kills, wrong
            case.killed(f"{how}={point}")
            case.finish(server)
            wrong += case.judge(crew.expected)
        return len(points), wrong

    return swept


def refuse_any(found: Iterable[list[str]]) -> None:
    wrong = [line for lines in found for line in lines]
    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} violations", *wrong]), pytrace=False)


def occurrences(crew: Crew, variant: str, name: str) -> list[str]:
    return [f"{name}:{number}" for number in range(1, crew.reached[variant][name] + 1)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_kill_at_every_failpoint(crew: Crew, tmp_path: Path, variant: str) -> None:
    found = crew.map(sweep(crew, tmp_path, variant, "failpoint"), [occurrences(crew, variant, name) for name in NAMES])
    refuse_any(wrong for _, wrong in found)
    kills = dict(zip(NAMES, (count for count, _ in found), strict=True))
    assert {name for name, count in kills.items() if count == 0} == {"doubt.before_settle", "doubt.after_settle"}
    assert kills["effect.after_intent"] == kills["effect.after_body"] == len(EFFECTS)
    assert sum(kills.values()) > 60


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_kill_at_every_flush_of_every_thread(crew: Crew, tmp_path: Path, variant: str) -> None:
    dealt = [range(1 + deal, MOST_FLUSHES, PROCESSES) for deal in range(PROCESSES)]
    found = crew.map(sweep(crew, tmp_path, variant, "sync"), dealt)
    refuse_any(wrong for _, wrong in found)
    assert 30 < sum(count for count, _ in found) < MOST_FLUSHES - PROCESSES


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_kill_at_every_fdatasync(crew: Crew, tmp_path: Path, variant: str) -> None:
    """The real call, and that which flushes what it writes; in the thread that makes most of them, how many of a run differs."""
    dealt = [range(1 + deal, MOST_FLUSHES, PROCESSES) for deal in range(PROCESSES)]
    for call in FLUSHES:
        found = crew.map(sweep(crew, tmp_path, variant, call, tries=3), dealt)
        refuse_any(wrong for _, wrong in found)
        assert 10 < sum(count for count, _ in found) < MOST_FLUSHES - PROCESSES


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_kill_at_every_failpoint_of_a_tail(crew: Crew, tmp_path: Path, variant: str) -> None:
    mine = [name for name in TAILS if name != "tail.closed"]
    found = crew.map(sweep(crew, tmp_path, variant, "failpoint"), [occurrences(crew, variant, name) for name in mine])
    refuse_any(wrong for _, wrong in found)
    kills = dict(zip(mine, (count for count, _ in found), strict=True))
    assert kills["tail.made"] == 1
    assert kills["tail.added"] > 15
    assert kills["tail.settled"] > 3


SECOND = [f"{name}:1" for name in (*NAMES, "tail.closed") if not name.startswith("step.")]
SECOND += [f"{name}:2" for name in NAMES if name.startswith("effect.")]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_second_kill_during_the_recovery_from_the_first(crew: Crew, tmp_path: Path, variant: str) -> None:
    """The first kill leaves each effect in doubt, before and after its body; the second comes at each kind of failpoint."""
    firsts = [f"{name}:{number}" for name in ("effect.after_intent", "effect.after_body") for number in range(1, len(EFFECTS) + 1)]

    def copied(once: Case, name: str) -> Case:
        folder = shutil.copytree(once.folder, once.folder.parent / f"{once.folder.name}+{name}")
        return Case(folder, variant, crew.home(folder), kills=list(once.kills))

    def kill_twice(server: Server, first: str) -> tuple[Counter[str], list[str]]:
        once = new_case(crew, tmp_path / first, variant)
        assert server.obey(once.order(failpoint=first)) == KILLED
        once.killed(first)
        passed = copied(once, "counted").counted(server)
        killed: Counter[str] = Counter()
        wrong: list[str] = list(once.wrong)
        for second in (place for place in SECOND if passed[place.partition(":")[0]] >= int(place.partition(":")[2])):
            again = copied(once, second)
            if server.obey(again.order(failpoint=second)) != KILLED:
                shutil.rmtree(again.folder)
                continue
            killed[second] += 1
            again.killed(second)
            again.finish(server)
            wrong += again.judge(crew.expected)
        return killed, wrong

    found = crew.map(kill_twice, firsts)
    refuse_any(wrong for _, wrong in found)
    killed: Counter[str] = sum((counts for counts, _ in found), Counter())
    assert set(killed) == set(SECOND)
    assert killed.total() > 50


def test_kills_at_random_times(crew: Crew, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    dice = random.Random(seed)
    times = [(number, dice.choice(VARIANTS), dice.uniform(0, 0.06)) for number in range(2 * RANDOM_KILLS)]
    print(f"seed {seed}")

    def kill_twice(server: Server, drawn: tuple[int, str, float]) -> tuple[int, list[str]]:
        number, variant, seconds = drawn
        case = new_case(crew, tmp_path / str(number), variant)
        for after in (seconds, 0.7 * seconds):
            if server.obey(case.order(kill_after_s=after)) == KILLED:
                case.killed(f"{after:.4f} s (seed {seed})")
        case.finish(server)
        return len(case.kills), case.judge(crew.expected)

    found = crew.map(kill_twice, times[:RANDOM_KILLS])
    refuse_any(wrong for _, wrong in found)
    assert sum(kills for kills, _ in found) >= RANDOM_KILLS


def test_the_failpoint_is_read_from_the_environment(crew: Crew, tmp_path: Path) -> None:
    case = new_case(crew, tmp_path / "env", "async")
    env = {**os.environ, "HOLDFAST_FAILPOINT": "effect.after_body:2"}
    assert subprocess.run([sys.executable, AGENT, case.folder, "async", str(case.store)], env=env, check=False).returncode == KILLED
    case.killed("HOLDFAST_FAILPOINT=effect.after_body:2")
    case.finish(crew.servers[0])
    assert case.judge(crew.expected) == []


# --- negative controls ----------------------------------------------------------------------------------------------

CONTROLS = {
    "intents": ("effect.after_body", "ran more or less than once"),
    "acks": ("step.after_outcome", "acknowledged but not stored"),
    "store": ("effect.after_outcome", "acknowledged but not stored"),
}
"""What is broken, where it shows, and what the sweep must say about it."""


def killed_at(crew: Crew, parent: Path, variant: str, broken: str = "") -> Callable[[Server, str], list[str]]:
    """Something that kills at one failpoint, goes on until it is done, and says what was wrong."""

    def kill(server: Server, failpoint: str) -> list[str]:
        case = new_case(crew, parent / f"{variant}-{failpoint}", variant, broken)
        assert server.obey(case.order(failpoint=failpoint, patience_s=PATIENCE_S)) == KILLED, said(case.folder)
        case.killed(failpoint)
        case.finish(server)
        return case.judge(crew.expected)

    return kill


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("broken", CONTROLS)
def test_the_sweep_finds_out_a_broken_engine(crew: Crew, tmp_path_factory: pytest.TempPathFactory, variant: str, broken: str) -> None:
    point, noticed = CONTROLS[broken]
    on_disk = tmp_path_factory.mktemp(broken)  # in memory a write would be over before the kill comes
    found = crew.map(killed_at(crew, on_disk, variant, broken), [f"{point}:{number}" for number in range(1, len(EFFECTS) + 1)])
    assert any(noticed in line for wrong in found for line in wrong), found
