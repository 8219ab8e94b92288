"""A commit as one readable JSON document: what it holds comes back as the very same bytes, and a change of any byte is noticed.

`body`, `value` and `args` of a row stand there as JSON wherever that gives the same compact text again, which is nearly always; else as
text (`value_text`), else, where they are no text either, in base64 (`value_base64`). The last line is the seal, the SHA-256 of all that
stands before it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from holdfast._clock import to_datetime
from holdfast._json import encoder
from holdfast._turns import in_line_as_ever
from holdfast.store import FORMAT, Head, Row, Tombstone

SEAL = b',\n  "seal": "'
END = b'"\n}\n'
FIELDS = ("body", "value", "args")
LATEST_US = 253_402_300_799_000_000
"""The last moment that has a date."""

_compact = encoder(ensure_ascii=False)


def _refused(constant: str) -> float:
    raise ValueError(constant)


_decode = json.JSONDecoder(parse_constant=_refused).decode


class Commit(NamedTuple):
    """What one file holds. `taken` are letters that appends took and that may still be there.

    A turn carries all rows of the run, and `onward` is the generation in which it goes on; or `grave` says that the run is removed.
    """

    rows: Sequence[Row]
    head: Head
    token: str
    taken: Sequence[int] = ()
    refs: Sequence[str] = ()
    turn: bool = False
    onward: str = ""
    aside: Sequence[dict[str, Any]] = ()
    grave: Tombstone | None = None


class Unreadable(ValueError):
    """The bytes are not what was written."""


def sealed(commit: Commit) -> bytes:
    """The document of a commit."""
    rows, head, token, *_ = commit
    document: dict[str, Any] = {"format": FORMAT, "run": head.run_id, "rows": [shown(row) for row in rows], "head": _shown_head(head)}
    if commit.taken:
        document["taken"] = list(commit.taken)
    if commit.refs:
        document["refs"] = list(commit.refs)
    if commit.turn:
        document["turn"] = {"onward": commit.onward, "grave": commit.grave and commit.grave._asdict(), "aside": list(commit.aside)}
    document["token"] = token
    return with_seal(document)


def opened(data: bytes) -> Commit:
    """The commit that a document holds; `Unreadable` where it is not what was written."""
    document = without_seal(data)
    try:
        turn, rows = document.get("turn"), [row_of(each) for each in document["rows"]]
        head = _head_of(document["head"])
        kept = Commit(rows, head, document["token"], tuple(document.get("taken", ())), tuple(document.get("refs", ())))
        if turn is None:
            return kept
        grave = Tombstone(**turn["grave"]) if turn["grave"] else None
        return kept._replace(turn=True, onward=turn["onward"], aside=turn["aside"], grave=grave)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"it holds other fields than were written ({error})") from error


def with_seal(document: dict[str, Any]) -> bytes:
    """A document for people, its last line the seal."""
    text = pretty(document)[:-2]
    return text + SEAL + hashlib.sha256(text).hexdigest().encode() + END


def without_seal(data: bytes) -> Any:
    """The document, if it is what was written."""
    text, _, seal = data.rpartition(SEAL)
    if seal != hashlib.sha256(text).hexdigest().encode() + END:
        raise Unreadable("it is not what was written: its seal does not match")
    return json.loads(text + b"\n}")


def pretty(document: Any) -> bytes:
    """JSON over many lines."""
    try:
        return to_json(document, indent=2)
    except PydanticSerializationError:  # half a character
        return json.dumps(document, indent=2).encode()


def shown(row: Row) -> dict[str, Any]:
    """A row as JSON; `at` is for people, as nothing reads it."""
    seq, epoch, at_us, kind, step_id, _, _, _, digest = row
    shown: dict[str, Any] = {"seq": seq, "epoch": epoch, "at": _date(at_us), "at_us": at_us, "kind": kind, "step": step_id}
    for name, data in zip(FIELDS, row[5:8], strict=True):
        if data is not None:
            put_bytes(shown, name, data)
    shown["digest"] = digest.hex()
    return shown


def row_of(shown: dict[str, Any]) -> Row:
    """The way back; LookupError, TypeError or ValueError where it is none."""
    body = got_bytes(shown, "body")
    if body is None:
        raise ValueError("a row without a body")
    return Row(
        _whole(shown["seq"]), _whole(shown["epoch"]), _whole(shown["at_us"]), str(shown["kind"]), str(shown["step"]),
        body, got_bytes(shown, "value"), got_bytes(shown, "args"), bytes.fromhex(shown["digest"]),
    )  # fmt: skip


def put_bytes(shown: dict[str, Any], name: str, data: bytes) -> None:
    """Show bytes as JSON, as text, or in base64, whichever gives them back."""
    text = ""
    try:
        text = data.decode()
        value = _decode(text)
        if _compact(value) == text:
            shown[name] = value
            return
    except UnicodeDecodeError:
        shown[f"{name}_base64"] = base64.b64encode(data).decode()
        return
    except (ValueError, RecursionError):
        pass
    shown[f"{name}_text"] = text


def got_bytes(shown: dict[str, Any], name: str) -> bytes | None:
    """The way back."""
    if name in shown:
        return _compact(shown[name]).encode()
    if f"{name}_text" in shown:
        return str(shown[f"{name}_text"]).encode()
    return base64.b64decode(shown[f"{name}_base64"], validate=True) if f"{name}_base64" in shown else None


def _shown_head(head: Head) -> dict[str, Any]:
    return head._asdict() | {"digest": head.digest.hex()}


def _head_of(shown: dict[str, Any]) -> Head:
    return Head(**in_line_as_ever(shown) | {"digest": bytes.fromhex(shown["digest"]), "usd": float(shown["usd"])})


def _date(at_us: int) -> str:
    return to_datetime(at_us).isoformat(timespec="milliseconds") if 0 <= at_us <= LATEST_US else ""


def _whole(number: object) -> int:
    if type(number) is not int:
        raise TypeError(f"{number!r:.40} is no whole number")
    return number
