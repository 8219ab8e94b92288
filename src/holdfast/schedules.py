"""When agents are to be run again and again: by cron or an interval, in a time zone, and what becomes of missed times; pure."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast._duration import Duration, seconds
from holdfast.errors import Misuse

CatchUp: TypeAlias = Literal["last", "all", "none"]

LATE_S = 60.0
"""How late a time may be noticed without counting as missed."""

PORTION = 100
"""Missed times that are caught up with at one go, the first of them; the next are the next portion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of a schedule: by cron in a time zone, or every so many seconds since 1970; and which missed ones count."""

    cron: str = ""
    every_s: float = 0.0
    zone: str = "UTC"
    catch_up: CatchUp = "last"

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The times behind a moment, the first first; in an hour that the clock repeats, too."""
        for time in self._from(moment):
            if time > moment:
                moment = time
                yield time

    def _from(self, moment: datetime) -> Iterator[datetime]:
        if self.cron:
            from cronsim import CronSim

            yield from (found.astimezone(UTC) for found in CronSim(self.cron, moment.astimezone(ZoneInfo(self.zone))))
            return
        count = int(moment.timestamp() // self.every_s)
        while True:
            yield datetime.fromtimestamp(count * self.every_s, UTC)
            count += 1

    def due(self, behind: datetime, now: datetime) -> list[datetime]:
        """The times behind a moment, up to now, for which something is to be run: a portion of them where that is for all."""
        if self.catch_up == "all":
            return list(islice(self._between(behind, now), PORTION))
        last = self._last(behind, now)
        return [time for time in last if self.catch_up == "last" or now - time <= timedelta(seconds=LATE_S)]

    def _between(self, behind: datetime, now: datetime) -> Iterator[datetime]:
        return takewhile(lambda time: time <= now, self.after(behind))

    def _last(self, behind: datetime, now: datetime) -> list[datetime]:
        """The last time up to now, if there is one behind that moment; looked for from now backwards, as it may be long ago."""
        back = timedelta(seconds=max(LATE_S, self.every_s))
        while now - back > behind:
            if found := deque(self._between(now - back, now), maxlen=1):
                return list(found)
            back *= 2
        return list(deque(self._between(behind, now), maxlen=1))


class Schedule:
    """Run an agent with these arguments at the times that `cron` (five fields) or `every` tells.

    `zone` is the time zone that cron is read in. Of times that were missed, because no worker was there, the last one is caught up with;
    with catch_up="all" every one, with "none" no one.
    """

    def __init__(
        self,
        agent: Callable[..., Any],
        /,
        *args: object,
        cron: str = "",
        every: Duration | None = None,
        zone: str = "UTC",
        catch_up: CatchUp = "last",
        name: str = "",
    ) -> None:
        self.agent, self.args = agent, args
        self.name = name or str(getattr(agent, "name", ""))
        if (not cron) == (every is None):
            raise Misuse(f"schedule {self.name!r} needs either cron= or every=, such as cron='0 9 * * 1-5' or every='1h'")
        if catch_up not in ("last", "all", "none"):
            raise Misuse(f"catch_up of schedule {self.name!r} is {catch_up!r:.40}; it is 'last', 'all' or 'none'")
        every_s = 0.0 if every is None else seconds(every, f"every of schedule {self.name!r}")
        if every is not None and every_s < 1:
            raise Misuse(f"every of schedule {self.name!r} is {every_s:g} s; it must be a second at the least")
        self.times = Times(cron=cron, every_s=every_s, zone=zone, catch_up=catch_up)
        _refuse_unusable(self.name, self.times)

    def identity(self, arguments: bytes) -> str:
        """The same for the same schedule, another for every change of it."""
        told = json.dumps([asdict(self.times), arguments.decode("utf-8", "surrogatepass")], sort_keys=True)
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def _refuse_unusable(name: str, times: Times) -> None:
    """A zone that is not known, an expression that cannot be read, or one whose time never comes."""
    try:
        ZoneInfo(times.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Misuse(f"zone of schedule {name!r} is {times.zone!r:.80}, which is no time zone that is known here") from error
    if not times.cron:
        return
    try:
        from cronsim import CronSimError
    except ImportError as error:
        raise Misuse(f'cron= of schedule {name!r} needs a library that is not there: pip install "holdfast[schedules]"') from error
    try:
        next(times.after(datetime.now(UTC)))
    except (CronSimError, StopIteration) as error:
        why = str(error) or "that time never comes"
        raise Misuse(f"cron of schedule {name!r} is {times.cron!r:.80}, by which nothing would ever run: {why}") from error
