"""A folder as a listing: what is in it, by path, and the digest of every file; and such a listing as a folder again.

A listing can come from anywhere, so it is judged before anything is written: no path leaves the folder, and neither does a link.
A link may climb only at its beginning: behind a name, `..` would lead out of wherever a link of that name points.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from holdfast.errors import Misuse

ENTRIES_LIMIT = 500_000
"""Files, links and empty folders that one listing holds at the most."""


class Entry(NamedTuple):
    """One thing in a folder: a file (`digest`), a link (`target`) or an empty folder (neither)."""

    path: str
    digest: str = ""
    size: int = 0
    executable: bool = False
    target: str = ""


def walked(root: Path, ignore: Sequence[str]) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """Everything below `root` but what is ignored, in an order that is always the same; None for a folder with nothing in it."""
    pending, seen = [""], 0
    while pending:
        inside = pending.pop()
        found = sorted(os.scandir(root / inside), key=lambda entry: entry.name)
        for entry in found:
            path = f"{inside}/{entry.name}" if inside else entry.name
            if any(fnmatch(path, pattern) or fnmatch(entry.name, pattern) for pattern in ignore):
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(path)
                continue
            seen += 1
            if seen > ENTRIES_LIMIT:
                raise Misuse(f"{root} holds more than {ENTRIES_LIMIT:,} files; nothing was kept. Leave some out with ignore=")
            yield path, entry
        if not found and inside:
            yield inside, None


def listed(root: Path, ignore: Sequence[str], keep: Callable[[str], tuple[str, int]]) -> list[Entry]:
    """The folder as it is now, sorted by path; `keep` takes the path of a file and gives the digest and size of what it holds."""
    entries = [_entry(root, path, found, keep) for path, found in walked(root, ignore)]
    entries.sort()
    try:
        judged(entries)
    except ValueError as error:
        raise Misuse(f"{root} cannot be kept: {error}. Leave it out with ignore=") from None
    return entries


def _entry(root: Path, path: str, found: os.DirEntry[str] | None, keep: Callable[[str], tuple[str, int]]) -> Entry:
    if found is None:
        return Entry(path)
    if found.is_symlink():
        return Entry(path, target=str(Path(found.path).readlink()))
    mode = found.stat(follow_symlinks=False).st_mode
    if not stat.S_ISREG(mode):
        raise Misuse(f"{root / path} is neither a file nor a folder nor a link; nothing refers to what was kept. Leave it out with ignore=")
    return Entry(path, *keep(found.path), executable=bool(mode & stat.S_IXUSR))


def written(entries: Sequence[Entry]) -> bytes:
    """The listing as bytes, the same for the same content."""
    told = [{name: value for name, value in entry._asdict().items() if value or name == "path"} for entry in entries]
    return json.dumps({"tree": 1, "entries": told}, separators=(",", ":"), sort_keys=True).encode()


def read(data: bytes) -> list[Entry]:
    """The entries of a listing; ValueError where it is none, or would lead out of its folder."""
    told = json.loads(data)
    if not isinstance(told, dict) or told.get("tree") != 1:
        raise ValueError("it is no listing of a folder that this version can read")
    try:
        return judged([Entry(**entry) for entry in told["entries"]])
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"an entry of it cannot be read ({error})") from error


def judged(entries: list[Entry]) -> list[Entry]:
    """The entries, if none of them leads out of the folder and none stands below a link or file."""
    leaves = {entry.path for entry in entries if entry.digest or entry.target}
    if len({entry.path for entry in entries}) < len(entries):
        raise ValueError("it names a path twice")
    for entry in entries:
        path = PurePosixPath(entry.path)
        if not _is_plain(entry.path) or any(str(above) in leaves for above in path.parents):
            raise ValueError(f"the path {entry.path!r} leads out of it")
        if entry.target and not _stays(path, entry.target):
            raise ValueError(f"the link {entry.path!r} points to {entry.target!r}, outside of it")
    return entries


def _is_plain(path: str) -> bool:
    return bool(path) and "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def _stays(link: PurePosixPath, target: str) -> bool:
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return not target.startswith("/") and "\0" not in target and ".." not in parts[climbs:] and climbs < len(link.parts)


def built(entries: Sequence[Entry], folder: Path, fill: Callable[[Entry, Path], None], *, writable: bool) -> None:
    """Make the folder from a listing; `fill` writes the content of one file. Links come last, so that nothing is written through one."""
    folder.mkdir()
    for entry in entries:
        path = folder / entry.path
        (path if not entry.digest and not entry.target else path.parent).mkdir(parents=True, exist_ok=True)
        if entry.digest:
            fill(entry, path)
            path.chmod((0o644 if writable else 0o444) | (0o111 if entry.executable else 0))
    for entry in entries:
        if entry.target:
            (folder / entry.path).symlink_to(entry.target)
