"""What a worker is told wrongly is refused, or said, before it waits for what will not come."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType

import pytest

import holdfast as hf
import starting
from chaos_fleet import surroundings
from holdfast import Holdfast
from holdfast.cli import working
from holdfast.cli.app_file import hidden_in
from holdfast.operating.advice import DEADLY, unblocking
from holdfast.operating.views import loaded
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore

BOUND_S = 30.0


@hf.agent
async def plan(what: str) -> str:
    return what


@pytest.mark.parametrize("queues", [["bad queue!"], ["a" * 65], "mail", []], ids=["a space", "too long", "no list", "none"])
def test_a_queue_that_nobody_can_leave_a_run_in_is_refused(queues: list[str]) -> None:
    with Holdfast(MemoryStore()) as app, pytest.raises(hf.Misuse, match="nothing was begun"):
        asyncio.run(app.work([plan], queues=queues))


@pytest.mark.parametrize(("words", "code"), [(("--lease", "0s"), 2), (("--queue", "bad queue!"), 1)], ids=["a lease of 0", "a queue"])
def test_the_command_refuses_it_and_says_what_was_wrong(words: tuple[str, str], code: int, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import holdfast as hf\n@hf.agent\ndef a(): ...\n")
    said = [sys.executable, "-m", "holdfast", "worker", str(tmp_path / "app.py"), *words, "--store", str(tmp_path / "runs.db")]
    done = starting.run(said, env=surroundings(1), text=True, timeout=BOUND_S)
    assert done.returncode == code
    assert words[1] in done.stderr or words[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_limits_that_are_not_found_or_hold_nothing_back_are_told_of() -> None:
    module = ModuleType("app")
    vars(module).update(LIMITS={"plan": hf.Limit(agent="plan", running=1)}, others=[hf.Limit(queue="mail", running=1)])
    assert hidden_in(module, hf.Limit) == ["LIMITS holds a Limit in a dict, where it is not looked for; put it in a list"]
    assert hidden_in(module, hf.Schedule) == []
    given = [hf.Limit(agent="paln", running=1), hf.Limit(agent="plan", running=1), hf.Limit(queue="mail", running=1)]
    (told,) = working._unheard_of(given, [plan])  # type: ignore[list-item]
    assert "'paln'" in told


def test_whoever_looks_after_a_deadly_run_is_not_sent_to_other_code() -> None:
    with Holdfast(MemoryStore()) as app:
        app.submit(plan, "it", run_id="run")
        journal = Journal.load(*loaded(app.engine, "run"))
        blocked = rec.RunBlocked(error={"type": DEADLY, "message": "3 processes died"})
        app.engine.committer.commit(journal, [rec.RunResumed(owner="", why="set aside"), blocked])
        (item,) = app.inbox()
        assert item.commands == ["holdfast history run", "holdfast resume run", "holdfast cancel run"]
        assert unblocking(Journal.load(*loaded(app.engine, "run"))) == item.commands
