"""The records of a run that goes from one store to another.

The source decides: until it says that the run is handed over, the move can be taken back, and from then on only finished.
"""

from __future__ import annotations

from dataclasses import field

from holdfast._facts import Json, Record, fact


@fact(kw_only=True)
class RunSealed(Record):
    """The run is on its way from `source` to `to`, and nobody takes it; `was` is how it stood.

    `token` is the name of this move, `root` the run that is moved together with its children. `silent` where the last owner was not
    proven dead.
    """

    kind = "run.sealed"
    token: str
    source: str
    to: str
    root: str
    by: str
    reason: str = ""
    was: Json = field(default_factory=dict)
    silent: bool = False


@fact(kw_only=True)
class RunHandedOver(Record):
    """The copy over there is the run from here on; `value` are the letters that go along. What was sealed can be taken back no more."""

    kind = "run.handed_over"
    token: str


@fact(kw_only=True)
class RunMoved(Record):
    """The run has arrived at `to`; what stands here is history."""

    kind = "run.moved"
    token: str
    to: str


@fact(kw_only=True)
class RunArrived(Record):
    """The run came here from `source`; as long as it is `pending` it is only a copy. `value` are messages that came along."""

    kind = "run.arrived"
    token: str
    source: str
    was: Json = field(default_factory=dict)
    pending: bool = False


@fact(kw_only=True)
class RunUnsealed(Record):
    """The move was taken back, and the run stands as it `was`."""

    kind = "run.unsealed"
    token: str
    by: str
    reason: str = ""
    was: Json = field(default_factory=dict)
