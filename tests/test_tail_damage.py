"""Tails that are damaged or missing: it is noticed, the record is named, nothing goes on without it, and a repair gets over it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast as hf
from holdfast._clock import SystemClock
from holdfast.errors import StoreDamaged, StoreFailed
from holdfast.store import Query, Stale
from holdfast.stores import _sqlite_tails, _tail_file
from holdfast.stores._tail_file import BLOCK, Tail
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.sample import create, head, repair
from tailing import ME, appended, in_database, mine, named, on, other, path, seqs, tails, taking

__all__ = ["mine", "other", "path"]


def lacks(store: SqliteStore, run_id: str = "run") -> bool:
    """Whether it can be seen that rows of a run are missing: the head tells of them, or those behind them are there."""
    try:
        found = store.load(run_id)
    except hf.Damaged:
        return True
    assert found is not None
    return [one.seq for one in found[1]] != list(range(1, found[0].seq + 1))


def flipped(file: Path, offset: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[offset] ^= 1
    file.write_bytes(raw)


def test_a_tail_that_is_missing_is_said_and_nothing_goes_on_without_it(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    (file,) = tails(mine)
    kept = file.read_bytes()
    file.unlink()
    assert lacks(other)
    assert [found.run_id for found in other.heads(Query())] == ["run"]
    assert [found.run_id for found in other.heads(Query(idle_before_us=100))] == ["run"]
    for seq in (3, 4):
        with pytest.raises(StoreDamaged, match=r"me\.1\.tail, which holds what me has recorded last, is missing"):
            other.append([taking("run", seq)])
    assert any("me.1.tail is missing" in text for text in other.check())
    assert [found.value for found in other.examine(SystemClock()) if found.what == "what was recorded last"] == ["damaged"]
    file.write_bytes(kept)
    assert other.append([taking("run", 9)]) == [None]


def test_every_flipped_byte_of_a_tail_is_noticed_unless_it_is_the_last_record_that_goes(mine: SqliteStore, other: SqliteStore) -> None:
    """A record that cannot be read at the very end is one that was under way when the power went: SQLite's own log is no different."""
    appended(mine, "run", 6)
    whole = other.load("run")
    (file,) = tails(mine)
    raw = file.read_bytes()
    sizes = [int.from_bytes(raw[at + 4 : at + 8], "little") for at in (BLOCK, 2 * BLOCK, 3 * BLOCK)]
    assert whole is not None
    assert len(whole[1]) == 6
    fates = {"same": 0, "noticed": 0, "without the last": 0}
    for block, size in enumerate(sizes, start=1):
        for offset in range(block * BLOCK, block * BLOCK + size):
            flipped(file, offset)
            found = other.load("run")
            flipped(file, offset)
            assert found is not None
            seen = [one for one in found[1] if one in whole[1]]
            assert len(seen) == len(found[1])
            noticed = [one.seq for one in seen] != list(range(1, found[0].seq + 1))
            fates["noticed" if noticed else "same" if found == whole else "without the last"] += 1
    assert fates == {"same": 0, "noticed": sizes[0] + sizes[1], "without the last": sizes[2]}


def test_the_last_record_of_an_owner_that_is_dead_does_not_go_unnoticed(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 6)
    (file,) = tails(mine)
    flipped(file, 3 * BLOCK + 60)
    assert not lacks(other), "it may be under way"
    mine._locks.close()  # as a process does that dies
    assert lacks(other)
    assert any("a record in it cannot be read" in text for text in other.check())
    with pytest.raises(StoreDamaged):
        other.append([taking("run", 5)])
    found = other.found("run")
    assert other.set_aside(repair("run", rows=6, good=5)._replace(found=found[0])) is True
    assert other.check() == []


def test_a_run_is_not_taken_over_from_a_damaged_tail(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    flipped(tails(mine)[0], 2 * BLOCK + 60)
    assert lacks(other)
    for seq in (3, 4, 9):
        with pytest.raises(StoreDamaged, match="a record in it cannot be read"):
            other.append([taking("run", seq)])
    assert any("cannot be read" in text for text in other.check())
    assert in_database(mine) == 3


def test_where_it_is_not_known_whose_record_is_damaged_every_run_is_suspected_that_it_may_be_of(
    mine: SqliteStore, other: SqliteStore
) -> None:
    for run_id in ("first", "lost", "whole"):
        appended(mine, run_id, 4)
    for run_id in ("first", "whole", "lost", "whole"):
        found = mine.head(run_id)
        assert found is not None
        assert mine.append([on(run_id, found.seq)]) == [None]
    (file,) = tails(mine)
    data = bytearray(file.read_bytes())
    frames = {at: one[0] for at in range(BLOCK, len(data), BLOCK) if (one := _tail_file._decoded(data, at))}
    (last,) = [at for at, frame in frames.items() if (frame.run_id, frame.seq) == ("lost", 5)]
    flipped(file, last + 60)
    assert (lacks(other, "first"), lacks(other, "lost"), lacks(other, "whole")) == (True, True, False)


def test_a_repair_shuts_out_the_owner_and_keeps_what_a_damaged_tail_has_of_the_run(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    flipped(tails(mine)[0], 3 * BLOCK + 60)
    found = other.found("run")
    assert [one.seq for one in found[1]] == [1, 2, 3, 4, 5, 7, 8, 9]
    ordered = repair("run", rows=9, good=5)._replace(found=found[0])
    assert other.set_aside(ordered._replace(found=head("run", 3))) is False
    assert other.set_aside(ordered) is True
    assert seqs(other) == [1, 2, 3, 4, 5, 6]
    assert [one.fields[0] for one in other.aside("run") if one.what == "row"] == [7, 8, 9]
    assert mine.append([on("run", 9)]) == [Stale(head("run", 6, epoch=2, owner=None))]
    assert (other.check(), mine.check()) == ([], [])


def test_a_repair_of_a_run_that_has_gone_on_in_its_tail_changes_nothing(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 3)
    found = other.found("run")[0]
    for seq in range(3, 9):
        assert mine.append([on("run", seq)]) == [None]
    assert other.set_aside(repair("run", rows=3, good=2)._replace(found=found)) is False
    assert seqs(other) == list(range(1, 10))
    assert mine.append([on("run", 9)]) == [None]


def test_a_write_that_the_disk_has_lost_is_noticed_by_whoever_takes_anything_over(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    appended(mine, "more", 3)
    (file,) = tails(mine)
    before = file.read_bytes()
    for seq in range(9, 15):
        assert mine.append([on("run", seq)]) == [None]
    now = bytearray(file.read_bytes())
    places = [at for at in range(BLOCK, len(now), BLOCK) if now[at : at + BLOCK] != before[at : at + BLOCK]]
    now[places[2] : places[2] + BLOCK] = before[places[2] : places[2] + BLOCK]
    file.write_bytes(now)
    assert lacks(other)
    assert any("cannot be read" in text for text in other.check())
    for run_id, seq in (("more", 3), ("run", 15)):
        with pytest.raises(StoreDamaged):
            other.append([taking(run_id, seq)])


@pytest.mark.parametrize("size", [0, 100, 3 * BLOCK])
def test_a_tail_that_was_cut_off_is_not_taken_for_a_short_one(mine: SqliteStore, other: SqliteStore, size: int) -> None:
    appended(mine, "run", 9)
    file = tails(mine)[0]
    file.write_bytes(file.read_bytes()[:size] if size else b"")
    assert lacks(other)
    with pytest.raises(StoreDamaged):
        other.append([taking("run", 5)])


def test_an_own_tail_that_was_damaged_behind_an_error_is_said(mine: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    appended(mine, "run", 9)
    (file,) = tails(mine)
    with monkeypatch.context() as patch:
        patch.setattr(Tail, "add", refused)
        with pytest.raises(StoreFailed):
            mine.append([on("run", 9)])
    kept = file.read_bytes()
    for spoilt in (b"", b"x" * len(kept)):
        file.write_bytes(spoilt)
        with pytest.raises(StoreDamaged, match="not what was written"):
            mine.append([create("next")])
    file.write_bytes(kept)
    assert mine.append([create("next")]) == [None]
    assert seqs(mine) == list(range(1, 10))


def refused(*_: object) -> bool:
    raise OSError(errno.EIO, "refused")


def test_an_owner_whose_tail_is_lost_can_be_forgotten_once_it_has_no_run(mine: SqliteStore, other: SqliteStore) -> None:
    appended(mine, "run", 9)
    tails(mine)[0].unlink()
    with pytest.raises(StoreDamaged):
        other.retire(ME)
    found = other.found("run")
    assert other.set_aside(repair("run", rows=4, good=3)._replace(found=found[0])) is True
    assert other.check() == [], "nothing of it is missed any more"
    other.retire(ME)
    assert other.check() == []


# --- whole runs ------------------------------------------------------------------------------------------------------


@hf.step
def look(number: int) -> int:
    return number


@hf.effect(in_doubt="ask")
def pay(number: int) -> int:
    return number


@hf.agent
def errand(ledger: str, dies_at: int) -> int:
    for number in range(12):
        if number == dies_at and hf.current().attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        pay(look(number))
        with Path(ledger).open("a") as file:
            file.write(f"{number}\n")
    return 12


@pytest.fixture
def killed(path: Path, tmp_path: Path) -> Path:
    """A store in which a process was killed inside a run, ten rounds of which are done; the ledger says which were seen to return."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            hf.run(errand, str(tmp_path / "ledger"), 10, run_id="run", store=path)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    (file,) = path.with_name("runs.db.owners").glob("*.tail")
    assert len(_tail_file.contents(file).frames) > 20
    return file


def rounds(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "ledger").read_text().split()]


def test_a_killed_process_leaves_its_last_steps_in_its_tail_and_the_next_one_goes_on_behind_them(
    killed: Path, path: Path, tmp_path: Path
) -> None:
    assert hf.run(errand, str(tmp_path / "ledger"), 10, run_id="run", store=path) == 12
    assert rounds(tmp_path) == [*range(10), *range(12)], "the loop is walked again, on what is recorded"
    with hf.Holdfast(path) as app:
        assert [line.attempt for line in app.history("run") if line.call.startswith(("look", "pay"))] == [1] * 24
        assert [verdict.good for verdict in app.check("run")] == [True]
    assert not killed.exists()


def test_a_damaged_record_in_the_tail_of_a_dead_process_is_named_and_the_run_refused(killed: Path, path: Path, tmp_path: Path) -> None:
    flipped(killed, 8 * BLOCK + 100)
    (bad,) = {row.seq for row in _tail_file.contents(killed).frames[-1].rows}
    with pytest.raises(hf.Damaged, match=f"at record {bad + 1}"):
        hf.run(errand, str(tmp_path / "ledger"), 10, run_id="run", store=path)
    with hf.Holdfast(path) as app:
        (verdict,) = app.check("run")
        assert (verdict.good, verdict.seq) == (False, bad + 1)
        app.repair("run", dry_run=False, by="ann")
        assert app.show("run").status == "blocked"
        assert len([item for item in app.inbox() if item.kind == "doubt"]) >= 5, "effects behind the damage that can still be read"
    assert rounds(tmp_path) == list(range(10))


@pytest.mark.parametrize("what", ["missing", "emptied"])
def test_a_store_that_was_copied_without_its_tail_does_not_go_on_without_the_last_steps(
    killed: Path, path: Path, tmp_path: Path, what: str
) -> None:
    killed.unlink() if what == "missing" else killed.write_bytes(b"")
    with pytest.raises(hf.Damaged, match=f"{killed.name}, which is missing, or is not what was written. If there is a copy, put it back"):
        hf.run(errand, str(tmp_path / "ledger"), 10, run_id="run", store=path)
    with hf.Holdfast(path) as app:
        assert [verdict.good for verdict in app.check("run")] == [False]
        assert any("is missing, or is not what was written" in text for text in app.store.check())
        mended = app.repair("run", dry_run=False, by="ann")
        assert (mended.status, mended.unreadable) == ("blocked", 1)
        assert killed.name in mended.what
        assert [verdict.good for verdict in app.check("run")] == [True]


def test_a_database_that_does_not_know_what_a_tail_beside_it_holds_is_refused(killed: Path, path: Path, tmp_path: Path) -> None:
    """As it is when it was copied without its log."""
    (tmp_path / "copy").mkdir()
    shutil.copytree(killed.parent, tmp_path / "copy" / "runs.db.owners")
    shutil.copy(path, tmp_path / "copy" / "runs.db")
    with pytest.raises(StoreDamaged, match="records of run 'run' that the database does not have: it was made anew") as told:
        hf.run(errand, str(tmp_path / "ledger"), 10, run_id="run", store=tmp_path / "copy" / "runs.db")
    assert str(tmp_path / "copy" / "runs.db.owners" / killed.name) in str(told.value)
    shutil.copy(f"{path}-wal", tmp_path / "copy" / "runs.db-wal")
    assert hf.run(errand, str(tmp_path / "ledger"), 10, run_id="run", store=tmp_path / "copy" / "runs.db") == 12
    assert rounds(tmp_path) == [*range(10), *range(12)]


def test_a_file_that_nobody_names_and_that_the_database_knows_keeps_nobody_out(killed: Path, path: Path, tmp_path: Path) -> None:
    left = shutil.copy(killed, tmp_path / "left")
    assert hf.run(errand, str(tmp_path / "ledger"), 10, run_id="run", store=path) == 12
    shutil.copy(left, killed)
    with hf.Holdfast(path) as app:
        assert [verdict.good for verdict in app.check()] == [True]
        assert app.prune(hf.Retention(max_age=0), dry_run=False).removed
    with hf.Holdfast(path) as app:
        assert app.runs() == []


# --- what comes in the middle of a tail's own transaction ---------------------------------------------------------------


def test_a_tail_that_a_signal_handler_kept_from_being_named_is_not_used(
    mine: SqliteStore, other: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(mine, "run", 2)
    alarms = [TimeoutError("the alarm")]

    def reach(name: str) -> None:
        if name == "tail.made" and alarms:
            raise alarms.pop()

    with monkeypatch.context() as patch:
        patch.setattr(_sqlite_tails, "reach", reach)
        with pytest.raises(TimeoutError):
            mine.append([on("run", 2)])
    assert named(mine) == {}
    for seq in range(2, 9):
        assert mine.append([on("run", seq)]) == [None]
    assert seqs(other) == list(range(1, 10)), "whoever has the store open reads what was acknowledged"


@pytest.mark.parametrize("how", [OSError(errno.EIO, "broken"), KeyboardInterrupt()], ids=["an error", "Ctrl-C"])
def test_who_does_not_know_what_its_tail_holds_goes_on_once_another_has_brought_it_in(
    mine: SqliteStore, other: SqliteStore, monkeypatch: pytest.MonkeyPatch, how: BaseException
) -> None:
    appended(mine, "run", 9)
    appended(mine, "kept", 9)

    def fails(*_: object) -> None:
        raise how

    with monkeypatch.context() as patch:
        patch.setattr(mine._tails._own, "_keep", fails)
        with pytest.raises((StoreFailed, KeyboardInterrupt)):
            mine.append([on("run", 9)])
    assert other.append([taking("run", 9)]) == [None]
    assert mine.append([on("kept", 9)]) == [None]
    assert mine.append([create("new")]) == [None]
    assert seqs(other, "kept") == list(range(1, 11))
    assert mine.check() == []
