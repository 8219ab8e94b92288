"""Agents on readable files: killed at every failpoint of the store and of the engine, and finished by another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
import starting
from agents_for_tests.owner import working
from holdfast import _failpoints
from holdfast.store import Row, Shedding
from holdfast.stores.files import FilesStore
from holdfast.testing.pruning import removal
from holdfast.testing.sample import create, head, onward, repair, row

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent / "src"), str(Path(__file__).parent)])}
PUTS = [f"file.{what}:{number}" for what in ("written", "linked") for number in (2, 3, 4, 6, 7, 8, 9)]
"""The creates of a run behind that of the store itself: the owner, its birth, each of its commits."""


def killed_at(point: str, action: Callable[[], object]) -> bool:
    """Do something in a child process that dies at this point; whether it did."""
    child = os.fork()
    if child == 0:
        try:
            _failpoints.arm(point)
            action()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.fixture(autouse=True)
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power loss has tests of its own."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def lives(folder: Path) -> list[int]:
    with hf.Holdfast(f"file://{folder}/runs", lease=3600) as app:
        found: list[int] = app.run(working(folder / "ledger", verify=True), "r", run_id="r")
        return found


@pytest.mark.timeout(60)
@pytest.mark.parametrize("point", [*(f"{name}:1" for name in _failpoints.NAMES), *PUTS])
def test_a_run_that_is_killed_at_any_point_is_finished_and_charges_once(tmp_path: Path, point: str) -> None:
    if point.startswith("doubt"):
        assert killed_at("effect.after_body:1", lambda: lives(tmp_path))
    assert killed_at(point, lambda: lives(tmp_path))
    assert len(lives(tmp_path)) == 3
    assert (tmp_path / "ledger").read_text().split() == ["r"]
    with hf.Holdfast(f"file://{tmp_path}/runs") as app:
        assert app.show("r").status == "done"
        assert [verdict.good for verdict in app.check()] == [True]
        assert app.store.check() == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["step", "between"])
def test_a_stopped_owner_cannot_commit_anything_when_it_wakes(tmp_path: Path, place: str) -> None:
    words = [sys.executable, "-m", "agents_for_tests.owner", f"file://{tmp_path}/runs", f"{tmp_path}/ledger", "0.5", f"hold={place}"]
    with starting.Popen(words, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write("r\n")
        other.stdin.flush()
        assert [other.stdout.readline() for _ in range(2)] == ["ready\n", "holding\n"]
        other.send_signal(signal.SIGSTOP)
        with hf.Holdfast(f"file://{tmp_path}/runs", lease=0.5) as app:
            assert app.run(working(tmp_path / "ledger"), "r", run_id="r")[1:] == [os.getpid()] * 2
            rows = app.store.load("r")
            other.send_signal(signal.SIGCONT)
            assert other.communicate("go on\n")[0] == "LeaseLost\n"
            assert app.store.load("r") == rows
    assert (tmp_path / "ledger").read_text().split() == ["r"]


# --- turns ---------------------------------------------------------------------------------------------------------


def shed(folder: Path) -> None:
    FilesStore(folder).shed(Shedding(head("run", 3), [row(2, body=b"[]")], onward("run", 3)))


def repaired(folder: Path) -> None:
    FilesStore(folder).set_aside(repair("run", rows=3, good=1))


def removed(folder: Path) -> None:
    FilesStore(folder).remove([removal(head("run", 3))])


AFTER: dict[Callable[[Path], None], list[Row]] = {
    shed: [row(1), row(2, body=b"[]"), row(3), row(4)],
    repaired: [row(1), row(2, epoch=2)],
    removed: [],
}
POINTS = ["file.written:1", "file.linked:1", "turn.before:1", "file.written:2", "file.linked:2", "turn.base:1", "turn.after:1"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("turn", AFTER)
def test_a_turn_that_is_killed_happened_as_a_whole_or_not_at_all(tmp_path: Path, turn: Callable[[Path], None], point: str) -> None:
    folder = tmp_path / "runs"
    store = FilesStore(folder)
    store.append([create("run", rows=3)])
    letter = store.post("run", "k", b"", 1)
    if turn is removed and point.startswith(("turn.base", "turn.after")):
        return  # a removal has no next generation
    assert killed_at(point, lambda: turn(folder))
    happened = point != "file.written:1"
    found = store.load("run")
    assert (found[1] if found else []) == (AFTER[turn] if happened else [row(1), row(2), row(3)])
    assert (store.tombstone("run") is not None) == (turn is removed and happened)
    assert [one.letter_id for one in store.letters(["run"])] == ([] if turn is removed and happened else [letter])
    if turn is repaired and happened:
        assert [one.fields[0] for one in store.aside("run") if one.what == "row"] == [2, 3]
    assert len(list(folder.glob("runs/run/sealed-*"))) <= 2
    store.close()
    again = FilesStore(folder)
    assert again.load("run") == found
    if found is not None:
        epoch, seq = found[0].epoch, found[0].seq
        assert again.append([onward("run", seq, epoch=epoch)]) == [None]
    again.close()
