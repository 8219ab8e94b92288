"""Opening a store of objects: what a URL means, what goes wrong at the door, that no secret is shown, and what things cost in requests."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import closing

import obstore
import pytest

from holdfast.errors import StoreError, StoreFailed, StoreForeign, StoreNewer
from holdfast.store import Query
from holdfast.stores import _object_address, objects
from holdfast.stores._machine_folder import machine_folder
from holdfast.stores._object_address import address_of
from holdfast.stores._object_errors import Said, from_objects, said_by
from holdfast.stores._sealed import with_seal
from holdfast.stores.objects import ObjectStore
from holdfast.stores.opening import open_store
from holdfast.testing.sample import create, onward
from object_proxy import Proxy, proxy
from object_server import BUCKET, ENV, HOST

SECRET = ENV["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture
def url(object_endpoint: str) -> str:
    return f"s3://{BUCKET}/o{secrets.token_hex(6)}?endpoint={object_endpoint}"


@pytest.mark.parametrize(
    ("url", "prefix", "options", "shown"),
    [
        ("s3://bucket", "", {}, "s3://bucket"),
        ("s3://bucket/", "", {}, "s3://bucket"),
        ("s3://bucket/a//b/", "a/b", {}, "s3://bucket/a/b"),
        ("s3://bucket/a?region=eu-central-1", "a", {"region": "eu-central-1"}, "s3://bucket/a?region=eu-central-1"),
        ("s3://bucket?endpoint=http://h:9/x", "", {"endpoint": "http://h:9/x"}, "s3://bucket?endpoint=http://h:9/x"),
        ("gs://bucket/a", "a", {}, "gs://bucket/a"),
        ("az://container/a?account=ann", "a", {"account_name": "ann"}, "az://container/a?account=ann"),
    ],
)
def test_a_url_names_a_bucket_a_prefix_and_options(url: str, prefix: str, options: dict[str, str], shown: str) -> None:
    address = address_of(url)
    assert (address.prefix, address.options, address.shown) == (prefix, options, shown)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://b/prefix", "has 3 characters or more"),
        ("s3://my bucket/prefix", "no bucket can have this name"),
        (f"s3://key:{SECRET}@bucket", "credentials do not belong"),
        (f"s3://bucket?secret_access_key={SECRET}", "only endpoint and region can stand behind"),
        ("s3://bucket?region=", "each with a value"),
        (f"s3://bucket?endpoint=http://key:{SECRET}@host", "credentials do not belong"),
        ("s3://bucket/../other", "no name can begin like that"),
        ("s3://bucket/a b", "no name can begin like that"),
        ("az://container/a", "Account must be specified"),
    ],
)
def test_a_url_that_cannot_be_meant_is_said_without_its_secrets(url: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match=words) as refused:
        open_store(url)
    assert SECRET not in str(refused.value)


def test_a_missing_extra_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.stores.objects", None)
    with pytest.raises(StoreError, match=r'pip install "holdfast\[objects\]"'):
        open_store("s3://bucket/prefix")


def test_a_missing_bucket_is_said(object_endpoint: str) -> None:
    with pytest.raises(StoreError, match="there is no bucket 'no-such-bucket'"):
        open_store(f"s3://no-such-bucket?endpoint={object_endpoint}")


def test_a_host_that_cannot_be_reached_is_said_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "OPENING_S", 0.1)
    with closing(socket.create_server((HOST, 0))) as free:
        port = free.getsockname()[1]
    with pytest.raises(StoreFailed, match="cannot be reached"):
        open_store(f"s3://bucket?endpoint=http://{HOST}:{port}")


@pytest.fixture
def between(object_endpoint: str) -> Iterator[Proxy]:
    with proxy(object_endpoint) as opened:
        yield opened


@pytest.mark.parametrize("status", ["401", "403"])
def test_refused_access_is_said_without_the_secret(between: Proxy, status: str) -> None:
    between.fault = lambda _: status
    with pytest.raises(StoreError, match="access was refused") as refused:
        open_store(f"s3://{BUCKET}/a?endpoint={between.endpoint}")
    assert "AWS_SECRET_ACCESS_KEY" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert len(between.requests) == 1


def test_a_server_that_overwrites_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstore, "put", lambda *args, mode=None, put=obstore.put, **options: put(*args, **options))
    with pytest.raises(StoreError, match="this server overwrites what it was told only to create"):
        open_store(url)


def test_a_marker_that_is_not_ours_or_from_the_future_is_refused(url: str) -> None:
    client = address_of(url).client()
    obstore.put(client, "holdfast.json", b"{}")
    with pytest.raises(StoreForeign, match="Write another prefix"):
        open_store(url)
    obstore.put(client, "holdfast.json", with_seal({"format": 99}))
    with pytest.raises(StoreNewer, match="newer Holdfast"):
        open_store(url)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Server returned non-2xx status code: 503 X: <Error><Code>SlowDown</Code>", Said(503, "SlowDown")),
        ("Error performing PUT http://169.254.169.254/latest: status code: 404", Said(403, "NoCredentials")),
        ("Received redirect without LOCATION", Said(301, "PermanentRedirect")),
        ("HTTP error: error sending request", Said(0, "")),
    ],
)
def test_an_error_is_read_for_its_status_and_word(text: str, said: Said) -> None:
    assert said_by(obstore.exceptions.BaseError(text)) == said


@pytest.mark.parametrize(("status", "words"), [(507, "no room"), (501, "create-only puts"), (301, "region="), (400, "does not do it")])
def test_what_a_server_refuses_is_said_with_what_to_do(status: int, words: str) -> None:
    said = obstore.exceptions.BaseError(f"status code: {status} at https://h/x?sig={SECRET}")
    error = from_objects(said, address_of("s3://bucket"), "So")
    assert words in str(error)
    assert SECRET not in str(error)


def test_plain_http_is_spoken_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _object_address.ENDPOINTS["s3"]:
        monkeypatch.delenv(name, raising=False)
    assert not address_of("s3://bucket")._plain_http()
    assert not address_of("s3://bucket?endpoint=https://host")._plain_http()
    assert address_of("s3://bucket?endpoint=http://host")._plain_http()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://host")
    assert address_of("s3://bucket")._plain_http()


def test_the_folder_of_this_machine_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = machine_folder("s3://bucket")
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert folder != machine_folder("s3://other")
    folder.parent.chmod(0o777)
    with pytest.raises(PermissionError):
        machine_folder("s3://bucket")


# --- what things cost ------------------------------------------------------------------------------------------------------


class Meter:
    """A store behind a proxy that counts."""

    def __init__(self, between: Proxy) -> None:
        self.between = between
        self.store = ObjectStore(f"s3://{BUCKET}/o{secrets.token_hex(6)}?endpoint={between.endpoint}")

    def cost(self) -> str:
        """What was asked for since the last time."""
        kinds = ["LIST" if "list-type" in one.path else one.method for one in self.between.requests]
        self.between.requests.clear()
        return " ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))


@pytest.fixture
def meter(between: Proxy) -> Iterator[Meter]:
    one = Meter(between)
    yield one
    one.store.close()


def test_an_append_is_one_request(meter: Meter) -> None:
    store = meter.store
    assert meter.cost() == "1 GET 2 PUT"
    store.append([create("run")])
    assert meter.cost() == "2 HEAD 1 LIST 2 PUT"
    store.append([onward("run", 1)])
    assert meter.cost() == "1 PUT"
    store.append([create("other")])
    meter.cost()
    store.append([onward("run", 2), onward("other", 1)])
    assert meter.cost() == "2 PUT"


def test_listing_costs_one_request_for_a_page_of_names_and_one_for_each_run_that_moved(meter: Meter, object_endpoint: str) -> None:
    for number in range(5):
        meter.store.append([create(f"run{number}")])
    with closing(ObjectStore(meter.store.url)) as other:
        meter.cost()
        assert len(other.heads(Query())) == 5
        assert meter.cost() == "5 GET 1 LIST"
        assert len(other.heads(Query())) == 5
        assert meter.cost() == "1 LIST"
        meter.store.append([onward("run3", 1)])
        meter.cost()
        assert sorted(head.seq for head in other.heads(Query())) == [1, 1, 1, 1, 2]
        assert meter.cost() == "1 GET 1 LIST"
        assert other.heads(Query(addressed=True)) == []
        assert meter.cost() == "1 LIST"


def test_an_idle_owner_costs_one_put_for_a_beat_and_one_list_for_the_letters_of_all_its_runs(meter: Meter) -> None:
    store = meter.store
    store.enroll("me")
    meter.cost()
    store.renew("me")
    store.renew("me")
    meter.cost()
    store.renew("me")
    assert meter.cost() == "1 PUT"
    pulse = store.pulse("me")
    assert pulse is not None
    assert pulse.beat == 4
    meter.cost()
    assert store.letters([f"run{number}" for number in range(20)]) == []
    assert meter.cost() == "1 LIST"


def test_loading_costs_one_list_and_a_get_for_each_commit(meter: Meter) -> None:
    meter.store.append([create("run")])
    for seq in range(1, 4):
        meter.store.append([onward("run", seq)])
    meter.cost()
    meter.store.load("run")
    assert meter.cost() == "4 GET 1 LIST"
    meter.store.append([onward("run", 4)])
    meter.cost()
    meter.store.load("run")
    assert meter.cost() == "1 GET 1 LIST"
    meter.store.head("run")
    assert meter.cost() == "1 GET 1 HEAD"
    meter.store.post("run", "cancel", b"{}", 1)
    assert meter.cost() == "1 LIST 1 PUT"


def test_credentials_come_from_the_environment(url: str) -> None:
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
    with closing(ObjectStore(url)) as store:
        assert store.url == url
