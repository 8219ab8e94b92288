"""Those who move a run are killed at every failpoint and at flushes, while others try to go on with it in both places: one place has it.

The same with a seal that nobody heeds must find that out.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from agents_for_tests.move_agent import NOT_THERE, REFUSED
from holdfast import Holdfast
from holdfast._failpoints import MOVES
from sweeping import KILLED, Server

WAITING, MOST = 75, 40
PLACES = [f"{name}:{1 if name.startswith('carry') else 2}" for name in MOVES] + ["seal.before:1", "hand.before:1"]
"""Where a mover is killed: the second time it is at its child, when the run itself has come further, and before that at where it begins."""
EVERY = 6
"""Of the flushes of a move, every so many is its last; which one, the failpoints have shown not to matter."""
DECISIVE = ("import.after", "hand.after", "activate.after")
RESULT = ["a picture", "pay-a", "pay-b1 now pay-b2", "pay-end"]
PAYMENTS = {"a": 1, "b1": 1, "b2": 1, "end": 1}

pytestmark = pytest.mark.sweep


@dataclass(frozen=True)
class Mover:
    """Plays the acts of `move_agent`, each in a process of its own."""

    server: Server

    def run(self, folder: Path, places: tuple[str, str], act: str, **order: object) -> int:
        return self.server.obey({"agent": "move_agent", "folder": str(folder), "store": json.dumps(places), "variant": act, **order})


@pytest.fixture
def mover(server: Server) -> Mover:
    return Mover(server)


def played(mover: Mover, folder: Path, there: str = "", *, broken: str = "", **death: object) -> tuple[bool, Counter[str]]:
    """The run begins here, its mover is killed, others try to go on with it, and the move is repeated; whether it was killed at all."""
    folder.mkdir()
    places = (str(folder / "here.db"), there or str(folder / "there.db"))

    def act(word: str, **order: object) -> int:
        return mover.run(folder, places, word, broken=broken, **order)

    assert [act("begin"), act("send")] == [WAITING, 0], (folder / "stderr").read_text()[-1500:]
    killed = act("move", **death) == KILLED
    tries = Counter({f"{place} {act(f'work {place}')}": 1 for place in ("here", "there") if killed})
    assert act("move") == 0, ((folder / "stderr").read_text() + (folder / "refusals").read_text())[-1500:]
    tries[f"here afterwards {act('work here')}"] += 1
    tries[f"there afterwards {act('work there')}"] += 1
    return killed, tries


def wrong(folder: Path, there: str = "") -> list[str]:
    """What is not as it must be at the end."""
    ledger = [json.loads(line) for line in (folder / "ledger").read_text().splitlines()]
    statuses, good = [], []
    for place in (str(folder / "here.db"), there or str(folder / "there.db")):
        with Holdfast(place) as app:
            statuses.append([app.show(run_id).status for run_id in ("sweep", "sweep.3")])
            good += [app.check(run_id)[0].good for run_id in ("sweep", "sweep.3")]
    result = json.loads((folder / "result.json").read_text()) if (folder / "result.json").exists() else ["", None]
    found = {
        "result": result[1], "payments": dict(Counter(line["what"] for line in ledger)), "keys": len({line["key"] for line in ledger}),
        "statuses": statuses, "good": all(good),
    }  # fmt: skip
    due = {"result": RESULT, "payments": PAYMENTS, "keys": 4, "statuses": [["moved", "moved"], ["done", "done"]], "good": True}
    return [f"{folder.name}: {name} is {found[name]}" for name in due if found[name] != due[name]]


def test_a_mover_is_killed_at_every_failpoint(mover: Mover, tmp_path: Path) -> None:
    kills, problems, seen = Counter[str](), list[str](), Counter[str]()
    for place in PLACES:
        killed, tries = played(mover, tmp_path / place, failpoint=place)
        assert killed, place
        problems += wrong(tmp_path / place)
        seen += tries
        kills[place.partition(":")[0]] += 1
    assert problems == []
    assert set(kills) == set(MOVES)
    assert seen[f"here {REFUSED}"] > 0 < seen[f"there {NOT_THERE}"]
    assert seen[f"there {REFUSED}"] > 0 < seen["there 0"]
    assert seen["here afterwards 0"] == 0


def test_a_mover_is_killed_at_flushes(mover: Mover, tmp_path: Path) -> None:
    kills, problems = 0, list[str]()
    for number in range(1, MOST, EVERY):
        killed, _ = played(mover, tmp_path / f"sync-{number}", sync=number)
        problems += wrong(tmp_path / f"sync-{number}")
        if not killed:
            break
        kills += 1
    assert problems == []
    assert kills > MOST / EVERY / 4


def test_a_mover_to_postgres_is_killed_where_it_matters(mover: Mover, tmp_path: Path, postgres_url: str) -> None:
    problems = list[str]()
    for name in DECISIVE:
        there = f"{postgres_url}?schema=move_{secrets.token_hex(4)}"
        killed, _ = played(mover, tmp_path / name, there, failpoint=f"{name}:1", patience_s=30)
        assert killed, name
        problems += wrong(tmp_path / name, there)
    assert problems == []


def interrupted_twice(mover: Mover, folder: Path, broken: str = "") -> tuple[list[int], dict[str, int]]:
    """A run is killed between two payments, and its mover when the copy is there: what both places say then, and what was paid."""
    folder.mkdir()
    places = (str(folder / "here.db"), str(folder / "there.db"))
    deaths = {"brief": "effect.after_outcome:1", "move": "import.after:1"}
    assert [mover.run(folder, places, act, failpoint=place) for act, place in deaths.items()] == [KILLED, KILLED]
    said = [mover.run(folder, places, act, broken=broken) for act in ("work here", "work there")]
    return said, dict(Counter(json.loads(line)["what"] for line in (folder / "ledger").read_text().splitlines()))


def test_between_two_places_nobody_executes_a_run(mover: Mover, tmp_path: Path) -> None:
    assert interrupted_twice(mover, tmp_path / "sound") == ([REFUSED, REFUSED], {"a": 1})


def test_a_seal_that_nobody_heeds_pays_twice(mover: Mover, tmp_path: Path) -> None:
    """The control: what the seal is for."""
    assert interrupted_twice(mover, tmp_path / "broken", broken="seal") == ([0, 0], {"a": 1, "b": 2})


def test_the_sweep_finds_out_a_seal_that_nobody_heeds(mover: Mover, tmp_path: Path) -> None:
    played(mover, tmp_path / "broken", failpoint="seal.after:2", broken="seal")
    assert wrong(tmp_path / "broken") == ["broken: statuses is [['done', 'moved'], ['done', 'done']]"]
