"""Fingerprints of things outside that a run relies on: files, folders, URLs, environment variables, packages, anything.

A print says whether the thing is there, and what it is: `gone` and `unreachable` are told apart, because one is a fact and the other
is not.
Contents never enter a print, only their digest and a few words for people.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

State: TypeAlias = Literal["there", "gone", "unreachable"]
Thing: TypeAlias = str | Path | tuple[str, Callable[[], object]]

URL_TIMEOUT_S = 10.0
URL_LIMIT = 64 << 20
"""Bytes of a page without ETag and Last-Modified that are read to tell whether it changed."""

SPECIAL = "special"
"""Stands for the digest of what is neither a file nor a folder."""

MISSING_STATUSES = frozenset({404, 410})


@dataclass(frozen=True, slots=True, kw_only=True)
class Print:
    """What a thing was when it was looked at; `shown` is for people, `thing` is what to look at again, if that needs no code."""

    state: State
    digest: str = ""
    shown: str = ""
    thing: str = ""


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
        found = _look(thing)
    except Exception as error:  # noqa: BLE001 (a look that fails is an answer)
        found = Print(state="unreachable", shown=f"{type(error).__name__}: {error}"[:200])
    return replace(found, thing=_place(thing))


def is_url(thing: str) -> bool:
    """Whether a look at it is a request to somebody."""
    return thing.startswith(("http://", "https://"))


def _place(thing: Thing) -> str:
    """What to look at again, from any folder; nothing for what only a function sees."""
    if isinstance(thing, tuple):
        return ""
    if isinstance(thing, str) and (is_url(thing) or thing.startswith(("env:", "package:"))):
        return thing
    try:
        return str(Path(thing).absolute())
    except OSError:  # the current folder has been deleted
        return ""


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
        case str() if is_url(thing):
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
        digest, size = _file_digest(path)
    except FileNotFoundError:
        return Print(state="gone", shown="no such file")
    return Print(state="there", digest=digest, shown=f"{size} bytes" if digest != SPECIAL else "no regular file")


def _of_folder(folder: Path) -> Print:
    whole, count = hashlib.sha256(), 0
    for path in _files(folder):
        count += 1
        whole.update(f"{path.relative_to(folder)}\0{_file_digest(path)[0]}\0".encode("utf-8", "surrogateescape"))
    return Print(state="there", digest=whole.hexdigest(), shown=f"{count} files")


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield Path(root, name)


def _file_digest(path: Path) -> tuple[str, int]:
    """The digest of a file and its size; what has no end, such as a pipe or a device, is never read."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)
    except FileNotFoundError:
        if path.is_symlink():
            return f"-> {path.readlink()}", 0
        raise
    with file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            return SPECIAL, 0
        return hashlib.file_digest(file, "sha256").hexdigest(), about.st_size


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
