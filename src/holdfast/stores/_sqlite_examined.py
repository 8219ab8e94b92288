"""What a SQLite store rests on: its settings, its file and the disk below, for `holdfast doctor`."""

from __future__ import annotations

import secrets
from pathlib import Path

import apsw

from holdfast._clock import Clock
from holdfast.errors import StoreBusy, StoreFull
from holdfast.store import Finding
from holdfast.stores._examining import KILLED, ONE_DISK, commit_speed, examined_folder, in_bytes, median_s, power_loss, privacy
from holdfast.stores._os_errors import os_errors
from holdfast.stores._sqlite_file import KEEP_A_COPY
from holdfast.stores._sqlite_line import Line

LONG_LOG_BYTES = 256 * 1024**2
MOST_READ_BYTES = 4 * 1024**3
"""Of a file up to this size all pages are read, which takes some seconds."""
PAGES = "pages of the file"
COME, GO = "INSERT INTO owners (owner, beat) VALUES (?, 1)", "DELETE FROM owners WHERE owner = ?"
"""In one transaction they write a page and change nothing: a commit to be timed, of which nothing stays, whenever it is broken off."""


def examined(line: Line, reader: Line, path: Path, url: str, clock: Clock) -> list[Finding]:
    """All that can be said of the store at `path`; `line` is the one that writes. What keeps it from writing is told with the rest."""
    with reader.transaction() as cursor:
        found = [*_versions(cursor), *_settings(cursor), _size(cursor)]
    with os_errors(url):
        found += [privacy(path), *examined_folder(path.parent, clock), *_log(path), KILLED, power_loss(path.parent)]

    return [*found, _commit(line, clock), ONE_DISK]


def _commit(line: Line, clock: Clock) -> Finding:
    nobody = f"doctor-{secrets.token_hex(8)}"

    def commit() -> None:
        with line.transaction() as cursor:
            cursor.execute(COME, (nobody,))
            cursor.execute(GO, (nobody,))

    try:
        return commit_speed(median_s(clock, commit))
    except (StoreBusy, StoreFull) as error:
        return Finding(topic="speed", what="commit", value="refused", grade="warn", meaning=error.reason)


def _versions(cursor: apsw.Cursor) -> list[Finding]:
    form = str(cursor.execute("SELECT value FROM meta WHERE key = 'format'").get)
    return [
        Finding(topic="versions", what="SQLite", value=apsw.sqlite_lib_version()),
        Finding(topic="versions", what="format of the store", value=form),
    ]


def _settings(cursor: apsw.Cursor) -> list[Finding]:
    """The connection refuses anything else (`_sqlite_file.connect`), so these tell what holds."""
    mode, level = (cursor.execute(f"PRAGMA {name}").get for name in ("journal_mode", "synchronous"))
    levels = {0: "off", 1: "normal", 2: "full", 3: "extra"}
    return [
        Finding(topic="durability", what="journal mode", value=str(mode)),
        Finding(topic="durability", what="synchronous", value=levels.get(level, str(level)), meaning="every commit is flushed"),
    ]


def _size(cursor: apsw.Cursor) -> Finding:
    page, pages, free = (int(cursor.execute(f"PRAGMA {name}").get) for name in ("page_size", "page_count", "freelist_count"))
    return Finding(topic="room", what="store", value=in_bytes(page * pages), meaning=f"{in_bytes(page * free)} of it free" if free else "")


def pages_examined(cursor: apsw.Cursor) -> Finding:
    """What SQLite's own check says first; of a large file it is not asked, since it reads all of it."""
    size = int(cursor.execute("PRAGMA page_size").get) * int(cursor.execute("PRAGMA page_count").get)
    if size > MOST_READ_BYTES:
        meaning = f"the file has {in_bytes(size)}: holdfast check --all reads it"
        return Finding(topic="durability", what=PAGES, value="not looked at", meaning=meaning)
    said = str(cursor.execute("PRAGMA quick_check(1)").get)
    return Finding(topic="durability", what=PAGES, value="whole") if said == "ok" else damaged_pages(said)


def damaged_pages(said: str) -> Finding:
    """The file is not what was written."""
    advice = "keep a copy of all its files, then see what is still good: holdfast check --all (docs/damage.md)"
    meaning = said.replace(f". {KEEP_A_COPY}", "").rpartition("\n")[2]
    return Finding(topic="durability", what=PAGES, value="damaged", grade="bad", meaning=meaning, advice=advice)


def damaged_tail(said: str) -> Finding:
    """What a process recorded last is missing, or is not what was written."""
    advice = "if there is a copy of that file, put it back; then see which runs are damaged: holdfast check --all (docs/damage.md)"
    return Finding(topic="durability", what="what was recorded last", value="damaged", grade="bad", meaning=said, advice=advice)


def _log(path: Path) -> list[Finding]:
    log = path.with_name(f"{path.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size < LONG_LOG_BYTES:
        return []
    meaning = "somebody reads without an end, so it cannot be written back, and reading gets slow"
    advice = "end the program that keeps a transaction open"
    return [Finding(topic="room", what="write-ahead log", value=in_bytes(size), grade="warn", meaning=meaning, advice=advice)]
