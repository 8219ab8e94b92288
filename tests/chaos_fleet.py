"""Workers as real processes, each behind a proxy of its own, and everything that can happen to them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import holdfast
import starting
from agents_for_tests.fleet_ledger import Ledger
from parting_proxy import Proxy
from postgres_server import Server

APP = Path(__file__).parent / "agents_for_tests" / "fleet_app.py"
SOURCES = os.pathsep.join([str(Path(holdfast.__file__).parent.parent), str(Path(__file__).parent)])
LEASE_S = 3.0
STOPPED_S = LEASE_S * 1.5
"""Longer than the lease, shorter than whoever settles a doubt waits for somebody who only seems dead."""
EXIT_LIMIT_S = 60.0
BUSY_S = 5.0
"""How long it is waited for somebody to have something under way; runs are left bit by bit."""
SLOW = "the machine stood still"
NO_STORE = 5
"""How a worker ends that cannot open the store."""


def command(app: Path, url: str, *words: str, lease_s: float = LEASE_S) -> list[str]:
    queues = ("--queue", "default", "--queue", "narrow")
    return [sys.executable, "-m", "holdfast", "worker", str(app), "--store", url, "--lease", f"{lease_s:g}s", *queues, *words]


def surroundings(port: int, broken: str = "") -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES, "FLEET_LEDGER": str(port), "FLEET_BROKEN": broken, "PYTHONWARNINGS": "default"}


@dataclass
class Disturbed:
    """Something that happened to a process (or to all, where there is no pid) and excuses that its runs were taken over."""

    what: str
    pid: int | None
    from_s: float
    until_s: float = float("inf")

    def excuses(self, pid: int | None, at_s: float) -> bool:
        return self.pid in (None, pid) and self.from_s <= at_s <= self.until_s


@dataclass
class Member:
    """One place in the fleet: its proxy, and the process that works there now."""

    number: int
    proxy: Proxy
    process: subprocess.Popen[bytes]


@dataclass
class Fleet:
    """The workers, and a record of what was done to them."""

    server: Server
    schema: str
    ledger: Ledger
    port: int
    folder: Path
    size: int = 4
    broken: str = ""
    lease_s: float = LEASE_S
    members: list[Member] = field(default_factory=list)
    disturbed: list[Disturbed] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    woken_s: float = 0.0
    stopped: int = 0

    def __enter__(self) -> Self:
        try:
            for number in range(self.size):
                proxy = Proxy(self.server.port)
                self.members.append(Member(number, proxy, self._process(number, proxy)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.process.kill()
            member.process.wait()
            member.proxy.close()

    def _process(self, number: int, proxy: Proxy) -> subprocess.Popen[bytes]:
        url = self.server.url(self.schema, port=proxy.port)
        words = command(APP, url, "--concurrency", "8", "--grace", "3s", lease_s=self.lease_s)
        with (self.folder / f"worker-{number}.log").open("ab") as log:
            return starting.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=surroundings(self.port, self.broken))

    def again(self, member: Member) -> None:
        member.process = self._process(member.number, member.proxy)

    def keep_up(self) -> None:
        """Start those anew that have ended by themselves, as a supervisor does; only one that found no database when it began may."""
        for member in self.members:
            code = member.process.poll()
            if code is not None:
                began = member.process.pid in self.ledger.pids.values()
                self.codes += [] if code == NO_STORE and not began else [code]
                self.again(member)

    # --- what can happen ---------------------------------------------------------------------------------------------

    def kill(self, member: Member) -> None:
        """Its host is gone."""
        self._begun("killed", member.process.pid)
        member.process.kill()
        member.process.wait(EXIT_LIMIT_S)
        self.ledger.gone(member.process.pid)
        self.again(member)

    def stop(self, member: Member) -> None:
        """It hangs for longer than its lease, and goes on as if nothing had been."""
        noted = self._begun("stopped", member.process.pid)
        self.stopped += 1
        member.process.send_signal(signal.SIGSTOP)
        threading.Event().wait(STOPPED_S)
        member.process.send_signal(signal.SIGCONT)
        self.woken_s, self.stopped = time.time(), self.stopped - 1
        self._over(noted)

    def part(self, member: Member) -> None:
        """The network separates it from the database for longer than its lease."""
        noted = self._begun("parted", member.process.pid)
        member.proxy.part()
        threading.Event().wait(STOPPED_S)
        member.proxy.join()
        self._over(noted)

    def cut(self, member: Member) -> None:
        """Its connections are cut."""
        noted = self._begun("cut off", member.process.pid)
        member.proxy.cut()
        self._over(noted)

    def drain(self, member: Member) -> None:
        """It is told to stop, as a deploy does, once it works."""
        _until(lambda: member.process.pid in self.ledger.pids.values() or member.process.poll() is not None)
        if member.process.poll() is not None:
            return
        self._begun("drained", member.process.pid)
        member.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.codes.append(member.process.wait(EXIT_LIMIT_S))
        self.ledger.gone(member.process.pid)
        self.again(member)

    def restart(self, _: Member) -> None:
        """The database dies, and comes back."""
        noted = self._begun("PostgreSQL killed", None)
        self.server.kill()
        threading.Event().wait(0.5)
        self.server.start()
        self._over(noted, LEASE_S)

    def slow(self, since_s: float) -> None:
        """The machine stood still: nobody did this."""
        self.disturbed.append(Disturbed(SLOW, None, since_s))
        self._over(self.disturbed[-1])

    def _begun(self, what: str, pid: int | None) -> Disturbed:
        self.disturbed.append(Disturbed(what, pid, time.time()))
        return self.disturbed[-1]

    @staticmethod
    def _over(noted: Disturbed, more_s: float = 0.0) -> None:
        """It excuses what is noticed a little later, too: whoever watches looks at intervals, and a busy machine is slow."""
        noted.until_s = time.time() + LEASE_S + 2.0 + more_s

    def actions(self) -> dict[str, Callable[[Member], None]]:
        return {each.__name__: each for each in (self.kill, self.stop, self.part, self.cut, self.drain, self.restart)}


def _until(true: Callable[[], bool], limit_s: float = EXIT_LIMIT_S) -> None:
    until_s = time.monotonic() + limit_s
    while not true() and time.monotonic() < until_s:
        threading.Event().wait(0.05)


def plan(seed: int, kinds: Sequence[str]) -> Callable[[Fleet], tuple[str, Member]]:
    """What happens next, and to whom: each kind in turn in an order of dice, to one that has something under way, where one soon has."""
    dice, left = random.Random(seed), list[str]()

    def following(fleet: Fleet) -> tuple[str, Member]:
        if not left:
            left.extend(dice.sample(list(kinds), len(kinds)))
        _until(lambda: bool(fleet.ledger.inside), BUSY_S)
        with fleet.ledger.lock:
            busy = {one.pid for one in fleet.ledger.inside.values()}
        members = [member for member in fleet.members if member.process.pid in busy] or fleet.members
        return left.pop(), dice.choice(members)

    return following
