"""What the operating system refuses, said as errors of ours."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import StoreFailed, StoreFull, StoreReadOnly

READ_ONLY = "the store cannot be written; nothing was changed. Make the file and its folder writable, or name another path"
FULL = "there is no room left; what was acknowledged before is safe. Free some space, then run again"
FAILED = "the operating system refused a read, a write or a flush; what was acknowledged before is safe. See to the disk, then run again"


@contextmanager
def os_errors(url: str) -> Iterator[None]:
    """Say what the operating system refuses as one of our errors."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreReadOnly(url, f"{READ_ONLY} ({error})") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(url, f"{FULL} ({error})") from error
        raise StoreFailed(url, f"{FAILED} ({error})") from error
