"""Artifacts go when no run refers to them any more, and a day has passed in which somebody could have been about to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S
from holdfast.operating.pruning import Pruning
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from test_pruning import Ticking, later

SIZE = 5_000


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hf.Holdfast]:
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    with hf.Holdfast(store, lease=LEASE_S, clock=Ticking()) as app:
        yield app
        assert app.store.check() == []
        assert all(verdict.good for verdict in app.check())


@hf.step
def draw(what: str) -> hf.Artifact:
    return hf.Artifact(what.encode() * SIZE)


@hf.agent
def report(*whats: str) -> list[hf.Artifact]:
    return [draw(what) for what in whats]


def pruned(app: hf.Holdfast, *, dry_run: bool = False, **policy: Any) -> Pruning:
    return app.prune(hf.Retention(**policy), dry_run=dry_run, by="ann")


def test_the_artifact_of_a_run_that_was_removed_goes_a_day_later_and_a_shared_one_stays(app: hf.Holdfast) -> None:
    app.run(report, "a", "b", run_id="one")
    app.run(report, "b", "c", run_id="two")
    first = pruned(app, keep_last=1)
    assert ([one.run_id for one in first.runs], first.artifacts) == (["one"], 0)
    later(app, 23)
    assert pruned(app, keep_last=1).artifacts == 0
    later(app, 2)
    shown = pruned(app, keep_last=1, dry_run=True)
    assert (shown.artifacts, shown.artifact_bytes) == (1, SIZE)
    done = pruned(app, keep_last=1)
    assert (done.artifacts, done.artifact_bytes) == (1, SIZE)
    assert pruned(app, keep_last=1).artifacts == 0
    assert [one.bytes() for one in app.run(report, "b", "c", run_id="two")] == [b"b" * SIZE, b"c" * SIZE]


def test_the_artifacts_of_a_run_that_was_made_lighter_stay(app: hf.Holdfast) -> None:
    app.run(report, "a" * 400, "b", run_id="one")
    assert pruned(app, details=0).kept == 0
    later(app, 48)
    assert pruned(app, details=0).artifacts == 0
    assert [one.bytes()[:2] for one in app.run(report, "a" * 400, "b", run_id="one")] == [b"aa", b"bb"]


def test_an_artifact_that_another_run_keeps_again_within_the_day_stays(app: hf.Holdfast) -> None:
    app.run(report, "a", run_id="one")
    later(app, 48)
    pruned(app, keep_last=0, keep_ids="365d")
    app.run(report, "a", run_id="two")
    later(app, 48)
    assert pruned(app, keep_last=1).artifacts == 0
    (kept,) = app.run(report, "a", run_id="two")
    assert kept.bytes() == b"a" * SIZE
