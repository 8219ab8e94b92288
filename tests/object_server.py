"""An S3-compatible server for tests: moto's, in a process of its own, on a free port of this machine.

    object_server.py [loose]

moto looks whether an object is there and then writes it, and two requests at once can both find none. Amazon promises that one of
two create-only puts is refused, so such puts pass here one at a time; `loose` leaves moto as it is. What Google calls a create-only put is
understood as well, so that its client can be tried too.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
BUCKET = "bucket"
MOST_LISTED = 40
"""Names in one page of a list; Amazon's 1,000 would take long to fill."""
ENV = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests", "AWS_REGION": "us-east-1"}
"""What a process must have in its environment to be let in."""

SOMEBODY = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""What Google's client does not say."""

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def strict(app: App) -> App:
    """The same server, but a conditional write is one act: its bytes are all there before it begins, and nobody else writes meanwhile."""
    one_at_a_time = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not environ.get("HTTP_AUTHORIZATION", "").startswith("AWS"):
            environ["HTTP_AUTHORIZATION"] = SOMEBODY
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(environ, start_response)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        if environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH") == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        with one_at_a_time:
            return list(app(environ, start_response))

    return answer


def list_quickly() -> None:
    """For a list moto looks at every object of the bucket. Here it looks at those of the first folder: each store of a test has its own."""
    from moto.s3 import models as moto_models
    from moto.s3.utils import _VersionedKeyStore

    class Folders(_VersionedKeyStore):
        """All objects, and their names by folder."""

        def __init__(self) -> None:
            super().__init__()
            self.names: defaultdict[str, dict[str, None]] = defaultdict(dict)

        def __setitem__(self, key: str, value: Any) -> None:
            super().__setitem__(key, value)
            self.names[key.partition("/")[0]][key] = None

        def setlist(self, key: str, list_: Any) -> None:
            super().setlist(key, list_)
            self.names[key.partition("/")[0]][key] = None

        def pop(self, key: str) -> None:  # type: ignore[override]
            super().pop(key)
            self.names[key.partition("/")[0]].pop(key, None)

        def under(self, folder: str) -> _VersionedKeyStore:
            found = {name: self.getlist(name) for name in list(self.names[folder])}
            return _VersionedKeyStore({name: versions for name, versions in found.items() if versions})

    def list_objects(self: Any, bucket: Any, prefix: str | None, *more: Any, **others: Any) -> Any:
        if prefix and "/" in prefix:
            whole, bucket = bucket, copy(bucket)
            bucket.keys = whole.keys.under(prefix.partition("/")[0])
        return look(self, bucket, prefix, *more, **others)

    models: Any = moto_models
    look = models.S3Backend.list_objects
    models._VersionedKeyStore, models.S3Backend.list_objects = Folders, list_objects


def serve(*words: str) -> None:
    """Serve until standard input ends, which it does when whoever started this process is gone."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Nothing."""

    list_quickly()
    app: App = create_backend_app("s3")
    running = make_server(HOST, 0, app if "loose" in words else strict(app), threaded=True, request_handler=Quiet)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    print(running.server_port, flush=True)
    sys.stdin.read()


class Server:
    """One server with one bucket."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, __file__, *words]
        env = os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": str(MOST_LISTED)}
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT"), timeout=30).close()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def server(*words: str) -> Iterator[Server]:
    """A server of one's own."""
    started = Server(*words)
    try:
        yield started
    finally:
        started.stop()


@contextmanager
def shared(folder: Path) -> Iterator[str]:
    """The address of one server for all processes that test at the same time: the first starts it, and stops it last."""
    started: Server | None = None
    with _noted(folder) as note:
        if not note:
            started = Server()
            note |= {"users": [], "endpoint": started.endpoint}
        note["users"].append(os.getpid())
        endpoint = note["endpoint"]
    try:
        yield endpoint
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
    with (folder / "objects.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        note = json.loads(file.read() or "{}")
        yield note
        file.truncate(0)
        file.write(json.dumps(note))


if __name__ == "__main__":
    serve(*sys.argv[1:])
