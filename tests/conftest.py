"""What tests of several files share: one PostgreSQL server for all of them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.stores.postgres import PostgresStore
from postgres_server import shared


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a PostgreSQL 18 listens, without a query: a test adds a schema of its own."""
    folder = tmp_path_factory.getbasetemp()
    with shared(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as url:
        yield url


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[PostgresStore]:
    """An empty store in a schema of its own."""
    with closing(PostgresStore(f"{postgres_url}?schema=t_{secrets.token_hex(6)}")) as store:
        yield store
