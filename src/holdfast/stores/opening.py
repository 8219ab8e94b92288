"""From what a user writes to the store that is meant: a URL or a path in, an open store out."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import StoreError
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

SQLITE = "sqlite:///"
FILES = "file://"
POSTGRES = ("postgresql://", "postgres://")
OBJECTS = ("s3://", "gs://", "az://")
KNOWN = (
    "sqlite:///PATH, a path that ends in .db, file:///FOLDER, a path that ends in /, postgresql://USER:PASSWORD@HOST/DATABASE, "
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or memory:"
)


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
    if text.startswith(FILES) or ("://" not in text and (text.endswith("/") or Path(text).is_dir())):
        return _files(text.removeprefix(FILES))
    if text.startswith(POSTGRES):
        return _postgres(text)
    if text.startswith(OBJECTS):
        return _objects(text)
    raise StoreError(_shown(text), f"this names no store that is known; nothing was opened. Write {KNOWN}")


def _postgres(url: str) -> Store:
    """Loaded only here: whoever has no such store need not have psycopg."""
    try:
        from holdfast.stores.postgres import PostgresStore
    except ImportError as error:
        raise StoreError(_shown(url), f'this store needs psycopg ({error}). Install it: pip install "holdfast[postgres]"') from error
    return PostgresStore(url)


def _objects(url: str) -> Store:
    """Loaded only here: whoever has no such store need not have obstore."""
    try:
        from holdfast.stores.objects import ObjectStore
    except ImportError as error:
        raise StoreError(_shown(url), f'this store needs obstore ({error}). Install it: pip install "holdfast[objects]"') from error
    return ObjectStore(url)


def _files(path: str) -> Store:
    """Loaded only here, as most programs have one kind of store."""
    from holdfast.stores.files import FilesStore

    return FilesStore(path)


def _shown(text: str) -> str:
    """A URL of unknown shape may hold a password, so only its scheme is shown."""
    scheme, separator, _ = text.partition("://")
    return f"{scheme}://..." if separator else repr(text)
