"""What tests of several files share: one PostgreSQL server for all of them, and one process that serves the agents of the sweeps."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.stores.postgres import PostgresStore
    from sweeping import Server


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a PostgreSQL 18 listens, without a query: a test adds a schema of its own."""
    from postgres_server import shared

    folder = tmp_path_factory.getbasetemp()
    with shared(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as url:
        yield url


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[PostgresStore]:
    """An empty store in a schema of its own."""
    from holdfast.stores.postgres import PostgresStore

    with closing(PostgresStore(f"{postgres_url}?schema=t_{secrets.token_hex(6)}")) as store:
        yield store


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Forks a child for each order of a sweep."""
    from sweeping import Server

    with closing(Server()) as started:
        yield started
