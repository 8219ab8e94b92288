"""`emit`: show a value to whoever follows the run, without keeping it."""

from __future__ import annotations

import logging

from pydantic_core import to_json

from holdfast.errors import Misuse
from holdfast.life.run import Body, Scope, place, plain

MAX_BYTES = 256 * 1024
"""The largest value that is shown; a follower is told of more in words."""

MAX_COMPLAINTS = 100
"""Different warnings of one process at the most."""

REMEDY = "Emit plain JSON data, a pydantic model or a dataclass, of 256 KiB at the most"

log = logging.getLogger("holdfast")

_complaints: set[str] = set()


def emit(value: object) -> None:
    """Show a value to whoever follows the run, at once: a token, some progress. It is not stored, and not shown again on replay.

    Plain JSON data, or what pydantic makes JSON of. It never fails a run: of anything else the follower, and the log, are told in words.
    """
    where = place.get()
    if not isinstance(where, Scope | Body):
        _outside(value)
        return
    run = where.run
    if run.ended is not None or _replays(where):
        return
    try:
        shown = _encoded(value)
    except Misuse as refused:
        _complain(str(refused))
        shown = to_json(f"<{type(value).__name__}: {refused}>")
    live = run.committer.live
    if live is not None:
        step_id = where.path if isinstance(where, Scope) else where.call.step_id
        live.publish(run.id, b"[%d,%d,%b,%b]" % (run.journal.head.seq, run.clock.now_us(), to_json(step_id), shown))


def _replays(where: Scope | Body) -> bool:
    """Whether this code was executed before, in another life of the run; a body never is."""
    return isinstance(where, Scope) and where.run.turnstile.replaying


def _encoded(value: object) -> bytes:
    try:
        shown = to_json(value, bytes_mode="base64", inf_nan_mode="strings")
    except Exception as error:
        raise Misuse(f"hf.emit was given {type(value).__name__}, which has no JSON form, and shows nothing of it. {REMEDY}") from error
    if len(shown) > MAX_BYTES:
        raise Misuse(f"hf.emit was given {len(shown):,} bytes of JSON and shows nothing of them. {REMEDY}")
    return shown


def _outside(value: object) -> None:
    if plain.get():
        _encoded(value)  # a test is the place to hear of it
    else:
        _complain("hf.emit was called outside a run: nobody can follow it, and nothing is shown")


def _complain(text: str) -> None:
    """Say it once in this process, and not without end."""
    if text not in _complaints and len(_complaints) < MAX_COMPLAINTS:
        _complaints.add(text)
        log.warning("%s", text)
