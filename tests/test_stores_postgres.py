"""The PostgreSQL store: held to the conformance suite on a real server, and what is its own."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from holdfast.store import Store
from holdfast.stores.postgres import PostgresStore
from holdfast.testing import StoreConformance


def schema_of(folder: Path) -> str:
    return "t_" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]


class TestPostgres(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, postgres_url: str) -> None:
        self.server_url = postgres_url

    def open(self, folder: Path) -> Store:
        return PostgresStore(f"{self.server_url}?schema={schema_of(folder)}")
