"""From what a user writes to the store that is meant: a URL or a path in, an open store out."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import StoreError
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

SQLITE = "sqlite:///"
KNOWN = "sqlite:///PATH, a path that ends in .db, or memory:"


def open_store(url: str | Path) -> Store:
    """Open the store that `url` names, creating it where there is none.

    `sqlite:///runs.db` is relative to the working folder, `sqlite:////var/lib/runs.db` is absolute.
    """
    text = str(url)
    if text == MemoryStore.url:
        return MemoryStore()
    if text.startswith(SQLITE) and text != SQLITE:
        return SqliteStore(text.removeprefix(SQLITE))
    if text.endswith(".db") and "://" not in text:
        return SqliteStore(text)
    raise StoreError(_shown(text), f"this names no store that is known; nothing was opened. Write {KNOWN}")


def _shown(text: str) -> str:
    """A URL of unknown shape may hold a password, so only its scheme is shown."""
    scheme, separator, _ = text.partition("://")
    return f"{scheme}://..." if separator else repr(text)
