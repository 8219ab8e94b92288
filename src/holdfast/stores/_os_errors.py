"""What the operating system refuses, said as errors of ours."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import StoreError, StoreFailed, StoreFull, StoreReadOnly

READ_ONLY = "the store cannot be written; nothing was changed. Make the file and its folder writable, or name another path"
FULL = "there is no room left; what was acknowledged before is safe. Free some space, then run again"
FAILED = "the operating system refused a read, a write or a flush; what was acknowledged before is safe. See to the disk, then run again"


@contextmanager
def os_errors(url: str) -> Iterator[None]:
    """Say what the operating system refuses as one of our errors."""
    try:
        yield
    except OSError as error:
        raise said_by_os(error, url) from error


def said_by_os(error: OSError, url: str) -> StoreError:
    """What the operating system refused, as one of our errors."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreReadOnly(url, f"{READ_ONLY} ({error})")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(url, f"{FULL} ({error})")
    return StoreFailed(url, f"{FAILED} ({error})")


def refuse_nowhere(folder: Path, url: str) -> Path:
    """The folder, or the one above it that is there; where the folder cannot be, the mistake is in the path, not on the disk."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        raise StoreError(url, f"{there} is a file, not a folder; nothing was changed. Name another path")
    if there not in (folder, folder.parent):
        raise StoreError(url, f"there is no folder {folder.parent}; nothing was created. Create it, or name another path")
    return there


def refuse_unwritable(path: Path, url: str) -> None:
    """What may not be written is said before it is tried."""
    if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise StoreReadOnly(url, f"{READ_ONLY} ({path} is not writable)")
