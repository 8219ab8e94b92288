"""Every pair of an interruption and an `in_doubt` action, with a real service whose ledger says what happened, and real kills.

The table says how each pair ends, as docs/doubt.md and the public interface have it. Each case is played in processes of its own: the
interruption, the restart, a person who looks into the ledger and says what is true, and the end. `Case.wrong` is the one judge of them
all, also of the engines that are broken on purpose below: it must find those out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast as hf
from agents_for_tests import payer
from agents_for_tests.bank import Bank
from agents_for_tests.payer import GAVE_UP, ORDER, RUN_ID

ACTIONS = ("resend", "verify", "reset", "ask", "fail")
LIMIT_REQUESTS = 3

TABLE = """
what interrupts the effect                             | charged | resend | verify | reset  | ask    | fail    | at the end
killed before the intent is on disk                    | no      | done   | done   | done   | done   | done    | 1
killed after the intent, before the request            | no      | done   | done   | done   | asks   | InDoubt | 1
killed while the service turns the request away        | no      | done   | done   | done   | asks   | InDoubt | 1
killed when it was charged, before the reply           | yes     | done   | done   | done   | asks   | InDoubt | 1
killed while the request is under way: it lands late   | yes     | done   | done   | done   | asks   | InDoubt | 1
killed after the reply, before the outcome is on disk  | yes     | done   | done   | done   | asks   | InDoubt | 1
killed after the outcome is on disk                    | yes     | done   | done   | done   | done   | done    | 1
frozen when it was charged: another takes over         | yes     | done   | done   | done   | asks   | InDoubt | 1
frozen while the request is under way: it lands late   | yes     | done   | done   | done   | asks   | InDoubt | 1
charged, and the connection is reset                   | yes     | done   | done   | done   | asks   | InDoubt | 1
the connection is reset before anything is charged     | no      | done   | done   | done   | asks   | InDoubt | 1
charged, and the reply comes after the time-out        | yes     | done   | done   | done   | asks   | InDoubt | 1
time-out, and it is charged after that                 | yes     | done   | done   | done   | asks   | InDoubt | 1
charged, and the answer is 500                         | yes     | done   | done   | done   | asks   | InDoubt | 1
the answer is 503, and nothing is charged              | no      | done   | done   | done   | asks   | InDoubt | 1
the answer is 429: `retry` covers it                   | no      | done   | done   | done   | done   | done    | 1
the answer is 404: `retry` does not cover it           | no      | failed | failed | failed | failed | failed  | 1
the connection is refused                              | no      | done   | done   | done   | done   | done    | 1
broken off by `hf.timeout` after it was charged        | yes     | asks   | asks   | asks   | asks   | asks    | 1
broken off by `hf.timeout` before the request          | no      | asks   | asks   | asks   | asks   | asks    | 0
"""
"""Done: nobody was asked. Asks: it waits for a person. InDoubt: it failed so, and the doubt is open. Failed: without a doubt.

"Charged" is what the ledger shows to the person, or whether the interruption left a charge behind. Whoever is asked says just that;
a failed run is run again; then the run is done, and the ledger shows the charge as often as the last column says.
"""

PROBES = """
what interrupts the effect                             | charged | verify, probe raises | verify, probe times out | verify, probe unsure | at the end
charged, and the answer is 500                         | yes     | asks                 | asks                    | asks                 | 1
the answer is 503, and nothing is charged              | no      | asks                 | asks                    | asks                 | 1
killed when it was charged, before the reply           | yes     | asks                 | asks                    | asks                 | 1
"""  # noqa: E501 (a table)


class How(NamedTuple):
    """How an interruption is brought about: the bank's plan for the first request, a failpoint, or what the client does first."""

    plan: str = ""
    failpoint: str = ""
    first: str = ""
    meets: str = ""
    """What the first process must come to, where the run does not end in it."""


HOW = {
    "killed before the intent is on disk": How(failpoint="effect.before_intent", meets="killed"),
    "killed after the intent, before the request": How(failpoint="effect.after_intent", meets="killed"),
    "killed while the service turns the request away": How("kill, drops", meets="killed"),
    "killed when it was charged, before the reply": How("lands, kill", meets="killed"),
    "killed while the request is under way: it lands late": How("kill, late, lands", meets="killed"),
    "killed after the reply, before the outcome is on disk": How(failpoint="effect.after_body", meets="killed"),
    "killed after the outcome is on disk": How(failpoint="effect.after_outcome", meets="killed"),
    "frozen when it was charged: another takes over": How("lands, stop, 200", meets="frozen"),
    "frozen while the request is under way: it lands late": How("stop, late, lands, 200", meets="frozen"),
    "charged, and the connection is reset": How("lands, reset"),
    "the connection is reset before anything is charged": How("drops, reset"),
    "charged, and the reply comes after the time-out": How("lands, late, 200", first="impatient"),
    "time-out, and it is charged after that": How("late, lands, 200", first="impatient"),
    "charged, and the answer is 500": How("lands, 500"),
    "the answer is 503, and nothing is charged": How("drops, 503"),
    "the answer is 429: `retry` covers it": How("drops, 429"),
    "the answer is 404: `retry` does not cover it": How("drops, 404"),
    "the connection is refused": How(first="refused"),
    "broken off by `hf.timeout` after it was charged": How(first="broken off after"),
    "broken off by `hf.timeout` before the request": How(first="broken off before"),
}


class Pair(NamedTuple):
    """One cell of the table, with what its row says."""

    kind: str
    action: str
    end: str
    charged: bool
    charges: int


def pairs(table: str) -> list[Pair]:
    header, *rows = ([cell.strip() for cell in line.split("|")] for line in table.strip().splitlines())
    return [
        Pair(row[0], action, end, row[1] == "yes", int(row[-1])) for row in rows for action, end in zip(header[2:-1], row[2:-1], strict=True)
    ]


def name(pair: Pair) -> str:
    return f"{pair.action}: {pair.kind}"


# --- playing a case -------------------------------------------------------------------------------------------------


class Crew:
    """A process that forks a child for each order, so that a start costs no import."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agents_for_tests.payer"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent,
        )  # fmt: skip

    def run(self, **order: Any) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    opened = Crew()
    yield opened
    opened.close()


@dataclass
class Case:
    """One pair, played to its end, and what is wrong with it."""

    crew: Crew
    bank: Bank
    store: Path
    pair: Pair
    broken: str = ""
    wrong: list[str] = field(default_factory=list)

    def play(self) -> list[str]:
        how = HOW[self.pair.kind]
        self.bank.plan.extend([how.plan] if how.plan else [])
        end = self._run(how)
        frozen = int(end) if end.isdigit() else 0
        if how.meets:
            self._expect("the first process", how.meets, "frozen" if frozen else end)
            end = self._run(how._replace(failpoint=""))
        self.bank.time_passes()
        if frozen:
            self._expect("the frozen process", "lease lost", self.crew.run(wake=frozen))
        self._expect("the run", self.pair.end, end)
        self._finish(how, end)
        self._judge_ledger()
        return [*self.wrong, (self.store.parent / "stderr").read_text()] if self.wrong else []

    def _run(self, how: How) -> str:
        failpoint = {"failpoint": how.failpoint} if how.failpoint else {}
        told = {"store": str(self.store), "port": self.bank.port, "action": self.pair.action, "first": how.first}
        return self.crew.run(**told, broken=self.broken, **failpoint)

    def _finish(self, how: How, end: str) -> None:
        """The store must tell the same; then whoever is asked says what the ledger shows, and the same line is run again."""
        status = {"asks": "waiting", "InDoubt": "failed"}.get(end, end)
        gave_up = how.first.startswith("broken off")
        with hf.Holdfast(self.store) as app:
            self._expect("the status", status, app.show(RUN_ID).status)
            doubts = [item.step_id for item in app.inbox() if item.kind == "doubt"]
            self._expect("open doubts", int(end in ("asks", "InDoubt")), len(doubts))
            for step_id in doubts:
                receipt = self.bank.find(ORDER)
                self._expect("what the person sees charged", self.pair.charged, bool(receipt))
                app.resolve(RUN_ID, step_id, **({"landed": receipt} if receipt else {"not_landed": True}), by="ann", reason="the ledger")
        if end != "done":
            self._expect("the run in the end", "done", self._run(how._replace(failpoint="", first=how.first if gave_up else "")))
        with hf.Holdfast(self.store) as app:
            self._expect("the status in the end", "done", app.show(RUN_ID).status)
            self._expect("the result", GAVE_UP if gave_up else self.bank.find(ORDER), app.show(RUN_ID).result)

    def _judge_ledger(self) -> None:
        self._expect("charges in the end", self.pair.charges, self.bank.charged.count(ORDER))
        if self.bank.most > 1:
            self.wrong.append(f"the ledger showed {self.bank.most} charges at once")
        self._expect("one key", True, len({key for _, key in self.bank.ledger}) <= 1)

    def _expect(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            self.wrong.append(f"{what}: {found!r}, but {expected!r} is documented")


def played(crew: Crew, folder: Path, pair: Pair, *, broken: str = "", remembers_keys: bool = True) -> list[str]:
    with Bank(remembers_keys=remembers_keys) as bank:
        return Case(crew, bank, folder / "runs.db", pair, broken).play()


# --- the tables -----------------------------------------------------------------------------------------------------


def test_the_table_is_complete() -> None:
    kinds = {pair.kind for pair in pairs(TABLE)}
    assert kinds == set(HOW)
    assert {(pair.kind, pair.action) for pair in pairs(TABLE)} == {(kind, action) for kind in HOW for action in ACTIONS}
    assert len(kinds) >= 8


@pytest.mark.parametrize("pair", pairs(TABLE), ids=name)
def test_every_pair_ends_as_documented_and_never_charges_twice(crew: Crew, tmp_path: Path, pair: Pair) -> None:
    assert played(crew, tmp_path, pair) == []


@pytest.mark.parametrize("pair", pairs(PROBES), ids=name)
def test_a_probe_that_does_not_know_leads_to_a_person_and_never_to_a_repeat(crew: Crew, tmp_path: Path, pair: Pair) -> None:
    assert played(crew, tmp_path, pair) == []


# --- negative controls ----------------------------------------------------------------------------------------------
