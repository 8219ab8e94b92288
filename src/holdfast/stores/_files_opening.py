"""Opening a folder of files: recognised before it is touched, and refused where it cannot keep the promises."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from holdfast.errors import StoreDamaged, StoreFailed, StoreForeign, StoreNewer
from holdfast.store import FORMAT
from holdfast.stores._files_place import HALF_WRITTEN, FilesPlace
from holdfast.stores._os_errors import os_errors, refuse_nowhere, refuse_unwritable
from holdfast.stores._sealed import Unreadable, with_seal, without_seal

ABOUT = "holdfast.json"
UNVERSIONED = ".gitignore"
PASSING = b"# of the processes that are at work now, not of the runs\nowners/\n.locks/\n.live/\n.half-written/\n.sweep-lock\n"
"""What a folder under git does not keep."""


def prepared(path: Path, url: str) -> FilesPlace:
    """The place at `path`, made if it is missing, or what is wrong with it."""
    with os_errors(url):
        if path.exists() and not path.is_dir():
            raise StoreForeign(url, "this is a file, not a folder; it was left as it is. Name another path, or sqlite:/// for a database")
        refuse_nowhere(path, url)
        path.mkdir(mode=0o700, exist_ok=True)  # one folder at the most: a path that was mistyped is not built up
        if _holds_others(path) and not (path / ABOUT).exists():  # in this order: another process may be making it just now
            raise StoreForeign(url, "this folder holds other things and is no store; it was left as it is. Name a folder of its own")
        place = FilesPlace(path, url)
    _refuse_unlinkable(path / HALF_WRITTEN, url)
    if not place.has(ABOUT):
        place.create(ABOUT, with_seal({"store": "holdfast", "format": FORMAT, "id": secrets.token_hex(16)}))
        place.create(UNVERSIONED, PASSING)
    _refuse_unknown(place)
    return place


def is_missing(path: Path, url: str) -> bool:
    """Whether nothing is at `path`, or an empty folder; where no store could be made there, that is raised. Nothing is created."""
    with os_errors(url):
        if path.exists() and (not path.is_dir() or _holds_others(path)):
            return False
        refuse_unwritable(refuse_nowhere(path, url), url)
    return True


def _holds_others(path: Path) -> bool:
    return bool({entry.name for entry in path.iterdir()} - {HALF_WRITTEN})


def _refuse_unknown(place: FilesPlace) -> None:
    try:
        format_ = without_seal(place.read(ABOUT) or b"")["format"]
    except (Unreadable, LookupError, TypeError) as error:
        raise StoreDamaged(place.url, f"{ABOUT} is not what was written; nothing was changed. Restore it from a backup") from error
    if format_ > FORMAT:
        reason = f"it has format {format_}, and this Holdfast knows {FORMAT}; nothing was changed"
        raise StoreNewer(place.url, f"{reason}. Install the newer Holdfast that wrote it")


def _refuse_unlinkable(folder: Path, url: str) -> None:
    """A second link to a taken name must fail: on that rests that nobody overwrites anything."""
    probe, name = (folder / f"probe-{secrets.token_hex(8)}" for _ in range(2))
    with os_errors(url):
        probe.touch(mode=0o600)
    try:
        os.link(probe, name)
        try:
            os.link(probe, name)
        except FileExistsError:
            return
        raise StoreFailed(url, "here a hard link overwrites what is there, so two writers could not be told apart; it was not opened")
    except OSError as error:
        reason = f"hard links cannot be made here, and on them rests that nobody overwrites what another wrote ({error}); it was not opened"
        raise StoreFailed(url, f"{reason}. Name a folder on a file system that has them") from error
    finally:
        probe.unlink(missing_ok=True)
        name.unlink(missing_ok=True)
