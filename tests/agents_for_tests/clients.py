"""One POST by each client library that is installed, as its users write it; all raise for a status of 400 and more."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import importlib.util
import ssl
import urllib.request
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import urlsplit

PATIENT_S = 10.0

Client = Callable[..., object]
"""Takes a URL and the seconds to wait for each reply."""


@cache
def trusted() -> ssl.SSLContext:
    """To read all certificates takes longer than the request."""
    return ssl.create_default_context()


def by_urllib(url: str, timeout_s: float = PATIENT_S) -> None:
    urllib.request.urlopen(urllib.request.Request(url, data=b"x", method="POST"), timeout=timeout_s).read()


def by_http_client(url: str, timeout_s: float = PATIENT_S) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)
    try:
        connection.request("POST", "/", b"x")
        connection.getresponse().read()
    finally:
        connection.close()


def by_httpx(name: str, method: str = "POST", **options: Any) -> Client:
    httpx = importlib.import_module(name)

    def call(url: str, timeout_s: float = PATIENT_S) -> None:
        with httpx.Client(timeout=timeout_s, verify=trusted(), **options) as client:
            client.request(method, url, content=b"x").raise_for_status()

    return call


def by_async_httpx(name: str, **options: Any) -> Client:
    httpx = importlib.import_module(name)

    async def call(url: str, timeout_s: float = PATIENT_S) -> None:
        async with httpx.AsyncClient(timeout=timeout_s, verify=trusted(), **options) as client:
            (await client.post(url, content=b"x")).raise_for_status()

    return lambda *args: asyncio.run(call(*args))


def by_requests(method: str = "POST", **retries: Any) -> Client:
    requests, urllib3 = importlib.import_module("requests"), importlib.import_module("urllib3")

    def call(url: str, timeout_s: float = PATIENT_S) -> None:
        with requests.Session() as session:
            if retries:
                session.mount("http://", requests.adapters.HTTPAdapter(max_retries=urllib3.Retry(**retries)))
            session.request(method, url, data=b"x", timeout=timeout_s).raise_for_status()

    return call


def by_urllib3(**retries: Any) -> Client:
    urllib3 = importlib.import_module("urllib3")

    def call(url: str, timeout_s: float = PATIENT_S) -> None:
        with urllib3.PoolManager(timeout=timeout_s, retries=urllib3.Retry(**retries)) as pool:
            pool.request("POST", url, body=b"x")

    return call


def by_aiohttp(method: str = "POST", **options: Any) -> Client:
    aiohttp = importlib.import_module("aiohttp")

    async def call(url: str, timeout_s: float = PATIENT_S) -> None:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with aiohttp.ClientSession(timeout=timeout, **options) as session, session.request(method, url, data=b"x") as response:
            response.raise_for_status()
            await response.read()

    return lambda *args: asyncio.run(call(*args))


def by_sdk(name: str, max_retries: int = 0) -> Client:
    """The openai or the anthropic SDK."""
    kind = {"openai": "OpenAI", "anthropic": "Anthropic"}[name]
    sdk = importlib.import_module(name)

    def call(url: str, timeout_s: float = PATIENT_S) -> None:
        with getattr(sdk, kind)(api_key="k", base_url=url, max_retries=max_retries, timeout=timeout_s) as client:
            client.post("/charges", cast_to=object, body={})

    return call


def by_async_sdk(name: str, max_retries: int = 0) -> Client:
    kind = {"openai": "AsyncOpenAI", "anthropic": "AsyncAnthropic"}[name]
    sdk = importlib.import_module(name)

    async def call(url: str, timeout_s: float = PATIENT_S) -> None:
        async with getattr(sdk, kind)(api_key="k", base_url=url, max_retries=max_retries, timeout=timeout_s) as client:
            await client.post("/charges", cast_to=object, body={})

    return lambda *args: asyncio.run(call(*args))


def by_botocore(attempts: int = 1, *, key: str = "k") -> Client:
    session, config = (importlib.import_module(f"botocore.{name}") for name in ("session", "config"))

    def call(url: str, timeout_s: float = PATIENT_S) -> None:
        settings = config.Config(retries={"total_max_attempts": attempts}, connect_timeout=timeout_s, read_timeout=timeout_s)
        client = session.Session().create_client(
            "sqs", "eu-west-1", endpoint_url=url, aws_access_key_id=key, aws_secret_access_key="s", config=settings
        )
        try:
            client.send_message(QueueUrl=f"{url}/q", MessageBody="x")
        finally:
            client.close()

    return call


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
