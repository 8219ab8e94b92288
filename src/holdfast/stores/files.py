"""Runs in a folder of readable files: a folder per run, a JSON file per commit, created once and never overwritten (see `_place.py`)."""

from __future__ import annotations

from pathlib import Path

from holdfast.stores._files_place import FilesPlace
from holdfast.stores._journal_store import JournalStore
from holdfast.stores._owners import OwnerLocks


class FilesStore(JournalStore):
    """Runs in the folder at `path`, made if it is missing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        self.path.mkdir(mode=0o700, exist_ok=True)
        place = FilesPlace(self.path, f"file://{self.path}")
        super().__init__(place, inline=True, locks=OwnerLocks(self.path / "owners"))
