"""Where tests put what need not outlive a power failure."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOM = 1 << 30
"""Bytes that must be free there: some machines have next to nothing."""


def in_memory() -> Path | None:
    """A folder whose flushes cost nothing, which are most of the time of many tests; processes are killed there, and no power is cut."""
    folder = Path("/dev/shm")
    return folder if folder.is_dir() and shutil.disk_usage(folder).free > ROOM else None
