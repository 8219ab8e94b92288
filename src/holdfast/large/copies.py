"""Copies of artifacts on the local disk: read-only ones that go with the process, and those that a user asked for."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.errors import Misuse

LONGEST = 255
"""Bytes that the name of a file has at the most."""

_lock = threading.Lock()
_folders: dict[int, Path] = {}
"""The folder of this process, by its id: a forked child neither uses nor removes its parent's."""
_copies: dict[tuple[Path, Any], tuple[Path, Any]] = {}


def handed_out(key: object, name: str, copy: Callable[[Path], None]) -> Path:
    """A copy that lasts as long as the process, made once; made anew where somebody has changed it."""
    with _lock:
        folder = _folder()
        found, looked = _copies.get((folder, key), (folder, None))
        if looked is not None and _look(found) == looked:
            return found
        path = Path(tempfile.mkdtemp(dir=folder)) / _plain(name)
        _whole(path, copy)
        _copies[folder, key] = (path, _look(path))
        return path


def saved(to: Path, copy: Callable[[Path], None]) -> Path:
    """A copy at `to`, which appears there when it is complete."""
    path = to.absolute()
    if path.exists() or path.is_symlink():
        raise Misuse(f"{path} is there already; nothing was written. Name a path where nothing stands")
    if not path.parent.is_dir():
        raise Misuse(f"{path.parent} is no folder; nothing was written. Make it first")
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    _whole(half, copy)
    half.rename(path)
    return path


def _whole(path: Path, copy: Callable[[Path], None]) -> None:
    try:
        copy(path)
    except BaseException:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        raise


def _folder() -> Path:
    if os.getpid() not in _folders:
        _folders[os.getpid()] = Path(tempfile.mkdtemp(prefix="holdfast-"))
        atexit.register(_clean, os.getpid())
    return _folders[os.getpid()]


def _clean(pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(_folders.pop(pid), ignore_errors=True)


def _plain(name: str) -> str:
    """The name, if it is one that a file can have."""
    fits = 0 < len(name.encode(errors="replace")) <= LONGEST and name not in (".", "..") and not set(name) & {"/", "\0"}
    return name if fits else "artifact"


def _look(path: Path) -> list[tuple[str, int, int, int]] | None:
    """What tells that nobody has changed a copy; None where it is gone."""
    if not path.exists():
        return None
    found = [path, *(sorted(path.rglob("*")) if path.is_dir() else ())]
    return [(str(each), (seen := each.lstat()).st_mtime_ns, seen.st_size, seen.st_ino) for each in found]
