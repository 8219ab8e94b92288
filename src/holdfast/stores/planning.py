"""Looking at the place of a store without making one there: what is there is opened, and for what is not an empty store stands in."""

from __future__ import annotations

from pathlib import Path

from holdfast._clock import Clock
from holdfast.store import Finding, Store
from holdfast.stores._examining import ELSEWHERE, KILLED, ONE_DISK, UNRELIABLE, examined_folder, power_loss
from holdfast.stores._os_errors import os_errors, refuse_nowhere
from holdfast.stores.memory import MemoryStore
from holdfast.stores.opening import FILES, loaded, open_store, place_of, resolved

NONE_YET = Finding(
    topic="runs", what="store", value="none yet", grade="warn",
    meaning="nothing was created; all else is what a store would rest on here",
    advice="if there should be one, name its path; else it is made when the first run begins",
)  # fmt: skip


class PlannedStore(MemoryStore):
    """A store that is not made yet: empty, with the URL that it would have. Nothing of it is kept."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def examine(self, clock: Clock) -> list[Finding]:
        """What a store would rest on, where it would be on this machine."""
        path = place_of(self.url)
        if path is None:
            return [NONE_YET]
        with os_errors(self.url):
            folder = refuse_nowhere(path if path.is_dir() else path.parent, self.url)
            network = ELSEWHERE if self.url.startswith(FILES) else UNRELIABLE
            return [NONE_YET, *examined_folder(folder, clock, network=network), KILLED, power_loss(folder), ONE_DISK]


def open_planned(url: str | Path) -> Store:
    """The store that `url` names; where there is none, one that stands in for it, or what would hinder making it. Nothing is created."""
    text = str(url)
    kind, given = resolved(text)
    planned: str = "" if kind.given == "nothing" else loaded(kind, text, "planned")(given)
    return PlannedStore(planned) if planned else open_store(text)
