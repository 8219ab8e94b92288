"""Fingerprints of things outside that a run relies on: files, folders, URLs, environment variables, packages, anything.

A print says whether the thing is there, and what it is: `gone` and `unreachable` are told apart, because one is a fact and the other
is not.
Contents never enter a print, only their digest and a few words for people.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

State: TypeAlias = Literal["there", "gone", "unreachable"]
Thing: TypeAlias = str | Path | tuple[str, Callable[[], object]]

URL_TIMEOUT_S = 10.0
URL_LIMIT = 64 << 20
"""Bytes of a page without ETag and Last-Modified that are read to tell whether it changed."""

MISSING_STATUSES = frozenset({404, 410})


@dataclass(frozen=True, slots=True, kw_only=True)
class Print:
    """What a thing was when it was looked at; `shown` is for people."""

    state: State
    digest: str = ""
    shown: str = ""


def name_of(thing: Thing) -> str:
    """Under which name a thing is watched: watching the same name again renews it."""
    match thing:
        case (str() as name, _):
            return name
        case Path():
            return str(thing)
        case _:
            return str(thing)


def take(thing: Thing) -> Print:
    """Look at a thing now; what goes wrong while looking is `unreachable`, never an error."""
    try:
        return _look(thing)
    except Exception as error:  # noqa: BLE001 (a look that fails is an answer)
        return Print(state="unreachable", shown=f"{type(error).__name__}: {error}"[:200])


def difference(old: Print, new: Print) -> Literal["", "changed", "gone", "unreachable", "appeared"]:
    """What became of a thing; nothing where it is the same."""
    if new.state == "unreachable":
        return "unreachable"
    if old.state != new.state:
        return "gone" if new.state == "gone" else "appeared"
    return "" if old.digest == new.digest else "changed"


def _look(thing: Thing) -> Print:
    match thing:
        case (str(), fn):
            return _of_value(fn())
        case str() if thing.startswith(("http://", "https://")):
            return _of_url(thing)
        case str() if thing.startswith("env:"):
            return _of_variable(thing.removeprefix("env:"))
        case str() if thing.startswith("package:"):
            return _of_package(thing.removeprefix("package:"))
    return _of_path(Path(str(thing)))


def _of_path(path: Path) -> Print:
    if path.is_dir():
        return _of_folder(path)
    try:
        digest = _file_digest(path)
    except FileNotFoundError:
        return Print(state="gone", shown="no such file")
    return Print(state="there", digest=digest, shown=f"{path.stat().st_size} bytes")


def _of_folder(folder: Path) -> Print:
    whole, count = hashlib.sha256(), 0
    for path in _files(folder):
        count += 1
        whole.update(f"{path.relative_to(folder)}\0{_file_digest(path)}\0".encode("utf-8", "surrogateescape"))
    return Print(state="there", digest=whole.hexdigest(), shown=f"{count} files")


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield Path(root, name)


def _file_digest(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return f"-> {path.readlink()}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_variable(name: str) -> Print:
    value = os.environ.get(name)
    if value is None:
        return Print(state="gone", shown="not set")
    digest = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
    return Print(state="there", digest=digest, shown=f"set, {len(value)} characters")


def _of_package(name: str) -> Print:
    import importlib.metadata

    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Print(state="gone", shown="not installed")
    return Print(state="there", digest=version, shown=version)


def _of_value(value: object) -> Print:
    if value is None:
        return Print(state="gone", shown="None")
    text = json.dumps(value, sort_keys=True, default=str)
    return Print(state="there", digest=hashlib.sha256(text.encode()).hexdigest(), shown=text[:200])


def _of_url(url: str) -> Print:
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, headers={"User-Agent": "holdfast"})  # noqa: S310 (name it http or https: checked above)
    try:
        with urllib.request.urlopen(request, timeout=URL_TIMEOUT_S) as reply:  # noqa: S310 (the same)
            for header in ("ETag", "Last-Modified"):
                if reply.headers.get(header):
                    return Print(state="there", digest=reply.headers[header], shown=f"{header} {reply.headers[header]}")
            body = reply.read(URL_LIMIT)
    except urllib.error.HTTPError as error:
        if error.code in MISSING_STATUSES:
            return Print(state="gone", shown=f"HTTP {error.code}")
        raise
    return Print(state="there", digest=hashlib.sha256(body).hexdigest(), shown=f"{len(body)} bytes")
