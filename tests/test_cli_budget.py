"""A budget on the command line: what is spent of what, the question, and `resume --budget`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast.sync as hf
from cli_stage import Stage

SPENDING = """
import holdfast.sync as hf

@hf.step
def spend(number: int) -> int:
    hf.usage(usd=1.5, input_tokens=1000)
    return number

@hf.agent(budget=hf.Budget(usd=3, steps=50))
def work() -> int:
    return sum(spend(number) for number in range(4))
"""


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    """A run that waits for a word on its budget, and the file of its agent."""
    scope: dict[str, Any]
    stage, scope = Stage(tmp_path, capsys), {"__name__": "app"}
    stage.shop.write_text(SPENDING)
    exec(compile(SPENDING, str(stage.shop), "exec"), scope)
    with hf.Holdfast(stage.store) as app, pytest.raises(hf.RunWaiting):
        app.run(scope["work"], run_id="w-1", wait=False)
    return stage


def test_show_tells_what_is_spent_of_what(stage: Stage) -> None:
    code, out, _ = stage.give("show", "w-1")
    assert code == 0
    assert "spent     $3.00 of $3.00" in out
    assert "2 steps of 50 steps" in out
    assert "holdfast resume w-1 --budget usd=AMOUNT" in out


def test_the_inbox_lists_the_question(stage: Stage) -> None:
    [item] = stage.document("inbox")["items"]
    assert (item["kind"], item["what"]) == ("budget", "$3.00 of $3.00 spent: go on, up to $6.00?")


@pytest.mark.parametrize(("given", "told"), [("steps=x", "'x' is no whole number"), ("usd=much", "'much' is no number")])
def test_an_amount_that_is_no_number_is_refused_in_words(stage: Stage, given: str, told: str) -> None:
    code, _, err = stage.give("resume", "w-1", "--budget", given)
    assert (code, f"Invalid value for --budget: {told}; write usd=50" in err) == (2, True)


@pytest.mark.parametrize("options", [("--budget", "usd=50,steps=60"), ("--budget", "usd=50", "--budget", "steps=60")])
def test_resume_sets_limits_and_goes_on(stage: Stage, options: tuple[str, ...]) -> None:
    code, out, _ = stage.give("resume", "w-1", *options, "--by", "ann", "--reason", "worth it")
    assert (code, "it may spend $50.00, 60 steps now" in out) == (0, True)
    code, out, _ = stage.give("resume", "w-1", "--here", str(stage.shop))
    assert code == 0
    assert stage.document("show", "w-1")["run"]["limits"] == {"usd": 50.0, "steps": 60}
    _, out, _ = stage.give("history", "w-1")
    assert "ann: $50.00, 60 steps (worth it)" in out


def test_it_can_be_set_and_executed_at_once(stage: Stage) -> None:
    code, out, _ = stage.give("resume", "w-1", "--here", str(stage.shop), "--budget", "usd=6.5")
    assert (code, "done" in out.splitlines()[0]) == (0, True)


def test_a_run_that_gave_up_says_how_to_go_on(stage: Stage) -> None:
    stage.give("answer", "w-1/budget", "no", "--by", "ann")
    code, _, err = stage.give("resume", "w-1", "--here", str(stage.shop), "--no-wait")
    assert code == 1
    assert "holdfast resume w-1 --budget usd=AMOUNT" in err
    _, out, _ = stage.give("show", "w-1")
    assert "--here APP.py --budget usd=AMOUNT" in out


@pytest.mark.parametrize("wrong", ["usd", "usd=", "usd=x", "money=5", "steps=1.5", "usd=-1", "time=soon", ""])
def test_what_is_no_limit_is_refused_with_an_example(stage: Stage, wrong: str) -> None:
    code, _, err = stage.give("resume", "w-1", "--budget", wrong)
    assert code == 2
    assert "usd=50" in err
    assert stage.document("show", "w-1")["run"]["limits"] == {"usd": 3, "steps": 50}
