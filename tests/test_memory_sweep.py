"""The sweep over the memory store: it lives, and what uses it dies at every record, before or after that is written.

What must hold is what `test_sweep.py` says of processes that are killed, and the same broken engines must be found out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agents_for_tests import sweep_agent
from crashing import FailingStore, play
from holdfast import InDoubt, RunWaiting
from holdfast.errors import StoreError
from holdfast.life import course, drive
from holdfast.store import Append, Row, Stale
from sweeping import KILLED, NEEDS_A_PERSON, RUN_ID, result_of
from test_sweep import VARIANTS, Case, refuse_any

pytestmark = pytest.mark.sweep

MOST_ROWS = 90


class InHere:
    """Plays an order in this process; what dies with a store that fails is all that knew of the run."""

    def __init__(self, store: FailingStore) -> None:
        self.store = store

    def obey(self, order: dict[str, Any]) -> int:
        sweep_agent.folder = Path(order["folder"])
        try:
            result = play(self.store, sweep_agent.AGENTS[order["variant"]], "order", run_id=RUN_ID)
        except (RunWaiting, InDoubt):
            return NEEDS_A_PERSON
        except StoreError:
            self.store.mend()
            return KILLED
        (sweep_agent.folder / "result.json").write_text(json.dumps(result))
        return 0


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each agent gives when nothing fails."""
    found = {}
    for variant in VARIANTS:
        case = Case(tmp_path_factory.mktemp(variant), variant, store := FailingStore())
        case.finish(InHere(store))
        found[variant] = result_of(case.folder)
        assert len(found[variant]) == 18
    return found


def is_at(seq: int, row: Row) -> bool:
    return row.seq == seq


def lost_at(store: FailingStore, folder: Path, variant: str, expected: Mapping[str, list[str]]) -> list[str] | None:
    """What is wrong with a run whose store failed; None where it did not."""
    folder.mkdir()
    case = Case(folder, variant, store)
    if InHere(store).obey(case.order()) != KILLED:
        return None
    case.killed(f"record {folder.name}, {'behind' if store.written else 'before'} it")
    case.finish(InHere(store))
    return case.judge(expected)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_store_that_is_lost_at_every_record(tmp_path: Path, expected: dict[str, list[str]], variant: str, *, written: bool) -> None:
    found = []
    for seq in range(1, MOST_ROWS):
        wrong = lost_at(FailingStore(partial(is_at, seq), written=written), tmp_path / str(seq), variant, expected)
        if wrong is None:
            break
        found.append(wrong)
    refuse_any(found)
    assert 30 < len(found) < MOST_ROWS - 1


def test_an_engine_without_intents_is_found_out(tmp_path: Path, expected: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    for room, name in ((course, "commit_at_once"), (drive, "_commit_async"), (drive, "_commit_blocking")):
        monkeypatch.setattr(room, name, getattr(room, name))  # so that it is put back
    sweep_agent.break_intents()
    found = [lost_at(FailingStore(partial(is_at, seq)), tmp_path / str(seq), "async", expected) for seq in range(2, 14)]
    assert any("ran more or less than once" in line for wrong in found for line in wrong or ()), found


class SaysItIsWritten(FailingStore):
    """Acknowledges what it loses when it fails."""

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        try:
            return super().append(batch, wait=wait)
        except StoreError:
            if any(self.fails(row) for append in batch for row in append.rows):
                return [None] * len(batch)
            raise


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_store_that_acknowledges_before_it_writes_is_found_out(tmp_path: Path, expected: dict[str, list[str]], variant: str) -> None:
    found = [lost_at(SaysItIsWritten(partial(is_at, seq)), tmp_path / str(seq), variant, expected) for seq in (2, 3)]
    assert any("acknowledged but not stored" in line for wrong in found for line in wrong or ()), found
