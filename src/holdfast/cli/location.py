"""Which store a command means, and opening it without ever creating one."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from holdfast import Holdfast
from holdfast.errors import StoreError
from holdfast.stores.opening import place_of

STORE_VARIABLE = "HOLDFAST_STORE"
OPTION, ARGUMENT = "named by --store", "named on the command line"
MEMORY = "memory:"
ABOUT = "holdfast.json"
"""What makes a folder a store."""
MARKS = ("pyproject.toml", ".git")
NO_PROJECT = f"no folder from here upwards holds a {' or '.join(MARKS)}, and a script that is in no project keeps its store beside itself"


class StoreMissing(StoreError):
    """There is no store at the place that was named."""


def opened(named: str | None) -> Holdfast:
    """The store that is meant, opened; `StoreMissing` where there is none, and then nothing is created."""
    return Holdfast(existing(named))


def existing(named: str | None, said: str = OPTION) -> str:
    """The URL of the store that is meant; `StoreMissing` where a file is that is not there. `said` is how it was named, if it was."""
    url, because = meant(named)
    because = said if named is not None else because
    if url == MEMORY:
        raise StoreMissing(MEMORY, "this store lives inside one process, and the command line is another. Name a file with --store")
    refuse_missing(url, because)
    return url


def refuse_missing(url: str, because: str) -> None:
    """`StoreMissing` where the URL names a place of this machine and nothing is there."""
    path = place_of(url)
    if path is not None and _is_missing(path):
        remedy = f"{_near(path)}Name another with --store or {STORE_VARIABLE}"
        raise StoreMissing(str(path), f"there is no store here ({because}); nothing was created. {remedy}")


def _near(path: Path) -> str:
    """The store beside it that may have been meant."""
    try:
        beside = [each.name for each in path.parent.iterdir() if each.suffix == ".db" or (each / ABOUT).exists()]
    except OSError:
        return ""
    near = get_close_matches(path.name, beside, n=1)
    return f"Did you mean {path.with_name(near[0])}? " if near else ""


def is_new(url: str) -> bool:
    """Whether opening this would make a store on this machine."""
    path = place_of(url)
    return path is not None and _is_missing(path)


def _is_missing(path: Path) -> bool:
    """Whether nothing is there, or a folder that is no store; where one may not look, opening says so."""
    try:
        return not path.exists() or (path.is_dir() and path.suffix != ".db" and not (path / ABOUT).exists())
    except OSError:
        return False


def meant(named: str | None) -> tuple[str, str]:
    """The URL of the store that is meant, and why this one."""
    if named is not None:
        return named, OPTION
    if from_environment := os.environ.get(STORE_VARIABLE):
        return from_environment, f"named by {STORE_VARIABLE}"
    root = project_root(Path.cwd())
    because = f"where runs of the project in {root} are kept" if is_project(root) else NO_PROJECT
    return str(root / ".holdfast" / "holdfast.db"), because


def project_root(folder: Path) -> Path:
    """The nearest folder from here upwards that holds a project; this one where none does."""
    return next((each for each in (folder, *folder.parents) if is_project(each)), folder)


def is_project(folder: Path) -> bool:
    """Whether this folder is the root of a project."""
    return any((folder / mark).exists() for mark in MARKS)
