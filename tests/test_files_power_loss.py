"""What is left of a folder of files when the power goes: all that is done to it is recorded, and every moment of it rebuilt.

At power loss what was flushed is there: the bytes of a file whose flush has ended, the names in a folder whose flush has ended. Of the
rest nobody knows: none of it, all, or any part. Each such folder is opened by a store that knows nothing of it, and must hold all that
was acknowledged.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import holdfast as hf
from faulty_disk import Event, Recording, under
from holdfast.errors import HoldfastError
from holdfast.records.journal import Journal
from holdfast.store import Append, Shedding, Stale
from holdfast.stores.files import FilesStore
from holdfast.testing.sample import head, onward, repair, row

ROUNDS = 2
"""Rounds of chance for every moment."""


class Acking(FilesStore):
    """Writes down what it has acknowledged, between what it did for it."""

    def __init__(self, path: Path, disk: Recording) -> None:
        super().__init__(path)
        self._disk = disk

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        told = super().append(batch, wait=wait)
        self._disk.events += [Event("ack", f"{one.head.seq}") for one in batch]
        return told


def recorded(folder: Path) -> list[Event]:
    """All that a run of two sessions does to a folder."""

    @hf.step
    def look(number: int) -> int:
        return number

    @hf.agent
    def work(fails: str) -> int:
        known = hf.state({"seen": 0})
        known["seen"] = look(1) + look(2)
        if Path(fails).exists():
            Path(fails).unlink()
            raise RuntimeError("once")
        return look(3)

    disk, fails = Recording(), folder.with_name("fails")
    fails.touch()
    with under(disk):
        for _ in range(2):
            with hf.Holdfast(Acking(folder, disk)) as app:
                try:
                    app.run(work, str(fails), run_id="r")
                except RuntimeError:
                    continue
    return disk.events


# --- rebuilding -----------------------------------------------------------------------------------------------------


class File:
    """The bytes of a file: those that were written, and how many of them are flushed."""

    def __init__(self) -> None:
        self.data, self.flushed = b"", 0

    def left(self, dice: random.Random | None) -> bytes:
        """What a machine finds that comes up again: with no dice, only what was flushed."""
        if dice is None or self.flushed == len(self.data):
            return self.data[: self.flushed]
        cut = dice.choice([self.flushed, len(self.data), dice.randint(self.flushed, len(self.data))])
        return self.data[:cut] + bytes(dice.choice([0, len(self.data) - cut]))


class Folder:
    """The names in a folder as they are, and as they were when it was last flushed."""

    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
        self.flushed: dict[str, File | Folder] = {}

    def left(self, dice: random.Random | None) -> dict[str, File | Folder]:
        """Of the names that came or went since the flush, any may have."""
        if dice is None:
            return self.flushed
        either = {**self.flushed, **self.names}
        return {name: node for name, node in either.items() if self._stays(name, dice)}

    def _stays(self, name: str, dice: random.Random) -> bool:
        return (name in self.flushed and name in self.names) or dice.random() < 0.5


class Disk:
    """The folder while the recording goes by."""

    def __init__(self, root: Path) -> None:
        self.root, self.top, self.acked = root, Folder(), 0
        self._files: dict[str, File] = {}

    def go_on(self, event: Event) -> None:
        if event.what == "ack":
            self.acked = int(event.path)
            return
        above, name = self._at(event.path)
        match event.what:
            case "create":
                above.names[name] = self._files[event.path] = File()
            case "mkdir":
                above.names[name] = Folder()
            case "write":
                self._files[event.path].data += event.data
            case "unlink":
                above.names.pop(name)
            case "link" | "rename":
                there, called = self._at(event.target)
                there.names[called] = above.names[name] if event.what == "link" else above.names.pop(name)
            case "fsync":
                self._flush(self.top if event.path.rstrip("/") == str(self.root) else above.names[name])

    def rebuild(self, folder: Path, dice: random.Random | None) -> None:
        folder.mkdir(parents=True)
        _rebuild(self.top, folder, dice)

    def _flush(self, node: File | Folder) -> None:
        if isinstance(node, File):
            node.flushed = len(node.data)
        else:
            node.flushed = dict(node.names)

    def _at(self, path: str) -> tuple[Folder, str]:
        node = self.top
        *above, name = Path(path).relative_to(self.root).parts or (".",)
        for part in above:
            found = node.names[part]
            assert isinstance(found, Folder)
            node = found
        return node, name


def _rebuild(node: Folder, folder: Path, dice: random.Random | None) -> None:
    for name, found in node.left(dice).items():
        if isinstance(found, Folder):
            (folder / name).mkdir()
            _rebuild(found, folder / name, dice)
        else:
            (folder / name).write_bytes(found.left(dice))


def wrong_with(folder: Path, acked: int) -> str:
    """Open what is left, load and verify it; what is wrong with it, or nothing."""
    try:
        store = FilesStore(folder)
        found = store.load("r")
        seq = 0 if found is None else Journal.load(*found).head.seq
        store.close()
    except HoldfastError as error:
        return f"damaged: {error}"
    return f"lost: {acked} were acknowledged, {seq} are left" if seq < acked else ""


def moments(root: Path, events: Sequence[Event], seed: int) -> Iterator[tuple[Disk, random.Random | None, str]]:
    disk = Disk(root)
    for number, event in enumerate(events):
        disk.go_on(event)
        if event.what in ("fsync", "ack", "link", "rename"):
            yield disk, None, f"{number} ({event.what} {event.path}), nothing unflushed is left"
            for turn in range(ROUNDS):
                yield disk, random.Random(f"{seed} {number} {turn}"), f"{number} ({event.what} {event.path}), seed {seed}, round {turn}"


def cut_everywhere(root: Path, events: Sequence[Event], room: Path, seed: int) -> tuple[int, list[str]]:
    """Cut the power at every moment; how many were tried, and what was wrong."""
    tried, wrong = 0, []
    for disk, dice, told in moments(root, events, seed):
        tried += 1
        disk.rebuild(room / "cut", dice)
        found = wrong_with(room / "cut", disk.acked)
        shutil.rmtree(room / "cut")
        if found:
            wrong.append(f"{told}: {found}")
    return tried, wrong


@pytest.fixture
def seed() -> int:
    return int.from_bytes(os.urandom(4), "big")


@pytest.fixture(autouse=True)
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is in the recording; the real one need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_what_was_acknowledged_survives_power_loss_at_every_moment(tmp_path: Path, seed: int) -> None:
    events = recorded(tmp_path / "runs")
    assert [event.what for event in events].count("ack") > 5
    tried, wrong = cut_everywhere(tmp_path / "runs", events, tmp_path, seed)
    assert tried > 100
    assert wrong == []


@pytest.mark.parametrize("skipped", ["folders", "files"])
def test_without_a_flush_of_folders_or_of_files_records_are_lost(tmp_path: Path, seed: int, skipped: str) -> None:
    events = recorded(tmp_path / "runs")
    kept = [event for event in events if event.what != "fsync" or (tmp_path / "runs" / event.path).is_dir() == (skipped == "files")]
    assert len(kept) < len(events)
    _, wrong = cut_everywhere(tmp_path / "runs", kept, tmp_path, seed)
    assert any("lost: " in line or "damaged: " in line for line in wrong), f"seed {seed}"


# --- turns ----------------------------------------------------------------------------------------------------------


def turned(folder: Path, how: str) -> list[Event]:
    """What a prune or a repair does to a folder, with what an append does before it."""
    disk = Recording()
    with under(disk):
        store = FilesStore(folder)
        store.append([Append("r", 0, 0, [row(1), row(2), row(3)], head("r", 3))])
        disk.events.append(Event("ack", "3"))
        if how == "shed":
            assert store.shed(Shedding(head("r", 3), [row(2, body=b"[]")], onward("r", 3)))
        else:
            assert store.set_aside(repair("r", rows=3, good=2))
        disk.events.append(Event("ack", "4"))
        store.close()
    return disk.events


@pytest.mark.parametrize("how", ["shed", "repair"])
def test_a_turn_survives_power_loss_as_a_whole_or_not_at_all(tmp_path: Path, seed: int, how: str) -> None:
    events = turned(tmp_path / "runs", how)
    before = [row(1), row(2), row(3)]
    after = {"shed": [row(1), row(2, body=b"[]"), row(3), row(4)], "repair": [row(1), row(2), row(3, epoch=2)]}[how]
    for disk, dice, told in moments(tmp_path / "runs", events, seed):
        if disk.acked < 3:
            continue
        disk.rebuild(tmp_path / "cut", dice)
        store = FilesStore(tmp_path / "cut")
        found = store.load("r")
        assert found is not None, told
        assert found[1] in ([after] if disk.acked == 4 else [before, after]), told
        store.close()
        shutil.rmtree(tmp_path / "cut")
