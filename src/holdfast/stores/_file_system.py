"""On which file system a folder is, with which options, and which of them reach over a network or live in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ncpfs", "coda", "ceph", "lustre", "gfs2", "gpfs", "ocfs2", "beegfs"}
    | {f"fuse.{name}" for name in ("sshfs", "s3fs", "rclone", "glusterfs", "ceph", "davfs2", "gcsfuse", "mount-s3", "juicefs")}
)
"""File systems on which locks, and the shared memory of a WAL, cannot be relied on."""
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
LAYERED = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})
"""File systems of a container, which go when it goes."""
UNFLUSHED = frozenset({"nobarrier", "barrier=0", "fsync_mode=nobarrier"})
"""Options under which a flush does not reach the disk."""


class Mount(NamedTuple):
    """A file system: its type, or an empty string where the system does not tell, and the options that it was mounted with."""

    kind: str = ""
    options: frozenset[str] = frozenset()


def mount_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> Mount:
    """The file system that `folder` is on."""
    if not sys.platform.startswith("linux") or not mounts.exists():
        return Mount()
    best, found = -1, Mount()
    real = folder.resolve()
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        place, _, source = line.partition(" - ")
        fields = place.split(" ")
        point = _unescaped(fields[4])
        if not str(real).startswith(point):
            continue  # nearly all: a path of each would take half of the time in which a store is opened
        if real.is_relative_to(point) and len(Path(point).parts) >= best:
            kind, *rest = source.split(" ")
            options = f"{fields[5] if len(fields) > 5 else ''},{rest[-1] if rest else ''}"  # noqa: PLR2004 (the place in the line)
            best, found = len(Path(point).parts), Mount(kind, frozenset(options.split(",")) - {""})
    return found


def file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system `folder` is on, or an empty string where the system does not tell."""
    return mount_of(folder, mounts).kind


def _unescaped(mount_point: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mount_point = mount_point.replace(code, character)
    return mount_point
