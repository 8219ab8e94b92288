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
import starting
from agents_for_tests.bank import Bank
from agents_for_tests.payer import BROKEN_OFF, GAVE_UP, ORDER, RUN_ID, WITHIN_S

ACTIONS = ("resend", "verify", "reset", "ask", "fail")

TABLE = """
what interrupts the effect                             | charged | resend | verify | reset  | ask    | fail    | at the end
= killed before the intent is on disk
killed before the intent is on disk                    | no      | done   | done   | done   | done   | done    | 1
= killed between intent and outcome
killed after the intent, before the request            | no      | done   | done   | done   | asks   | InDoubt | 1
killed while the service turns the request away        | no      | done   | done   | done   | asks   | InDoubt | 1
killed when it was charged, before the reply           | yes     | done   | done   | done   | asks   | InDoubt | 1
killed while the request is under way: it lands late   | yes     | done   | done   | done   | asks   | InDoubt | 1
killed after the reply, before the outcome is on disk  | yes     | done   | done   | done   | asks   | InDoubt | 1
= frozen until the lease was lost
frozen when it was charged: another takes over         | yes     | done   | done   | done   | asks   | InDoubt | 1
frozen while the request is under way: it lands late   | yes     | done   | done   | done   | asks   | InDoubt | 1
= an error that does not say: time-out, reset, HTTP 5xx
charged, and the connection is reset                   | yes     | done   | done   | done   | asks   | InDoubt | 1
charged, and the service hangs up                      | yes     | done   | done   | done   | asks   | InDoubt | 1
the connection is reset before anything is charged     | no      | done   | done   | done   | asks   | InDoubt | 1
charged, and the reply comes after the time-out        | yes     | done   | done   | done   | asks   | InDoubt | 1
time-out, and it is charged after that                 | yes     | done   | done   | done   | asks   | InDoubt | 1
charged, and the answer is 500                         | yes     | done   | done   | done   | asks   | InDoubt | 1
the answer is 503, and nothing is charged              | no      | done   | done   | done   | asks   | InDoubt | 1
= an error that says no: refused, HTTP 4xx
the answer is 429: `retry` covers it                   | no      | done   | done   | done   | done   | done    | 1
the answer is 404: `retry` does not cover it           | no      | failed | failed | failed | failed | failed  | 1
the connection is refused                              | no      | done   | done   | done   | done   | done    | 1
= broken off by `hf.timeout` or `hf.first`
broken off by `hf.timeout` after it was charged        | yes     | asks   | asks   | asks   | asks   | asks    | 1
broken off by `hf.timeout` before the request          | no      | asks   | asks   | asks   | asks   | asks    | 0
broken off by a lost `hf.first` after it was charged   | yes     | asks   | asks   | asks   | asks   | asks    | 1
= killed after the outcome is on disk
killed after the outcome is on disk                    | yes     | done   | done   | done   | done   | done    | 1
"""
"""Done: nobody was asked. Asks: it waits for a person. InDoubt: it failed so, and the doubt is open. Failed: without a doubt.

"Charged" is what the ledger shows to the person, or whether the interruption left a charge behind. Whoever is asked says just that;
a failed run is run again; then the run is done, and the ledger shows the charge as often as the last column says. Lines that begin
with = are the rows of the table in docs/doubt.md.
"""

VARIANTS = """
what interrupts the effect                    | charged | probe raises | probe times out | probe unsure | resend, too late | at the end
charged, and the answer is 500                | yes     | asks         | asks            | asks         | done             | 1
the answer is 503, and nothing is charged     | no      | asks         | asks            | asks         | done             | 1
killed after the intent, before the request   | no      | asks         | asks            | asks         | asks             | 1
killed when it was charged, before the reply  | yes     | asks         | asks            | asks         | asks             | 1
"""
"""The same with `hf.verify` and a probe that does not know, and with `hf.resend` whose time is over after a restart."""


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
    "charged, and the service hangs up": How("lands"),
    "the connection is reset before anything is charged": How("drops, reset"),
    "charged, and the reply comes after the time-out": How("lands, late, 200", first="impatient"),
    "time-out, and it is charged after that": How("late, lands, 200", first="impatient"),
    "charged, and the answer is 500": How("lands, 500"),
    "the answer is 503, and nothing is charged": How("drops, 503"),
    "the answer is 429: `retry` covers it": How("drops, 429"),
    "the answer is 404: `retry` does not cover it": How("drops, 404"),
    "the connection is refused": How(first="refused"),
    "broken off by `hf.timeout` after it was charged": How(first="timeout after"),
    "broken off by `hf.timeout` before the request": How(first="timeout before"),
    "broken off by a lost `hf.first` after it was charged": How(first="race"),
}
TOO_LATE = How(first="frozen", meets="frozen")
"""Frozen between the intent and the request, which is sent when it wakes, however late that is: beyond the reach of any wait."""


class Pair(NamedTuple):
    """One cell of the table, with what its row says."""

    kind: str
    action: str
    end: str
    charged: bool
    charges: int
    documented_as: str = ""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def pairs(table: str) -> list[Pair]:
    header, *lines = table.strip().splitlines()
    found, row = [], ""
    for line in lines:
        if line.startswith("= "):
            row = line.removeprefix("= ")
            continue
        kind, charged, *ends, charges = cells(line)
        found += [
            Pair(kind, action, end, charged == "yes", int(charges), row) for action, end in zip(cells(header)[2:-1], ends, strict=True)
        ]
    return found


def name(pair: Pair) -> str:
    return f"{pair.action}: {pair.kind}"


# --- playing a case -------------------------------------------------------------------------------------------------


class Crew:
    """A process that forks a child for each order, so that a start costs no import."""

    def __init__(self) -> None:
        self.process = starting.Popen[str](
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


@pytest.fixture(scope="session")
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
    starts: int = 0

    def play(self) -> list[str]:
        how = HOW.get(self.pair.kind, TOO_LATE)
        self.bank.plan.extend([how.plan] if how.plan else [])
        end = self._run(how)
        frozen = int(end) if end.isdigit() else 0
        how = how._replace(failpoint="", first=how.first if how.first in BROKEN_OFF else "")
        if how.meets:
            self._expect("the first process", how.meets, "frozen" if frozen else end)
            end = self._run(how)
        self.bank.time_passes()
        if frozen:
            self._expect("the frozen process", "lease lost", self.crew.run(wake=frozen))
        self._expect("the run", self.pair.end, end)
        self._finish(how, end)
        self._judge_ledger()
        return [*self.wrong, (self.store.parent / "stderr").read_text()] if self.wrong else []

    def _run(self, how: How) -> str:
        failpoint = {"failpoint": how.failpoint} if how.failpoint else {}
        told = {"store": str(self.store), "port": self.bank.port, "action": self.pair.action, "first": how.first, "broken": self.broken}
        ahead_s = 2 * WITHIN_S * self.starts if self.pair.action == "resend, too late" else 0
        self.starts += 1
        return self.crew.run(**told, ahead_s=ahead_s, **failpoint)

    def _finish(self, how: How, end: str) -> None:
        """The store must tell the same; then whoever is asked says what the ledger shows, and the same line is run again."""
        if end != "done":
            with hf.Holdfast(self.store) as app:
                self._expect("the status", "waiting" if end == "asks" else "failed", app.show(RUN_ID).status)
                self._expect("open doubts", int(end != "failed"), len(app.inbox()))
                for doubt in app.inbox():
                    self._say_what_is_true(app, doubt.step_id)
            self._expect("the run in the end", "done", self._run(how))
        with hf.Holdfast(self.store) as app:
            self._expect("the status in the end", "done", app.show(RUN_ID).status)
            self._expect("open doubts in the end", [], app.inbox())
            self._expect("the result", GAVE_UP if how.first in BROKEN_OFF else self.bank.find(ORDER), app.show(RUN_ID).result)

    def _say_what_is_true(self, app: hf.Holdfast, step_id: str) -> None:
        receipt = self.bank.find(ORDER)
        self._expect("what the person sees charged", self.pair.charged, bool(receipt))
        app.resolve(RUN_ID, step_id, **({"landed": receipt} if receipt else {"not_landed": True}), by="ann", reason="the ledger")

    def _judge_ledger(self) -> None:
        self._expect("charges in the end", self.pair.charges, self.bank.charged.count(ORDER))
        if self.bank.most > 1:
            self.wrong.append(f"the ledger showed {self.bank.most} charges at once")

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


WORDS = {
    "done": {"run", "run again, same key", "the probe says", "reset, then run", "`retry` says", "not run"},
    "failed": {"`retry` says"},
    "asks": {"a person says"},
    "InDoubt": {"`hf.InDoubt`"},
}
"""How docs/doubt.md says each end."""


def test_the_documentation_has_the_same_table() -> None:
    page = (Path(__file__).parent.parent / "docs" / "doubt.md").read_text()
    header, _, *lines = next(block for block in page.split("\n\n") if block.startswith("| what interrupts it ")).splitlines()
    assert [cell.strip('`"') for cell in cells(header)[2:]] == list(ACTIONS)
    documented = {(row, action): said for row, _, *ends in map(cells, lines) for action, said in zip(ACTIONS, ends, strict=True)}
    assert {(pair.documented_as, pair.action) for pair in pairs(TABLE)} == set(documented)
    assert [name(pair) for pair in pairs(TABLE) if documented[pair.documented_as, pair.action] not in WORDS[pair.end]] == []


@pytest.mark.parametrize("pair", pairs(TABLE), ids=name)
def test_every_pair_ends_as_documented_and_never_charges_twice(crew: Crew, tmp_path: Path, pair: Pair) -> None:
    assert played(crew, tmp_path, pair) == []


@pytest.mark.parametrize("pair", pairs(VARIANTS), ids=name)
def test_what_cannot_be_found_out_leads_to_a_person_and_never_to_a_repeat(crew: Crew, tmp_path: Path, pair: Pair) -> None:
    assert played(crew, tmp_path, pair) == []


# --- negative controls ----------------------------------------------------------------------------------------------


def pair_of(kind: str, action: str) -> Pair:
    return next(pair for pair in (*pairs(TABLE), *pairs(VARIANTS)) if (pair.kind, pair.action) == (kind, action))


LATE = ("killed while the request is under way: it lands late", "time-out, and it is charged after that")
REPEATED = "the ledger showed 2 charges at once"


@pytest.mark.parametrize("action", ["ask", "fail"])
def test_an_engine_that_acknowledges_without_an_intent_is_found_out(crew: Crew, tmp_path: Path, action: str) -> None:
    pair = pair_of("killed after the reply, before the outcome is on disk", action)
    wrong = played(crew, tmp_path, pair, broken="no intents")
    assert REPEATED in wrong
    assert f"the run: 'done', but {pair.end!r} is documented" in wrong


@pytest.mark.parametrize("action", ["ask", "fail"])
@pytest.mark.parametrize("kind", ["charged, and the answer is 500", *LATE, "killed when it was charged, before the reply"])
def test_an_engine_that_repeats_on_doubt_is_found_out(crew: Crew, tmp_path: Path, kind: str, action: str) -> None:
    pair = pair_of(kind, action)
    wrong = played(crew, tmp_path, pair, broken="repeats unasked")
    assert REPEATED in wrong
    assert f"the run: 'done', but {pair.end!r} is documented" in wrong


@pytest.mark.parametrize("action", ["probe raises", "probe times out", "probe unsure"])
def test_an_engine_that_takes_a_probe_that_does_not_know_for_a_no_is_found_out(crew: Crew, tmp_path: Path, action: str) -> None:
    assert REPEATED in played(crew, tmp_path, pair_of("charged, and the answer is 500", action), broken="repeats unasked")


@pytest.mark.parametrize("action", ["verify", "reset"])
@pytest.mark.parametrize("kind", [*LATE, "frozen while the request is under way: it lands late"])
def test_without_its_settling_time_a_request_that_lands_late_is_repeated(crew: Crew, tmp_path: Path, kind: str, action: str) -> None:
    assert REPEATED in played(crew, tmp_path, pair_of(kind, action), broken="does not settle")


@pytest.mark.parametrize("kind", ["charged, and the connection is reset", *LATE])
def test_a_service_without_a_memory_of_keys_is_found_out(crew: Crew, tmp_path: Path, kind: str) -> None:
    assert REPEATED in played(crew, tmp_path, pair_of(kind, "resend"), remembers_keys=False)


@pytest.mark.parametrize(("action", "charges"), [("resend", 1), ("verify", 2), ("reset", 2), ("ask", 1), ("fail", 1)])
def test_a_frozen_process_that_sends_its_request_when_it_wakes(crew: Crew, tmp_path: Path, action: str, charges: int) -> None:
    """The documented limit: keys help, and a person who looks late enough; a probe and a reset come too early."""
    end = pair_of("frozen when it was charged: another takes over", action).end
    wrong = played(crew, tmp_path, Pair("frozen before the request", action, end, charged=True, charges=charges))
    assert [line for line in wrong if line] == ([REPEATED] if charges > 1 else [])
