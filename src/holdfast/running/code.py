"""The print of the code that executes an agent: a few characters by which two deploys are told apart.

It is made of what the files hold that define the agent, of all that was loaded from beside or below them, and of the agent's
`version=`: of names relative to their folder and of contents, so that it is the same on every machine. The standard library, installed
packages and Holdfast do not count, nor does what is imported later. No run is bound to a print: it only says who has tried.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast._clock import SystemClock

LENGTH = 10
"""Characters of a print."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
FOREIGN = (Path(os.__file__).absolute().parent, Path(__file__).absolute().parent.parent)
"""The standard library and Holdfast, which may stand below the folder of an app."""

_began_us = SystemClock().now_us()


def print_of(fn: Callable[..., Any], version: str) -> str:
    """The print of a function's code; nothing where it is not known: no file has it, or the files are others by now."""
    sources = _sources(fn.__module__)
    if sources is None or not (sources or version):
        return ""
    return hashlib.sha256(f"{sources}\0{version}".encode()).hexdigest()[:LENGTH]


@cache
def _sources(name: str) -> str | None:
    """A digest over the files of a module and of those beside it, read once; empty where no file has it, None where one has changed."""
    module = sys.modules.get(name)
    place = _place(module)
    if module is None or place is None:
        return ""
    whole = hashlib.sha256()
    try:
        for path, shown in sorted(_files(module, place)):
            if path.stat().st_ctime_ns // 1000 > _began_us:
                return None  # what this process has loaded may be what was there before
            whole.update(f"{shown}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode("utf-8", "surrogateescape"))
    except OSError:
        return None
    return whole.hexdigest()


def _place(module: ModuleType | None) -> Path | None:
    """The file of a module, made absolute."""
    file = getattr(module, "__file__", None)
    return Path(file).absolute() if isinstance(file, str) else None


def _files(module: ModuleType, place: Path) -> Iterator[tuple[Path, str]]:
    """The files that make up the code, each with the name under which it counts."""
    folder = _folder(module, place)
    loaded = {place, *(found for one in list(sys.modules.values()) if (found := _place(one)) is not None)}
    for path in loaded:
        if path == place or _belongs(path, folder):
            yield path, path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name


def _folder(module: ModuleType, place: Path) -> Path:
    """From where on down files count: the folder of the file or of its package; of one that is installed, the package alone."""
    depth = (module.__package__ or "").count(".") + 1 if module.__package__ else 0
    above = place.parents[depth]
    return place.parents[depth - 1] if depth and above.name in INSTALLED else above


def _belongs(path: Path, folder: Path) -> bool:
    if folder.name in INSTALLED or not path.is_relative_to(folder) or any(path.is_relative_to(foreign) for foreign in FOREIGN):
        return False
    return INSTALLED.isdisjoint(path.relative_to(folder).parts)
