"""On which file system a folder is, and which of them reach over a network."""

from __future__ import annotations

import sys
from pathlib import Path

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ncpfs", "coda", "ceph", "lustre", "gfs2", "gpfs", "ocfs2", "beegfs"}
    | {f"fuse.{name}" for name in ("sshfs", "s3fs", "rclone", "glusterfs", "ceph", "davfs2", "gcsfuse", "mount-s3", "juicefs")}
)
"""File systems on which locks, and the shared memory of a WAL, cannot be relied on."""


def file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system `folder` is on, or an empty string where the system does not tell."""
    if not sys.platform.startswith("linux") or not mounts.exists():
        return ""
    best, kind = -1, ""
    real = folder.resolve()
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        place, _, source = line.partition(" - ")
        point = Path(_unescaped(place.split(" ")[4]))
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), source.split(" ")[0]
    return kind


def _unescaped(mount_point: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mount_point = mount_point.replace(code, character)
    return mount_point
