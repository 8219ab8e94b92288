"""What a meter is: a point in time that moves on with everything that is drawn from it, and never lags behind now; pure.

A rate is such a point that may be only so far ahead; a fair turn is one that may be as far ahead as it likes.
"""

from __future__ import annotations

from holdfast.store import Drawn


def moved_on(stands_us: int, *, step_us: int, within_us: int | None, at_us: int) -> tuple[Drawn, int]:
    """What somebody draws from a meter that stands there, and where it stands then."""
    start_us = max(stands_us, at_us)
    ahead_us = start_us + step_us - at_us
    if within_us is not None and ahead_us > within_us and start_us > at_us:
        return Drawn(False, at_us + ahead_us - within_us, ahead_us - within_us), stands_us
    return Drawn(True, start_us), start_us + step_us
