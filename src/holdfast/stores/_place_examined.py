"""What a store of named bytes rests on: that a name is given once, and how long that takes, for `holdfast doctor`."""

from __future__ import annotations

import secrets

from holdfast._clock import Clock
from holdfast.store import FORMAT, Finding
from holdfast.stores._examining import KILLED, commit_speed, median_s
from holdfast.stores._place import Place

COMMIT = b'{"about as large as": "the commit of a small step"}'.ljust(400)
OTHER = b'{"written by": "somebody who came second"}'


def examined(place: Place, clock: Clock) -> list[Finding]:
    """All that can be said of any place; what is created here is removed."""
    token, created = secrets.token_hex(8), list[str]()

    def commit() -> None:
        created.append(f"doctor-{token}-{len(created)}.json")
        place.create(created[-1], COMMIT)

    try:
        took_s = median_s(clock, commit)
        overwrites = place.create(created[0], OTHER)
    finally:
        for name in created:
            place.remove(name)
    version = Finding(topic="versions", what="format of the store", value=str(FORMAT))
    return [version, _fence(overwrites=bool(overwrites)), commit_speed(took_s), KILLED]


def _fence(*, overwrites: bool) -> Finding:
    if not overwrites:
        return Finding(topic="durability", what="names", value="given once", meaning="so one process at a time writes a run")
    meaning, advice = "two processes could write the same run", "name another place, or use a server that knows conditional writes"
    return Finding(topic="durability", what="names", value="overwritten", grade="bad", meaning=meaning, advice=advice)
