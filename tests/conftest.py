"""What tests of several files share: one PostgreSQL server for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from postgres_server import shared


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a PostgreSQL 18 listens, without a query: a test adds a schema of its own."""
    folder = tmp_path_factory.getbasetemp()
    with shared(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as url:
        yield url
