"""A folder of this machine that belongs to a store which lives elsewhere: for the locks of its owners here, and what its runs say."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def machine_folder(store: str) -> Path:
    """Where that folder is to be made; all of it is private to the user, so that nobody else can make an owner look dead."""
    ours = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    ours.mkdir(mode=0o700, exist_ok=True)
    found = ours.stat(follow_symlinks=False)
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{ours} can be written by others")
    return ours / hashlib.sha256(store.encode()).hexdigest()[:16]
