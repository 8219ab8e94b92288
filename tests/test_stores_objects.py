"""The store of objects: held to the conformance suite on an S3-compatible server, and what is its own."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from holdfast.store import Store
from holdfast.stores.objects import ObjectStore
from holdfast.testing import StoreConformance
from object_server import BUCKET


def prefix_of(folder: Path) -> str:
    return "t-" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]


class TestObjects(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, object_endpoint: str) -> None:
        self.endpoint = object_endpoint

    def open(self, folder: Path) -> Store:
        return ObjectStore(f"s3://{BUCKET}/{prefix_of(folder)}?endpoint={self.endpoint}")
