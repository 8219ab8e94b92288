"""Going back in a run whose values hold artifacts: a fork keeps what it stands on, also when its source is pruned."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from crashing import LEASE_S
from holdfast._clock import SystemClock
from holdfast.errors import Refusal
from holdfast.large import artifact
from holdfast.records import journal
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore


class Clock(SystemClock):
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryStore | SqliteStore]:
    opened = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    yield opened
    opened.close()


@pytest.fixture
def app(store: MemoryStore | SqliteStore, clock: Clock) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(store, lease=LEASE_S, clock=clock) as opened:
        yield opened


@hf.step
async def draw(what: str) -> hf.Artifact:
    return hf.Artifact(what.encode())


@hf.effect(in_doubt="ask")
async def publish(what: str) -> hf.Artifact:
    return hf.Artifact(f"published {what}".encode())


@hf.agent
async def illustrate() -> list[str]:
    first, second, last = await draw("a"), await draw("b"), await publish("c")
    return [each.bytes().decode() for each in (first, second, last)]


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known here of the artifacts that were made before."""
    monkeypatch.setattr(artifact, "vouched", set())
    monkeypatch.setattr(journal, "vouched", artifact.vouched)


def test_artifacts_of_a_fork_stay_when_its_source_is_pruned(
    app: hf.Holdfast, store: MemoryStore | SqliteStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.run(illustrate, run_id="r")
    in_another_process(monkeypatch)
    branch = app.fork("r", at=1, effects="reuse")
    assert len(store.blob_refs(branch)) == 2  # of step 1, and of the effect, which is known
    clock.ahead_us = 3 * 86_400_000_000
    assert app.prune(hf.Retention(max_age="1d"), dry_run=False).removed == 1
    assert app.run(illustrate, run_id=branch) == ["a", "b", "published c"]


def test_a_fork_that_would_stand_on_an_artifact_that_is_gone_is_refused(tmp_path: Path) -> None:
    with hf.Holdfast(SqliteStore(tmp_path / "runs.db"), lease=LEASE_S) as app:
        app.run(illustrate, run_id="r")
        shutil.rmtree(tmp_path / "runs.db.blobs")
        with pytest.raises(Refusal, match=r"artifact \w+ of run 'r' is not there any more; nothing was changed"):
            app.fork("r", at=1)
        assert [run.run_id for run in app.runs()] == ["r"]


def test_the_id_of_a_pruned_run_is_not_given_to_a_fork(app: hf.Holdfast) -> None:
    app.run(illustrate, run_id="gone")
    app.prune(hf.Retention(keep_last=0), dry_run=False)
    app.run(illustrate, run_id="r")
    with pytest.raises(hf.RunPruned, match="gone"):
        app.fork("r", at=1, new_id="gone")
