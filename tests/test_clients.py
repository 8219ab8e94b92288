"""What the errors of real client libraries say, against a real service; those that are not installed are left out here.

The model SDKs and botocore are too large for the development environment; `test_landing` has them built by hand. Where they are installed,
they are tested here like the others.
"""

from __future__ import annotations

import importlib
import urllib.error
from collections.abc import Callable
from typing import Any

import pytest

from agents_for_tests.clients import (
    PATIENT_S,
    Client,
    by_aiohttp,
    by_async_httpx,
    by_async_sdk,
    by_botocore,
    by_http_client,
    by_httpx,
    by_requests,
    by_sdk,
    by_urllib,
    by_urllib3,
    installed,
)
from agents_for_tests.service import closed_url, serving
from holdfast._landing import landing

Maker = Callable[[], Client]

CLIENTS: dict[str, tuple[str, Maker]] = {
    "urllib": ("urllib", lambda: by_urllib),
    "http.client": ("http", lambda: by_http_client),
    "httpx": ("httpx", lambda: by_httpx("httpx")),
    "httpx, async": ("httpx", lambda: by_async_httpx("httpx")),
    "httpx2": ("httpx2", lambda: by_httpx("httpx2")),
    "httpx2, async": ("httpx2", lambda: by_async_httpx("httpx2")),
    "requests": ("requests", by_requests),
    "aiohttp": ("aiohttp", by_aiohttp),
    "openai": ("openai", lambda: by_sdk("openai")),
    "openai, async": ("openai", lambda: by_async_sdk("openai")),
    "anthropic": ("anthropic", lambda: by_sdk("anthropic")),
    "anthropic, async": ("anthropic", lambda: by_async_sdk("anthropic")),
    "botocore": ("botocore", by_botocore),
}
SAYS = {
    "404": "not_landed",
    "409": "not_landed",
    "429": "not_landed",
    "500": "unknown",
    "503": "unknown",
    "hang up": "unknown",
    "silence": "unknown",
    "truncated": "unknown",
    "nonsense": "unknown",
}
RAISES_FOR_NO_STATUS = "http.client"
TAKES_HALF_A_REPLY_FOR_WHOLE = "botocore"
HERE = [name for name, (package, _) in CLIENTS.items() if installed(package)]
pytestmark = pytest.mark.xdist_group("sdk")  # one process loads them
PAIRS = [
    (name, word)
    for name in HERE
    for word in SAYS
    if not (name == RAISES_FOR_NO_STATUS and word.isdigit()) and (name, word) != (TAKES_HALF_A_REPLY_FOR_WHOLE, "truncated")
]


def said(call: Client, *args: object) -> str:
    with pytest.raises(Exception) as caught:
        call(*args)
    if isinstance(caught.value, urllib.error.HTTPError):
        caught.value.close()
    return landing(caught.value, ())


@pytest.mark.parametrize(("client", "word"), PAIRS)
def test_what_came_back_says_whether_it_happened(client: str, word: str) -> None:
    with serving(word) as service:
        assert said(CLIENTS[client][1](), service.url, 0.3 if word == "silence" else PATIENT_S) == SAYS[word]
        assert len(service.seen) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("client", HERE)
def test_a_refused_connection_says_that_nothing_happened(client: str, host: str) -> None:
    assert said(CLIENTS[client][1](), closed_url(host)) == "not_landed"


@pytest.mark.parametrize("client", HERE)
def test_a_name_that_nobody_has_says_that_nothing_happened(client: str) -> None:
    assert said(CLIENTS[client][1](), "http://no-such-host.invalid") == "not_landed"


ANY_METHOD: dict[str, Any] = {"allowed_methods": None, "status_forcelist": [500]}
SEVERAL: dict[str, tuple[str, Maker, str]] = {
    "urllib, 303 then 404": ("urllib", lambda: by_urllib, "303, 404"),
    "urllib, 303 then gone": ("urllib", lambda: by_urllib, "303 gone"),
    "httpx, 303 then 404": ("httpx", lambda: by_httpx("httpx", follow_redirects=True), "303, 404"),
    "httpx, 303 then gone": ("httpx", lambda: by_httpx("httpx", follow_redirects=True), "303 gone"),
    "httpx, async, 303 then gone": ("httpx", lambda: by_async_httpx("httpx", follow_redirects=True), "303 gone"),
    "httpx2, 303 then 404": ("httpx2", lambda: by_httpx("httpx2", follow_redirects=True), "303, 404"),
    "httpx2, 303 then gone": ("httpx2", lambda: by_httpx("httpx2", follow_redirects=True), "303 gone"),
    "httpx2, async, 303 then gone": ("httpx2", lambda: by_async_httpx("httpx2", follow_redirects=True), "303 gone"),
    "requests, 303 then 404": ("requests", by_requests, "303, 404"),
    "requests, 303 then gone": ("requests", by_requests, "303 gone"),
    "requests with retries, 500 then 404": ("requests", lambda: by_requests(total=1, **ANY_METHOD), "500, 404"),
    "requests with retries, 500 then gone": ("requests", lambda: by_requests(total=1, **ANY_METHOD), "500 gone"),
    "requests with retries, hang up then 404": ("requests", lambda: by_requests(total=1, **ANY_METHOD), "hang up, 404"),
    "requests with retries, hang up then gone": ("requests", lambda: by_requests(total=1, **ANY_METHOD), "hang up gone"),
    "urllib3, 303 then gone": ("urllib3", lambda: by_urllib3(total=1), "303 gone"),
    "urllib3, 500 then gone": ("urllib3", lambda: by_urllib3(total=1, **ANY_METHOD), "500 gone"),
    "aiohttp, 303 then 404": ("aiohttp", by_aiohttp, "303, 404"),
    "aiohttp, 303 then gone": ("aiohttp", by_aiohttp, "303 gone"),
    "aiohttp, PUT, hang up then 404": ("aiohttp", lambda: by_aiohttp("PUT"), "hang up, 404"),
    "aiohttp, PUT, hang up then gone": ("aiohttp", lambda: by_aiohttp("PUT"), "hang up gone"),
    "openai with retries, 500 then 404": ("openai", lambda: by_sdk("openai", 1), "500, 404"),
    "openai with retries, 500 then gone": ("openai", lambda: by_sdk("openai", 1), "500 gone"),
    "openai, 303 then gone": ("openai", lambda: by_sdk("openai"), "303 gone"),
    "openai, 303 then 404": ("openai", lambda: by_sdk("openai"), "303, 404"),
    "anthropic with retries, 500 then 404": ("anthropic", lambda: by_sdk("anthropic", 1), "500, 404"),
    "anthropic with retries, 500 then gone": ("anthropic", lambda: by_sdk("anthropic", 1), "500 gone"),
    "anthropic, async, with retries, hang up then 429": ("anthropic", lambda: by_async_sdk("anthropic", 1), "hang up, 429"),
    "botocore with retries, 500 then 404": ("botocore", lambda: by_botocore(2), "500, 404"),
    "botocore with retries, 500 then gone": ("botocore", lambda: by_botocore(2), "500 gone"),
}


@pytest.mark.parametrize("case", [case for case, (package, *_) in SEVERAL.items() if installed(package)])
def test_the_last_of_several_requests_does_not_speak_for_the_first(case: str) -> None:
    _, client, plan = SEVERAL[case]
    words = plan.split(", ")
    with serving(*words) as service:
        assert said(client(), service.url) == "unknown"
        assert len(service.seen) == len(words)


ALL_REFUSED: dict[str, tuple[str, Maker, str]] = {
    "httpx, 307 then 404": ("httpx", lambda: by_httpx("httpx", follow_redirects=True), "307, 404"),
    "httpx, 307 then gone": ("httpx", lambda: by_httpx("httpx", follow_redirects=True), "307 gone"),
    "requests, 308 then 404": ("requests", by_requests, "308, 404"),
    "requests with retries, 429 then gone": (
        "requests",
        lambda: by_requests(total=1, allowed_methods=None, status_forcelist=[429]),
        "429 gone",
    ),
    "aiohttp, 307 then gone": ("aiohttp", by_aiohttp, "307 gone"),
}


@pytest.mark.parametrize("case", [case for case, (package, *_) in ALL_REFUSED.items() if installed(package)])
def test_earlier_requests_that_were_turned_away_leave_the_last_its_say(case: str) -> None:
    _, client, plan = ALL_REFUSED[case]
    with serving(*plan.split(", ")) as service:
        assert said(client(), service.url) == "not_landed"


RETRIED: dict[str, tuple[str, Maker, str]] = {
    "requests": ("requests", lambda: by_requests(total=2), "not_landed"),
    "urllib3": ("urllib3", lambda: by_urllib3(total=2), "not_landed"),
    "httpx": ("httpx", lambda: by_httpx("httpx"), "not_landed"),
    "aiohttp, PUT": ("aiohttp", lambda: by_aiohttp("PUT"), "not_landed"),
    "openai": ("openai", lambda: by_sdk("openai", 1), "unknown"),
    "anthropic": ("anthropic", lambda: by_sdk("anthropic", 1), "unknown"),
    "botocore": ("botocore", lambda: by_botocore(2), "unknown"),
}


@pytest.mark.parametrize("case", [case for case, (package, *_) in RETRIED.items() if installed(package)])
def test_refused_again_and_again_is_believed_of_clients_that_tell_each_attempt(case: str) -> None:
    _, client, word = RETRIED[case]
    assert said(client(), closed_url()) == word


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_aiohttp_may_have_sent_a_put_twice_so_its_status_proves_nothing(method: str) -> None:
    with serving("404") as service:
        assert said(by_aiohttp(method), service.url) == "unknown"


def test_a_call_that_botocore_does_not_send_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    session = importlib.import_module("botocore.session").Session()
    client = session.create_client("sqs", "eu-west-1", aws_access_key_id="k", aws_secret_access_key="s")
    assert said(lambda url: client.send_message(QueueUrl=url), closed_url()) == "not_landed"
    for name, value in (("AWS_EC2_METADATA_DISABLED", "true"), ("AWS_CONFIG_FILE", "none"), ("AWS_SHARED_CREDENTIALS_FILE", "none")):
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    bare = importlib.import_module("botocore.session").Session().create_client("sqs", "eu-west-1", endpoint_url=closed_url())
    assert said(lambda url: bare.send_message(QueueUrl=url, MessageBody="x"), closed_url()) == "not_landed"


def test_an_error_that_came_through_a_library_for_retries_proves_nothing() -> None:
    tenacity = importlib.import_module("tenacity")
    again = tenacity.retry(stop=tenacity.stop_after_attempt(2), reraise=True)
    with serving("500 gone") as service:
        assert said(again(by_httpx("httpx")), service.url) == "unknown"
        assert service.seen == ["POST"]
