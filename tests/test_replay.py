"""What a journal says about one step, and what follows from it: `decide` as a table, over every kind of history."""

from __future__ import annotations

import pytest

from holdfast.records import kinds as rec
from holdfast.records.replay import DIED, Decision, Doubt, Execute, Hang, History, Landed, Mismatch, Raise, Return, decide

ERROR = {"type": "ValueError", "classes": [], "message": "no"}
AGAIN = 2
"""The epoch of a process that comes after the one that wrote the records."""


def started(attempt: int = 1, *, effect: bool = True) -> rec.Record:
    return rec.StepStarted(step_id="1", name="pay", fingerprint="1:a", attempt=attempt, effect=effect, key="k")


def attempt_failed(landed: str, attempt: int = 1) -> rec.Record:
    return rec.AttemptFailed(step_id="1", name="pay", fingerprint="1:a", attempt=attempt, error=ERROR, landed=landed)


def broken_off(cause: str = "", *, effect: bool = True) -> rec.Record:
    return rec.StepBrokenOff(step_id="1", name="pay", fingerprint="1:a", effect=effect, cause=cause)


def opened(action: str) -> rec.Record:
    return rec.DoubtOpened(step_id="1", name="pay", fingerprint="1:a", reason="no answer", action=action)


def found_by_repair() -> rec.Record:
    return rec.DoubtOpened(step_id="1", name="pay", fingerprint="1:a", reason="lost", action="ask", lost=True)


def settled(verdict: str, value: bytes | None = None) -> rec.Record:
    return rec.DoubtSettled(step_id="1", verdict=verdict, by="ann", value=value)


DONE = rec.StepDone(step_id="1", name="pay", fingerprint="1:a", effect=True, value=b"7")
NOT_KEPT = DONE.but(value=None, not_kept="too large")
SAFE_DONE = rec.StepDone(step_id="1", name="pay", fingerprint="1:a", value=b"7")
FAILED = rec.StepFailed(step_id="1", name="pay", fingerprint="1:a", error=ERROR, effect=True)
SAFE_FAILED = FAILED.but(effect=False)
IN_DOUBT = rec.StepFailed(step_id="1", name="pay", fingerprint="1:a", error=ERROR, effect=True, doubt=True)
FIRED = rec.TimeoutFired(step_id="1")


def folded(*records: rec.Record) -> History:
    history = History()
    for seq, record in enumerate(records, 1):
        history.fold(record, seq=seq, at_us=seq * 1000, epoch=1)
    return history


def decided(*records: rec.Record, effect: bool = True) -> Decision:
    return decide(folded(*records), name="pay", fingerprint="1:a", effect=effect)


def row(why: str, records: list[rec.Record], expected: Decision, *, doubt: bool) -> object:
    return pytest.param(records, expected, doubt, id=why)


EFFECTS = [
    row("an intent alone", [started()], Doubt(DIED, 1, asked=False), doubt=True),
    row("a result", [started(), DONE], Return(2, DONE), doubt=False),
    row("a failure", [started(), FAILED], Raise(2, FAILED), doubt=False),
    row("a failure in doubt", [started(), IN_DOUBT], Raise(2, IN_DOUBT), doubt=True),
    row("an attempt that did not happen", [started(), attempt_failed("no")], Execute(2), doubt=False),
    row("an attempt that is unclear", [started(), attempt_failed("unknown")], Doubt("ValueError: no", 1, asked=False), doubt=True),
    row("died in the second attempt", [started(), attempt_failed("no"), started(2)], Doubt(DIED, 2, asked=False), doubt=True),
    row("broken off from outside", [started(), broken_off()], Doubt("its body was broken off", 1, asked=False), doubt=True),
    row("broken off by a recorded time-out", [started(), broken_off("3")], Hang(2), doubt=True),
    row("interrupted before its next attempt", [started(), attempt_failed("no"), broken_off(effect=False)], Execute(2), doubt=False),
    row("cut off before its next attempt", [started(), attempt_failed("no"), broken_off("3", effect=False)], Hang(3), doubt=False),
    row("interrupted before it began", [opened("ask"), broken_off(effect=False)], Doubt("no answer", 0, asked=True), doubt=True),
    row("cut off before it began", [opened("ask"), broken_off("3", effect=False)], Hang(2), doubt=False),
    row("a person has been asked", [started(), opened("ask")], Doubt(DIED, 1, asked=True), doubt=True),
    row("a probe was about to be asked", [started(), opened("verify")], Doubt(DIED, 1, asked=False), doubt=True),
    row("asked before it began", [opened("ask")], Doubt("no answer", 0, asked=True), doubt=True),
    row("agreed before it began", [opened("ask"), settled("not_landed")], Execute(1), doubt=False),
    row("settled: landed", [started(), opened("ask"), settled("landed", b"9")], Landed(b"9", 1), doubt=False),
    row("settled: not landed", [started(), opened("ask"), settled("not_landed")], Execute(2), doubt=False),
    row("a probe did not know", [started(), opened("verify"), settled("unknown")], Doubt(DIED, 1, asked=False), doubt=True),
    row("asked after the probe", [started(), opened("verify"), settled("unknown"), opened("ask")], Doubt(DIED, 1, asked=True), doubt=True),
    row("settled, then died again", [started(), opened("ask"), settled("not_landed"), started(2)], Doubt(DIED, 2, asked=False), doubt=True),
    row("settled, then done", [started(), opened("ask"), settled("landed", b"7"), DONE], Return(4, DONE), doubt=False),
    row("resent, then died", [started(), opened("resend"), started(2)], Doubt(DIED, 2, asked=False), doubt=True),
    row("a result, lost with what came behind it", [started(), DONE, found_by_repair()], Doubt(DIED, 1, asked=True), doubt=True),
    row("a result that somebody said, lost, asked anew",
        [started(), NOT_KEPT, settled("landed", b"9"), found_by_repair(), opened("ask")], Doubt(DIED, 1, asked=True), doubt=True),
]


@pytest.mark.parametrize(("records", "expected", "doubt"), EFFECTS)
def test_every_history_of_an_effect_has_one_decision(records: list[rec.Record], expected: Decision, *, doubt: bool) -> None:
    assert decided(*records) == expected
    assert folded(*records).open_doubt(AGAIN) is doubt


SAFE = [
    ([started(effect=False)], Execute(2)),
    ([attempt_failed("no", attempt=3)], Execute(4)),
    ([broken_off(effect=False)], Execute(2)),
    ([broken_off("3", effect=False)], Hang(1)),
    ([SAFE_DONE], Return(1, SAFE_DONE)),
    ([started(effect=False), SAFE_DONE], Return(2, SAFE_DONE)),
]


@pytest.mark.parametrize(("records", "expected"), SAFE)
def test_every_history_of_a_safe_step_has_one_decision(records: list[rec.Record], expected: Decision) -> None:
    assert decided(*records, effect=False) == expected
    assert not folded(*records).open_doubt(AGAIN)


def test_nothing_recorded_means_execute() -> None:
    assert decide(None, name="pay", fingerprint="1:a", effect=True) == Execute(1)
    assert decide(History(), name="pay", fingerprint="1:a", effect=False) == Execute(1)


@pytest.mark.parametrize(("name", "fingerprint"), [("refund", "1:a"), ("pay", "1:b")])
@pytest.mark.parametrize("records", [[DONE], [started()], [FAILED], [opened("ask")], [broken_off("3")]])
def test_another_name_or_fingerprint_is_a_mismatch_whatever_was_recorded(name: str, fingerprint: str, records: list[rec.Record]) -> None:
    assert decide(folded(*records), name=name, fingerprint=fingerprint, effect=True) == Mismatch("pay")


@pytest.mark.parametrize(
    ("verdict", "name", "fingerprint", "expected"),
    [
        ("not_landed", "refund", "1:a", Execute(1)), ("not_landed", "pay", "1:b", Execute(1)),
        ("landed", "refund", "1:a", Execute(1)), ("landed", "pay", "1:b", Mismatch("pay")),
        ("unknown", "refund", "1:a", Mismatch("pay")), ("unknown", "pay", "1:b", Mismatch("pay")),
    ],
)  # fmt: skip
def test_what_a_repair_found_and_happened_is_not_done_again_with_other_arguments(
    verdict: str, name: str, fingerprint: str, expected: Decision
) -> None:
    history = folded(found_by_repair(), settled(verdict))
    assert decide(history, name=name, fingerprint=fingerprint, effect=True) == expected


def test_a_step_where_a_time_out_fired_is_a_mismatch() -> None:
    assert decided(FIRED) == Mismatch("hf.timeout")


def test_a_step_that_became_an_effect_is_not_run_again_without_a_word() -> None:
    assert decided(started(effect=False), effect=True) == Doubt(DIED, 1, asked=False)
    assert decided(started(effect=True), effect=False) == Doubt(DIED, 1, asked=False)


def test_a_cleared_failure_is_decided_anew() -> None:
    for failed, expected in ((FAILED, Execute(1)), (IN_DOUBT, Doubt(DIED, 0, asked=False))):
        history = folded(started(), failed)
        history.clear_failure()
        assert decide(history, name="pay", fingerprint="1:a", effect=True) == expected
        assert history.open_doubt(AGAIN) is (failed is IN_DOUBT)


def test_clearing_touches_nothing_but_a_failure() -> None:
    history = folded(started(), DONE)
    history.clear_failure()
    assert decide(history, name="pay", fingerprint="1:a", effect=True) == Return(2, DONE)


GONE_BEHIND = [
    ([started(), FAILED], [], True),
    ([started(), IN_DOUBT], [], True),
    ([found_by_repair(), IN_DOUBT], [], True),
    ([SAFE_FAILED], [SAFE_DONE], False),
    ([started(), FAILED], [started()], False),
    ([FAILED], [found_by_repair()], False),
    ([started(), FAILED], [opened("ask")], False),
]


@pytest.mark.parametrize(("records", "since", "holds"), GONE_BEHIND)
def test_a_failure_that_was_gone_behind_holds_again_only_where_nothing_has_come_of_it(
    records: list[rec.Record], since: list[rec.Record], *, holds: bool
) -> None:
    history, failure = folded(*records), records[-1]
    assert isinstance(failure, rec.StepFailed)
    history.clear_failure()
    for seq, record in enumerate(since, 7):
        history.fold(record, seq=seq, at_us=seq * 1000, epoch=2)
    before = history.outcome
    assert history.fail_again(failure, 2) is holds
    assert (history.outcome, history.outcome_seq) == (failure, 2) if holds else history.outcome is before


def test_an_effect_that_runs_in_this_very_epoch_is_not_in_doubt() -> None:
    assert not folded(started()).open_doubt(1)
    assert folded(started()).open_doubt(2)
    assert folded(started(), opened("resend")).open_doubt(1)


UNSURE = [
    ([started()], False),
    ([started(), attempt_failed("no"), started(2)], False),
    ([started(), attempt_failed("unknown"), opened("resend"), started(2)], True),
    ([started(), opened("resend"), started(2), attempt_failed("no", 2), started(3)], True),
    ([started(), attempt_failed("unknown"), opened("verify"), settled("not_landed"), started(2)], False),
    ([started(), opened("resend"), started(2), opened("ask"), settled("not_landed"), started(3)], False),
]


@pytest.mark.parametrize(("records", "unsure"), UNSURE)
def test_an_attempt_resent_without_being_found_out_stays_unsure(records: list[rec.Record], *, unsure: bool) -> None:
    assert folded(*records).unsure is unsure


def test_fold_remembers_the_first_intent_and_the_latest() -> None:
    history = folded(started(), attempt_failed("no"), started(2))
    assert (history.first_us, history.started_us, history.attempts, history.key) == (1000, 3000, 2, "k")


def test_a_record_that_is_not_of_a_step_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match=r"run\.done"):
        folded(rec.RunDone())


def test_deciding_changes_nothing() -> None:
    history = folded(started(), opened("ask"))
    before = repr(history)
    decide(history, name="pay", fingerprint="1:a", effect=True)
    assert repr(history) == before
