"""What has no commit of its own and rides on the next one: times that were read, states that changed, prints of watched things."""

from __future__ import annotations

from holdfast.errors import NotKept
from holdfast.records import kinds as rec
from holdfast.records.state import Tracked


class Riders:
    """The riders of one run; `unkept` says why its states cannot be kept any more."""

    __slots__ = ("prints", "times", "tracked", "unkept")

    def __init__(self) -> None:
        self.times: dict[str, list[int]] = {}
        self.tracked: dict[str, Tracked] = {}
        self.prints: list[rec.WatchTaken] = []
        self.unkept: NotKept | None = None

    def any(self) -> bool:
        """Whether something may ride, or cannot."""
        return bool(self.times or self.tracked or self.prints or self.unkept is not None)

    def take(self, *, replaying: bool) -> list[rec.Record]:
        """Everything that rides now.

        While recorded outcomes are still to be given back, the states are not what they will be: their changes go with a later commit.
        """
        records: list[rec.Record] = list(self.prints)
        records += [rec.TimeRead(step_id=path, times_us=times) for path, times in self.times.items()]
        self.prints, self.times = [], {}
        return records if replaying else records + self._changed()

    def set_states(self, seq: int) -> None:
        """Set every state in place to what it was at the boundary `seq`."""
        for tracked in self.tracked.values():
            tracked.set_to(seq)

    def _changed(self) -> list[rec.Record]:
        records: list[rec.Record] = []
        try:
            for step_id, tracked in self.tracked.items():
                value = tracked.changed()
                if value is not None:
                    records.append(rec.StateSaved(step_id=step_id, value=value))
        except NotKept as error:
            self.tracked, self.unkept = {}, error
        return records
