"""Runs in a folder of readable files: a folder per run, a JSON file per commit, created once and never overwritten (see `_place.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from holdfast._clock import Clock
from holdfast.store import Finding, HandEdit, Repair, Swept
from holdfast.stores._examining import ELSEWHERE, ONE_DISK, examined_folder, power_loss, privacy
from holdfast.stores._file_system import NETWORK, file_system
from holdfast.stores._files_blobs import FileShelf
from holdfast.stores._files_opening import is_missing, prepared
from holdfast.stores._files_views import FileViews
from holdfast.stores._journal_store import JournalStore
from holdfast.stores._live_files import LiveFiles
from holdfast.stores._os_errors import os_errors
from holdfast.stores._owners import OwnerLocks


def planned(path: str | Path) -> str:
    """The URL of the store that opening would make at `path`; empty where something is there."""
    there = Path(path).expanduser().absolute()
    return f"file://{there}" if is_missing(there, f"file://{there}") else ""


class FilesStore(JournalStore):
    """Runs in the folder at `path`, made if it is missing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        place = prepared(self.path, f"file://{self.path}")
        self._shelf = FileShelf(place)
        self._views = FileViews(place, self._shelf.fetched)
        self._live = LiveFiles(self.path / ".live", self._rests)
        local = file_system(self.path) not in NETWORK  # a lock that another machine does not see would prove a death that is none
        locks = OwnerLocks(self.path / ".locks") if local else None
        super().__init__(place, inline=True, views=self._views, holds=self._shelf, locks=locks)
        self._live.sweep()

    def renew(self, owner: str) -> None:
        super().renew(owner)
        self._live.sweep()

    def publish(self, run_id: str, payload: bytes) -> None:
        self._live.publish(run_id, payload)

    def published(self, run_id: str, after: int) -> list[tuple[int, bytes]]:
        return self._live.published(run_id, after)

    def _rests(self, run_id: str) -> bool:
        head = self.head(run_id)
        return head is None or head.owner is None

    def examine(self, clock: Clock) -> list[Finding]:
        with os_errors(self.url):
            folder = [privacy(self.path), *examined_folder(self.path, clock, network=ELSEWHERE)]
            return [*folder, *super().examine(clock), power_loss(self.path), ONE_DISK]

    def set_aside(self, repair: Repair) -> bool:
        """Where every record is good and only what people see was changed, that is put back, and what they wrote kept aside."""
        self._refuse_if_gone()
        pieces = self._runs.pieces(repair.run_id)
        if not pieces:
            return False
        good = [row for piece in pieces if piece.commit for row in piece.commit.rows]
        edited = self._views.edited(repair.run_id, pieces)
        self._views.put_back(repair.run_id, pieces)
        if edited and good == list(repair.good) and not repair.rows and repair.head == repair.found:
            return True
        return super().set_aside(repair)

    def edited(self, run_id: str) -> list[HandEdit]:
        self._refuse_if_gone()
        return self._views.edited(run_id, self._runs.pieces(run_id))

    def overlooking(self, run_id: str) -> AbstractContextManager[None]:
        return self._views.overlooking(run_id)

    def put_back(self, run_id: str) -> None:
        self._refuse_if_gone()
        self._views.put_back(run_id, self._runs.pieces(run_id))

    def keep_blob(self, chunks: Iterable[bytes], *, at_us: int, parts: Sequence[str] = ()) -> str:
        return self._shelf.keep_blob(chunks, at_us=at_us, parts=parts)

    def touch_blob(self, digest: str, *, at_us: int) -> bool:
        return self._shelf.touch_blob(digest, at_us=at_us)

    def open_blob(self, digest: str) -> BinaryIO | None:
        return self._shelf.open_blob(digest)

    def blob_refs(self, run_id: str) -> list[str]:
        return self._shelf.blob_refs(run_id)

    def blob_parts(self, digest: str) -> list[str]:
        return self._shelf.blob_parts(digest)

    def sweep_blobs(self, before_us: int, *, dry_run: bool = False) -> Swept:
        return self._shelf.sweep_blobs(before_us, dry_run=dry_run)

    def close(self) -> None:
        self._live.close()
        super().close()
