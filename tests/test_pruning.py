"""Runs that have ended go by a policy, never those that somebody still needs; their ids stay taken, and the room is given back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from crashing import LEASE_S, Crash
from holdfast.errors import Refusal
from holdfast.operating import pruning
from holdfast.operating.pruning import Pruning
from holdfast.store import Append, Head, Prunable, Removal, Stale, Store
from holdfast.stores import _sqlite_pruned
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

did: list[str] = []


@hf.step
def look(what: str) -> str:
    did.append(what)
    return what * 50


@hf.effect(in_doubt="ask")
def pay(what: str) -> str:
    did.append(f"pay {what}")
    if what.startswith("doubt"):
        raise RuntimeError("reset by peer")
    return "paid"


@hf.agent
def buy(what: str) -> str:
    look(what)
    if what.startswith("fail"):
        raise ValueError(what)
    if what.startswith("crash"):
        raise Crash
    return pay(what)


@hf.agent
def other(what: str) -> str:
    return look(what)


class Ticking:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.us = 1_700_000_000_000_000

    def now_us(self) -> int:
        self.us += 1
        return self.us

    def monotonic_s(self) -> float:
        return self.us / 1e6

    def sleep(self, seconds: float) -> None:
        self.us += int(seconds * 1e6)

    def hours(self, hours: float) -> None:
        self.us += int(hours * 3.6e9)


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hf.Holdfast]:
    did.clear()
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    with hf.Holdfast(store, lease=LEASE_S, clock=Ticking()) as app:
        yield app
        assert app.store.check() == []
        assert all(verdict.good for verdict in app.check())


def play(app: hf.Holdfast, *run_ids: str, agent: Callable[[str], str] = buy, tags: dict[str, str] | None = None) -> None:
    for run_id in run_ids:
        with suppress(hf.HoldfastError, ValueError, Crash):
            app.run(agent, run_id, run_id=run_id, wait=False, tags=tags)


def later(app: hf.Holdfast, hours: float) -> None:
    assert isinstance(app.engine.clock, Ticking)
    app.engine.clock.hours(hours)


def pruned(app: hf.Holdfast, *, dry_run: bool = False, keep_last: int | None = None, max_age: str | None = None, **more: Any) -> Pruning:
    kept = {name: more.pop(name) for name in ("keep_failed", "keep_ids") if name in more}
    return app.prune(hf.Retention(keep_last=keep_last, max_age=max_age, **kept), dry_run=dry_run, by="ann", **more)


def left(app: hf.Holdfast) -> set[str]:
    return {run.run_id for run in app.runs()}


def test_old_runs_go_and_a_dry_run_says_which(app: hf.Holdfast) -> None:
    play(app, "a", "b")
    later(app, 30)
    play(app, "c")
    shown = pruned(app, max_age="24h", dry_run=True)
    assert ([one.run_id for one in shown.runs], shown.done, shown.freed_bytes) == (["a", "b"], False, 0)
    assert left(app) == {"a", "b", "c"}
    done = pruned(app, max_age="24h")
    assert ([one.run_id for one in done.runs], done.done, done.bytes) == (["a", "b"], True, shown.bytes)
    assert left(app) == {"c"}
    assert pruned(app, max_age="24h").removed == 0


def test_the_id_of_a_pruned_run_is_not_used_again(app: hf.Holdfast) -> None:
    play(app, "a")
    pruned(app, keep_last=0, reason="room")
    did.clear()
    with pytest.raises(hf.RunPruned, match=r"'a' had ended \(done\) and was pruned at 2023-.* by ann \(keep_last=0: room\)"):
        app.run(buy, "a", run_id="a")
    with pytest.raises(hf.RunPruned):
        app.show("a")
    assert did == []
    later(app, 48)
    assert pruned(app, keep_last=0, keep_ids="24h").ids_forgotten == 1
    app.run(buy, "a", run_id="a")
    assert did == ["a", "pay a"]


def test_what_has_not_ended_stays_and_goes_on(app: hf.Holdfast) -> None:
    play(app, "crash", "fail", "doubt", "done")
    later(app, 999)
    assert [one.run_id for one in pruned(app, keep_last=0, max_age="1s").runs] == ["done"]
    assert left(app) == {"crash", "fail", "doubt"}
    app.resolve("doubt", "2", landed="by hand", by="ann")
    assert app.run(buy, "doubt", run_id="doubt") == "by hand"


def test_failed_runs_go_only_when_that_is_said(app: hf.Holdfast) -> None:
    play(app, "fail", "done")
    assert pruned(app, keep_last=0, keep_failed=False).removed == 2
    assert left(app) == set()


def test_a_cancelled_run_with_an_open_doubt_stays_until_it_is_settled(app: hf.Holdfast) -> None:
    play(app, "doubt")
    app.cancel("doubt", by="ann")
    (kept,) = pruned(app, keep_last=0).runs
    assert (kept.what, kept.why) == ("kept", "step 2, pay, is in doubt; `holdfast inbox` shows how to settle it")
    app.resolve("doubt", "2", not_landed=True, by="ann")
    assert pruned(app, keep_last=0).removed == 1


def test_filters_narrow_what_is_looked_at_and_counted(app: hf.Holdfast) -> None:
    play(app, "a1", "a2", tags={"c": "7"})
    play(app, "b1", "b2", agent=other)
    app.run(other, "x", run_id="x", tags={"c": "7"})
    assert pruned(app, keep_last=1, tags={"c": "7"}).looked_at == 3
    assert left(app) == {"a2", "b1", "b2", "x"}
    pruned(app, keep_last=1, agent="other")
    assert left(app) == {"a2", "x"}
    pruned(app, keep_last=0, status="cancelled")
    assert left(app) == {"a2", "x"}


class Moving(MemoryStore):
    """Moves a run between the look at it and its removal."""

    def remove(self, removals: Sequence[Removal]) -> list[bool]:
        for one in removals:
            head, rows = self._heads[one.found.run_id], self._rows[one.found.run_id]
            self._heads[head.run_id] = head._replace(note="moved", seq=head.seq)
            assert rows
        return super().remove(removals)


class Unfenced(Moving):
    """The negative control: removes whatever stands there."""

    def _remove(self, found: Head, grave: Any) -> bool:
        return super()._remove(self._heads[found.run_id], grave)


@pytest.mark.parametrize(("store", "kept"), [(Moving(), {"a"}), (Unfenced(), set())], ids=["fenced", "unfenced"])
def test_a_run_that_moves_meanwhile_is_not_removed(store: MemoryStore, kept: set[str]) -> None:
    with hf.Holdfast(store) as app:
        play(app, "a")
        report = pruned(app, keep_last=0)
        assert left(app) == kept
        assert [one.what for one in report.runs] == ["kept" if kept else "removed"]


def test_a_run_that_is_created_anew_while_it_is_pruned_is_refused(app: hf.Holdfast) -> None:
    """Whoever looked before the run existed, and writes after it has gone, does not begin it again."""
    play(app, "a")
    head, rows = app.store.load("a") or pytest.fail("it is not there")
    pruned(app, keep_last=0)
    assert app.store.append([Append("a", 0, 0, rows, head)]) == [Stale(None)]
    assert left(app) == set()


def test_a_store_that_cannot_be_pruned_says_so() -> None:
    class Bare:
        """A store without what pruning needs."""

        def __init__(self, store: Store) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            if name in Prunable.__annotations__ or name in ("remove", "shed", "tombstone", "forget", "room", "compact"):
                raise AttributeError(name)
            return getattr(self._store, name)

    bare: Any = Bare(MemoryStore())
    with hf.Holdfast(bare) as app, pytest.raises(Refusal, match="cannot be pruned; nothing was changed"):
        pruned(app, keep_last=0)


def test_the_file_gets_smaller_when_it_is_compacted(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with hf.Holdfast(path) as app:
        play(app, *(f"r{number}" for number in range(200)))
        report = pruned(app, keep_last=1)
        assert report.size_bytes > 4 * report.bytes / 5
        assert report.freed_bytes > report.bytes / 2
        size = path.stat().st_size
        compacted = pruned(app, keep_last=1, compact=True)
        assert (compacted.free_bytes, compacted.size_bytes) == (0, path.stat().st_size)
        assert path.stat().st_size < size / 2
        assert app.store.check() == []
        assert app.run(buy, "r199", run_id="r199") == "paid"
        with pytest.raises(hf.RunPruned):
            app.run(buy, "r0", run_id="r0")


def test_a_damaged_run_stays_for_a_repair(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with hf.Holdfast(path) as app:
        play(app, "a", "b")
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute("UPDATE journal SET value = x'00' WHERE run_id = 'a' AND kind = 'run.done'")
        report = pruned(app, keep_last=0)
        assert {one.run_id: one.what for one in report.runs} == {"a": "kept", "b": "removed"}
        assert app.store.head("a") is not None


def test_a_store_from_before_there_were_tombstones_gets_their_table(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with hf.Holdfast(path) as app:
        play(app, "a")
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("DROP TABLE pruned")
    shutil.copy(path, tmp_path / "old.db")
    with hf.Holdfast(tmp_path / "old.db") as app:
        assert app.store.check() == []
        assert pruned(app, keep_last=0).removed == 1
        with pytest.raises(hf.RunPruned):
            app.run(buy, "a", run_id="a")


def test_a_store_that_leaves_a_record_behind_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite_pruned, "DROP_ROW", "DELETE FROM journal WHERE place = ? AND seq > 1")
    with hf.Holdfast(tmp_path / "runs.db") as app:
        play(app, "a")
        pruned(app, keep_last=0)
        assert app.store.check() == ["run a has 1 records in its journal but no head"]


def test_damage_behind_a_prune_does_not_reach_what_came_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the prune is lost with the end of the run; the records that it had made lighter are good all the same."""
    monkeypatch.setattr(pruning, "WORTH_BYTES", 1)
    path = tmp_path / "runs.db"
    with hf.Holdfast(path, lease=LEASE_S) as app:
        play(app, "crash")
        assert app.prune(hf.Retention(details=0), dry_run=False, by="ann").lightened == 1
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute("UPDATE journal SET body = x'7b7d' WHERE kind = 'run.pruned'")
        mending = app.repair("crash", dry_run=False, by="ann")
        assert (mending.moved, mending.checkpoint) == (1, "step 1, look")
        app.resume("crash", by="ann")
        assert app.check()[0].good
