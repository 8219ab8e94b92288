"""Artifacts: large values and folders that are kept once, by content, beside the records that refer to them.

Made inside a run, an artifact is streamed to the run's store at once; made outside, it remembers where its content is until a run takes
it. In a record stands a small JSON object with the digest. The blob is durable before any record that refers to it, and whoever reads it
checks what was read: an artifact gives back what was kept, or an error.

`vouched` are the digests that artifacts of this process stand for. Only these count as references when records are sealed: JSON that merely
looks like an artifact cannot refer to anything.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias, runtime_checkable

from pydantic_core import PydanticSerializationUnexpectedValue, core_schema

from holdfast._clock import Clock
from holdfast.errors import ArtifactDamaged, Misuse, StoreError
from holdfast.large import tree
from holdfast.store import Shelf

CHUNK = 1 << 20
"""Bytes that are in memory at a time."""
FILE, TREE = "file", "tree"
MARK = b'"artifact":"'
MARKED = re.compile(rb'"artifact":"([0-9a-f]{64})"')
DIGEST = re.compile(r"[0-9a-f]{64}")

HIDES = ("_written", "Artifact")
"""What stands in pydantic's errors that hide one of ours."""

Bytes: TypeAlias = builtins.bytes
Chunks: TypeAlias = Callable[[], Iterable[Bytes]]

vouched: set[str] = set()
_trouble = threading.local()


class Desk(NamedTuple):
    """Where what is made or read now is kept: the store, for which run, and how to stop that run when the store fails."""

    store: object
    clock: Clock
    run_id: str
    stop: Callable[[StoreError], BaseException] | None = None

    def shelf(self) -> Shelf:
        """The store, if it can keep blobs."""
        if not isinstance(self.store, Shelf):
            raise Misuse(f"the store {getattr(self.store, 'url', '')} keeps no artifacts; nothing was kept. Use another store")
        return self.store


desk: ContextVar[Desk | None] = ContextVar("holdfast_desk", default=None)


@contextmanager
def at_desk(here: Desk) -> Iterator[None]:
    """Artifacts that are encoded or decoded meanwhile belong to this store."""
    token = desk.set(here)
    try:
        yield
    finally:
        desk.reset(token)


@runtime_checkable
class Origin(Protocol):
    """Where the content of an artifact is."""

    def chunks(self, of: Artifact, digest: str) -> Iterable[Bytes]:
        """The content of a file, or the listing of a folder; `digest` is empty as long as it is not known."""

    def entry(self, of: Artifact, entry: tree.Entry) -> Iterable[Bytes]:
        """The content of one file of a folder."""


class Given(NamedTuple):
    """Bytes in memory."""

    data: Bytes

    def chunks(self, of: Artifact, digest: str) -> Iterable[Bytes]:
        del of, digest
        return (self.data,)

    def entry(self, of: Artifact, entry: tree.Entry) -> Iterable[Bytes]:
        raise AssertionError(f"bytes are no folder, and {of!r} has no {entry.path}")


class OnDisk(NamedTuple):
    """A file or folder that somebody else may change: what is read of it is compared with what it was."""

    path: Path
    ignore: Sequence[str] = ()

    def chunks(self, of: Artifact, digest: str) -> Iterable[Bytes]:
        del digest
        if of.kind == TREE:
            return (tree.written(tree.listed(self.path, self.ignore, lambda path: _hashed(_file_chunks(Path(path))))),)
        return _file_chunks(self.path)

    def entry(self, of: Artifact, entry: tree.Entry) -> Iterable[Bytes]:
        del of
        return _file_chunks(self.path / entry.path)


class Kept(NamedTuple):
    """A blob of a store, for a run."""

    shelf: Shelf
    run_id: str

    def chunks(self, of: Artifact, digest: str) -> Iterable[Bytes]:
        return self._blob(of, digest)

    def entry(self, of: Artifact, entry: tree.Entry) -> Iterable[Bytes]:
        return self._blob(of, entry.digest)

    def _blob(self, of: Artifact, digest: str) -> Iterator[Bytes]:
        file = self.shelf.open_blob(digest)
        if file is None:
            raise ArtifactDamaged(self.run_id, of.name, digest, "it is not there")
        try:
            with file:
                while chunk := file.read(CHUNK):
                    yield chunk
        except OSError as error:
            raise ArtifactDamaged(self.run_id, of.name, digest, f"it cannot be read ({error.strerror})") from error


class Nowhere(NamedTuple):
    """An artifact that was decoded outside any run."""

    def chunks(self, of: Artifact, digest: str) -> Iterable[Bytes]:
        raise Misuse(f"{of!r} does not know its store. Get it from there: app.artifact(run_id, {digest[:12]!r})")

    def entry(self, of: Artifact, entry: tree.Entry) -> Iterable[Bytes]:
        raise AssertionError(f"the listing of {of!r} cannot be had, so nobody asks for {entry.path}")


class Artifact:
    """A large value or a folder, stored once by content.

    `source` is bytes, or the path of a file or folder. `ignore` are patterns of names or paths in a folder to leave out.
    Two artifacts are equal when they hold the same.
    """

    __slots__ = ("_digest", "_kind", "_media_type", "_name", "_origin", "_size")

    _origin: Origin

    def __init__(
        self,
        source: Bytes | str | os.PathLike[str],
        *,
        media_type: str = "",
        name: str = "",
        ignore: Sequence[str] = (),
    ) -> None:
        self._digest, self._size, self._kind = "", 0, FILE
        if isinstance(source, builtins.bytes | bytearray | memoryview):
            self._origin = Given(builtins.bytes(source))
        elif isinstance(source, str | os.PathLike):
            path = Path(source)
            self._kind, self._origin = _kind(path), OnDisk(path.absolute(), _patterns(ignore))
            name = name or path.absolute().name
        else:
            raise Misuse(f"hf.Artifact takes bytes or the path of a file or folder, not {type(source).__name__}; nothing was kept")
        self._name = name
        import mimetypes

        guessed = "" if self._kind == TREE else mimetypes.guess_type(name)[0]
        self._media_type = media_type or guessed or ("" if self._kind == TREE else "application/octet-stream")
        if desk.get() is not None:
            self._settle()

    @property
    def digest(self) -> str:
        """The SHA-256 of the content, of a folder that of its listing; inside a run, the content is in its store from here on."""
        self._settle()
        return self._digest

    @property
    def size(self) -> int:
        """Bytes of the content, of a folder those of all its files."""
        self._settle()
        return self._size

    @property
    def kind(self) -> str:
        """`"file"` or `"tree"`."""
        return self._kind

    @property
    def name(self) -> str:
        """The name of the file or folder, or what was given as such."""
        return self._name

    @property
    def media_type(self) -> str:
        """What was given, or what the name suggests."""
        return self._media_type

    def bytes(self) -> Bytes:
        """The whole content of a file, checked."""
        with self.open() as stream:
            return stream.read()

    def open(self) -> BinaryIO:
        """The content of a file as a stream; at its end it is checked, and what is not what was kept raises `hf.Damaged` there."""
        self._settle()
        if self._kind == TREE:
            raise Misuse(f"{self!r} is a folder, which has no bytes of its own. Use .path(), or .save(to)")
        return io.BufferedReader(_Stream(iter(self._content())), CHUNK)

    def path(self) -> Path:
        """A read-only copy in a temporary folder, checked, to be read and not to be changed; it is gone when this process ends."""
        from holdfast.large.copies import handed_out

        self._settle()
        return handed_out((self._digest, self._name), self._name, self._copied)

    def save(self, to: str | os.PathLike[str]) -> Path:
        """A copy of your own at `to`, where nothing may stand yet; it appears there when it is checked and complete."""
        from holdfast.large.copies import saved

        self._settle()
        return saved(Path(to), lambda path: self._copied(path, writable=True))

    def told(self) -> dict[str, Any]:
        """What stands in a record for this artifact."""
        self._settle()
        if desk.get() is not None:
            vouched.add(self._digest)
        return {"artifact": self._digest, "size": self._size, "kind": self._kind, "name": self._name, "media_type": self._media_type}

    @classmethod
    def given_back(cls, told: Any) -> Artifact:
        """The artifact that stands in a record; ValueError where it is none."""
        if isinstance(told, Artifact):
            return told
        if not _is_told(told):
            raise ValueError("an artifact was expected")
        made = cls.__new__(cls)
        made.__setstate__(told)
        return made

    def __setstate__(self, told: dict[str, Any]) -> None:
        here = desk.get()
        self._digest, self._size, self._kind = told["artifact"], told["size"], told["kind"]
        self._name, self._media_type = told["name"], told["media_type"]
        self._origin = Nowhere() if here is None else Kept(here.shelf(), here.run_id)
        if here is not None:
            vouched.add(self._digest)

    def verified(self) -> Iterator[Bytes]:
        """All bytes of it, of a folder those of its listing and its files, each checked."""
        self._settle()
        yield from self._content()
        for entry in self._entries() if self._kind == TREE else ():
            if entry.digest:
                yield from self._checked(self._origin.entry(self, entry), entry.digest, entry.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Artifact) and (self._kind, self.digest) == (other._kind, other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return _named(self._name or self._kind, self._digest)

    def __copy__(self) -> Artifact:
        return self

    def __deepcopy__(self, memo: object) -> Artifact:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Artifact.given_back, (self.told(),)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> core_schema.CoreSchema:
        """How values with artifacts in them are written and read."""
        del source, handler
        told = core_schema.plain_serializer_function_ser_schema(_written, when_used="json")
        return core_schema.no_info_plain_validator_function(cls.given_back, serialization=told)

    def _settle(self) -> None:
        """Know the digest; inside a run, have the content in its store."""
        here = desk.get()
        if here is None:
            if not self._digest:
                self._measured()
            return
        shelf = here.shelf()
        if isinstance(self._origin, Kept) and self._origin.shelf is shelf:
            return
        if isinstance(self._origin, Nowhere) and shelf.touch_blob(self._digest, at_us=here.clock.now_us()):
            self._origin = Kept(shelf, here.run_id)
            return
        try:
            digest, size = self._put(shelf, here.clock.now_us())
        except StoreError as error:
            raise error if here.stop is None else here.stop(error) from error
        if self._digest not in ("", digest):
            raise self._changed()
        self._digest, self._size, self._origin = digest, size, Kept(shelf, here.run_id)

    def _measured(self) -> None:
        if self._kind == FILE:
            self._digest, self._size = _hashed(self._content())
            return
        listing = b"".join(self._content())
        self._digest, self._size = hashlib.sha256(listing).hexdigest(), sum(entry.size for entry in tree.read(listing))

    def _put(self, shelf: Shelf, at_us: int) -> tuple[str, int]:
        if self._kind == FILE:
            if self._digest and shelf.touch_blob(self._digest, at_us=at_us):
                return self._digest, self._size
            return _kept(shelf, self._content, at_us)
        entries = self._kept_entries(shelf, at_us)
        parts = sorted({entry.digest for entry in entries if entry.digest})
        return shelf.keep_blob((tree.written(entries),), at_us=at_us, parts=parts), sum(entry.size for entry in entries)

    def _kept_entries(self, shelf: Shelf, at_us: int) -> list[tree.Entry]:
        origin = self._origin
        if isinstance(origin, OnDisk):
            return tree.listed(origin.path, origin.ignore, lambda path: _kept(shelf, lambda: _file_chunks(Path(path)), at_us))
        entries = self._entries()
        for entry in entries:
            if entry.digest and not shelf.touch_blob(entry.digest, at_us=at_us):
                shelf.keep_blob(self._checked(origin.entry(self, entry), entry.digest, entry.path), at_us=at_us)
        return entries

    def _entries(self) -> list[tree.Entry]:
        try:
            return tree.read(b"".join(self._content()))
        except ValueError as error:
            raise ArtifactDamaged(self._run_id(), self._name, self._digest, str(error)) from error

    def _copied(self, path: Path, *, writable: bool = False) -> None:
        if self._kind == TREE:
            tree.built(self._entries(), path, self._fill, writable=writable)
            return
        _poured(self._content(), path)
        path.chmod(0o644 if writable else 0o444)

    def _fill(self, entry: tree.Entry, path: Path) -> None:
        _poured(self._checked(self._origin.entry(self, entry), entry.digest, entry.path), path)

    def _content(self) -> Iterable[Bytes]:
        """What a file holds, or the listing of a folder; checked, once it is known what it must be."""
        chunks = self._origin.chunks(self, self._digest)
        return self._checked(chunks, self._digest) if self._digest else chunks

    def _checked(self, chunks: Iterable[Bytes], digest: str, inside: str = "") -> Iterator[Bytes]:
        """The chunks; after the last one, an error if they are not what the digest says."""
        hashed = hashlib.sha256()
        for chunk in chunks:
            hashed.update(chunk)
            yield chunk
        if hashed.hexdigest() != digest:
            if not isinstance(self._origin, Kept):
                raise self._changed()
            name = f"{self._name}/{inside}" if inside else self._name
            raise ArtifactDamaged(self._run_id(), name, digest, "it does not hold what was kept")

    def _changed(self) -> Misuse:
        where = getattr(self._origin, "path", self._name)
        return Misuse(f"{where} has changed since the artifact was made of it; nothing was recorded. Make the artifact anew")

    def _run_id(self) -> str:
        return self._origin.run_id if isinstance(self._origin, Kept) else ""


def refs_in(*texts: Bytes | None) -> list[str]:
    """The artifacts of this process that stand in these encoded values."""
    found = [digest.decode() for text in texts if text and MARK in text for digest in MARKED.findall(text)]
    return [digest for digest in found if digest in vouched]


def trouble(hiding: Exception) -> BaseException | None:
    """What went wrong with an artifact while the value around it was encoded, which the error of whoever encodes hides."""
    error: BaseException | None = getattr(_trouble, "error", None)
    _trouble.error = None
    return error if any(word in str(hiding) for word in HIDES) else None


def _written(value: object) -> dict[str, Any]:
    if not isinstance(value, Artifact):
        raise PydanticSerializationUnexpectedValue("Expected `Artifact`")
    try:
        return value.told()
    except BaseException as error:
        _trouble.error = error
        raise


def in_short(value: dict[str, Any]) -> object:
    """What stands in a record for an artifact as people are shown it; anything else as it is."""
    return _named(value["name"] or value["kind"], value["artifact"]) if _is_told(value) else value


def _named(name: str, digest: str) -> str:
    return f"<Artifact {name!r}{f' {digest[:12]}' if digest else ''}>"


def _is_told(told: Any) -> bool:
    texts = ("artifact", "kind", "name", "media_type")
    return (
        isinstance(told, dict)
        and told.keys() == {*texts, "size"}
        and all(isinstance(told[name], str) for name in texts)
        and type(told["size"]) is int
        and told["kind"] in (FILE, TREE)
        and DIGEST.fullmatch(told["artifact"]) is not None
    )


def _kind(path: Path) -> str:
    if path.is_dir():
        return TREE
    if path.is_file():
        return FILE
    what = "is neither a file nor a folder" if path.exists() else "is not there"
    raise Misuse(f"{path} {what}; nothing was kept. Give hf.Artifact bytes, or the path of a file or folder")


def _patterns(ignore: Sequence[str]) -> tuple[str, ...]:
    if isinstance(ignore, str):
        raise Misuse(f"ignore= takes several patterns: ignore=[{ignore!r}]; nothing was kept")
    return tuple(ignore)


def _file_chunks(path: Path) -> Iterator[Bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except OSError as error:
        raise Misuse(f"{path} cannot be read ({error.strerror}); nothing refers to what was kept of it") from error


def _hashed(chunks: Iterable[Bytes]) -> tuple[str, int]:
    hashed, size = hashlib.sha256(), 0
    for chunk in chunks:
        hashed.update(chunk)
        size += len(chunk)
    return hashed.hexdigest(), size


def _kept(shelf: Shelf, chunks: Chunks, at_us: int) -> tuple[str, int]:
    """Have a content on the shelf: one read where it is there already, and no write."""
    digest, size = _hashed(chunks())
    if shelf.touch_blob(digest, at_us=at_us):
        return digest, size
    counted: list[int] = []
    return shelf.keep_blob(_counted(chunks(), counted), at_us=at_us), sum(counted)


def _counted(chunks: Iterable[Bytes], sizes: list[int]) -> Iterator[Bytes]:
    for chunk in chunks:
        sizes.append(len(chunk))
        yield chunk


def _poured(chunks: Iterable[Bytes], path: Path) -> None:
    with path.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)


class _Stream(io.RawIOBase):
    """Chunks as a file that is read from the beginning to the end."""

    def __init__(self, chunks: Iterator[Bytes]) -> None:
        self._chunks, self._left = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; the error of a chunk that is not what was kept comes out here."""
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count
