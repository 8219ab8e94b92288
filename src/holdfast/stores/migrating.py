"""Bringing a store up to date by hand, or only saying what that would do: opening one does the same."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from holdfast.errors import StoreError
from holdfast.store import FORMAT
from holdfast.stores._sqlite_file import FORMAT as SQLITE_FORMAT
from holdfast.stores.opening import POSTGRES, SQLITE, open_store


class Migration(NamedTuple):
    """What was applied to a store, or would be: the names of files; `version` is where it stands afterwards, in words."""

    store: str
    files: list[str]
    version: str
    dry_run: bool

    def said(self) -> str:
        """The same for people."""
        if not self.files:
            return f"nothing to do: {self.store} is at {self.version}"
        names = ", ".join(self.files)
        if self.dry_run:
            return f"would apply {names} to {self.store}, which brings it to {self.version}; nothing is changed yet"
        return f"applied {names}: {self.store} is at {self.version} now"


def migrated(url: str, *, dry_run: bool) -> Migration:
    """Bring the store that `url` names up to date; with dry_run=True only look what is to be done."""
    if url.startswith(POSTGRES):
        try:
            from holdfast.stores import postgres
        except ImportError as error:
            remedy = 'Install it: pip install "holdfast[postgres]"'
            raise StoreError(f"{POSTGRES[0]}...", f"this store needs psycopg ({error}). {remedy}") from error
        shown = postgres.address_of(url).shown
        files = postgres.outstanding(url) if dry_run else postgres.migrate(url)
        return Migration(shown, files, f"version {postgres.VERSION} of its tables", dry_run)
    with closing(open_store(url)) as store:
        version = SQLITE_FORMAT if store.url.startswith(SQLITE) else FORMAT
        return Migration(store.url, [], f"format {version}", dry_run)
