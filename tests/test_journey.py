"""A run is begun on SQLite and killed, moved, edited, moved to PostgreSQL, and finished there by another process: once, all of it.

The middle of the way is whatever store there is: each has a name here, and how a person edits what is in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
import starting
from agents_for_tests.traveller import RUN_ID
from holdfast.cli import main

HERE = Path(__file__).parent
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}


def edited_by_a_verb(place: str) -> None:
    """A step before the payment in doubt cannot be edited; so it is settled first, and then what was looked up is corrected."""
    with hf.Holdfast(place) as app:
        app.resolve(RUN_ID, 2, landed="paid first", by="ann", reason="seen in the ledger")
        app.edit(RUN_ID, 1, {"cents": 7}, effects="reuse", by="ann", reason="a better offer")


MIDDLES: dict[str, tuple[Callable[[Path], str], Callable[[str], None]]] = {
    "sqlite": (lambda folder: str(folder / "middle.db"), edited_by_a_verb),
}
"""Where the run goes in between: its URL, and how somebody edits the run there."""


def edited_by_hand(place: str) -> None:
    """The same, with an editor: the file of the step is changed, and what stands there is adopted."""
    with hf.Holdfast(place) as app:
        app.resolve(RUN_ID, 2, landed="paid first", by="ann", reason="seen in the ledger")
    (file,) = [each for each in Path(place.removeprefix("file://")).rglob("journal/*.json") if '"cents": 5' in each.read_text()]
    file.chmod(0o600)
    file.write_text(file.read_text().replace('"cents": 5', '"cents": 7'))
    assert main(["edit", RUN_ID, "--adopt", "--effects", "reuse", "--by", "ann", "--store", place]) == 0


if importlib.util.find_spec("holdfast.moving.adopting") is not None:
    MIDDLES["files"] = (lambda folder: f"file://{folder / 'middle'}", edited_by_hand)


def process(act: str, place: str, ledger: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agents_for_tests.traveller", act, place, str(ledger)]
    return starting.run(command, env=ENV, cwd=HERE, text=True, timeout=60)


@pytest.mark.parametrize("middle", MIDDLES)
def test_a_run_travels_from_store_to_store_and_does_everything_once(tmp_path: Path, postgres_url: str, middle: str) -> None:
    name, edit = MIDDLES[middle]
    ledger = tmp_path / "ledger"
    places = [str(tmp_path / "first.db"), name(tmp_path), f"{postgres_url}?schema=journey_{secrets.token_hex(4)}"]
    assert process("begin", places[0], ledger).returncode == -signal.SIGKILL

    with hf.Holdfast(places[0]) as app:
        app.move(RUN_ID, to=places[1], by="ann")
    edit(places[1])
    with hf.Holdfast(places[1]) as app:
        app.move(RUN_ID, to=places[2], by="ann")

    for place in places[:2]:
        refused = process("work", place, ledger)
        assert refused.returncode == 1
        assert "RunMoved" in refused.stderr
    finished = process("work", places[2], ledger)
    assert json.loads(finished.stdout) == ["paid first", "paid second 7"], finished.stderr
    paid = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [what for what, _ in paid] == ["first", "second 7"]
    assert len({key for _, key in paid}) == len(paid)
    for place, stands in zip(places, ["moved", "moved", "done"], strict=True):
        with hf.Holdfast(place) as app:
            assert app.show(RUN_ID).status == stands
            assert app.check(RUN_ID)[0].good


def test_a_run_goes_to_postgres_and_back_and_there_again(tmp_path: Path, postgres_url: str) -> None:
    here, there = str(tmp_path / "here.db"), f"{postgres_url}?schema=journey_{secrets.token_hex(4)}"
    assert process("begin", here, tmp_path / "ledger").returncode == -signal.SIGKILL
    for source, target in ((here, there), (there, here), (here, there)):
        with hf.Holdfast(source) as app:
            assert app.move(RUN_ID, to=target).status == "moved"
    finished = process("work", there, tmp_path / "ledger")
    assert json.loads(finished.stdout) == ["paid first", "paid second 5"], finished.stderr
    with hf.Holdfast(there) as app:
        assert app.check(RUN_ID)[0].good
        assert app.store.check() == []
        assert app.copy(RUN_ID, to=tmp_path / "done.holdfast").status == "done"
    with hf.Holdfast(tmp_path / "third.db") as app:
        assert app.copy(tmp_path / "done.holdfast").new_id == RUN_ID
