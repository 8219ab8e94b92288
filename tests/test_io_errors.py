"""The disk refuses, is full, or cannot flush, at one point after the other of a whole run.

The caller of hf.run gets a typed error. What was acknowledged is stored, and nothing else was acknowledged; the run goes on when the
disk does, and no effect is done twice on the way. A flush that failed is not tried again on the same handle.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import starting
from sweeping import NEEDS_A_PERSON, Server, sqlite_in
from test_sweep import AGENT, Case, Crew, crew, new_case, refuse_any

__all__ = ["crew"]

HERE = Path(__file__).parent
STORE_GAVE_UP = 74
KIB = 1024
WRITES = ("pwrite64", "fdatasync", "pwritev2")
"""How SQLite writes and flushes, and how a tail is written and flushed at once."""
FLUSH = r"(?:fdatasync|pwritev2)\((\d+)"
REFUSALS = {
    ("pwrite64", "ENOSPC"): ({"StoreFull", "StoreFull: shared memory"}, 9),
    ("pwrite64", "EIO"): ({"StoreFailed", "StoreFull: shared memory"}, 5),
    ("fdatasync", "EIO"): ({"StoreFailed"}, 8),
    ("fdatasync", "ENOSPC"): ({"StoreFailed", "StoreFull"}, 4),
    ("pwritev2", "EIO"): ({"StoreFailed"}, 5),
    ("pwritev2", "ENOSPC"): ({"StoreFull"}, 4),
}
"""Which call fails how: the errors that the caller may get, and at how many points of the run it is tried.

Of shared memory that cannot grow SQLite does not say why: that is told as a lack of room.
"""


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The calls of the main thread that write and flush files in an undisturbed run, from the creation of the store on, by their numbers.

    A flush of a folder is left out: SQLite does not look what becomes of it.
    """
    folder = tmp_path_factory.mktemp("counted")
    traced = starting.under_strace(["-y", "-e", f"trace={','.join(WRITES)}", "-o", f"{folder}/trace"], AGENT, folder, "async")
    starting.run(traced, cwd=HERE, timeout=60).check_returncode()
    lines = (folder / "trace").read_text().splitlines()
    main = lines[0].split()[0]
    made = {name: [line for line in lines if line.split()[0] == main and f"{name}(" in line] for name in WRITES}
    found = {name: [number for number, line in enumerate(each, 1) if f"<{folder}>" not in line] for name, each in made.items()}
    assert len(found["pwrite64"]) > 20
    assert min(len(found["fdatasync"]), len(found["pwritev2"])) > 10
    return found


def disturbed(case: Case, call: str, error: str, number: int, *options: str) -> tuple[int, str]:
    """One run in which one call fails: its exit status, and the command that does it again, with what it said."""
    inject = f"inject={call}:error={error}:when={number}"
    strace = ["-e", f"trace={call}", *(options or ("-o", "/dev/null")), "-e", inject]
    done = starting.run(starting.under_strace(strace, AGENT, case.folder, "async", str(case.store)), cwd=HERE, text=True, timeout=60)
    return done.returncode, f"{' '.join(map(str, done.args))} {done.stderr}".strip()


def error_of(case: Case) -> str:
    kind, text = json.loads((case.folder / "store_error.json").read_text())
    assert "what was acknowledged before is safe" in text
    return f"{kind}: shared memory" if "the shared memory beside the log cannot grow" in text else str(kind)


def spread(numbers: Sequence[int], points: int) -> list[int]:
    """So many of these, evenly."""
    return sorted({numbers[round(place * (len(numbers) - 1) / (points - 1))] for place in range(points)})


@pytest.mark.parametrize(("call", "error"), REFUSALS)
def test_a_disk_that_refuses(crew: Crew, calls: dict[str, list[int]], tmp_path: Path, call: str, error: str) -> None:
    kinds, points = REFUSALS[call, error]

    def refuse_at(server: Server, number: int) -> tuple[str, list[str]]:
        case = new_case(crew, tmp_path / f"{call}-{error}-{number}", "async")
        code, command = disturbed(case, call, error, number)
        if code not in (0, NEEDS_A_PERSON, STORE_GAVE_UP):
            return "", [f"{command} ended with {code}"]
        said = error_of(case) if code == STORE_GAVE_UP else ""
        case.killed(command)
        case.finish(server)
        return said, case.judge(crew.expected)

    found = crew.map(refuse_at, spread(calls[call], points))
    refuse_any(wrong for _, wrong in found)
    said = [kind for kind, _ in found if kind]
    assert set(said) <= kinds
    assert len(said) >= points - 2, "only the checkpoint when the store is closed may fail unseen: nothing depends on it"


def flushes_after_failure(trace: Sequence[str]) -> list[str]:
    """The flushes on the descriptor whose flush failed, from the failure until it is closed."""
    after: list[str] = []
    failed = ""
    for line in trace:
        if "(INJECTED)" in line and (match := re.search(FLUSH, line)):
            failed = match.group(1)
        elif failed and re.search(rf"close\({failed}\)", line):
            return after
        elif failed and (match := re.search(FLUSH, line)) and match.group(1) == failed:
            after.append(line)
    raise AssertionError("no flush failed, or its descriptor was never closed")


@pytest.mark.parametrize(("call", "number"), [("fdatasync", 9), ("fdatasync", 14), ("pwritev2", 9)])
def test_a_flush_that_failed_is_not_tried_again_on_the_same_handle(crew: Crew, tmp_path: Path, call: str, number: int) -> None:
    case = new_case(crew, tmp_path / "flush", "async")
    options = ("-e", "trace=fdatasync,pwritev2,close", "-o", f"{case.folder}/trace")
    code, _ = disturbed(case, call, "EIO", number, *options)
    assert code == STORE_GAVE_UP
    assert flushes_after_failure((case.folder / "trace").read_text().splitlines()) == []


def test_the_trace_would_show_a_second_flush() -> None:
    trace = ["7 fdatasync(5) = -1 EIO (Input/output error) (INJECTED)", "7 fdatasync(4) = 0", "7 fdatasync(5) = 0", "7 close(5) = 0"]
    assert flushes_after_failure(trace) == ["7 fdatasync(5) = 0"]


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("variant", ["async", "def"])
def test_a_file_that_may_not_grow(crew: Crew, tmp_path: Path, variant: str) -> None:
    def stop_at(server: Server, limit_kib: int) -> tuple[str, list[str]]:
        case = new_case(crew, tmp_path / f"{limit_kib}k", variant)
        command = [sys.executable, "-c", LIMITED, str(limit_kib * KIB), str(AGENT), str(case.folder), variant]
        code = starting.run(command, cwd=HERE, timeout=60).returncode
        if code != STORE_GAVE_UP:
            return "", [f"with files of {limit_kib} KiB {command} ended with {code}"]
        said = error_of(case)
        case.killed(f"{limit_kib} KiB")
        case.finish(server)
        return said, case.judge(crew.expected)

    found = crew.map(stop_at, [20, 60, 120, 180])
    refuse_any(wrong for _, wrong in found)
    assert {kind for kind, _ in found} <= {"StoreFailed", "StoreFull"}


@contextmanager
def small_disk(folder: Path, size: str = "1m") -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here ({mounted.stderr.decode().strip()}); the files that may not grow say the same")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("room_kib", [8, 60, 150, 200])
def test_a_full_disk(crew: Crew, tmp_path: Path, room_kib: int) -> None:
    with small_disk(tmp_path / "disk") as disk:
        case = Case(tmp_path / "case", "async", sqlite_in(disk))
        case.folder.mkdir()
        filler = disk / "filler"
        filler.write_bytes(bytes(KIB * (KIB - room_kib)))
        assert crew.servers[0].obey(case.order()) == STORE_GAVE_UP
        assert error_of(case) in {"StoreFull", "StoreFull: shared memory"}
        assert sorted(one.name for one in disk.iterdir() if one.name.endswith(".new")) == []
        filler.unlink()
        case.killed(f"a disk with room for {room_kib} KiB")
        case.finish(crew.servers[0])
        assert case.judge(crew.expected) == []
