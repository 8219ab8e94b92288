"""Undoing a run on the command line: `cancel --undo`, with and without a file, and what is shown of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast.sync as hf
from cli_stage import Stage

SHOP = """
import os
import holdfast.sync as hf

def refund(receipt: str, cents: int) -> None:
    if os.environ.get("NO_BANK"):
        raise TimeoutError("no answer")
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"refund {receipt}\\n")

@hf.effect(in_doubt="ask", undo=refund)
def charge(cents: int) -> str:
    return f"r-{cents}"

@hf.agent
def buy() -> None:
    charge(5)
    charge(7)
    raise LookupError("sold out")
"""


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A run that failed after two charges, and the file of its agent."""
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    scope: dict[str, Any]
    stage, scope = Stage(tmp_path, capsys), {"__name__": "app"}
    stage.shop.write_text(SHOP)
    exec(compile(SHOP, str(stage.shop), "exec"), scope)
    with hf.Holdfast(stage.store) as app, pytest.raises(LookupError):
        app.run(scope["buy"], run_id="buy-1")
    return stage


def ledger(stage: Stage) -> list[str]:
    path = stage.folder / "ledger"
    return path.read_text().splitlines() if path.exists() else []


def test_without_code_the_request_is_kept_and_the_command_that_executes_it_is_told(stage: Stage) -> None:
    told = stage.told("cancel", "buy-1", "--undo", "--reason", "not wanted", "--by", "ann")
    again = f"holdfast resume buy-1 --here APP.py --store {stage.store}"
    assert told == f"the run is undone by whoever runs its agent next; to do it now: {again}\n"
    shown = stage.told("show", "buy-1")
    assert shown.startswith("to be undone by ann: not wanted; nobody runs it\n")
    assert "undoing     by ann: not wanted" in shown
    assert "holdfast resume buy-1 --here APP.py" in shown
    assert "to be undone by ann: not wanted" in stage.told("runs")
    assert ledger(stage) == []
    assert stage.told("resume", "buy-1", "--here", str(stage.shop)).startswith("cancelled by ann: not wanted: 2 effects undone\n")
    assert ledger(stage) == ["refund r-7", "refund r-5"]


def test_with_code_it_is_undone_at_once(stage: Stage) -> None:
    document = stage.document("cancel", "buy-1", "--undo", "--here", str(stage.shop))
    assert document == {"run_id": "buy-1", "status": "cancelled", "result": None}
    assert ledger(stage) == ["refund r-7", "refund r-5"]
    history = [(line["step_id"], line["call"]) for line in stage.document("history", "buy-1")["checkpoints"] if line["call"]]
    assert history[2:] == [("undo:2", 'refund(receipt="r-7", cents=7)'), ("undo:1", 'refund(receipt="r-5", cents=5)')]


def test_a_doubt_of_an_undo_is_settled_like_any_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_BANK", "1")
    code, _, err = stage.give("cancel", "buy-1", "--undo", "--here", str(stage.shop), "--no-wait")
    assert code == 3
    assert "did refund" in err
    assert [item["step_id"] for item in stage.document("inbox")["items"]] == ["undo:2"]
    monkeypatch.delenv("NO_BANK")
    stage.told("resolve", "buy-1", "undo:2", "--landed", "null")
    stage.told("resume", "buy-1", "--here", str(stage.shop))
    assert (stage.status("buy-1"), ledger(stage)) == ("cancelled", ["refund r-5"])


def test_a_failure_that_undoes_says_so(stage: Stage) -> None:
    stage.shop.write_text(SHOP.replace("@hf.agent\n", "@hf.agent(on_failure='undo')\n"))
    code, _, err = stage.give("resume", "buy-1", "--here", str(stage.shop))
    assert code == 1
    assert "holdfast: the run failed: LookupError: sold out\n" in err
    assert "holdfast: the run is cancelled by its agent: failed with LookupError: sold out: 2 effects undone\n" in err
    assert ledger(stage) == ["refund r-7", "refund r-5"]


def test_a_run_that_is_closed_already_is_no_success(stage: Stage) -> None:
    stage.told("cancel", "buy-1", "--undo", "--here", str(stage.shop))
    assert stage.give("resume", "buy-1", "--here", str(stage.shop))[0] == 1
    assert stage.give("cancel", "buy-1", "--undo", "--here", str(stage.shop))[0] == 1
    assert len(ledger(stage)) == 2


def test_a_file_without_the_agent_changes_nothing(stage: Stage) -> None:
    stage.shop.write_text("x = 1")
    code, _, err = stage.give("cancel", "buy-1", "--undo", "--here", str(stage.shop))
    assert (code, stage.status("buy-1")) == (1, "failed")
    assert "has no agent named 'buy'" in err


def test_here_without_undo_is_not_understood(stage: Stage) -> None:
    code, _, err = stage.give("cancel", "buy-1", "--here", str(stage.shop))
    assert (code, stage.status("buy-1")) == (2, "failed")
    assert "it says where --undo is carried out" in err
