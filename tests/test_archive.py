"""An archive is read as it was written or not at all: flips, cuts, bombs, newer versions and names that lead elsewhere are refused."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import StoreDamaged, StoreForeign, StoreNewer
from holdfast.moving import archive as archive_room
from holdfast.moving.archive import DIGITS, SEAL, Archive, read, shown
from holdfast.store import Row, Store
from holdfast.stores.memory import MemoryStore

Change = Callable[[dict[str, bytes]], None]


@hf.step
def draw(what: str) -> hf.Artifact:
    return hf.Artifact(what.encode() * 3, name="pic")


@hf.effect(in_doubt="ask")
def pay(cents: int) -> dict[str, object]:
    return {"cents": cents, "näh": [1.5, None, 1e22]}


@hf.agent
def shopping(what: str) -> list[object]:
    return [draw(what).size, pay(3)]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    with hf.Holdfast(MemoryStore()) as app:
        app.run(shopping, "abc", run_id="r", tags={"kunde": "7"})
        app.copy("r", to=tmp_path / "r.holdfast")
    return tmp_path / "r.holdfast"


def refused(file: Path, error: type[Exception], match: str = ".") -> Store:
    """Reading it is refused, and nothing of it is in the store."""
    with hf.Holdfast(MemoryStore()) as app:
        with pytest.raises(error, match=match) as said:
            app.copy(file)
        assert "nothing was copied" in str(said.value)
        assert app.runs() == []
        assert app.store._blobs == {}  # type: ignore[attr-defined]
        return app.store


def rewritten(file: Path, change: Change, *, sealed: bool = True, twice: str = "") -> Path:
    """The same archive with other contents, whose manifest and seal fit them: made by somebody who wants to harm."""
    with zipfile.ZipFile(file) as before:
        contents = {name: before.read(name) for name in before.namelist()}
    change(contents)
    manifest = json.loads(contents.pop("manifest.json"))
    if sealed:
        manifest["files"] = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in contents.items()}
        manifest["digest"] = archive_room._digest(manifest["files"])
    contents["manifest.json"] = json.dumps(manifest).encode()
    other = file.with_name("other.holdfast")
    with zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as after:
        for name, data in contents.items():
            after.writestr(name, data)
        if twice:
            with pytest.warns(UserWarning, match="Duplicate name"):
                after.writestr(twice, contents[twice])
        after.comment = SEAL + b"0" * DIGITS
    return resealed(other)


def resealed(file: Path) -> Path:
    data = file.read_bytes()[:-DIGITS]
    file.write_bytes(data + hashlib.sha256(data).hexdigest().encode())
    return file


def changed(name: str, **fields: Any) -> Change:
    def change(contents: dict[str, bytes]) -> None:
        contents[name] = json.dumps({**json.loads(contents[name]), **fields}).encode()

    return change


def test_a_person_can_read_it(archive: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        names = file.namelist()
        assert names[:3] == ["run.json", "journal/000001-run.started.json", "journal/000002-draw.json"]
        charge = next(name for name in names if name.endswith("-pay.json") and b'"step.done"' in file.read(name))
        told = json.loads(file.read(charge))
        assert (told["kind"], told["value"], told["step_id"]) == ("step.done", {"cents": 3, "näh": [1.5, None, 1e22]}, "2")
        assert "näh" in file.read(charge).decode()
        digest = hashlib.sha256(b"abcabcabc").hexdigest()
        assert file.read(f"blobs/{digest}") == b"abcabcabc"
        manifest = json.loads(file.read("manifest.json"))
        assert manifest["archive"] == manifest["format"] == 1
        assert manifest["files"][f"blobs/{digest}"] == {"size": 9, "sha256": digest}


def flips(archive: Path, every: int) -> Iterator[int]:
    """One bit of each byte is turned, another one in turn, and turned back afterwards."""
    data = archive.read_bytes()
    with archive.open("r+b", buffering=0) as file:
        for place in range(0, len(data), every):
            for byte in (data[place] ^ (1 << place % 8), data[place]):
                file.seek(place)
                file.write(bytes([byte]))
                if byte != data[place]:
                    yield place


def is_noticed(archive: Path) -> bool:
    try:
        Archive(archive).close()
    except (StoreDamaged, StoreForeign):
        return True
    return False


def test_every_flipped_byte_is_noticed(archive: Path) -> None:
    """All bytes are under the seal, and the seal's own are compared one by one: none of them is harmless."""
    assert archive.stat().st_size > 2000
    assert is_noticed(archive) is False
    assert [place for place in flips(archive, 1) if not is_noticed(archive)] == []


def test_without_the_seal_flips_would_go_unnoticed(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a zip alone does not notice all of them."""
    seal = archive.read_bytes()[-DIGITS:].decode()
    monkeypatch.setattr(archive_room, "_hashed", lambda file, size: seal)
    assert [place for place in flips(archive, 17) if not is_noticed(archive)] != []


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_one_that_is_cut_off_or_goes_on_is_refused(archive: Path, part: float) -> None:
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * part)])
    refused(archive, StoreForeign, "is no archive of Holdfast")
    archive.write_bytes(data + b"x")
    refused(archive, StoreForeign, "or its end is missing")


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.holdfast"
    with hf.Holdfast(MemoryStore()) as app, pytest.raises(hf.StoreError, match="cannot be read"):
        app.copy(file)
    file.write_bytes(b"no archive" * 30)
    refused(file, StoreForeign)
    file.write_bytes(b"PK\x03\x04" * 10 + SEAL + b"0" * DIGITS)
    refused(resealed(file), StoreDamaged, "zip")


@pytest.mark.parametrize("field", ["archive", "format"])
def test_one_of_a_newer_version_is_refused_whatever_else_is_in_it(archive: Path, field: str) -> None:
    def newer(contents: dict[str, bytes]) -> None:
        changed("manifest.json", **{field: 2})(contents)
        contents["something/new.cbor"] = b"?"

    refused(rewritten(archive, newer), StoreNewer, "written by a newer Holdfast")


NAMES = ["../evil.json", "/etc/evil", "journal/../../evil.json", "journal\\..\\evil", "blobs/../run.json", "C:evil", "notes.txt"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_elsewhere_is_refused(archive: Path, name: str, tmp_path: Path) -> None:
    refused(rewritten(archive, lambda contents: contents.update({name: b"{}"})), StoreDamaged, "no archive holds a file named")
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("name", ["run.json", "manifest.json", "journal/000001-run.started.json"])
def test_two_files_of_one_name_are_refused(archive: Path, name: str) -> None:
    refused(rewritten(archive, lambda contents: None, twice=name), StoreDamaged, "twice")


def test_sizes_that_are_not_what_they_say_are_refused(archive: Path) -> None:
    """A bomb says that it is small: the local and the central header of a file are turned, and the seal is made to fit."""
    first, size = b"journal/000001-run.started.json", 1 << 20
    bomb = rewritten(archive, changed("journal/000001-run.started.json", padding="0" * size))
    data = bytearray(bomb.read_bytes())
    for mark, at in ((b"PK\x01\x02", 46), (b"PK\x03\x04", 30)):
        header = data.index(first, data.index(mark)) if mark == b"PK\x03\x04" else data.rindex(first)
        field = header - at + (24 if mark == b"PK\x01\x02" else 22)
        assert int.from_bytes(data[field : field + 4], "little") > size
        data[field : field + 4] = (100).to_bytes(4, "little")
    bomb.write_bytes(data)
    refused(resealed(bomb), StoreDamaged, "or not in their sizes")


def test_files_that_share_their_bytes_are_refused(archive: Path) -> None:
    data = bytearray(archive.read_bytes())
    name = b"journal/000002-draw.json"
    central = data.rindex(name) - 46
    assert data[central : central + 4] == b"PK\x01\x02"
    data[central + 42 : central + 46] = (0).to_bytes(4, "little")
    archive.write_bytes(data)
    refused(resealed(archive), StoreDamaged)


def without(name: str) -> Change:
    def change(contents: dict[str, bytes]) -> None:
        for each in [each for each in contents if each.startswith(name)]:
            del contents[each]

    return change


LIES: dict[str, Change] = {
    "another kind": changed("journal/000001-run.started.json", kind="run.cancelled"),
    "an unknown kind": changed("journal/000001-run.started.json", kind="run.dreamt"),
    "another time": changed("journal/000003-pay.json", at_us=7),
    "a time that is none": changed("journal/000003-pay.json", at_us="7"),
    "another value": changed("journal/000002-draw.json", value={"artifact": "x"}),
    "no body": lambda contents: contents.update({"journal/000002-draw.json": b'{"seq": 2}'}),
    "no JSON": lambda contents: contents.update({"journal/000002-draw.json": b"{"}),
    "no object": lambda contents: contents.update({"run.json": b"[]"}),
    "deep JSON": lambda contents: contents.update({"run.json": b"[" * 100_000}),
    "a record less": without("journal/000002"),
    "no records": without("journal/"),
    "no artifacts": without("blobs/"),
    "no run": without("run.json"),
    "another name": lambda contents: contents.update({"journal/000002-refund.json": contents.pop("journal/000002-draw.json")}),
    "a stray artifact": lambda contents: contents.update({f"blobs/{hashlib.sha256(b'x').hexdigest()}": b"x"}),
    "another artifact": lambda contents: contents.update({next(name for name in contents if name.startswith("blobs/")): b"x"}),
    "another status": lambda contents: changed("run.json", run={**json.loads(contents["run.json"])["run"], "status": "queued"})(contents),
    "another run": lambda contents: changed("run.json", run={**json.loads(contents["run.json"])["run"], "run_id": "../x"})(contents),
    "artifacts of nobody": changed("run.json", artifacts={"refs": 7, "parts": []}),
}


@pytest.mark.parametrize("lie", LIES)
def test_contents_that_do_not_add_up_are_refused_although_every_digest_fits(archive: Path, lie: str) -> None:
    refused(rewritten(archive, LIES[lie]), StoreDamaged)


def test_a_manifest_that_does_not_fit_is_refused(archive: Path) -> None:
    said: list[dict[str, Any]] = [{"files": {}}, {"files": 7}, {"digest": "0"}, {"archive": "1"}, {"run_id": "x"}]
    for change in [*(changed("manifest.json", **each) for each in said), without("run.json")]:
        refused(rewritten(archive, change, sealed=False), StoreDamaged)


ODD = [b"{}", b'{"a":1}', b'{"a": 1}', b'{"a":1,"a":2}', b"1e22", b"NaN", b"\xff", b'"\\ud800"', b"[" * 5000, b"", b"null"]


@pytest.mark.parametrize("data", ODD)
def test_every_row_comes_back_byte_by_byte(data: bytes) -> None:
    row = Row(1, 2, 3, "step.done", "4:x", data, data, None, b"\1" * 32)
    text = json.dumps(shown(row), ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert read(json.loads(text.decode("utf-8", "surrogatepass"))) == row
    bare = row._replace(value=None, args=b"[]")
    assert read(shown(bare)) == bare
