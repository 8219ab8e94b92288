"""Looking at the place of a store without making one there: what is there is opened, and for what is not an empty store stands in."""

from __future__ import annotations

from pathlib import Path

from holdfast.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.opening import loaded, open_store, resolved


class PlannedStore(MemoryStore):
    """A store that is not made yet: empty, with the URL that it would have. Nothing of it is kept."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url


def open_planned(url: str | Path) -> Store:
    """The store that `url` names; where there is none, one that stands in for it, or what would hinder making it. Nothing is created."""
    text = str(url)
    kind, given = resolved(text)
    planned: str = "" if kind.given == "nothing" else loaded(kind, text, "planned")(given)
    return PlannedStore(planned) if planned else open_store(text)
