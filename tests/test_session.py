"""A session at a site is closed while the run waits for a one-time code: replay opens another, and cleanup runs once at the end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import holdfast as hf
import starting

RUN_ID, WAITS, KILLED = "session", 75, -signal.SIGKILL
MODES = ("async", "def")
CODE, COOKIE = "1234", "session=7"


class Site(ThreadingHTTPServer):
    """Counts what is done to it; gives the bill to the session that logged in, with the code that was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Door)
        self.did: Counter[str] = Counter()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def do_POST(self) -> None:
        what = self.path.split("/")[1]
        self.server.did[what] += 1
        allowed = what != "bill" or (self.path, self.headers["Cookie"]) == (f"/bill/{CODE}", COOKIE)
        body = {"login": COOKIE, "bill": "17 euro"}.get(what, "fine").encode() if allowed else b"who are you?"
        self.send_response(200 if allowed else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        site.shutdown()
        thread.join()


class Play:
    """The agent in processes of its own, one after another."""

    def __init__(self, site: Site, folder: Path, mode: str) -> None:
        self.site, self.store, self.mode, self.told = site, folder / "runs.db", mode, ""

    def process(self, *more: str, failpoint: str = "") -> int:
        words = [sys.executable, "-m", "agents_for_tests.session_agent", self.site.address, str(self.store), self.mode, *more]
        environment = {**os.environ, **({"HOLDFAST_FAILPOINT": failpoint} if failpoint else {})}
        done = starting.run(words, cwd=Path(__file__).parent, env=environment, text=True, timeout=60)
        assert done.returncode in (0, WAITS, KILLED), done.stderr
        self.told = done.stdout.strip()
        return done.returncode

    def answer(self) -> None:
        with hf.Holdfast(self.store) as app:
            app.answer(RUN_ID, "2", CODE, by="ann")


@pytest.mark.parametrize("mode", MODES)
def test_the_session_is_closed_while_it_waits_and_another_goes_on_with_its_cookie(site: Site, tmp_path: Path, mode: str) -> None:
    play = Play(site, tmp_path, mode)
    assert [play.process(), play.process()] == [WAITS, WAITS]
    assert site.did == {"open": 2, "login": 1, "close": 2}
    play.answer()
    assert (play.process(), play.told) == (0, "17 euro")
    assert (play.process(), play.told) == (0, "17 euro")
    assert site.did == {"open": 3, "login": 1, "close": 3, "bill": 1, "forget": 1}


@pytest.mark.parametrize(
    ("mode", "asking", "going_on"),
    [
        ("async", "ask.before", "claim.after"), ("async", "ask.after", "wait.after_outcome"),
        ("async", "park.before", "run.before_done"), ("def", "park.after", "run.after_done"), ("def", "ask.after", "run.before_done"),
    ],
)
def test_killed_before_and_after_the_answer_it_logs_in_once_and_cleans_up_once(
    site: Site, tmp_path: Path, mode: str, asking: str, going_on: str
) -> None:
    play = Play(site, tmp_path, mode)
    assert [play.process(failpoint=asking), play.process()] == [KILLED, WAITS]
    assert site.did["forget"] == 0
    play.answer()
    assert [play.process(failpoint=going_on), play.process()] == [KILLED, 0]
    assert play.told == "17 euro"
    assert (site.did["login"], site.did["bill"], site.did["forget"]) == (1, 1, 1)


@pytest.mark.parametrize("mode", MODES)
def test_in_place_the_same_session_goes_on(site: Site, tmp_path: Path, mode: str) -> None:
    play = Play(site, tmp_path, mode)
    ended: list[int] = []
    waiting = threading.Thread(target=lambda: ended.append(play.process("60s")))
    waiting.start()
    while not play.store.exists() or not _asked(play.store):
        waiting.join(0.02)
    play.answer()
    waiting.join()
    assert (ended, play.told) == ([0], "17 euro")
    assert site.did == {"open": 1, "login": 1, "close": 1, "bill": 1, "forget": 1}


def _asked(store: Path) -> bool:
    with hf.Holdfast(store) as app:
        return bool(app.inbox())
