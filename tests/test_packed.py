"""Plain rows over a store that keeps packed ones: nobody above notices, and below there is little."""

from __future__ import annotations

from pathlib import Path

from holdfast._clock import SystemClock
from holdfast._packed import packed
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import StoreConformance


class TestPackedSqlite(StoreConformance):
    def open(self, folder: Path) -> Store:
        return packed(SqliteStore(folder / "runs.db"), SystemClock())


class TestPackedMemory(StoreConformance):
    lasting = False

    def open(self, folder: Path) -> Store:
        return packed(MemoryStore(), SystemClock())
