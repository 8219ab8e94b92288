"""Putting a question to a person, as part of a life: it is asked once, and the answer is for good.

A question has an id in its run: `approve:7` for an approval of step 7, `watch:NAME` and `model:NAME` for a drift, `budget` for a limit. It
is bound to what was asked: a call with other arguments has another step id, or is a mismatch.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast._failpoints import reach
from holdfast.life.commands import Commit, Life, WaitForPerson
from holdfast.life.run import LETTER_GRACE_US, Run
from holdfast.records import kinds as rec
from holdfast.records.journal import Journal
from holdfast.records.replay import Question

WENT_ON = "the run went on without an answer"


def is_asked(run: Run, ask_id: str, about: str) -> bool:
    """Whether this very question has been asked already, and not been closed since."""
    asked = run.journal.asks.get(ask_id)
    return asked is not None and asked.opened.about == about and not asked.closed


def moot(journal: Journal, ask_id: str, *, by: str, reason: str) -> list[rec.AskAnswered]:
    """The yes that closes an open question when what it asked for is granted in another way."""
    asked = journal.asks.get(ask_id)
    return [] if asked is None or not asked.is_open() else [rec.AskAnswered(step_id=ask_id, yes=True, by=by, reason=reason)]


def closing(journal: Journal, ask_id: str) -> list[rec.AskClosed]:
    """What closes an open question that the code goes on without."""
    asked = journal.asks.get(ask_id)
    return [rec.AskClosed(step_id=ask_id, reason=WENT_ON)] if asked is not None and asked.is_open() else []


def _first_to_ask(run: Run, opened: rec.AskOpened) -> bool:
    """Whether nobody has asked this yet; from here on somebody has, so that another branch waits for the same answer."""
    with run.lock:
        if is_asked(run, opened.step_id, opened.about):
            return False
        run.journal.asks[opened.step_id] = Question(opened, run.clock.now_us())
        return True


def consult(
    run: Run,
    ask_id: str,
    *,
    topic: str,
    question: str,
    about: str = "",
    timeout_s: float | None = None,
    until_us: int = 0,
    grants: dict[str, float] | None = None,
    step_id: str = "",
    wants: rec.Json | None = None,
    who: Sequence[str] = (),
    details: object = None,
) -> Life[rec.AskAnswered]:
    """The answer to a question, waited for as long as it takes, or until its time is over; about something else, it is asked anew.

    `grants` are limits that a yes sets; `step_id` is the step that waits, where several may wait for one answer; `wants` says what the
    answer must look like, and `who` may give it; `until_us` is an end that stands already.
    """
    until_us = until_us or (0 if timeout_s is None else run.clock.now_us() + int(timeout_s * 1e6))
    opened = rec.AskOpened(
        step_id=ask_id, topic=topic, question=question, about=about, until_us=until_us, grants=grants or {}, wants=wants or {},
        who=list(who), details=details,
    )  # fmt: skip
    if _first_to_ask(run, opened):
        reach("ask.before")
        yield Commit([opened])
        reach("ask.after")
    run.notify(ask_id)
    while (answer := run.journal.asks[ask_id].answer) is None:
        until_us = run.journal.asks[ask_id].opened.until_us
        if until_us and run.clock.now_us() >= until_us + LETTER_GRACE_US:
            yield Commit([rec.AskAnswered(step_id=ask_id, yes=False, by="the clock", reason="nobody answered in time", timed_out=True)])
        else:
            yield WaitForPerson(ask_id, until_us + LETTER_GRACE_US if until_us else 0, step_id)
    return answer
