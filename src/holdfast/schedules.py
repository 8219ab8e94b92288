"""When agents are to be run again and again: by cron or an interval, in a time zone, and what becomes of missed times; pure."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast._duration import Duration, seconds
from holdfast._options import refusing_unknown
from holdfast._turns import QUEUE
from holdfast.errors import Misuse

CatchUp: TypeAlias = Literal["last", "all", "none"]

LATE_S = 60.0
"""How late a time may be noticed without counting as missed."""

TAG = "schedule"
"""The tag by which a run tells whose it is."""

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
        late = now - timedelta(seconds=LATE_S, microseconds=1)
        missed = self._last(behind, late) if self.catch_up == "last" else []
        return [*missed, *self._between(max(behind, late), now)]

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


@refusing_unknown
class Schedule:
    """Run an agent with these arguments at the times that `cron` (five fields) or `every` tells.

    Each run is left to workers as `app.submit` would: in this queue, with this priority, key and tags, whichever worker leaves it.
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
        zone: str | None = None,
        catch_up: CatchUp = "last",
        name: str = "",
        queue: str = QUEUE,
        priority: int = 0,
        key: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.agent, self.args = agent, args
        self.queue, self.priority, self.key = queue, priority, key
        self.name = name or str(getattr(agent, "name", ""))
        if (not cron) == (every is None):
            raise Misuse(f"schedule {self.name!r} needs either cron= or every=, such as cron='0 9 * * 1-5' or every='1h'")
        if every is not None and zone is not None:
            raise Misuse(f"schedule {self.name!r} has every= and zone=; an interval has no time zone. Leave zone= out, or write cron=")
        if catch_up not in ("last", "all", "none"):
            raise Misuse(f"catch_up of schedule {self.name!r} is {catch_up!r:.40}; it is 'last', 'all' or 'none'")
        every_s = 0.0 if every is None else seconds(every, f"every of schedule {self.name!r}")
        if every is not None and every_s < 1:
            raise Misuse(f"every of schedule {self.name!r} is {every_s:g} s; it must be a second at the least")
        self.times = Times(cron=cron, every_s=every_s, zone="UTC" if zone is None else zone, catch_up=catch_up)
        self.tags = _checked_tags(self.name, tags)
        _refuse_unusable(self.name, self.times)

    def identity(self, arguments: bytes) -> str:
        """The same for the same schedule, another for every change of it; one without a place of its own keeps the one of before."""
        place = [self.queue, self.priority, self.key, self.tags]
        what = [asdict(self.times), arguments.decode("utf-8", "surrogatepass")]
        told = json.dumps(what if place == [QUEUE, 0, "", {}] else [*what, *place], sort_keys=True)
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def _checked_tags(name: str, tags: Mapping[str, str] | None) -> dict[str, str]:
    if tags is not None and not isinstance(tags, Mapping):
        raise Misuse(f"tags of schedule {name!r} are {tags!r:.80}; they are texts by name, such as {{'team': 'sales'}}")
    if TAG in (tags or {}):
        raise Misuse(f"schedule {name!r} has a tag {TAG!r}, by which its runs tell their schedule; name the tag otherwise")
    return {str(tag): str(value) for tag, value in (tags or {}).items()}


def _refuse_unusable(name: str, times: Times) -> None:
    """A zone that is not known, an expression that cannot be read, or one whose time never comes."""
    try:
        ZoneInfo(times.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Misuse(f"zone of schedule {name!r} is {times.zone!r:.80}, which is no time zone that is known here") from error
    if not times.cron:
        return
    if not isinstance(times.cron, str):
        raise Misuse(f"cron of schedule {name!r} is {times.cron!r:.80}; it is a text of five fields, such as '0 9 * * 1-5'")
    try:
        from cronsim import CronSimError
    except ImportError as error:
        raise Misuse(f'cron= of schedule {name!r} needs a library that is not there: pip install "holdfast[schedules]"') from error
    try:
        next(times.after(datetime.now(UTC)))
    except (CronSimError, StopIteration) as error:
        why = str(error) or "that time never comes"
        raise Misuse(f"cron of schedule {name!r} is {times.cron!r:.80}, by which nothing would ever run: {why}") from error
