"""What an object server or obstore says, in our words: whose fault it is, what is true now, and what to do."""

from __future__ import annotations

import re
from typing import NamedTuple

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from holdfast.errors import StoreError, StoreFailed, StoreFull
from holdfast.stores._object_address import NEEDS, Address

STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>|\"reason\": \"([A-Za-z]{1,60})\"")
REFUSED = frozenset({401, 403})
PASSING = frozenset({408, 409, 425, 429})
"""With these, and from 500 on, the same request may go in later. A conflict is one: somebody writes that very object at this moment."""
NO_ROOM = frozenset({"QuotaExceeded", "StorageFull", "XMinioStorageFull"})
NO_CREDENTIALS = "169.254."
"""Where a machine of a provider is asked for credentials when there are none in the environment."""
NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
REDIRECTED, CONFLICT, NOT_FOUND, FAILED, NOT_IMPLEMENTED, FULL = 301, 409, 404, 500, 501, 507


class Said(NamedTuple):
    """What can be told from an error: the status, 0 where there was no reply, and the server's own word for it."""

    status: int
    code: str

    @property
    def may_pass(self) -> bool:
        return self.status == 0 or self.status in PASSING or (self.status >= FAILED and self.status not in (NOT_IMPLEMENTED, FULL))


def said_by(error: Exception) -> Said:
    """Read an error of obstore; nothing of its text is shown, since a URL in it can hold a signature."""
    text = str(error)
    if NO_CREDENTIALS in text:
        return Said(403, "NoCredentials")
    status, code = STATUS.search(text), CODE.search(text)
    word = (code.group(1) or code.group(2)) if code else ""
    if status:
        return Said(int(status.group(1)), word)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return Said(403, word)
    if "redirect" in text:
        return Said(REDIRECTED, "PermanentRedirect")
    return Said(NOT_FOUND if isinstance(error, FileNotFoundError) else 0, word)


def from_objects(error: Exception, address: Address, now: str) -> StoreError:
    """The error of ours that says it; `now` tells what is true."""
    said = said_by(error)
    answered = f"the server answered {said.status} {said.code}".rstrip()
    kind, what, remedy = _meaning(said, address)
    return kind(address.shown, ". ".join(part for part in (f"{what} ({answered})" if said.status else what, now, remedy) if part))


def _meaning(said: Said, address: Address) -> tuple[type[StoreError], str, str]:
    if said.status in REFUSED:
        return StoreError, "access was refused", f"{NEEDS[address.scheme]}, and let them read, write, list and delete there"
    if said.code in NO_BUCKET or said.status == NOT_FOUND:
        return StoreError, f"there is no bucket {address.bucket!r}", "Create it, or write the name of another one"
    if said.status == REDIRECTED:
        return StoreError, "the bucket is in another region", "Write ?region=REGION behind the URL, or set AWS_REGION"
    if said.status == FULL or said.code in NO_ROOM:
        return StoreFull, "there is no room left", "Free some space, or raise the quota"
    if said.status == NOT_IMPLEMENTED:
        return StoreError, "the server cannot do this", "It must know create-only puts (If-None-Match)"
    if said.status == 0:
        return StoreFailed, "the server cannot be reached, or hung up", "Check that it runs, the endpoint and the network"
    if said.may_pass:
        return StoreFailed, "the server is not able to do it for some time now", "Try later"
    return StoreFailed, "the server does not do it", ""
