"""The disk is full or broken at one write after the other of a run on files: a typed error, and the run goes on when there is room."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from faulty_disk import Refusing, under
from holdfast.errors import HoldfastError, StoreError, StoreFailed, StoreFull
from holdfast.stores._os_errors import FAILED, FULL
from places import in_memory

POINTS_AT_LEAST = 60


def working(ledger: Path) -> Any:
    def look(order: str) -> hf.Verdict[int]:
        return hf.Landed(1) if ledger.exists() and order in ledger.read_text().split() else hf.NotLanded()

    @hf.step
    def prepare(number: int) -> int:
        return number

    @hf.effect(in_doubt=hf.verify(look, settle=0))
    def charge(order: str) -> int:
        with ledger.open("a") as file:
            file.write(f"{order}\n")
        return 1

    @hf.agent
    def work(order: str) -> list[int]:
        known = hf.state({"seen": 0})
        found = []
        for number in range(3):
            found.append(prepare(number))
            known["seen"] += 1
        return [*found, charge(order), known["seen"]]

    return work


def played(folder: Path, disk: Refusing, *, checked: bool = False) -> list[int]:
    with under(disk), hf.Holdfast(f"file://{folder}/runs") as app:
        found: list[int] = app.run(working(folder / "ledger"), "o", run_id="r")
        assert not checked or [verdict.good for verdict in app.check()] == [True]
        return found


def error_of(folder: Path, disk: Refusing) -> BaseException | None:
    try:
        assert played(folder, disk) == [0, 1, 2, 1, 3]
    except HoldfastError as error:
        return error if isinstance(error, StoreError) else error.__cause__
    return None


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder whose flushes cost nothing, where there is one."""
    if (memory := in_memory()) is None:
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            yield Path(folder)


def calls_of_a_run(folder: Path) -> int:
    disk = Refusing()
    assert played(folder, disk) == [0, 1, 2, 1, 3]
    return disk.calls


@pytest.mark.parametrize(("name", "kind", "text"), [("ENOSPC", StoreFull, FULL), ("EIO", StoreFailed, FAILED)])
def test_every_write_may_fail(quick: Path, name: str, kind: type[StoreError], text: str) -> None:
    (quick / "whole").mkdir()
    points = calls_of_a_run(quick / "whole")
    assert points > POINTS_AT_LEAST
    silent = 0
    for point in range(1, points + 1):
        folder = quick / f"{point}"
        folder.mkdir()
        found = error_of(folder, Refusing(point, getattr(errno, name)))
        silent += found is None  # a view, which is written again by whoever loads the run
        assert found is None or (isinstance(found, kind) and text in str(found)), f"at {point}: {found!r}"
        assert played(folder, Refusing(), checked=True) == [0, 1, 2, 1, 3], f"at {point}"
        assert (folder / "ledger").read_text().split() == ["o"], f"at {point}"
    assert silent < points // 2
