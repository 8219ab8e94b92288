"""What tests of several files share: one PostgreSQL server, one object server, and one process that serves the agents of the sweeps."""

from __future__ import annotations

import gc
import os
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from places import in_memory

if TYPE_CHECKING:
    from holdfast.stores.postgres import PostgresStore
    from sweeping import Server


RARELY = 20_000
"""New objects between two looks for garbage."""


SPREAD = 0.6
"""The part of all tests among which the sweeps are."""


def pytest_configure() -> None:
    """The folders of tests are in memory, where there is room; and one authority is known: each client would read hundreds."""
    if (memory := in_memory()) is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    os.environ |= {"SSL_CERT_FILE": str(Path(__file__).with_name("nobody.pem")), "SSL_CERT_DIR": os.devnull}


def pytest_collection() -> None:
    """What is loaded now stays until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Whoever looks for garbage while tests run need not look through it, and looks more rarely than where memory is short."""
    gc.freeze()
    gc.set_threshold(RARELY)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no process ends alone with it; beyond that the order stays as it is, by dice.

    The sweeps are spread over the first part: they keep the processors busy, and most others wait for something.
    """
    places = {item: float(number) for number, item in enumerate(items)}
    sweeps = [item for item in items if item.get_closest_marker("sweep")]
    places.update((item, SPREAD * len(items) * number / len(sweeps)) for number, item in enumerate(sweeps))
    items.sort(key=lambda item: (item.get_closest_marker("long") is None, places[item]))
    if config.getoption("loadgroup", default=False):
        for item in items:
            _name_group(item)


def _name_group(item: Any) -> None:
    """Let one process have all tests of a group: pytest-xdist 3.8 writes its name to where pytest has not read it since 9.2."""
    mark = item.get_closest_marker("xdist_group")
    if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
        item._id = type(item.id).parse(f"{item.nodeid}@{mark.args[0]}")


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
def object_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where an S3-compatible server listens; what it lets in stands in the environment from here on.

    With `HOLDFAST_TEST_S3=http://...` it is another one, which has the bucket and knows the credentials of `object_server.ENV`.
    """
    from object_server import ENV, shared

    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENV.items():
            patch.setenv(name, value)
        if other := os.environ.get("HOLDFAST_TEST_S3"):
            yield other
            return
        with shared(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as endpoint:
            yield endpoint


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Forks a child for each order of a sweep."""
    from sweeping import Server

    with closing(Server()) as started:
        yield started


@pytest.fixture(scope="session")
def second_server() -> Iterator[Server]:
    """Another one, for sweeps that kill two at a time."""
    from sweeping import Server

    with closing(Server()) as started:
        yield started
