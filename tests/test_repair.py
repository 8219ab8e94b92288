"""A damaged run goes back to its last good record; what is lost is kept aside, and of its effects a person is asked."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
import starting
from crashing import LEASE_S, lines
from holdfast.errors import Damaged, Refusal, RunRepaired, StoreDamaged
from holdfast.operating import repair
from holdfast.operating.repair import Mending
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.store import Append, Row
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

executed: list[str] = []


class Declined(Exception):
    pass


@hf.step
def look(what: str) -> str:
    executed.append(what)
    return f"seen {what}"


@hf.effect(in_doubt="ask", raises=(Declined,))
def pay(what: str) -> str:
    executed.append(f"pay {what}")
    if what in refused:
        raise Declined(what)
    return f"r-{what}"


@hf.agent
def errand(order: str) -> list[str]:
    return [look("a"), pay("b"), look("c"), pay("d"), look("e")]


refused: set[str] = set()
LINES = [
    "run.started", "step.done 1", "step.started 2", "step.done 2", "step.done 3", "step.started 4", "step.done 4", "step.done 5",
    "run.done",
]  # fmt: skip


class Harmed:
    """A store with the run `r`, to which harm can be done from outside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        executed.clear()
        refused.clear()
        with hf.Holdfast(path) as app:
            app.run(errand, "order", run_id="r")
            assert lines(app.store) == LINES

    def execute(self, sql: str, *values: Any) -> None:
        with closing(apsw.Connection(str(self.path))) as connection:
            connection.execute(sql, values)
            assert connection.changes() > 0

    def flip(self, seq: int, column: str = "digest") -> None:
        """Change the last byte of a field."""
        with closing(apsw.Connection(str(self.path))) as connection:
            before = connection.execute(f"SELECT {column} FROM journal WHERE seq = ?", (seq,)).get
        self.execute(f"UPDATE journal SET {column} = ? WHERE seq = ?", before[:-1] + bytes([before[-1] ^ 1]), seq)

    def repair(self, *, dry_run: bool = False, by: str = "ann", reason: str = "") -> Mending:
        with hf.Holdfast(self.path, lease=LEASE_S) as app:
            return app.repair("r", dry_run=dry_run, by=by, reason=reason)

    def rows(self) -> list[Row]:
        with closing(SqliteStore(self.path)) as store:
            found = store.load("r")
        assert found is not None
        return found[1]

    def play(self) -> Any:
        executed.clear()
        with hf.Holdfast(self.path) as app:
            return app.run(errand, "order", run_id="r", wait=False)


@pytest.fixture
def harmed(tmp_path: Path) -> Iterator[Harmed]:
    harmed = Harmed(tmp_path / "runs.db")
    yield harmed
    with hf.Holdfast(harmed.path) as app:
        assert app.store.check() == []
        assert all(verdict.good for verdict in app.check())


def test_a_dry_run_says_what_a_repair_does_and_changes_nothing(harmed: Harmed) -> None:
    harmed.flip(6)
    before = harmed.rows()
    shown = harmed.repair(dry_run=True)
    assert (shown.bad_seq, shown.keeps, shown.checkpoint, shown.moved, shown.unreadable) == (6, 5, "step 3, look", 4, 2)
    assert (shown.status, shown.done, len(shown.doubts)) == ("blocked", False, 1)
    assert harmed.rows() == before
    assert harmed.repair().done


def test_the_good_part_stays_and_the_rest_is_kept_aside(harmed: Harmed) -> None:
    harmed.flip(6)
    before = harmed.rows()
    harmed.repair(reason="the disk")
    rows = harmed.rows()
    assert rows[:5] == before[:5]
    with hf.Holdfast(harmed.path) as app:
        assert isinstance(app.store, SqliteStore)
        moved = app.store.aside("r")
        assert lines(app.store) == [*LINES[:5], "run.repaired", "doubt.opened 4"]
    assert [one.fields for one in moved if one.what == "row"] == [tuple(row) for row in before[5:]]
    assert {(one.by, one.why) for one in moved} == {("ann", "its digest does not match what it holds: the disk")}
    assert [one.fields[2] for one in moved if one.what == "head"] == ["done"]


def test_who_had_the_run_cannot_write_behind_a_repair(harmed: Harmed) -> None:
    had = max(row.epoch for row in harmed.rows())
    harmed.flip(6)
    harmed.repair()
    with closing(SqliteStore(harmed.path)) as store:
        head = store.head("r")
        assert head is not None
        row = Row(head.seq + 1, had, 1, "run.released", "", b"{}", None, None, b"\0" * 32)
        late = Append("r", had, head.seq, [row], head._replace(epoch=had, seq=row.seq, digest=row.digest))
        assert [stale is not None for stale in store.append([late])] == [True]


def test_a_repaired_run_waits_for_an_operator(harmed: Harmed) -> None:
    harmed.flip(5)
    harmed.repair()
    with pytest.raises(RunRepaired, match="holdfast resume r"):
        harmed.play()
    assert executed == []
    with hf.Holdfast(harmed.path) as app:
        assert {item.kind for item in app.inbox()} == {"doubt", "blocked"}
        app.resume("r", by="ann")
        assert app.show("r").status == "queued"
        app.cancel("r", by="ann")


def test_an_effect_of_the_lost_part_is_not_repeated_but_asked_about(harmed: Harmed) -> None:
    harmed.flip(5)
    assert 'it was done, with the result "r-d"' in harmed.repair().doubts[0]
    with hf.Holdfast(harmed.path) as app:
        app.resume("r", by="ann")
        with pytest.raises(hf.RunWaiting, match="did pay"):
            app.run(errand, "order", run_id="r", wait=False)
        (item,) = app.inbox()
        assert (item.kind, item.step_id) == ("doubt", "4")
        assert 'pay(what="d")' in item.what
        app.resolve("r", "4", landed="r-d", by="ann")
    assert harmed.play() == ["seen a", "r-b", "seen c", "r-d", "seen e"]
    assert executed == ["e"]


def test_an_effect_that_did_not_happen_is_executed(harmed: Harmed) -> None:
    harmed.flip(5)
    harmed.repair()
    with hf.Holdfast(harmed.path) as app:
        app.resolve("r", "4", not_landed=True, by="ann")
    assert harmed.play()[3] == "r-d"
    assert executed == ["c", "pay d", "e"]


def test_an_effect_whose_outcome_is_lost_is_in_doubt_by_itself(harmed: Harmed) -> None:
    harmed.flip(7)
    assert harmed.repair().doubts == ['step 4, pay(what="d"): its outcome is not among the good records']
    with hf.Holdfast(harmed.path) as app:
        assert lines(app.store)[-1] == "run.repaired"
        assert [item.step_id for item in app.inbox() if item.kind == "doubt"] == ["4"]
        app.resolve("r", "4", landed="r-d", by="ann")
    assert harmed.play()[3] == "r-d"
    assert executed == ["e"]


def test_what_cannot_be_read_is_said(harmed: Harmed) -> None:
    harmed.execute("UPDATE journal SET body = x'7b7d' WHERE seq IN (6, 7)")
    mending = harmed.repair()
    assert (mending.moved, mending.unreadable, mending.doubts) == (4, 2, [])
    with hf.Holdfast(harmed.path) as app:
        assert "2 could not be read: an effect may have happened that is not known" in app.inbox()[0].what


def test_records_that_are_gone_are_counted(harmed: Harmed) -> None:
    harmed.execute("DELETE FROM journal WHERE seq > 7")
    mending = harmed.repair()
    assert (mending.bad_seq, mending.keeps, mending.moved, mending.unreadable) == (8, 7, 0, 2)
    assert mending.doubts == []


@pytest.mark.parametrize("column", ["status", "note", "agent", "tags", "epoch", "created_us", "usd", "wake_us"])
def test_a_damaged_head_alone_is_computed_again(harmed: Harmed, column: str) -> None:
    harmed.execute(f"UPDATE runs SET {column} = 7")
    before = harmed.rows()
    mending = harmed.repair()
    assert (mending.moved, mending.unreadable, mending.status, mending.doubts) == (0, 0, "done", [])
    assert harmed.rows() == before
    assert harmed.play()[4] == "seen e"
    assert executed == []


@pytest.mark.parametrize("seq", [3, 40])
def test_a_head_that_stands_elsewhere_is_computed_again(harmed: Harmed, seq: int) -> None:
    harmed.execute("UPDATE runs SET seq = ?", seq)
    assert harmed.repair().status == "done"
    assert harmed.play()[4] == "seen e"


def test_a_head_that_is_gone_is_computed_again(harmed: Harmed) -> None:
    harmed.execute("DELETE FROM runs")
    with hf.Holdfast(harmed.path) as app:
        (verdict,) = app.check("r")
        assert (verdict.good, verdict.records) == (False, 9)
    assert harmed.repair().status == "done"
    assert harmed.play()[4] == "seen e"


def test_without_a_head_an_unfinished_run_may_have_lost_its_end(harmed: Harmed) -> None:
    harmed.execute("DELETE FROM runs; DELETE FROM journal WHERE seq > 5")
    mending = harmed.repair()
    assert (mending.what, mending.status, mending.unreadable) == ("its head is gone", "blocked", 1)


def test_a_run_without_a_good_record_is_left_alone(tmp_path: Path) -> None:
    harmed = Harmed(tmp_path / "runs.db")
    harmed.flip(1)
    before = harmed.rows()
    with pytest.raises(Refusal, match="nothing to go back to"):
        harmed.repair()
    assert harmed.rows() == before


def test_a_run_that_is_good_is_left_alone(harmed: Harmed) -> None:
    with pytest.raises(Refusal, match="not damaged"):
        harmed.repair()
    with hf.Holdfast(harmed.path) as app, pytest.raises(hf.UnknownRun):
        app.repair("nobody", dry_run=True)


def pages(path: Path, name: str) -> int:
    with closing(apsw.Connection(str(path))) as connection:
        return int(connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).get) - 1


def change(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("pointer", ["UPDATE journal SET before = {} WHERE seq = 6", "UPDATE runs SET last = {}"])
@pytest.mark.parametrize("place", [-1, 1, 1000])
def test_a_record_that_nobody_points_at_is_found_and_joined_again(harmed: Harmed, pointer: str, place: int) -> None:
    harmed.execute(pointer.format(place))
    with closing(SqliteStore(harmed.path)) as store:
        assert any("does not point" in told for told in store.check())
    assert harmed.play()[4] == "seen e"
    assert "points at" in harmed.repair().what
    with closing(SqliteStore(harmed.path)) as store:
        assert store.check() == []
        assert lines(store) == LINES


def test_a_pointer_into_another_run_of_the_same_length_does_not_mislead(harmed: Harmed) -> None:
    with hf.Holdfast(harmed.path) as app:
        app.run(errand, "order", run_id="other")
        app.store.post("nobody", "cancel", b"{}", 1)  # a finding of its own, which must not hide the others
    theirs = "SELECT place FROM journal AS theirs WHERE theirs.run_id = 'other' AND theirs.seq = journal.seq - 1"
    harmed.execute(f"UPDATE journal SET before = ({theirs}) WHERE run_id = 'r' AND seq = 6")
    with closing(SqliteStore(harmed.path)) as store:
        assert "run r: record 6 does not point at the one before it" in store.check()
    assert harmed.play()[4] == "seen e"
    harmed.repair()
    with closing(SqliteStore(harmed.path)) as store:
        assert [told for told in store.check() if "point" in told] == []
        assert lines(store) == LINES
    harmed.execute("DELETE FROM letters")


def test_an_index_that_lacks_a_run_is_built_anew(harmed: Harmed) -> None:
    with closing(apsw.Connection(str(harmed.path))) as connection:
        connection.execute("PRAGMA writable_schema = on; DROP INDEX journal_begun")
        sql = "CREATE UNIQUE INDEX journal_begun ON journal (run_id) WHERE before = 0"
        connection.execute("CREATE UNIQUE INDEX journal_begun ON journal (run_id) WHERE before = 99")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'journal_begun'", (sql,))
    with closing(SqliteStore(harmed.path)) as store:
        assert any("journal_begun" in told for told in store.check())
    harmed.repair()
    with closing(SqliteStore(harmed.path)) as store:
        assert store.check() == []
        assert lines(store) == LINES


def test_a_file_whose_pages_are_damaged_is_not_written_to(tmp_path: Path) -> None:
    harmed = Harmed(tmp_path / "runs.db")
    harmed.flip(6)
    place = pages(harmed.path, "letters_run") * 4096
    change(harmed.path, place)
    before = harmed.path.read_bytes()
    with pytest.raises(StoreDamaged):
        harmed.repair()
    assert harmed.path.read_bytes() == before


def test_the_owner_of_a_living_run_is_not_robbed() -> None:
    store = MemoryStore()
    with hf.Holdfast(store, lease=0.3) as app:
        app.engine.keeper.enroll()
        record = rec.RunStarted(agent="errand", fingerprint="1:0", origin="r", owner=app.engine.keeper.owner)
        append = Journal("r").seal([record], at_us=1)
        store.append([append._replace(head=append.head._replace(note="damaged"))])
        with hf.Holdfast(store, lease=0.3) as other, pytest.raises(Refusal, match="executes now"):
            other.repair("r", dry_run=False)
        assert store.aside("r") == []


def test_a_failure_that_had_ended_the_run_is_gone_behind(harmed: Harmed) -> None:
    refused.add("d")
    with hf.Holdfast(harmed.path) as app:
        with pytest.raises(Declined):
            app.run(errand, "order", run_id="failed")
        with pytest.raises(Declined):
            app.run(errand, "order", run_id="failed")
        count = len(lines(app.store, "failed"))
    harmed.execute("DELETE FROM journal WHERE run_id = 'failed' AND seq > 8")
    assert count > 8
    with hf.Holdfast(harmed.path, lease=LEASE_S) as app:
        mending = app.repair("failed", dry_run=False)
        assert ["may have been tried again" in line for line in mending.doubts] == [True]
        app.resolve("failed", "4", landed="r-d", by="ann")
        executed.clear()
        assert app.run(errand, "order", run_id="failed", wait=False)[3] == "r-d"
    assert executed == ["e"]


@hf.agent(name="errand")
def another_way(order: str) -> list[str]:
    return [look("a"), pay("b"), look("c"), look("x"), look("e")]


def test_the_code_may_go_another_way_once_a_person_has_settled_what_was_lost(harmed: Harmed) -> None:
    harmed.flip(5)
    harmed.repair()
    with hf.Holdfast(harmed.path) as app:
        app.resume("r", by="ann")
        with pytest.raises(hf.ReplayMismatch):
            app.run(another_way, "order", run_id="r", wait=False)
        app.resolve("r", "4", landed="r-d", by="ann")
        assert app.run(another_way, "order", run_id="r", wait=False)[3] == "seen x"


def test_without_its_doubts_a_repair_would_have_the_effect_repeated(harmed: Harmed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of what stands above: nothing else keeps a lost effect from being executed again."""
    monkeypatch.setattr(repair, "_doubts", lambda *_, **__: [])
    harmed.flip(5)
    harmed.repair()
    with hf.Holdfast(harmed.path) as app:
        app.resume("r", effects="repeat", by="ann")
    harmed.play()
    assert executed == ["c", "pay d", "e"]


# --- a repair that is killed ----------------------------------------------------------------------------------------

SCRIPT = "import sys, holdfast\nwith holdfast.Holdfast(sys.argv[1]) as app: app.repair('r', dry_run=False, by='ann')"


def killed(path: Path, *strace: str, **environment: str) -> int:
    program = path.with_name("repairs.py")
    program.write_text(SCRIPT)
    command = starting.under_strace(strace, program, path) if strace else [sys.executable, str(program), str(path)]
    return starting.run(command, env={**os.environ, **environment}, cwd=Path(__file__).parent, timeout=60).returncode


def stands(harmed: Harmed, damaged: list[Row]) -> str:
    """Either the damaged run as it was, with nothing aside, or the repaired one with everything aside."""
    with hf.Holdfast(harmed.path) as app:
        assert isinstance(app.store, SqliteStore)
        moved = [one.fields for one in app.store.aside("r") if one.what == "row"]
        good = app.check("r")[0].good
    if not good:
        assert (harmed.rows(), moved) == (damaged, [])
        return "damaged"
    assert (harmed.rows()[:4], moved) == (damaged[:4], [tuple(row) for row in damaged[4:]])
    return "repaired"


@pytest.mark.parametrize(("point", "then"), [("repair.before", "damaged"), ("repair.after", "repaired")])
def test_a_repair_that_is_killed_has_happened_or_not(harmed: Harmed, point: str, then: str) -> None:
    harmed.flip(5)
    damaged = harmed.rows()
    assert killed(harmed.path, HOLDFAST_FAILPOINT=point) == -9
    assert stands(harmed, damaged) == then
    if then == "damaged":
        harmed.repair()
    assert stands(harmed, damaged) == "repaired"


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace")
def test_a_repair_that_is_killed_at_a_write_has_happened_or_not(tmp_path: Path) -> None:
    fates, code = set(), 1
    for number in range(1, 60, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        harmed = Harmed(folder / "runs.db")
        harmed.flip(5)
        damaged = harmed.rows()
        strace = ["-o", "/dev/null", "-e", "trace=pwrite64,fdatasync", "-e", f"inject=pwrite64,fdatasync:signal=KILL:when={number}"]
        code = killed(harmed.path, *strace)
        fates.add(stands(harmed, damaged))
        if code == 0:
            break
        with pytest.raises((Damaged, RunRepaired)):
            harmed.play()
    assert code == 0
    assert fates == {"damaged", "repaired"}
