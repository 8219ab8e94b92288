"""A disk under the store of readable files that refuses, or forgets what was not flushed: `os`, with every write seen."""

# ruff: noqa: PTH102, PTH104, PTH105, PTH108 (this stands for `os`)

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from holdfast.stores import _files_place, _files_views

MODULES = (_files_place, _files_views)
CALLS = ("open", "write", "fsync", "link", "replace", "rename", "mkdir")
"""What changes a disk, but for removals: those need no room."""


class Refusing:
    """`os`, whose so many-th write, flush, link or the like fails."""

    def __init__(self, at: int = 0, error: int = 0) -> None:
        self.at, self.error, self.calls = at, error, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        return self._counted(name, found) if name in CALLS else found

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return call(*args, **kwargs)
            self.calls += 1
            if self.calls == self.at:
                raise OSError(self.error, os.strerror(self.error))
            return None if name == "fsync" else call(*args, **kwargs)

        return counted


@contextmanager
def under(disk: Any) -> Iterator[None]:
    """The store of files, on this disk."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "os", disk)
        yield


class Event(NamedTuple):
    """Something that was done to the disk; `acked` is what the store had acknowledged by then."""

    what: str
    path: str
    data: bytes = b""
    target: str = ""


class Recording:
    """`os`, which writes down what is done; flushes are not waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        fd = os.open(path, flags, mode)
        self._paths[fd] = path
        if flags & os.O_CREAT:
            self.events.append(Event("create", path))
        return fd

    def write(self, fd: int, data: bytes) -> int:
        written = os.write(fd, data)
        self.events.append(Event("write", self._paths[fd], bytes(data[:written])))
        return written

    def fsync(self, fd: int) -> None:
        self.events.append(Event("fsync", self._paths[fd]))

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        os.mkdir(path, mode)
        self.events.append(Event("mkdir", path))

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self.events.append(Event("unlink", path))

    def link(self, source: str, target: str) -> None:
        os.link(source, target)
        self.events.append(Event("link", source, target=target))

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)
        self.events.append(Event("rename", source, target=target))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)
        self.events.append(Event("rename", source, target=target))
