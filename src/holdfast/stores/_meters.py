"""What a meter is: a point in time that moves on with everything that is drawn from it, and may be only so far ahead of now; pure.

Who draws when a meter is as far ahead as it may be goes into debt with it: he is told when the debt is paid, and until then nobody else can
draw. So everybody gets his turn, however much he wants, and no more than one draft is lost with whoever does not come back to use it.
Of several meters only the one that takes longest is drawn from in this way, the others when its time has come: nothing is taken away that
others could use meanwhile, and nothing is used much later than it was drawn for, on top of what others may use by then.

The turn of a lane is kept as such a point too, which may be as far ahead as it likes.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store import Draft, Drawn

MOST_WINDOWS = 2
"""No meter is further ahead than so many times what it may be when something is used, unless a clock was wrong."""


def moved_on(stood_us: Sequence[int], drafts: Sequence[Draft], at_us: int) -> tuple[Drawn, list[int]]:
    """What somebody draws from meters that stand there, and where they stand then."""
    starts_us = [max(_believed(stands_us, draft, at_us), at_us) for stands_us, draft in zip(stood_us, drafts, strict=True)]
    aheads_us = [start_us - draft.within_us - at_us for start_us, draft in zip(starts_us, drafts, strict=True)]
    if (debt_us := max(aheads_us)) > 0:
        return Drawn(at_us + debt_us, debt_us, tuple(drafts)), list(stood_us)
    waits_us = [ahead_us + draft.step_us for ahead_us, draft in zip(aheads_us, drafts, strict=True)]
    wait_us = max(0, *waits_us)
    chosen = range(len(drafts)) if wait_us == 0 else [waits_us.index(wait_us)]
    stand = [starts_us[n] + draft.step_us if n in chosen else stood_us[n] for n, draft in enumerate(drafts)]
    return Drawn(at_us + wait_us, wait_us, tuple(draft for n, draft in enumerate(drafts) if n not in chosen)), stand


def _believed(stands_us: int, draft: Draft, at_us: int) -> int:
    """Where a meter stands; one that a wrong clock moved counts as one that is as far ahead as it may be."""
    return stands_us if stands_us <= at_us + MOST_WINDOWS * draft.within_us else at_us + draft.within_us


def turn_meter(queue: str, lane: str) -> str:
    """The name of the meter that keeps the turn of a lane."""
    return f"turn {queue} {lane}"
