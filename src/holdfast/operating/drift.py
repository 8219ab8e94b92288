"""What a run relies on, compared with the world as it is here and now; the run is neither resumed nor written.

A print says what was looked at, so that it can be looked at again without the code: a file or folder by its absolute path, a variable, a
package, a URL. What only a function of the agent's can see is not compared, because code is never taken from a store. A URL is fetched
only if whoever looks says so: a store may come from elsewhere, and a request from here may reach what its writer could not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from holdfast.life.prints import Print, difference, is_url, take
from holdfast.operating.views import loaded
from holdfast.records.journal import Journal
from holdfast.running.engine import Engine

What: TypeAlias = Literal["same", "changed", "gone", "unreachable", "appeared", "not compared"]

NO_CODE = "only the agent's code can look at it"
NO_URLS = "a URL, which is fetched only where that is asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One thing that a run relies on: what it was when the run last looked, and what it is."""

    name: str
    what: What
    old: str
    new: str

    @property
    def drifted(self) -> bool:
        """Whether the run would find it another; what is not compared says nothing."""
        return self.what not in ("same", "not compared")


def drift(engine: Engine, run_id: str, *, urls: bool) -> list[Comparison]:
    """Everything that a run relies on, each compared with what it is now, and the models that nobody has accepted."""
    journal = Journal.load(*loaded(engine, run_id))
    things = [_compared(name, Print(**found), urls=urls) for name, found in journal.prints.items()]
    return [*things, *_models(journal)]


def _compared(name: str, old: Print, *, urls: bool) -> Comparison:
    if not old.thing or (is_url(old.thing) and not urls):
        why = NO_URLS if old.thing else NO_CODE
        return Comparison(name=name, what="not compared", old=_shown(old), new=why)
    new = take(old.thing)
    return Comparison(name=name, what=difference(old, new) or "same", old=_shown(old), new=_shown(new))


def _shown(found: Print) -> str:
    return found.shown or found.state


def _models(journal: Journal) -> Iterator[Comparison]:
    """Models cannot be looked at without a call; what the last call told is in the journal."""
    for (name, pair), change in journal.models.open.items():
        yield Comparison(name=f"model:{name}", what="changed", old=change.before, new=str(pair))
