"""The event loop of an app: a client that one run used serves the next, and nothing goes on between them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast.app.loop import Loop
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Rig


class Counter(http.server.BaseHTTPRequestHandler):
    """Answers each request with its number among those of its connection."""

    protocol_version, asked = "HTTP/1.1", 0

    def do_GET(self) -> None:
        self.asked += 1
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(str(self.asked).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Client:
    """As clients are: it keeps its connection, which belongs to the loop that it was made on, and uses it again."""

    def __init__(self, port: int) -> None:
        self.port, self.socket = port, socket.socket()
        self.loop: asyncio.AbstractEventLoop | None = None

    async def get(self) -> str:
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
            self.socket.setblocking(False)
            await self.loop.sock_connect(self.socket, ("127.0.0.1", self.port))
        await self.loop.sock_sendall(self.socket, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        reply = b""
        while b"\r\n\r\n" not in reply or reply.endswith(b"\n"):
            reply += await self.loop.sock_recv(self.socket, 1000)
        return reply[-1:].decode()


@pytest.fixture
def client() -> Iterator[Client]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counter) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        made = Client(server.server_port)
        yield made
        made.socket.close()
        server.shutdown()
        serving.join()


@hf.step
async def get() -> str:
    return await hf.resource(Client).get()


@hf.agent
async def twice() -> str:
    first = await get()
    await hf.sleep("3d")
    return first + await get()


@hf.agent
async def once() -> str:
    return await get()


def test_a_client_serves_one_run_after_the_other(client: Client) -> None:
    with hf.Holdfast("memory:", resources=[client]) as app:
        assert [app.run(once) for _ in range(3)] == ["1", "2", "3"]


def test_with_a_loop_for_each_run_it_would_not(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "run", lambda _, work: asyncio.run(work))
    with hf.Holdfast("memory:", resources=[client]) as app:
        assert app.run(once) == "1"
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            app.run(once)


def test_a_client_serves_all_lives_of_a_run_in_a_test(client: Client, rig: Rig) -> None:
    rig.crash(after="get")
    assert rig.run(twice, resources=[client], patience="4d") == "12"


def test_what_a_run_leaves_behind_is_ended_with_it() -> None:
    told: list[str] = []
    ending = threading.Event()

    async def linger() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            told.append("ended")
            ending.set()

    def last() -> None:
        ending.wait(20)
        told.append("thread ended")

    @hf.agent
    async def careless() -> str:
        ending.clear()
        asyncio.get_running_loop().run_in_executor(None, last)
        task = asyncio.create_task(linger())
        await asyncio.sleep(0)
        return str(task.done())

    with hf.Holdfast("memory:") as app:
        assert app.run(careless) == "False"
        assert told == ["ended", "thread ended"]
        assert app.run(careless) == "False"
    assert told == ["ended", "thread ended"] * 2


def test_runs_of_several_threads_go_on_side_by_side() -> None:
    met = threading.Barrier(2, timeout=20)

    @hf.agent
    async def meets() -> int:
        return await asyncio.to_thread(met.wait)

    with hf.Holdfast("memory:") as app:
        found: list[int] = []
        threads = [threading.Thread(target=lambda: found.append(app.run(meets))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == [0, 1]


def test_each_run_sees_the_context_that_it_is_started_in() -> None:
    colour = contextvars.ContextVar("colour", default="none")

    @hf.agent
    async def looks() -> str:
        return colour.get()

    with hf.Holdfast("memory:") as app:
        assert app.run(looks) == "none"
        colour.set("red")
        assert app.run(looks) == "red"


def test_an_app_that_nobody_closes_and_one_that_is_closed_on_a_loop_leave_no_loop_open() -> None:
    async def closed_here(app: hf.Holdfast) -> None:
        app.close()

    left: Any = hf.Holdfast(MemoryStore())
    assert left.run(idle) == 1
    other = hf.Holdfast(MemoryStore())
    assert other.run(idle) == 1
    loops = [left.loop._opened().get_loop(), other.loop._opened().get_loop()]
    asyncio.run(closed_here(other))
    del left
    gc.collect()
    assert [loop.is_closed() for loop in loops] == [True, True]


@hf.agent
async def idle() -> int:
    return 1
