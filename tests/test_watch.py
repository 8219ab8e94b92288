"""What changed while the run was dead is noticed before its first new step; gone, changed and unreachable are told apart."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import holdfast as hf
from crashing import Crash
from holdfast import sync
from holdfast.life import watch
from holdfast.life.prints import Print, difference, take
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Rig


class Reader:
    """A run that watches something, is interrupted, and goes on."""

    def __init__(self, thing: Any, on_change: Any = "ask", *, renew: Callable[[], None] | None = None) -> None:
        self.store, self.steps, crashes = MemoryStore(), list[str](), [Crash()]

        @hf.step
        def read(what: str) -> str:
            self.steps.append(what)
            return what

        @hf.agent
        def follow() -> str:
            hf.watch(thing, on_change=on_change)
            read("first")
            if renew is not None:
                renew()
                hf.watch(thing, on_change=on_change)
                read("renewed")
            if crashes:
                raise crashes.pop()
            return read("second")

        self.agent = follow

    def run(self) -> str:
        return hf.run(self.agent, run_id="r", store=self.store, wait=False)

    def interrupted(self) -> Reader:
        with pytest.raises(Crash):
            self.run()
        return self

    def answer(self, *, yes: bool) -> None:
        with hf.Holdfast(self.store) as app:
            question = app.show("r").waits
            assert "Go on with it as it is?" in question
            head = self.store.load("r")
            assert head is not None
            asked = next(row.step_id for row in reversed(head[1]) if row.kind == "ask.opened")
            app.answer("r", asked, yes=yes, by="ann")


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text("1")
    return path


def test_what_is_the_same_goes_on_unasked(prices: Path) -> None:
    reader = Reader(prices).interrupted()
    assert reader.run() == "second"
    assert reader.steps == ["first", "second"]


def test_a_change_is_put_before_a_person_who_sees_old_and_new(prices: Path) -> None:
    reader = Reader(prices).interrupted()
    prices.write_text("234")
    with pytest.raises(hf.RunWaiting, match=r"prices\.csv is changed: it was 1 bytes, it is 3 bytes"):
        reader.run()
    assert reader.steps == ["first"]
    reader.answer(yes=True)
    assert reader.run() == "second"


def test_a_doubt_that_the_run_has_not_come_to_yet_is_not_put_before_the_person_who_is_asked_about_the_change(prices: Path) -> None:
    @hf.effect(in_doubt=hf.verify(lambda: hf.Landed(3), settle=0))
    def edit() -> int:
        prices.write_text("234")
        return 3

    @hf.agent
    def editing() -> int:
        hf.watch(prices)
        return edit()

    with Rig() as rig:
        rig.crash(inside="edit")
        rig.start(editing, run_id="r")
        with rig.app() as app:
            assert [item.kind for item in app.inbox()] == ["drift"]
            assert "happen" not in app.show("r").waits
            app.answer("r", f"watch:{prices}", yes=True)
        assert (rig.result("r"), rig.count("edit")) == (3, 1)


def test_a_no_gives_up(prices: Path) -> None:
    reader = Reader(prices).interrupted()
    prices.unlink()
    with pytest.raises(hf.RunWaiting, match=r"prices\.csv is gone"):
        reader.run()
    reader.answer(yes=False)
    with pytest.raises(hf.Drifted, match="gone"):
        reader.run()
    assert reader.steps == ["first"]


def test_an_answer_is_bound_to_what_was_shown(prices: Path) -> None:
    reader = Reader(prices).interrupted()
    prices.write_text("22")
    with pytest.raises(hf.RunWaiting):
        reader.run()
    reader.answer(yes=True)
    prices.write_text("333")
    with pytest.raises(hf.RunWaiting, match="it is 3 bytes"):
        reader.run()


def test_what_was_accepted_is_not_asked_again(prices: Path) -> None:
    reader = Reader(prices, "warn").interrupted()
    prices.write_text("22")
    assert reader.run() == "second"
    found = reader.store.load("r")
    assert found is not None
    assert [row.kind for row in found[1]].count("watch.drifted") == 1


def test_fail_raises_and_goes_on_when_the_thing_is_back(prices: Path) -> None:
    reader = Reader(prices, "fail").interrupted()
    prices.write_text("22")
    with pytest.raises(hf.Drifted, match="changed since the run last looked"):
        reader.run()
    prices.write_text("1")
    assert reader.run() == "second"


def test_a_function_repairs(prices: Path) -> None:
    told: list[tuple[str, str]] = []

    def repair(name: str, old: str, new: str) -> None:
        told.append((old, new))
        prices.write_text("1")

    reader = Reader(prices, repair).interrupted()
    prices.write_text("22")
    assert reader.run() == "second"
    assert told == [("1 bytes", "2 bytes")]


def test_watching_the_same_name_again_renews_it(prices: Path) -> None:
    def own_edit() -> None:
        prices.write_text("my own edit")

    reader = Reader(prices, renew=own_edit).interrupted()
    assert reader.run() == "second"
    assert reader.steps == ["first", "renewed", "second"]


def test_without_the_comparison_the_change_is_not_noticed(prices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "difference", lambda old, new: "")
    reader = Reader(prices, "fail").interrupted()
    prices.write_text("22")
    assert reader.run() == "second"


class Branches:
    """A run whose three branches rely on a file; it is interrupted before any of them has begun."""

    def __init__(self, path: Path, on_change: Any) -> None:
        self.store, self.steps, crashes = MemoryStore(), list[str](), [Crash()]

        @hf.step
        async def read(what: str) -> str:
            self.steps.append(what)
            return what

        @hf.agent
        async def follow() -> list[str]:
            hf.watch(path, on_change=on_change)
            await read("first")
            if crashes:
                raise crashes.pop()
            return list(await hf.gather(read("a"), read("b"), read("c")))

        self.agent = follow
        with pytest.raises(Crash):
            self.run()
        path.write_text("22")

    def run(self) -> list[str]:
        return hf.run(self.agent, run_id="r", store=self.store, wait=False)

    def kinds(self) -> list[str]:
        found = self.store.load("r")
        assert found is not None
        return [row.kind for row in found[1] if row.kind.startswith(("watch", "ask"))]


@pytest.mark.parametrize("yes", [True, False])
def test_no_branch_goes_on_before_the_answer_nor_after_a_no(prices: Path, yes: bool) -> None:  # noqa: FBT001
    branches = Branches(prices, "ask")
    with pytest.raises(hf.RunWaiting):
        branches.run()
    assert branches.steps == ["first"]
    with hf.Holdfast(branches.store) as app:
        app.answer("r", f"watch:{prices}", yes=yes, by="ann")
    if yes:
        assert branches.run() == ["a", "b", "c"]
        assert branches.kinds() == ["watch.taken", "watch.drifted", "ask.opened", "ask.answered", "watch.taken"]
    else:
        with pytest.raises(hf.Drifted):
            branches.run()
        assert branches.steps == ["first"]


def test_no_branch_goes_on_where_the_change_is_refused(prices: Path) -> None:
    branches = Branches(prices, "fail")
    with pytest.raises(hf.Drifted):
        branches.run()
    assert branches.steps == ["first"]


def test_branches_wait_for_the_one_that_repairs(prices: Path) -> None:
    told: list[list[str]] = []

    def put_back() -> None:
        prices.write_text("1")

    async def repair(name: str, old: str, new: str) -> None:
        await asyncio.sleep(0)
        told.append(list(branches.steps))
        put_back()

    branches = Branches(prices, repair)
    assert branches.run() == ["a", "b", "c"]
    assert told == [["first"]]


def test_threads_wait_for_the_one_answer_too(prices: Path) -> None:
    store, steps, crashes = MemoryStore(), list[str](), [Crash()]

    @hf.step
    def read(what: str) -> str:
        steps.append(what)
        return what

    @hf.agent
    def follow() -> list[str]:
        hf.watch(prices)
        read("first")
        if crashes:
            raise crashes.pop()
        return list(sync.gather(lambda: read("a"), lambda: read("b"), lambda: read("c")))

    with pytest.raises(Crash):
        hf.run(follow, run_id="r", store=store)
    prices.write_text("22")
    with pytest.raises(hf.RunWaiting):
        hf.run(follow, run_id="r", store=store, wait=False)
    assert steps == ["first"]
    with hf.Holdfast(store) as app:
        app.answer("r", f"watch:{prices}", yes=True, by="ann")
    assert hf.run(follow, run_id="r", store=store, wait=False) == ["a", "b", "c"]


def test_a_blocking_step_on_the_event_loop_does_not_wait_for_other_branches(prices: Path) -> None:
    store, crashes = MemoryStore(), [Crash()]

    @hf.step
    async def read(what: str) -> str:
        return what

    @hf.step
    def glance(what: str) -> str:
        return what

    async def glancing() -> str:
        return glance("b")

    @hf.agent
    async def follow() -> list[str]:
        hf.watch(prices)
        await read("first")
        if crashes:
            raise crashes.pop()
        return list(await hf.gather(read("a"), glancing()))

    with pytest.raises(Crash):
        hf.run(follow, run_id="r", store=store)
    prices.write_text("22")
    with pytest.raises(hf.RunWaiting):
        hf.run(follow, run_id="r", store=store, wait=False)
    with hf.Holdfast(store) as app:
        app.answer("r", f"watch:{prices}", yes=True, by="ann")
    assert hf.run(follow, run_id="r", store=store, wait=False) == ["a", "b"]


@pytest.mark.parametrize("on_change", ["ask", "fail"])
def test_the_cleanup_of_a_run_without_a_new_step_relies_on_nothing(prices: Path, on_change: Any) -> None:
    store, cleaned, crashes = MemoryStore(), list[str](), [Crash()]

    @hf.step
    def read() -> str:
        return "read"

    @hf.agent
    def follow() -> str:
        hf.watch(prices, on_change=on_change)
        hf.cleanup(cleaned.append, "swept")
        text = read()
        if crashes:
            raise crashes.pop()
        return text

    with pytest.raises(Crash):
        hf.run(follow, run_id="r", store=store)
    prices.write_text("22")
    assert hf.run(follow, run_id="r", store=store, wait=False) == "read"
    assert cleaned == ["swept"]


def test_a_folder_changes_with_any_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_text("1")
    before = take(tmp_path)
    assert difference(before, take(tmp_path)) == ""
    (tmp_path / "deep" / "a").rename(tmp_path / "deep" / "b")
    assert difference(before, take(tmp_path)) == "changed"


def test_variables_packages_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_WATCHED", "one")
    before = take("env:HF_WATCHED")
    assert "one" not in before.shown
    monkeypatch.setenv("HF_WATCHED", "two")
    assert difference(before, take("env:HF_WATCHED")) == "changed"
    monkeypatch.delenv("HF_WATCHED")
    assert difference(before, take("env:HF_WATCHED")) == "gone"
    assert take("package:pydantic").state == "there"
    assert take("package:no-such-package").state == "gone"
    assert difference(take(("n", lambda: 1)), take(("n", lambda: 2))) == "changed"
    assert take(("n", lambda: 1 // 0)).state == "unreachable"


class Pages(BaseHTTPRequestHandler):
    headers_to_send: dict[str, str] = {}  # noqa: RUF012 (a test sets it)
    status, body = 200, b"page"

    def do_GET(self) -> None:
        self.send_response(type(self).status)
        for name, value in {**type(self).headers_to_send, "Content-Length": str(len(type(self).body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(type(self).body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[str, type[Pages]]]:
    pages = type("Fresh", (Pages,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), pages)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", pages
    server.shutdown()
    server.server_close()


def test_a_page_is_told_by_etag_then_date_then_content(site: tuple[str, type[Pages]]) -> None:
    url, pages = site
    plain = take(url)
    pages.body = b"other"
    assert difference(plain, take(url)) == "changed"
    pages.headers_to_send = {"ETag": '"1"'}
    tagged = take(url)
    pages.body = b"the tag stays"
    assert difference(tagged, take(url)) == ""
    pages.headers_to_send = {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
    assert "Last-Modified" in take(url).shown


def test_a_page_that_is_gone_is_not_one_that_cannot_be_reached(site: tuple[str, type[Pages]]) -> None:
    url, pages = site
    before = take(url)
    pages.status = 404
    assert difference(before, take(url)) == "gone"
    pages.status = 500
    assert difference(before, take(url)) == "unreachable"
    assert difference(before, take("http://127.0.0.1:1/")) == "unreachable"


def test_states_are_compared_before_digests() -> None:
    there, gone = Print(state="there", digest="d"), Print(state="gone")
    assert difference(gone, there) == "appeared"
    assert difference(there, gone) == "gone"
    assert difference(gone, gone) == ""
    assert os.sep not in there.shown
