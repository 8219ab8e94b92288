"""Whoever watches over a worker is answered at once, whatever the store does, and however many ask."""

from __future__ import annotations

import http.client
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import holdfast as hf
from agents_for_tests.sites import eventually
from holdfast import Holdfast
from holdfast.cli import health
from holdfast.cli.health import Health, Look
from holdfast.cli.working import _ready
from holdfast.fleet.worker import Worker
from parting_proxy import HOST, Proxy, proxy

BOUND_S = 4.0
"""Well above the second that an answer may take, well below the twenty that a store may."""
ASKERS = 20


@hf.agent
async def rests() -> None: ...


@pytest.fixture
def between(postgres_url: str) -> Iterator[Proxy]:
    with proxy(int(postgres_url.rpartition(":")[2].partition("/")[0])) as opened:
        yield opened


@pytest.fixture
def asked(between: Proxy) -> Iterator[Health]:
    """The pages of a worker whose store is behind the proxy."""
    url = f"postgresql://postgres@{HOST}:{between.port}/postgres?schema=t_{secrets.token_hex(6)}"
    with Holdfast(url) as app:
        worker = Worker(app.engine, [rests], concurrency=1)
        with Health(0, lambda: _ready(worker, app), HOST) as opened:
            yield opened
        between.join()


def page(port: int, path: str) -> tuple[int, str, float]:
    began_s = time.monotonic()
    connection = http.client.HTTPConnection(HOST, port, timeout=BOUND_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip(), time.monotonic() - began_s
    finally:
        connection.close()


def looks() -> int:
    return sum(thread.name == "holdfast-ready" for thread in threading.enumerate())


def test_a_database_that_does_not_answer_is_told_at_once_and_nothing_piles_up(asked: Health, between: Proxy) -> None:
    assert page(asked.port, "/ready")[:2] == (200, "ok")
    between.part()
    with ThreadPoolExecutor(ASKERS) as pool:
        told = list(pool.map(lambda _: page(asked.port, "/ready"), range(ASKERS)))
    assert {status for status, _, _ in told} == {503}
    assert all(text.startswith("the store has not answered for ") for _, text, _ in told)
    assert max(took_s for _, _, took_s in told) < BOUND_S
    assert looks() == 1
    assert page(asked.port, "/health")[:2] == (200, "ok")
    between.join()
    eventually(lambda: page(asked.port, "/ready")[:2] == (200, "ok"))


def test_without_a_look_on_a_thread_of_its_own_whoever_asks_would_wait_for_the_store(
    asked: Health, between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE_S", None)
    assert page(asked.port, "/ready")[:2] == (200, "ok")
    between.part()
    with pytest.raises(TimeoutError):
        page(asked.port, "/ready")


def test_a_worker_that_stops_says_so_even_if_the_database_does_not_answer(between: Proxy) -> None:
    url = f"postgresql://postgres@{HOST}:{between.port}/postgres?schema=t_{secrets.token_hex(6)}"
    with Holdfast(url) as app:
        worker = Worker(app.engine, [rests], concurrency=1)
        worker.stop()
        between.part()
        assert Look(lambda: _ready(worker, app)).told() == "it is stopping"
        between.join()


def test_an_error_that_nobody_expected_is_the_answer() -> None:
    def hindered() -> str:
        raise ValueError("strange")

    look = Look(hindered)
    assert [look.told(), look.told()] == ["ValueError: strange"] * 2


def test_askers_that_say_nothing_do_not_pile_up_and_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SLOW_S", 1.0)
    before = threading.active_count()
    with Health(0, lambda: "", HOST) as opened, ExitStack() as silent:
        for _ in range(3 * health.MOST_ASKERS):
            silent.enter_context(socket.create_connection((HOST, opened.port)))
        eventually(lambda: threading.active_count() - before > health.MOST_ASKERS // 2)
        assert threading.active_count() - before <= health.MOST_ASKERS + 1
        eventually(lambda: _is_well(opened.port))


def _is_well(port: int) -> bool:
    try:
        return page(port, "/health")[:2] == (200, "ok")
    except (http.client.HTTPException, OSError):
        return False
