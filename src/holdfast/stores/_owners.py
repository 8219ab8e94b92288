"""Owner lock files: how the death of a process is proven on one host.

Every owner holds an exclusive `flock` on a file of its own for its life, and the kernel lets go of it however the
process ends. Whoever obtains the lock has therefore proven the death, across containers that share the folder too,
where process ids mean nothing. A file that is missing proves nothing: it may never have been here.

A forked child shares its parent's locks until both have closed them, so a child closes what it inherited at once.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from urllib.parse import quote


class OwnerLocks:
    """The lock files of one store: those held here, and the way to look at everybody else's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def hold(self, owner: str) -> None:
        """Hold `owner`'s lock until released. Do this before anybody can learn of `owner`, or it may look dead."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(self._file(owner), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._held[owner] = fd
        _holding.add(self)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self, owner: str) -> None:
        """Forget `owner`, whether it was held here or belongs to a dead process."""
        self._file(owner).unlink(missing_ok=True)
        fd = self._held.pop(owner, None)
        if fd is not None:
            os.close(fd)

    def proves_dead(self, owner: str) -> bool:
        """Whether `owner`'s lock can be had. The lock asked for is a shared one, so that observers do not see each other."""
        try:
            fd = os.open(self._file(owner), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return _obtains(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of all locks but leave the files: from now on they prove that their owners are gone."""
        while self._held:
            os.close(self._held.popitem()[1])
        _holding.discard(self)

    def _file(self, owner: str) -> Path:
        return self._folder / f"{quote(owner, safe='')}.lock"


def _obtains(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return False
        raise
    return True


_holding: set[OwnerLocks] = set()
"""Whoever holds a lock, kept from the garbage collector: a lock nobody remembers could not be closed in a child."""


def _let_go_in_child() -> None:
    for locks in list(_holding):
        locks.close()


os.register_at_fork(after_in_child=_let_go_in_child)
