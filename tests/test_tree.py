"""A folder as a listing and back: nothing in it is lost, and nothing leads out of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import holdfast as hf
from crashing import play
from holdfast.errors import ArtifactDamaged
from holdfast.large import tree
from holdfast.large.tree import Entry
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore


@hf.agent
def snapshot(folder: str, ignore: list[str]) -> hf.Artifact:
    return hf.Artifact(folder, ignore=ignore)


def make(folder: Path) -> Path:
    (folder / "code" / "src" / "deep").mkdir(parents=True)
    (folder / "code" / "empty").mkdir()
    (folder / "code" / "src" / "run.sh").write_text("echo")
    (folder / "code" / "src" / "run.sh").chmod(0o755)
    (folder / "code" / "src" / "deep" / "a.pyc").write_bytes(b"\0")
    (folder / "code" / "main.py").write_text("main")
    (folder / "code" / "src" / "deep" / "up").symlink_to("../../main.py")
    (folder / "code" / os.fsdecode(b"\xff")).mkdir()
    return folder / "code"


def listing(folder: Path) -> list[tuple[str, str, bool]]:
    """What is in a folder: path, content or target, and whether it can be executed."""
    found = []
    for path in sorted(folder.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else "" if path.is_dir() else path.read_text()
        found.append((str(path.relative_to(folder)), content, path.is_file() and os.access(path, os.X_OK)))
    return found


def test_a_folder_comes_back_with_everything_in_it(tmp_path: Path) -> None:
    code = make(tmp_path)
    kept = play(MemoryStore(), snapshot, str(code), [])
    due = listing(code)
    assert len(due) == 8
    assert listing(kept.path()) == due
    assert listing(kept.save(tmp_path / "saved")) == due
    assert (kept.kind, kept.name, kept.size) == ("tree", "code", 9)
    assert hf.Artifact(code) == kept


def test_what_is_ignored_is_left_out(tmp_path: Path) -> None:
    kept = play(MemoryStore(), snapshot, str(make(tmp_path)), ["*.pyc", "src/deep/up", "empty", "?"])
    assert [path for path, _, _ in listing(kept.path())] == ["main.py", "src", "src/run.sh"]


def test_files_that_did_not_change_are_not_stored_again(tmp_path: Path) -> None:
    code = make(tmp_path)
    first = hf.run(snapshot, str(code), [], run_id="1", store=tmp_path / "runs.db")
    before = {path: path.stat().st_ino for path in (tmp_path / "runs.db.blobs").rglob("*") if path.is_file()}
    (code / "main.py").write_text("changed")
    second = hf.run(snapshot, str(code), [], run_id="2", store=tmp_path / "runs.db")
    after = {path: path.stat().st_ino for path in (tmp_path / "runs.db.blobs").rglob("*") if path.is_file()}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 2  # the file, and the listing
    assert (first.path() / "main.py").read_text() == "main"
    assert (second.path() / "main.py").read_text() == "changed"


@pytest.mark.parametrize("target", ["../outside", "/etc/passwd", "src/../../outside", "../code/main.py"])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, target: str) -> None:
    code = make(tmp_path)
    (code / "link").symlink_to(target)
    with pytest.raises(hf.Misuse, match="the link 'link' points to"):
        play(MemoryStore(), snapshot, str(code), [])


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    code = make(tmp_path)
    os.mkfifo(code / "pipe")
    with pytest.raises(hf.Misuse, match="pipe is neither a file nor a folder nor a link"):
        play(MemoryStore(), snapshot, str(code), [])
    assert play(MemoryStore(), snapshot, str(code), ["pipe"]).kind == "tree"


HOSTILE = [
    [Entry("../evil", digest="0" * 64)],
    [Entry("/evil", digest="0" * 64)],
    [Entry("a/../../evil", digest="0" * 64)],
    [Entry("a//b", digest="0" * 64)],
    [Entry("nul\0", digest="0" * 64)],
    [Entry("", digest="0" * 64)],
    [Entry("twice", digest="0" * 64), Entry("twice", target="x")],
    [Entry("link", target="inside"), Entry("link/evil", digest="0" * 64)],
    [Entry("link", target="..")],
    [Entry("a/b/top", target="../.."), Entry("out", target="a/b/top/..")],
    [Entry("link", target="/etc")],
]


@pytest.mark.parametrize("entries", HOSTILE, ids=lambda entries: repr(entries[-1].path + entries[-1].target))
def test_a_hostile_listing_writes_nothing(tmp_path: Path, entries: list[Entry]) -> None:
    with pytest.raises(ValueError, match=r"leads out|outside|twice"):
        tree.read(tree.written(entries))
    store = SqliteStore(tmp_path / "runs.db")
    digest = store.keep_blob([tree.written(entries)], at_us=1)
    told = {"artifact": digest, "size": 0, "kind": "tree", "name": "code", "media_type": ""}
    with hf.Holdfast(store) as app:
        app.run(forged, json.dumps(told), run_id="forged")
        with pytest.raises(ArtifactDamaged):
            app.artifact("forged", digest[:12]).save(tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))
    assert not (tmp_path / "evil").exists()


@hf.agent
def forged(told: str) -> hf.Artifact:
    return hf.Artifact.given_back(json.loads(told))


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"tree":2,"entries":[]}', b'{"tree":1}', b'{"tree":1,"entries":[{"pith":"a"}]}', b"\xff"])
def test_what_is_no_listing_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        tree.read(data)
