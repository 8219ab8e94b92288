"""Effects that nobody knows of: what the records may have told that a repair could not read, and how long that holds; pure.

As long as it holds, an effect that begins and has no record of its own counts as one that may have happened. It begins with a repair that
could not read everything, and ends with somebody's word. A fork knows it of its source, and a child run of the run that calls it, where it
may have run under another id.

A key that derives from the place of a call is surely that of a lost intent only while the run takes the path that it took. So it is not
any more once a safe step was executed again, whose result may be another, or an effect that was put back before; nor after changed code
or an edit, which give new keys, nor where somebody may have done that in what is lost.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.records import kinds as rec

UNREAD = "records that a repair could not read may have told of it"
"""Why such an effect is in doubt."""

CARRIED = "unreadable"
"""How a run that begins anew carries it along."""


class Unknown(NamedTuple):
    """So many `records` could not be read. What they told of happened between `since_us`, if that is known, and `until_us`.

    `sure` where a key that derives from the place of a call is the one that it had there.
    """

    records: int
    until_us: int
    since_us: int = 0
    sure: bool = False


def folded(before: Unknown | None, record: rec.Record, at_us: int) -> Unknown | None:
    """What is not known once this is recorded."""
    match record:
        case rec.RunRepaired():
            return _after_repair(before, record, at_us) if record.unreadable else before
        case rec.RunForked(effects="repeat") | rec.RunResumed(effects="repeat"):
            return None
        case rec.StepEdited(effects="repeat") | rec.StateEdited(effects="repeat"):
            return None
        case rec.RunStarted() | rec.RunForked():
            return Unknown(record.unreadable, at_us) if record.unreadable else None
        case rec.RunContinued():
            return Unknown(record.carried[CARRIED], at_us) if record.carried.get(CARRIED) else None
    return before._replace(sure=False) if before is not None and _strays(record) else before


def lasting(unknown: Unknown | None) -> int:
    """What still counts where the run begins anew, or in a child of it.

    Where keys are sure, nobody had taken the run up in what is lost: it had not begun anew there, and a child is found by its id.
    """
    return 0 if unknown is None or unknown.sure else unknown.records


def _after_repair(before: Unknown | None, record: rec.RunRepaired, at_us: int) -> Unknown:
    found = Unknown(record.unreadable, at_us, record.since_us, record.same_epoch)
    if before is None:
        return found
    return Unknown(before.records + found.records, at_us, min(before.since_us, found.since_us), before.sure and found.sure)


def _strays(record: rec.Record) -> bool:
    """Whether the code may take another path than in what is lost, or has other keys."""
    match record:
        case rec.StepDone() | rec.StepFailed():
            return not record.effect
        case rec.DoubtSettled():
            return record.by == "reset"
        case rec.RunAccepted() | rec.StepEdited() | rec.StateEdited():
            return True
    return False
