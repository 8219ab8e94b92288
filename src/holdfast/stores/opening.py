"""From what a user writes to the store that is meant: a URL or a path in, an open store out.

Every kind of store is one line of `KINDS`. Its module is loaded when a store of that kind is opened, and not before: whoever has
no such store need not have the library that it is made with.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from holdfast.errors import StoreError, StoreForeign
from holdfast.store import Store

SQLITE = "sqlite:///"
MEMORY = "memory:"
USUAL = "/.holdfast/holdfast.db"
"""How the store ends that commands find by themselves."""
FILES = "file:///"
POSTGRES, OBJECTS = ("postgresql://", "postgres://"), ("s3://", "gs://", "az://")

Given = Literal["nothing", "url", "file", "folder"]

PSYCOPG, OBSTORE = ("postgres", "psycopg"), ("objects", "obstore")


class Kind(NamedTuple):
    """One kind of store: how its URLs begin, what a user writes, its module and class, what that is given.

    `extra` is what must be installed besides, and `library` what that brings.
    """

    schemes: tuple[str, ...]
    written: str
    opener: str
    given: Given
    extra: str = ""
    library: str = ""


KINDS: tuple[Kind, ...] = (
    Kind((SQLITE,), "sqlite:///PATH, a path that ends in .db", "sqlite:SqliteStore", "file"),
    Kind((FILES,), "file:///FOLDER, a path that ends in /", "files:FilesStore", "folder"),
    Kind(POSTGRES, "postgresql://USER:PASSWORD@HOST/DATABASE", "postgres:PostgresStore", "url", *PSYCOPG),
    Kind(OBJECTS, "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX", "objects:ObjectStore", "url", *OBSTORE),
    Kind(("memory:",), "memory:", "memory:MemoryStore", "nothing"),
)  # fmt: skip

SUGGESTED = "did you mean {}? As it stands, "
ARCHIVE, PACKED = ".holdfast", (".zip", ".tar", ".gz", ".tgz", ".7z")
DATABASE = b"SQLite format 3\0"
MOST_SHOWN = 200
LIKELY = 0.7
"""How alike a scheme must be to one that there is, to be suggested: between 0 and 1."""


def open_store(url: str | Path) -> Store:
    """Open the store that `url` names, creating it where there is none.

    `sqlite:///runs.db` is relative to the working folder, `sqlite:////var/lib/runs.db` is absolute.
    """
    text = str(url)
    kind, given = resolved(text)
    opener = loaded(kind, text, kind.opener.partition(":")[2])
    store: Store = opener() if kind.given == "nothing" else opener(given)
    return store


def resolved(text: str) -> tuple[Kind, str]:
    """The kind of store that is meant, and what that is given; what names none, or cannot be one, is refused."""
    found = kind_of(text)
    if found is None:
        raise StoreError(_unknown(text), f"{_meant(text)}this names no store that is known; nothing was opened. Write {_known()}")
    kind, rest = found
    _refuse_mixed_up(kind, rest)
    return kind, text if kind.given == "url" else rest


def kind_of(text: str) -> tuple[Kind, str] | None:
    """The kind of store that is meant, and what stands behind the scheme; None where it is none that is known.

    A path behind `file://` is absolute, as everywhere; one behind `sqlite:///` is as it stands there.
    """
    for kind in KINDS:
        for scheme in kind.schemes:
            if text == scheme if kind.given == "nothing" else text.startswith(scheme) and (kind.given == "url" or text != scheme):
                return kind, text.removeprefix(scheme if scheme != FILES else FILES[:-1])
    given = _shape(text)
    return next(((kind, text) for kind in KINDS if kind.given == given), None)


def place_of(url: str) -> Path | None:
    """The file or folder of this machine that a URL names, None where it does not name one."""
    found = kind_of(url)
    return Path(found[1]).expanduser().absolute() if found is not None and found[0].given in ("file", "folder") else None


def store_option(url: str) -> str:
    """What a command must say to mean this store, where it would not find it by itself; nothing where no command can reach it."""
    place, named = url.removeprefix(SQLITE), os.environ.get("HOLDFAST_STORE", "").removeprefix(SQLITE)
    usual = place.endswith(USUAL) or place in (named, str(Path(named).expanduser().absolute()))
    return "" if usual or url == MEMORY else f" --store {shlex.quote(place)}"


def without_password(url: str) -> str:
    """A URL that may be shown: whatever can be a password in it is left out."""
    hidden = re.sub(r"(://[^:@/?]*):.*@", r"\1@", url, count=1, flags=re.DOTALL)
    return re.sub(r"(?i)([?&](?:ssl)?password=)[^&]*", r"\1***", hidden)


def _shape(text: str) -> Given | None:
    """What a path without a scheme looks like; one that begins with the name of a scheme was meant to be a URL."""
    if not text or "://" in text or text.partition(":")[0] in _schemes():
        return None
    if text.endswith(".db"):
        return "file"
    return "folder" if text.endswith("/") or _is_folder(text) else None


def _is_folder(text: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return Path(text).expanduser().is_dir()
    return False


def _is_file(text: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return Path(text).expanduser().is_file()
    return False


def _is_database(text: str) -> bool:
    with contextlib.suppress(OSError), Path(text).expanduser().open("rb") as file:
        return file.read(len(DATABASE)) == DATABASE
    return False


def _refuse_mixed_up(kind: Kind, rest: str) -> None:
    """A folder where a file is expected, a file where a folder is, and what no file system can name."""
    if kind.given == "file" and _is_folder(rest):
        files = f"{rest.rstrip('/')}/ to keep runs as files in it"
        raise StoreForeign(rest, f"this is a folder, not a file; it was left as it is. Name a path of its own for the store, or {files}")
    if kind.given == "folder" and _is_file(rest):
        raise StoreForeign(
            rest, f"this is a file, and this kind of store is a folder; it was left as it is. Name another path, or write {SQLITE}{rest} "
            "if it is a SQLite store"
        )  # fmt: skip
    if kind.given in ("file", "folder") and ("\0" in rest or not _is_encodable(rest)):
        raise StoreError(ascii(rest)[:80], "no file can have this name; nothing was opened. Name another path")


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def loaded(kind: Kind, text: str, name: str) -> Callable[..., Any]:
    """What the module of a kind calls so."""
    try:
        found: Callable[..., Any] = getattr(import_module(f"holdfast.stores.{kind.opener.partition(':')[0]}"), name)
    except ImportError as error:
        if not kind.extra:
            raise
        raise StoreError(
            _unknown(text), f"this store needs {kind.library}, which cannot be loaded ({error}); nothing was opened. "
            f'Install it: pip install "holdfast[{kind.extra}]"'
        ) from error  # fmt: skip
    return found


def _known() -> str:
    *forms, last = [kind.written for kind in KINDS]
    return f"{', '.join(forms)}, or {last}"


def _meant(text: str) -> str:
    """The nearest thing that there is, as a question; nothing of a URL is repeated but its scheme."""
    written = re.match(r"([A-Za-z][\w+.-]*):", text)
    if written is None:
        return _meant_path(text) if re.fullmatch(r"[\w./~ -]*[\w-]", text) else ""
    schemes, name = _schemes(), written[1].lower().partition("+")[0]
    likely = difflib.get_close_matches(name, schemes, n=1, cutoff=LIKELY)
    return SUGGESTED.format(f"{schemes[likely[0]]}{'...' if '//' in schemes[likely[0]] else ''}") if likely else ""


def _meant_path(text: str) -> str:
    if text.endswith(ARCHIVE):
        return "this is the name of an archive, which holdfast copy writes, and reads back into a store; "
    if text.endswith(PACKED):
        return f"the name of an archive, which holdfast copy writes, ends in {ARCHIVE}; "
    if _is_file(text) and not _is_database(text):
        return "this is a file, and no database; "
    return SUGGESTED.format(f"{SQLITE}{text}" if Path(text).suffix else f"{text}.db, or {text}/")


def _schemes() -> dict[str, str]:
    """The schemes as they are written, by their names."""
    return {scheme.partition(":")[0]: scheme for kind in KINDS for scheme in kind.schemes}


def _unknown(text: str) -> str:
    """A URL of unknown shape may hold a password anywhere, so only its scheme is shown."""
    scheme, separator, _ = text.partition("://")
    if separator or "@" in text:
        return f"{scheme}://..." if separator else f"{text.partition(':')[0]}..."
    if "=" in text:  # as libpq has it: host=db password=...
        return f"{text.partition('=')[0]}=..."
    return repr(text)[:MOST_SHOWN]
