"""The files that carry emitted values (`_live_files`): torn lines, a full disk, and when they go."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.operating.follow import Follower
from holdfast.stores._live_files import LINGER_S, OPEN_FILES, STALE_S, LiveFiles
from holdfast.stores._seat import SEAT
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.sample import create

NUMBER = 999_999_999
"""A file that is newer than any."""


def files(folder: Path, *, resting: bool = True) -> LiveFiles:
    return LiveFiles(folder / "live", lambda run_id: resting)


def payloads(carrier: LiveFiles | SqliteStore, run_id: str = "r", after: int = 0) -> list[bytes]:
    return [payload for _, payload in carrier.published(run_id, after)]


def full_disk_for(folder: Path) -> None:
    """Writing to the newest file of run r gives ENOSPC, by the kernel's own word."""
    folder.mkdir(parents=True)
    (folder / str(NUMBER)).symlink_to("/dev/full")


def test_a_full_disk_does_not_hurt_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @hf.effect(in_doubt="fail")
    async def charge() -> str:
        hf.emit("charging")
        return "charged"

    @hf.agent
    async def buy() -> str:
        hf.emit("buying")
        return await charge()

    full_disk_for(tmp_path / "runs.db.live" / "r.run")
    with hf.Holdfast(tmp_path / "runs.db") as app:
        assert app.run(buy, run_id="r") == "charged"
        assert [event.kind for event in app.tail("r")] == ["run.started", "step.started", "step.done", "run.done"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left on device" in caplog.text


def test_the_full_disk_would_hurt_whoever_does_not_expect_it(tmp_path: Path) -> None:
    full_disk_for(tmp_path / "live" / "r.run")
    with pytest.raises(OSError, match="No space left"):
        files(tmp_path)._write("r", b"1\n")


def test_it_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    carrier = files(tmp_path)
    full_disk_for(tmp_path / "live" / "r.run")
    carrier.publish("r", b"lost")
    (tmp_path / "live" / "r.run" / str(NUMBER)).unlink()
    carrier.publish("r", b"there")
    assert payloads(carrier) == [b"there"]


SHORT = """
import resource, sys
from pathlib import Path
from holdfast.stores._seat import SEAT
from holdfast.stores._live_files import LiveFiles
carrier = LiveFiles(Path(sys.argv[1]) / "live", lambda run_id: True)
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2500, limit[1]))
for _ in range(5):
    carrier.publish("r", b"[" + b"1" * 998 + b"]")
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
carrier.publish("r", b"[2]")
"""


def test_a_line_that_was_written_in_part_takes_no_other_along(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SHORT, tmp_path], check=True)
    first, second, *torn, last = payloads(files(tmp_path))
    assert first == second == b"[" + b"1" * 998 + b"]"
    assert last == b"[2]"
    assert [line for line in torn if line.endswith(b"]")] == []


def test_a_torn_line_is_not_shown(tmp_path: Path) -> None:
    with hf.Holdfast(tmp_path / "runs.db") as app:
        app.store.append([create("r")])
        folder = tmp_path / "runs.db.live" / "r.run"
        folder.mkdir(parents=True)
        (folder / "7").write_bytes(b'[0,1,"","whole"]\n[0,1,"","to\n[0,1]\n7\n[0,1,"","last"]\n[0,1,"","unfin')
        follower = Follower(app.engine, "r", 0)
        assert [event.value for event in follower._emitted()] == ["whole", "last"]
        with (folder / "7").open("ab") as file:
            file.write(b'ished"]\n')
        assert [event.value for event in follower._emitted()] == ["unfinished"]


def aged(folder: Path, seconds: float) -> None:
    """Let everything in the folder be so old."""
    for path in [folder, *folder.rglob("*")]:
        before = path.stat().st_mtime - seconds
        os.utime(path, (before, before))


@pytest.mark.parametrize(
    ("age_s", "resting", "stays"),
    [(0, True, True), (LINGER_S + 1, True, False), (LINGER_S + 1, False, True), (STALE_S + 1, False, False)],
)
def test_files_go_once_nobody_executes_the_run_and_followers_had_their_time(
    tmp_path: Path, age_s: float, *, resting: bool, stays: bool
) -> None:
    carrier = files(tmp_path, resting=resting)
    carrier.publish("r", b"1")
    aged(tmp_path / "live", age_s)
    carrier.sweep()
    assert payloads(carrier) == ([b"1"] if stays else [])


def test_opening_the_store_sweeps_and_whoever_executes_a_run_keeps_its_files(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    store.append([create("owned")])
    for run_id in ("owned", "gone"):
        store.publish(run_id, b"1")
    aged(tmp_path / "runs.db.live", LINGER_S + 1)
    again = SqliteStore(tmp_path / "runs.db")
    assert (payloads(again, "owned"), payloads(again, "gone")) == ([b"1"], [])
    again.close()
    store.close()


def test_a_writer_whose_file_was_swept_away_is_read_all_the_same(tmp_path: Path) -> None:
    carrier = files(tmp_path)
    carrier.publish("r", b"1")
    aged(tmp_path / "live", LINGER_S + 1)
    files(tmp_path).sweep()
    assert payloads(carrier) == []
    carrier.publish("r", b"2")
    carrier.publish("r", b"3")
    assert payloads(carrier) == [b"2", b"3"]


def test_a_position_in_a_file_that_is_gone_is_before_all_that_came_since(tmp_path: Path) -> None:
    carrier = files(tmp_path)
    carrier.publish("r", b"1")
    (position, _), *_ = carrier.published("r", 0)
    for number, name in enumerate(["5", "6"]):
        (tmp_path / "live" / "r.run" / name).write_bytes(b"%d\n" % number)
    for path in (tmp_path / "live" / "r.run").iterdir():
        if path.name not in ("5", "6"):
            path.unlink()
    assert payloads(carrier, after=position) == [b"0", b"1"], "a clock that was set back: its numbers are lower"
    assert payloads(carrier, after=4 << 23) == [b"0", b"1"]


def test_many_runs_speak_without_as_many_open_files(tmp_path: Path) -> None:
    carrier = files(tmp_path)
    for number in range(2 * OPEN_FILES):
        carrier.publish(f"r{number}", b"1")
    carrier.publish("r0", b"2")
    assert len(carrier._open) == OPEN_FILES
    assert payloads(carrier, "r0") == [b"1", b"2"]
    carrier.close()
    assert carrier._open == {}


def test_a_thread_does_not_wait_for_another_that_hangs(tmp_path: Path) -> None:
    carrier = files(tmp_path)
    carrier._seat.by[SEAT] = -1
    carrier.publish("r", b"lost")
    carrier._seat.by.clear()
    carrier.publish("r", b"there")
    assert payloads(carrier) == [b"there"]


def test_a_run_id_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    carrier = files(tmp_path)
    for run_id in ("..", ".", "../../x", "/etc/x", "a/b"):
        carrier.publish(run_id, b"1")
        assert payloads(carrier, run_id) == [b"1"]
    assert [path.name for path in tmp_path.iterdir()] == ["live"]
