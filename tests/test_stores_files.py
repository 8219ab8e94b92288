"""The store of readable files: every promise of the seam, and what only it promises."""

from __future__ import annotations

from pathlib import Path

from holdfast.store import Store
from holdfast.stores.files import FilesStore
from holdfast.testing import StoreConformance


class TestFiles(StoreConformance):
    def open(self, folder: Path) -> Store:
        return FilesStore(folder / "runs")
