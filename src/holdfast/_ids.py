"""The only dice: ids that nobody else has, and what is derived from a run's own id."""

from __future__ import annotations

import hashlib
import random
import re
import secrets
import socket
import uuid

from .errors import BadRunId, Misuse

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

MOST_NAME = 200
"""Characters of a name that stores look things up by: what is much longer does not fit into an index."""


def checked_run_id(run_id: object) -> str:
    """The id, if it can safely be a file name and part of a URL."""
    if not isinstance(run_id, str):
        meant = "" if run_id is None else f": run_id={str(run_id)!r:.80}"
        raise Misuse(f"run_id={run_id!r:.80} is {type(run_id).__name__}; an id is text{meant}")
    if not RUN_ID.fullmatch(run_id):
        raise BadRunId(run_id)
    return run_id


def checked_text(text: object, what: str) -> str:
    """The text, if every store can keep it."""
    if not isinstance(text, str):
        raise Misuse(f"{what} must be text, not {text!r:.80}; nothing was changed")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{what} {ascii(text)[:80]} is not text that can be stored (a lone surrogate); nothing was changed") from None
    return text


def checked_name(text: object, what: str) -> str:
    """The text, if it can be the name of something that is looked up in every store."""
    name = checked_text(text, what)
    if len(name) > MOST_NAME:
        raise Misuse(f"{what} {name[:40]!r}... has {len(name)} characters; {MOST_NAME} are the most, and nothing was changed")
    return name


def new_run_id(agent: str) -> str:
    """A fresh run id that begins with the agent's name."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", agent).strip("-._")[:64]
    return f"{stem or 'run'}-{secrets.token_hex(6)}"


def new_origin(run_id: str) -> str:
    """The root of the keys of a fork: another run may have its id in another store, or have had it before; no id has an `@`."""
    return f"{run_id}@{secrets.token_hex(8)}"


def new_owner() -> str:
    """An owner id: unique per process and opening, and telling a person where to look."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:40] or "host"
    return f"{host}.{secrets.token_hex(8)}"


def jitter() -> float:
    """A number in [0, 1) that is not part of any run: only delays may depend on it."""
    return random.random()


def seeded(origin: str, place: str) -> random.Random:
    """The random stream of one place in a run: the same in every attempt and after every restart."""
    return random.Random(hashlib.sha256(f"{origin}\0{place}".encode()).digest())


def uuid_from(stream: random.Random) -> uuid.UUID:
    """A version 4 UUID drawn from a seeded stream."""
    return uuid.UUID(int=stream.getrandbits(128), version=4)


def effect_key(origin: str, step_id: str) -> str:
    """The idempotency key of an effect that has no business key."""
    return f"hf-{hashlib.sha256(f'{origin}{chr(0)}{step_id}'.encode()).hexdigest()[:32]}"
