"""A fleet under fire: `python -m chaos --seed 7 --runs 500 --seconds 180`.

Four workers execute runs with steps, effects, questions, sleeps and child runs, under limits, while they are killed, stopped and woken,
separated from the database and told to stop, and while the database dies and comes back. People answer what is asked, and settle doubts
as the ledger says. In the end every run must be done, every effect must have happened once, and no run may have had two owners.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

import chaos_judging as judging
from agents_for_tests import fleet_app
from agents_for_tests.fleet_ledger import Ledger
from agents_for_tests.fleet_ledger import Server as LedgerServer
from chaos_fleet import LEASE_S, SLOW, Fleet, plan
from holdfast import Holdfast, HoldfastError
from holdfast.store import Query
from postgres_server import Server, server

KINDS = ("asks", "sleeps", "has a child", "mails")
KEYS = 8
ACTIONS = ("kill", "stop", "part", "cut", "drain", "restart", "kill", "cut")
CALM_S = 90.0
"""How long the rest may take once nobody disturbs the fleet any more."""
LOOK_S = 0.3
TICK_S = 0.1
LATE_S = LEASE_S / 4
WOKEN_S = 2.0
"""So long after a worker was woken, a person believes the ledger: its requests have gone out by then."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How much, for how long, and what is broken on purpose."""

    seed: int
    runs: int
    seconds: float
    actions: Sequence[str] = ACTIONS
    most_actions: int = 1000
    broken: str = ""
    calm_s: float = CALM_S
    say: Callable[[str], None] = lambda _: None


@dataclass
class Outcome:
    """What was seen, and all that is wrong with it."""

    wrong: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)


def expected_effects(run_id: str) -> set[str]:
    """What a run does to the world, by its number."""
    number = int(run_id.partition("-")[2])
    if number % 7 == 6:
        return {"collect"}
    return {"charge", "wire", *({"mail"} if KINDS[number % 4] in ("has a child", "mails") else ())}


class People(threading.Thread):
    """Those who leave runs to the fleet, answer what is asked, and settle doubts once nothing can be under way any more."""

    def __init__(self, app: Holdfast, fleet: Fleet, wanted: Wanted) -> None:
        super().__init__(name="people", daemon=True)
        self.app, self.fleet, self.wanted = app, fleet, wanted
        self.left: dict[str, str] = {}
        self.seen: Counter[str] = Counter()
        self.over = threading.Event()
        self.began_s = time.time()

    def run(self) -> None:
        while not self.over.wait(LOOK_S):
            with suppress(HoldfastError):  # the database is away, or the run has moved: they look again
                self._leave_some()
                self._learn_who_works()
                for item in self.app.inbox():
                    with suppress(HoldfastError):
                        self._settle(item)

    def _leave_some(self) -> None:
        """Half of the runs at once, the others bit by bit over the first half of the time."""
        passed = min(1.0, (time.time() - self.began_s) / max(1.0, self.wanted.seconds / 2))
        for number in range(len(self.left), round(self.wanted.runs * (0.5 + passed / 2))):
            run_id, order = f"run-{number}", f"o-{number}"
            queue, key = "narrow" if number % 3 == 0 else "default", f"k{number // 4 % KEYS}" if number % 4 == 1 else ""
            if number % 7 == 6:
                self.app.submit(fleet_app.sells, order, run_id=run_id, queue=queue, key=key)
            else:
                self.app.submit(fleet_app.buys, order, KINDS[number % 4], run_id=run_id, queue=queue, key=key)
            self.left[run_id] = order

    def _learn_who_works(self) -> None:
        for worker in self.app.workers():
            if worker.pid:
                self.fleet.ledger.pids[worker.owner] = worker.pid

    def _settle(self, item: object) -> None:
        kind, run_id, step_id = (str(getattr(item, name)) for name in ("kind", "run_id", "step_id"))
        if kind == "ask":
            self.app.answer(run_id, step_id, value=True, by="ann")
        elif kind == "doubt" and not self._may_be_under_way(run_id, step_id):
            receipt = self.fleet.ledger.find({"key": getattr(item, "key", "")})
            if receipt:
                self.app.resolve(run_id, step_id, landed=receipt, by="ann", reason="it is in the ledger")
            else:
                self.app.resolve(run_id, step_id, not_landed=True, by="ann", reason="it is not in the ledger")
        elif kind == "blocked":
            self.app.resume(run_id, by="ann", reason="its workers were killed on purpose")
        else:
            return
        self.seen[f"settled: {kind}"] += 1

    def _may_be_under_way(self, run_id: str, step_id: str) -> bool:
        fleet = self.fleet
        return fleet.stopped > 0 or time.time() < fleet.woken_s + WOKEN_S or fleet.ledger.under_way(run_id, step_id)


class Sentry(threading.Thread):
    """Notes when the machine itself stood still so long that a worker may have renewed late through no fault of its own."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(name="sentry", daemon=True)
        self.fleet, self.over = fleet, threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            before_s = time.time()
            self.over.wait(TICK_S)
            if time.time() - before_s > TICK_S + LATE_S:
                self.fleet.slow(before_s)


def owned_by(url: str) -> Callable[[list[str]], dict[str, tuple[int, bool]] | None]:
    """Ask the database itself who is owned, past everything that is tested."""

    def owned(run_ids: list[str]) -> dict[str, tuple[int, bool]] | None:
        address, _, schema = url.partition("?schema=")
        try:
            with psycopg.connect(address, connect_timeout=2) as connection:
                sql = f"SELECT run_id, epoch, owner IS NOT NULL FROM {schema}.runs WHERE run_id = ANY(%s)"
                return {run_id: (epoch, is_owned) for run_id, epoch, is_owned in connection.execute(sql.encode(), (run_ids,))}
        except psycopg.Error:
            return None

    return owned


def chaos(wanted: Wanted, database: Server, folder: Path) -> Outcome:
    """Let it happen, and judge what is left."""
    schema = f"chaos_{secrets.token_hex(4)}"
    url = database.url(schema)
    ledger = Ledger(owned=owned_by(url))
    wanted.say(f"seed {wanted.seed}: {wanted.runs} runs, {wanted.seconds:g} s; logs in {folder}")
    with Holdfast(url, lease=LEASE_S) as app, LedgerServer(ledger) as desk:
        with Fleet(database, schema, ledger, desk.port, folder, broken=wanted.broken) as fleet:
            people, sentry = People(app, fleet, wanted), Sentry(fleet)
            people.start()
            sentry.start()
            try:
                done = _disturb(wanted, fleet)
                _wait_for_the_rest(app, people, fleet, wanted)
            finally:
                for thread in (people, sentry):
                    thread.over.set()
                    thread.join()
        return _judged(wanted, app, fleet, people, done)


def _disturb(wanted: Wanted, fleet: Fleet) -> Counter[str]:
    following, actions, done = plan(wanted.seed, wanted.actions), fleet.actions(), Counter[str]()
    _wait_for_the_first(fleet)
    until_s = time.time() + wanted.seconds
    while wanted.actions and time.time() < until_s and done.total() < wanted.most_actions:
        fleet.keep_up()
        name, member = following(fleet)
        wanted.say(f"{wanted.seconds - (until_s - time.time()):6.1f} s  {name} {'' if name == 'restart' else f'worker {member.number}'}")
        actions[name](member)
        done[name] += 1
        threading.Event().wait(0.5)
    if not wanted.actions:
        threading.Event().wait(max(0.0, until_s - time.time()))
    return done


def _wait_for_the_first(fleet: Fleet) -> None:
    """Until the workers are known and one of them is in a step."""
    for _ in range(600):
        if fleet.ledger.pids and fleet.ledger.inside:
            return
        threading.Event().wait(0.05)


def _wait_for_the_rest(app: Holdfast, people: People, fleet: Fleet, wanted: Wanted) -> None:
    """Until all is done; as long as they get on, a slow machine has three times as long."""
    began_s, moved_s, left = time.time(), time.time(), wanted.runs
    while time.time() < (began_s + 3 * wanted.calm_s if time.time() < moved_s + wanted.calm_s / 3 else began_s + wanted.calm_s):
        fleet.keep_up()
        with suppress(HoldfastError):
            open_ = app.store.heads(Query(statuses=["queued", "running", "waiting", "paused", "blocked"], limit=wanted.runs))
            if len(people.left) == wanted.runs and not open_:
                return
            moved_s, left = (time.time(), len(open_)) if len(open_) < left else (moved_s, left)
        threading.Event().wait(LOOK_S)


def _judged(wanted: Wanted, app: Holdfast, fleet: Fleet, people: People, done: Counter[str]) -> Outcome:
    runs, ledger = judging.stored(app.store), fleet.ledger
    outcome = Outcome()

    def excused(owner: str, at_s: float) -> bool:
        pid = ledger.pids.get(owner)
        return pid is None or any(one.excuses(pid, at_s) for one in fleet.disturbed)

    outcome.wrong += judging.owned_twice(runs)
    outcome.wrong += judging.unexcused(runs, excused)
    outcome.wrong += judging.repeated(ledger)
    outcome.wrong += judging.crowded(runs, ledger)
    outcome.wrong += judging.too_fast(ledger, people.began_s)
    outcome.wrong += judging.unfinished(runs, people.left)
    outcome.wrong += judging.lost_effects(ledger, people.left, expected_effects) if len(outcome.wrong) == 0 else []
    outcome.wrong += judging.damaged(app)
    outcome.wrong += [f"a worker ended with {code}" for code in fleet.codes if code not in (0, 3)]
    taken = list(judging.takeovers(runs))
    outcome.seen = Counter({**done, **people.seen, "taken over": len(taken), "of silent owners": sum(one.silent for one in taken)})
    outcome.seen["done"] = sum(run.head.status == "done" for run in runs)
    outcome.seen["the machine stood still"] = sum(one.what == SLOW for one in fleet.disturbed)
    outcome.seen["records"] = sum(len(run.rows) for run in runs)
    outcome.seen["limit checks that could not be made"] = ledger.unchecked
    outcome.told = [f"most at a time: {dict(sorted(ledger.most.items()))}", f"seen: {dict(sorted(outcome.seen.items()))}"]
    for line in outcome.told:
        wanted.say(line)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10_000))
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--broken", default="")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    wanted = Wanted(seed=options.seed, runs=options.runs, seconds=options.seconds, broken=options.broken, say=partial(print, flush=True))
    began_s = time.monotonic()
    with server() as database:
        outcome = chaos(wanted, database, folder)
    print(f"{len(outcome.wrong)} violations after {time.monotonic() - began_s:.0f} s, seed {wanted.seed}")
    print("\n".join(outcome.wrong[:50]))
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
