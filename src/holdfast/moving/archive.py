"""One run as one file that a person can read: a zip of pretty JSON, with its blobs, sealed as a whole.

    run.json                       where the run stands, and which blobs it refers to
    journal/000047-charge.json     its records, one file each
    blobs/<sha256>                 its artifacts
    manifest.json                  versions, and the size and SHA-256 of everything above

The file ends with a comment that holds the SHA-256 of every byte before it, so that no change goes unnoticed. What comes from elsewhere
may have been made to harm: nothing is ever unpacked to disk, names must be these, sizes must be what they say, and the records must add
up. All of that is looked at before anything of an archive is used.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from holdfast._ids import checked_run_id
from holdfast._turns import in_line_as_ever
from holdfast.errors import Damaged, HoldfastError, StoreDamaged, StoreError, StoreForeign, StoreNewer
from holdfast.large.artifact import CHUNK
from holdfast.moving.parcels import Blobs, checked_chunks, needed
from holdfast.records.journal import Journal
from holdfast.store import FORMAT, Head, Row

SUFFIX = ".holdfast"
VERSION = 1
"""Version of the archive; of a newer one nothing is read."""

MANIFEST, RUN = "manifest.json", "run.json"
NAMES = re.compile(r"manifest\.json|run\.json|journal/[0-9]{6,12}-[A-Za-z0-9._-]{1,64}\.json|blobs/[0-9a-f]{64}")
SEAL = b"holdfast archive, sha256 of all before: "
DIGITS = 64
MOST_TEXT = 2 << 30
"""Bytes of one JSON file in it at the most."""

LOCAL_HEADER = 30
"""Bytes that stand before an entry at the least."""

EPOCH = (1980, 1, 1, 0, 0, 0)


class Packed(NamedTuple):
    """A run on its way out of a store or an archive: what is recorded, where its blobs are, and what to call the place."""

    head: Head
    rows: Sequence[Row]
    blobs: Blobs | None
    place: str


def pack(path: Path, packed: Packed, written: list[str]) -> Generator[str, None, None]:
    """Write an archive, file by file, each of which is named; it appears whole or not at all. `written` gets its digest."""
    refuse_unwritable(path)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            yield from _filled(file, packed, written)
            file.flush()
            os.fsync(file.fileno())
        _appear(beside, path)
    except OSError as error:
        raise StoreError(str(path), f"it cannot be written ({error.strerror}); nothing was copied") from error
    finally:
        with suppress(OSError):
            beside.unlink()


def refuse_unwritable(path: Path) -> None:
    """A name that is taken, and a folder in which no file can be made."""
    if path.exists():
        raise StoreError(str(path), "there is a file of that name already; nothing was written. Choose another name")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise StoreError(str(path), f"there is no folder {folder}; nothing was written. Create it, or choose another name")
    if not os.access(folder, os.W_OK):
        raise StoreError(str(path), f"the folder {folder} is not writable; nothing was written. Choose another one")


def _appear(beside: Path, path: Path) -> None:
    """Give the finished file its name, unless somebody else has taken that by now."""
    try:
        os.link(beside, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        beside.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _filled(file: BinaryIO, packed: Packed, written: list[str]) -> Iterator[str]:
    files: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, chunks in _contents(packed):
            files[name] = _entered(archive, name, chunks)
            yield name
        manifest = {"archive": VERSION, "format": FORMAT, "run_id": packed.head.run_id, "files": files, "digest": _digest(files)}
        _entered(archive, MANIFEST, [_pretty(manifest)])
        archive.comment = SEAL + b"0" * DIGITS
    written.append(str(manifest["digest"]))
    file.flush()
    with Path(file.name).open("rb") as again:
        seal = _hashed(again, file.tell() - DIGITS)
    file.seek(-DIGITS, os.SEEK_END)
    file.write(seal.encode())


def _contents(packed: Packed) -> Iterator[tuple[str, Iterable[bytes]]]:
    head, blobs = packed.head, packed.blobs
    digests = needed(blobs, head.run_id) if blobs is not None else {}
    parts = {digest: blobs.blob_parts(digest) for digest in digests} if blobs is not None else {}
    refs = blobs.blob_refs(head.run_id) if blobs is not None else []
    told = {**head._asdict(), "digest": head.digest.hex(), "tags": json.loads(head.tags)}
    run = {"run": told, "artifacts": {"refs": refs, "parts": {digest: each for digest, each in parts.items() if each}}}
    yield RUN, [_pretty(run)]
    for row in packed.rows:
        yield _name_of(row), [_pretty(shown(row))]
    for digest in digests:
        assert blobs is not None
        yield f"blobs/{digest}", checked_chunks(blobs, digest, head.run_id)


def _entered(archive: zipfile.ZipFile, name: str, chunks: Iterable[bytes]) -> dict[str, Any]:
    found, size = hashlib.sha256(), 0
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(info, "w", force_zip64=name.startswith("blobs/")) as entry:
        for chunk in chunks:
            found.update(chunk)
            size += len(chunk)
            entry.write(chunk)
    return {"size": size, "sha256": found.hexdigest()}


def _name_of(row: Row) -> str:
    """`journal/000047-charge.json`: the step's name where it has one, else the kind."""
    name = ""
    with suppress(ValueError, AttributeError):
        name = str(json.loads(row.body).get("name", ""))
    slug = re.sub(r"[^A-Za-z0-9._-]", "-", name or row.kind)[:60].strip("-.") or "record"
    return f"journal/{row.seq:06d}-{slug}.json"


def shown(row: Row) -> dict[str, Any]:
    """A row as a person reads it; what it holds comes back byte by byte."""
    at = datetime.fromtimestamp(row.at_us / 1e6, tz=UTC).isoformat()
    told: dict[str, Any] = {"seq": row.seq, "at": at, "kind": row.kind, "step_id": row.step_id}
    for name, data in (("body", row.body), ("value", row.value), ("args", row.args)):
        if data is not None:
            told |= _readable(name, data)
    return {**told, "epoch": row.epoch, "at_us": row.at_us, "digest": row.digest.hex()}


def read(told: dict[str, Any]) -> Row:
    """The same row again; ValueError, TypeError or KeyError where it is none."""
    body, value, args = (_bytes(name, told) for name in ("body", "value", "args"))
    if body is None:
        raise ValueError("it has no body")
    for name in ("seq", "epoch", "at_us"):
        if type(told[name]) is not int:
            raise ValueError(f"{name} is {told[name]!r:.40}")
    kind, step_id = str(told["kind"]), str(told["step_id"])
    return Row(told["seq"], told["epoch"], told["at_us"], kind, step_id, body, value, args, bytes.fromhex(told["digest"]))


def _readable(name: str, data: bytes) -> dict[str, Any]:
    """Bytes as JSON where that gives the same bytes again, else as text, else in base 64."""
    with suppress(ValueError, RecursionError):
        value = json.loads(data, parse_constant=_no_number)
        if _compact(value) == data:
            return {name: value}
    with suppress(UnicodeDecodeError):
        return {f"{name}_text": data.decode()}
    return {f"{name}_base64": base64.b64encode(data).decode()}


def _bytes(name: str, told: dict[str, Any]) -> bytes | None:
    if name in told:
        return _compact(told[name])
    if f"{name}_text" in told:
        return str(told[f"{name}_text"]).encode()
    return base64.b64decode(told[f"{name}_base64"], validate=True) if f"{name}_base64" in told else None


def _no_number(constant: str) -> None:
    raise ValueError(constant)


def _compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _pretty(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _digest(files: dict[str, dict[str, Any]]) -> str:
    """One digest for all of it: SHA-256 over a line for each file, as `sha256sum` writes it."""
    lines = "".join(f"{told['sha256']}  {name}\n" for name, told in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _hashed(file: BinaryIO, size: int) -> str:
    """The SHA-256 of the first `size` bytes."""
    found, left = hashlib.sha256(), size
    file.seek(0)
    while left > 0 and (chunk := file.read(min(CHUNK, left))):
        found.update(chunk)
        left -= len(chunk)
    return found.hexdigest()


class Archive:
    """An archive that was looked at as a whole, and found to be good. `Blobs` for whoever takes its run in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise StoreError(str(path), f"it cannot be read ({error.strerror}); nothing was copied") from error
        try:
            self._zip = self._opened()
            self.manifest = self._manifest()
            self._run = self._json(RUN)
            self.head, self.rows = self._records()
            self._check_blobs()
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RecursionError, OSError) as error:
            self.close()
            raise self._damaged(str(error)) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def packed(self) -> Packed:
        """The run in it."""
        return Packed(self.head, self.rows, self, str(self.path))

    def open_blob(self, digest: str) -> BinaryIO | None:
        name = f"blobs/{digest}"
        return self._zip.open(name) if name in self.manifest["files"] else None  # type: ignore[return-value]

    def blob_refs(self, run_id: str) -> list[str]:
        return list(self._run["artifacts"]["refs"]) if run_id == self.head.run_id else []

    def blob_parts(self, digest: str) -> list[str]:
        return list(self._run["artifacts"]["parts"].get(digest, ()))

    def _damaged(self, what: str) -> StoreDamaged:
        return StoreDamaged(str(self.path), f"the archive is damaged: {what}; nothing was copied. Take another copy of it")

    def _opened(self) -> zipfile.ZipFile:
        """The zip, once its seal is found to be whole."""
        size = self._file.seek(0, os.SEEK_END)
        if size < len(SEAL) + DIGITS:
            raise StoreForeign(str(self.path), "this is no archive of Holdfast; nothing was copied")
        self._file.seek(size - len(SEAL) - DIGITS)
        end = self._file.read()
        if not end.startswith(SEAL):
            foreign = "this is no archive of Holdfast, or its end is missing; nothing was copied"
            raise StoreForeign(str(self.path), foreign)
        if end.removeprefix(SEAL) != _hashed(self._file, size - DIGITS).encode():
            raise self._damaged("it is not what was written, or not all of it")
        archive = zipfile.ZipFile(self._file)
        self._check_entries(archive.infolist(), size)
        return archive

    def _check_entries(self, entries: Sequence[zipfile.ZipInfo], size: int) -> None:
        """Every entry has a room of its own in the file, and a name of its own; what has a bad one is never looked into."""
        names = [entry.filename for entry in entries]
        if len(set(names)) < len(names):
            raise self._damaged(f"it has {next(name for name in names if names.count(name) > 1)[:80]!r} twice")
        behind = 0
        for entry in sorted(entries, key=lambda each: each.header_offset):
            if entry.header_offset < behind or entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise self._damaged(f"{entry.filename[:80]!r} is not as Holdfast writes it")
            behind = entry.header_offset + LOCAL_HEADER + len(entry.filename.encode()) + entry.compress_size
        if behind > size:
            raise self._damaged("an entry ends outside of it")

    def _manifest(self) -> dict[str, Any]:
        names = {entry.filename: entry.file_size for entry in self._zip.infolist()}
        if MANIFEST not in names:
            raise self._damaged("it has no manifest")
        manifest = self._parsed(MANIFEST, self._text(MANIFEST, names[MANIFEST]))
        versions = manifest.get("archive"), manifest.get("format")
        if any(type(version) is not int for version in versions):
            raise self._damaged("its manifest names no version")
        if manifest["archive"] > VERSION or manifest["format"] > FORMAT:
            newer = f"it was written by a newer Holdfast (archive {versions[0]}, format {versions[1]})"
            raise StoreNewer(str(self.path), f"{newer}, and this one reads {VERSION} and {FORMAT}; nothing was copied")
        bad = [name for name in names if not NAMES.fullmatch(name)]
        if bad:
            raise self._damaged(f"no archive holds a file named {bad[0][:80]!r}")
        files = manifest.get("files")
        told = {name: each.get("size") for name, each in files.items() if isinstance(each, dict)} if isinstance(files, dict) else {}
        if told != {name: size for name, size in names.items() if name != MANIFEST} or RUN not in told:
            raise self._damaged("it does not hold the files that its manifest names, or not in their sizes")
        unsaid = any(type(each.get("sha256")) is not str for each in manifest["files"].values())
        if unsaid or manifest.get("digest") != _digest(manifest["files"]):
            raise self._damaged("its manifest does not add up")
        return manifest

    def _json(self, name: str) -> dict[str, Any]:
        told = self.manifest["files"][name]
        data = self._text(name, told["size"])
        if hashlib.sha256(data).hexdigest() != told["sha256"]:
            raise self._damaged(f"{name} is not what the manifest says")
        return self._parsed(name, data)

    def _text(self, name: str, size: int) -> bytes:
        """One file, of the size that it says and no larger."""
        if size > MOST_TEXT:
            raise self._damaged(f"{name} is larger than any record")
        with self._zip.open(name) as entry:
            data = entry.read(size + 1)
        if len(data) != size:
            raise self._damaged(f"{name} is not as large as it says")
        return data

    def _parsed(self, name: str, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"{name} is not JSON ({error})") from error
        if not isinstance(found, dict):
            raise self._damaged(f"{name} is not as Holdfast writes it")
        return found

    def _records(self) -> tuple[Head, list[Row]]:
        """The head and the rows, whose chain is verified as that of every run."""
        try:
            told = self._run["run"]
            tags = json.dumps(told["tags"], sort_keys=True, ensure_ascii=False)
            head = Head(**{**in_line_as_ever(told), "tags": tags, "digest": bytes.fromhex(told["digest"])})
            checked_run_id(head.run_id)
            names = sorted(name for name in self.manifest["files"] if name.startswith("journal/"))
            rows = sorted((read(self._json(name)) for name in names), key=lambda row: row.seq)
            self._refuse_misnamed(head, rows, sorted(names, key=_number))
            Journal.load(head, rows)
        except Damaged as damage:
            raise self._damaged(f"record {damage.seq}: {damage.what}") from damage
        except (KeyError, TypeError, ValueError, AttributeError, HoldfastError) as error:
            if isinstance(error, StoreError):
                raise
            raise self._damaged(f"its records cannot be read ({type(error).__name__}: {str(error)[:200]})") from error
        return head, rows

    def _refuse_misnamed(self, head: Head, rows: Sequence[Row], names: Sequence[str]) -> None:
        """The names are for people, who are not to be told of a charge where there is none."""
        if [_name_of(row) for row in rows] != names or self.manifest.get("run_id") != head.run_id:
            raise self._damaged("a record has another name than it should, or is of another run")

    def _check_blobs(self) -> None:
        """The blobs are what their names say, and it holds all that its run refers to."""
        held = {name.removeprefix("blobs/") for name in self.manifest["files"] if name.startswith("blobs/")}
        try:
            artifacts = self._run["artifacts"]
            known = {*artifacts["refs"], *artifacts["parts"], *(part for parts in artifacts["parts"].values() for part in parts)}
        except (KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"it does not say which artifacts it holds ({error})") from error
        if known != held:
            raise self._damaged("it does not hold the artifacts that its run refers to")
        for digest in held:
            told = self.manifest["files"][f"blobs/{digest}"]
            with self._zip.open(f"blobs/{digest}") as entry:
                found = _hashed_upto(entry, told["size"])
            if found != digest or told["sha256"] != digest:
                raise self._damaged(f"artifact {digest[:12]} is not what its name says")


def _number(name: str) -> int:
    return int(name.removeprefix("journal/").partition("-")[0])


def _hashed_upto(entry: Any, size: int) -> str:
    """The SHA-256 of an entry; nothing where it is larger than it says."""
    found, left = hashlib.sha256(), size
    while chunk := entry.read(CHUNK):
        left -= len(chunk)
        if left < 0:
            return ""
        found.update(chunk)
    return found.hexdigest()
