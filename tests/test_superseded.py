"""Where a run goes back, `records.lineage` says what still stands of its records, and what is remembered of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.records import kinds as rec
from holdfast.records.lineage import Pair, happened, heard, result_of, standing, told
from holdfast.records.replay import History
from holdfast.store import Row

AFTER = 10
"""Where the run goes back to."""


def of_pay(kind: type[rec.Record], step_id: str = "1", **more: Any) -> rec.Record:
    return kind(step_id=step_id, name="pay", fingerprint="1:a", **more)  # type: ignore[call-arg]


def started(step_id: str = "1") -> rec.Record:
    return of_pay(rec.StepStarted, step_id, attempt=1, effect=True, key="k")


def opened(*, lost: bool = False) -> rec.Record:
    return of_pay(rec.DoubtOpened, reason="no answer", action="ask", lost=lost)


def said(verdict: str) -> rec.Record:
    return rec.DoubtSettled(step_id="1", verdict=verdict, by="ann", value=b"9")


DONE = of_pay(rec.StepDone, effect=True, value=b"7")
UNDONE = of_pay(rec.StepDone, "undo:1", effect=True)
NOT_KEPT = of_pay(rec.StepDone, effect=True, not_kept="too large")
FAILED = of_pay(rec.StepFailed, effect=True, error={})
CHILD = rec.ChildStarted(step_id="1", name="errand", fingerprint="1:a", child="r.1")


def folded(records: Sequence[rec.Record], first_seq: int = AFTER + 1) -> dict[str, History]:
    found: dict[str, History] = {}
    for seq, record in enumerate(records, first_seq):
        found.setdefault(record.step_id, History()).fold(record, seq=seq, at_us=seq * 1000, epoch=1)
    return found


REMEMBERED = [
    ("it happened", [started(), DONE], True),
    ("somebody said that it happened", [started(), opened(), said("landed")], True),
    ("nobody knows", [started()], True),
    ("only a repair has found a trace of it", [opened(lost=True)], True),
    ("a child run, whatever became of it", [CHILD], True),
    ("its undo has begun", [started(), DONE, started("undo:1")], True),
    ("its undo happened", [started(), DONE, UNDONE], False),
    ("it failed", [started(), FAILED], False),
    ("somebody said that it did not happen", [started(), opened(), said("not_landed")], False),
    ("it was asked about before it began", [opened()], False),
    ("a safe step", [of_pay(rec.StepDone, value=b"7")], False),
]


@pytest.mark.parametrize(("records", "remembered"), [pytest.param(*rest, id=why) for why, *rest in REMEMBERED])
def test_what_may_have_happened_behind_that_place_is_remembered(records: list[rec.Record], *, remembered: bool) -> None:
    assert [step_id for step_id, _ in happened(folded(records).items(), AFTER)] == ["1"] * remembered
    assert happened(folded(records, first_seq=AFTER).items(), AFTER) == []


def stands(*before: rec.Record, record: rec.Record, begun: frozenset[str] = frozenset("1")) -> bool:
    """Whether `record` still counts, which was made behind the place that the run goes back to."""
    pairs: list[Pair] = [(_row(seq), each) for seq, each in [*((AFTER, each) for each in before), (AFTER + 2, record)]]
    return record in [each for _, each in standing(pairs, AFTER, begun)]


def _row(seq: int) -> Row:
    return Row(seq, 1, seq * 1000, "", "", b"", None, None, b"")


@pytest.mark.parametrize(("cause", "expected"), [("", True), ("cancel", True), ("3", False)])
def test_a_step_that_was_broken_off_by_something_superseded_is_not_known_to_have_ended(cause: str, *, expected: bool) -> None:
    broken = of_pay(rec.StepBrokenOff, effect=True, cause=cause)
    assert stands(record=broken) is expected
    assert not stands(record=broken, begun=frozenset())


def test_a_late_answer_stands_where_its_question_does() -> None:
    question, answer = rec.AskOpened(step_id="1", question="go?", topic="ask"), rec.AskAnswered(step_id="1", yes=True, by="ann")
    assert stands(question, record=answer)
    assert stands(question, record=rec.AskClosed(step_id="1", reason="moot"))
    assert not stands(record=answer)


@pytest.mark.parametrize(
    ("records", "landed", "value"),
    [([started(), DONE], True, b"7"), ([started(), opened(), said("landed")], True, b"9"), ([started(), NOT_KEPT], True, None),
     ([started()], False, None)],
)  # fmt: skip
def test_a_branch_knows_of_an_effect_what_its_source_knew(records: list[rec.Record], value: bytes | None, *, landed: bool) -> None:
    ((step_id, history),), _ = heard(told("r", list(folded(records).items()), ()))
    assert (step_id, history.elsewhere, history.key, history.is_of("pay", "1:a")) == ("1", "r", "k", True)
    assert (history.landed(), history.open_doubt(1), result_of(history)) == (landed, not landed, value)
    assert history.result_is_missing() is (NOT_KEPT in records)


def test_a_branch_of_a_branch_knows_in_which_run_it_happened_and_under_which_key() -> None:
    known = folded([started(), DONE])
    known["1"].elsewhere, known["1"].sent = "first", "k of the first"
    ((_, history),), _ = heard(told("second", list(known.items()), ()))
    assert (history.elsewhere, history.key) == ("first", "k of the first")
