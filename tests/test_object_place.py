"""A bucket as a place: names are given once, lost replies are recognised, and what passes is tried again, but not for ever."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import obstore
import pytest

from holdfast.errors import StoreError, StoreFailed
from holdfast.stores import _object_address, _object_place
from holdfast.stores._object_address import address_of
from holdfast.stores._object_place import ObjectPlace
from object_proxy import Proxy, Request, proxy
from object_server import BUCKET, MOST_LISTED

RACERS = 8
FAULTS = ("before", "after", "half", "503", "500", "429", "500 after", "409")


def opened(endpoint: str, prefix: str) -> ObjectPlace:
    return ObjectPlace(address_of(f"s3://{BUCKET}/{prefix}?endpoint={endpoint}"))


@pytest.fixture
def prefix() -> str:
    return f"p{secrets.token_hex(6)}"


@pytest.fixture
def place(object_endpoint: str, prefix: str) -> Iterator[ObjectPlace]:
    with closing(opened(object_endpoint, prefix)) as direct:
        yield direct


@pytest.fixture
def between(object_endpoint: str) -> Iterator[Proxy]:
    with proxy(object_endpoint) as opened_proxy:
        yield opened_proxy


@pytest.fixture
def through(between: Proxy, prefix: str) -> Iterator[ObjectPlace]:
    """The same place behind the proxy."""
    with closing(opened(between.endpoint, prefix)) as behind:
        yield behind


def test_a_name_is_given_once(place: ObjectPlace) -> None:
    assert place.create("runs/a/1.json", b"first")
    assert not place.create("runs/a/1.json", b"second")
    assert not place.create("runs/a/1.json", b"first")
    assert place.read("runs/a/1.json") == b"first"


def test_a_name_that_many_want_at_once_is_given_to_one(place: ObjectPlace) -> None:
    def race(number: int) -> int:
        with ThreadPoolExecutor(RACERS) as pool:
            return sum(pool.map(lambda racer: place.create(f"race/{number}", b"%d" % racer), range(RACERS)))

    assert [race(number) for number in range(10)] == [1] * 10


@pytest.mark.parametrize("fault", FAULTS)
def test_a_put_that_met_a_fault_is_made_once(through: ObjectPlace, between: Proxy, fault: str) -> None:
    between.next(fault, times=2)
    assert through.create("a", b"mine")
    assert through.read("a") == b"mine"
    assert fault in between.faults


@pytest.mark.parametrize("fault", ["before", "503", "409"])
def test_a_put_that_was_lost_and_overtaken_is_refused(place: ObjectPlace, through: ObjectPlace, between: Proxy, fault: str) -> None:
    place.create("a", b"theirs")
    between.next(fault)
    assert not through.create("a", b"mine")
    assert place.read("a") == b"theirs"


def test_without_reading_back_a_lost_reply_looks_like_a_refusal(
    through: ObjectPlace, between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: it is the reading back that tells our own bytes."""
    monkeypatch.setattr(ObjectPlace, "_taken_by", lambda *_: False)
    between.next("after")
    assert not through.create("a", b"mine")


def test_an_overwriting_put_would_let_everybody_in(place: ObjectPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the fence."""
    monkeypatch.setattr(obstore, "put", lambda *args, mode, put=obstore.put: put(*args))
    assert place.create("a", b"first")
    assert place.create("a", b"second")
    assert place.read("a") == b"second"


def test_names_beyond_one_page_are_whole_and_in_order(place: ObjectPlace) -> None:
    names = [f"{number:06}" for number in range(3 * MOST_LISTED + 5)]
    place.side_by_side(lambda name: place.create(f"many/{name}", b"x"), names[::-1])
    place.create("many2", b"x")
    place.create("other/1", b"x")
    assert place.names("many/") == names
    assert place.names("many/", after="000041") == names[42:]
    assert place.names("") == ["many/", "many2", "other/"]
    assert place.names("none/") == []
    assert place.room() == len(names) + 2


def test_a_page_that_fails_is_asked_for_again_alone(through: ObjectPlace, between: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_object_place, "PAGE", MOST_LISTED)
    names = [f"{number:02}" for number in range(2 * MOST_LISTED + 5)]
    through.side_by_side(lambda name: through.create(f"many/{name}", b"x"), names)
    listings = iter((None, "503"))
    between.fault = lambda _: next(listings, None)
    between.requests.clear()
    assert through.names("many/") == names
    assert ["start-after" in request.path for request in between.requests] == [False, False, True, True]


@pytest.mark.parametrize("name", ["^a%c3%bc~x.json", "a b", "=+,;()'", "a~" + "0" * 110])
def test_every_safe_name_comes_back_as_it_was(place: ObjectPlace, name: str) -> None:
    assert place.create(f"odd/{name}", b"1")
    assert place.names("odd/") == [name]
    assert place.read(f"odd/{name}") == b"1"


def test_the_names_of_a_vacated_folder_stay_taken_and_are_not_seen(place: ObjectPlace) -> None:
    for name in ("runs/a/old/1", "runs/a/old/2", "runs/a/new/1"):
        place.create(name, b"x")
    place.vacate("runs/a/old/")
    assert place.names("runs/a/old/") == []
    assert place.read("runs/a/old/1") is None
    assert not place.has("runs/a/old/2")
    assert not place.create("runs/a/old/1", b"late")
    assert place.fetch(["runs/a/old/1", "runs/a/new/1"]) == [None, b"x"]


def test_what_is_purged_leaves_nothing(place: ObjectPlace) -> None:
    place.create("runs/a/1", b"x")
    place.vacate("runs/a/")
    place.purge("runs/a/")
    assert place.names("runs/") == []
    assert place.create("runs/a/1", b"another life")


def test_what_is_replaced_and_removed_is(place: ObjectPlace) -> None:
    place.replace("a", b"1")
    place.replace("a", b"2")
    assert (place.read("a"), place.has("a")) == (b"2", True)
    place.remove("a")
    place.remove("a")
    assert (place.read("a"), place.has("a")) == (None, False)


ACTS: dict[str, Callable[[ObjectPlace], object]] = {
    "create": lambda place: place.create("a", b"1"),
    "read": lambda place: place.read("a"),
    "names": lambda place: place.names("a/"),
    "fetch": lambda place: place.fetch(["a", "b", "c"]),
    "replace": lambda place: place.replace("a", b"1"),
}


@pytest.mark.parametrize("fault", ["before", "503"])
@pytest.mark.parametrize("act", ACTS)
def test_trying_again_ends_and_says_what_is_true(
    through: ObjectPlace, between: Proxy, monkeypatch: pytest.MonkeyPatch, act: str, fault: str
) -> None:
    through.patience_s = 0.3
    between.fault = lambda _: fault
    with pytest.raises(StoreFailed) as failed:
        ACTS[act](through)
    assert ("not known" in str(failed.value)) == (act in ("create", "replace"))
    assert ("503 SlowDown" in str(failed.value)) == (fault == "503")
    assert 2 <= between.seen["GET"] + between.seen["PUT"] <= 12


@pytest.mark.parametrize("status", ["403", "401", "400"])
def test_what_does_not_pass_is_not_tried_again(through: ObjectPlace, between: Proxy, status: str) -> None:
    between.fault = lambda _: status
    with pytest.raises(StoreError, match=status):
        through.create("a", b"1")
    assert between.seen["PUT"] == 1


def test_a_server_that_says_nothing_is_left_after_a_while(
    between: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch, place: ObjectPlace
) -> None:
    monkeypatch.setattr(_object_address, "QUIET_S", 0.2)
    between.next("late")
    with closing(opened(between.endpoint, prefix)) as hasty:
        assert hasty.create("a", b"mine")
    between.release.set()
    assert place.read("a") == b"mine"


def test_a_put_that_arrives_after_its_sender_gave_up_does_not_overwrite(
    place: ObjectPlace, between: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_object_address, "QUIET_S", 0.2)
    between.fault = lambda request: "late" if request.creates else None
    with closing(opened(between.endpoint, prefix)) as hasty:
        hasty.patience_s = 0.1
        with pytest.raises(StoreFailed, match="not known"):
            hasty.create("a", b"late")
    assert place.create("a", b"theirs")
    between.release.set()
    assert place.read("a") == b"theirs"


def test_side_by_side_the_first_error_is_raised_when_all_have_ended(place: ObjectPlace) -> None:
    done: list[str] = []

    def work(name: str) -> None:
        if name == "1":
            raise StoreFailed("x", "broken")
        done.append(name)

    with pytest.raises(StoreFailed, match="broken"):
        place.side_by_side(work, [str(number) for number in range(40)])
    assert len(done) == 39


def test_a_child_process_is_told_that_the_client_did_not_survive_the_fork(place: ObjectPlace) -> None:
    place.create("a", b"1")
    child = os.fork()
    if child == 0:
        try:
            place.read("a")
        except StoreFailed as error:
            os._exit(7 if "spawn" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_googles_client_gives_a_name_once_too(
    object_endpoint: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = {"gcs_base_url": object_endpoint, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    with closing(ObjectPlace(address_of(f"gs://{BUCKET}/{prefix}?endpoint={object_endpoint}"))) as place:
        assert [place.create("runs/a/1", b"first"), place.create("runs/a/1", b"second")] == [True, False]
        assert (place.read("runs/a/1"), place.read("runs/a/2")) == (b"first", None)
        place.vacate("runs/")
        assert (place.names("runs/"), place.create("runs/a/1", b"late")) == ([], False)
        place.purge("runs/")
        assert list(place.sizes("")) == []


def creates(request: Request) -> bool:
    return request.creates


def test_one_create_is_one_request(through: ObjectPlace, between: Proxy) -> None:
    through.create("a", b"1")
    assert not through.create("a", b"2")
    assert dict(between.seen) == {"PUT": 2}
    assert all(map(creates, between.requests))
