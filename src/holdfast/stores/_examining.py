"""What examinations of stores have in common: how long a commit takes and what that means, and what a folder is good for."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from holdfast._clock import Clock
from holdfast.store import Finding, Grade
from holdfast.stores._file_system import IN_MEMORY, LAYERED, NETWORK, UNFLUSHED, Mount, mount_of

TIMES = 20
"""How often something is done to say how long it takes."""
SLOW_S = 0.05
DOUBTFUL_S = 0.00005
"""A flush that takes less has hardly reached a disk."""
LITTLE_BYTES, TOO_LITTLE_BYTES = 1024**3, 100 * 1024**2
PRELOADED = "eatmydata"
"""A library that turns flushes into nothing, for tests of other people."""

Said = tuple[Grade, str, str]
FINE: Said = ("ok", "", "")
UNRELIABLE: Said = ("bad", "locks and flushes over a network cannot be relied on", "name a path on a local disk")
ELSEWHERE: Said = (
    "warn", "another machine keeps it: no death is proven here, so that runs of a killed process go on only when its lease is over",
    "make sure that its server flushes what it acknowledges; better, use PostgreSQL",
)  # fmt: skip
SYSTEMS: tuple[tuple[frozenset[str], Said], ...] = (
    (IN_MEMORY, ("bad", "it is in memory: all runs are gone when the machine restarts", "name a path on a disk")),
    (LAYERED, ("warn", "it belongs to a container: all runs are gone when that is removed", "name a path on a volume that outlives it")),
)
"""What is known of file systems: the grade, what it means, what to do."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk says, which proves nothing else."""
UNTRIED = "there is no room to try it"

NOTHING = "nothing that was acknowledged"
ONE_DISK = Finding(topic="crash", what="the disk is lost", value="all runs since the last copy", meaning="they are on one machine")
KILLED = Finding(topic="crash", what="a process is killed", value=NOTHING, meaning="its runs go on in another process")


def median_s(clock: Clock, work: Callable[[], object]) -> float:
    """How long `work` takes as a rule."""
    lasted = []
    for _ in range(TIMES):
        began_s = clock.monotonic_s()
        work()
        lasted.append(clock.monotonic_s() - began_s)
    return median(lasted)


def commit_speed(took_s: float) -> Finding:
    """What it means that a commit takes so long."""
    each = f"about {1 / took_s:,.0f} steps per second" if took_s else "many steps per second"
    meaning = f"a step waits for one: {each} in one run, more in several at the same time"
    if took_s > SLOW_S:
        advice = "use a disk with quick flushes, or bring the server nearer"
        return Finding(topic="speed", what="commit", value=in_ms(took_s), grade="warn", meaning=meaning, advice=advice)
    return Finding(topic="speed", what="commit", value=in_ms(took_s), meaning=meaning)


def in_ms(duration_s: float) -> str:
    """A short time."""
    return f"{duration_s * 1000:.2f} ms" if duration_s >= 0.0001 else f"{duration_s * 1000:.3f} ms"  # noqa: PLR2004 (two digits that say something)


def in_bytes(size: float) -> str:
    """An amount of room."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004 (a thousand of one is one of the next)
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"  # noqa: PLR2004
        size /= 1000
    return f"{size:,.1f} TB"


def examined_folder(folder: Path, clock: Clock, *, network: Said = UNRELIABLE) -> list[Finding]:
    """What a folder of this machine is good for: its file system, what works in it, the room that is left.

    `network` is what to say of one that reaches over a network.
    """
    mount = mount_of(folder)
    return [_file_system(mount, network), *_barriers(mount), *_flushes(folder, mount, clock), _links(folder), _room(folder)]


def power_loss(folder: Path) -> Finding:
    """What a folder of this machine loses when the power fails."""
    mount = mount_of(folder)
    value, grade, why = _lost(mount)
    return Finding(topic="crash", what="the power fails", value=value, grade=grade, meaning=why)


def privacy(path: Path) -> Finding:
    """Whether other users of the machine can read what is kept."""
    mode = path.stat().st_mode
    value = stat.filemode(mode)
    if not mode & 0o077:
        return Finding(topic="permissions", what=path.name, value=value, meaning="its user alone can read and write it")
    advice = f"chmod go= {path}"
    return Finding(
        topic="permissions", what=path.name, value=value, grade="warn", meaning="other users of this machine can get at what is recorded",
        advice=advice,
    )  # fmt: skip


def _file_system(mount: Mount, network: Said) -> Finding:
    systems = (*SYSTEMS, (NETWORK, network))
    grade, meaning, advice = next((said for kinds, said in systems if mount.kind in kinds), FINE)
    return Finding(topic="durability", what="file system", value=mount.kind or "unknown", grade=grade, meaning=meaning, advice=advice)


def _barriers(mount: Mount) -> list[Finding]:
    """What keeps flushes from reaching the disk, if anything does."""
    found = [(f"mounted with {option}", "mount it without") for option in sorted(mount.options & UNFLUSHED)]
    if PRELOADED in os.environ.get("LD_PRELOAD", ""):
        found.append((PRELOADED, f"start without {PRELOADED} in LD_PRELOAD"))
    return [
        Finding(topic="durability", what="flushes", value=value, grade="bad", meaning="they do not reach the disk", advice=advice)
        for value, advice in found
    ]


def _flushes(folder: Path, mount: Mount, clock: Clock) -> list[Finding]:
    with _scratch(folder) as path:
        try:
            took_s = _flush_s(path, clock)
        except OSError as error:
            if error.errno in NO_ROOM:
                return [Finding(topic="speed", what="flush of a small file", value="not measured", meaning=UNTRIED)]
            return [
                Finding(
                    topic="durability", what="fsync", value="refused", grade="bad", advice="name a path on a disk",
                    meaning=f"what is acknowledged may not be on the disk ({error.strerror})",
                )
            ]  # fmt: skip
    pretends = took_s < DOUBTFUL_S and mount.kind not in IN_MEMORY
    meaning = "quicker than most disks can be: make sure that it is not the cache of a controller without a battery" if pretends else ""
    return [Finding(topic="speed", what="flush of a small file", value=in_ms(took_s), meaning=meaning)]


def _flush_s(path: Path, clock: Clock) -> float:
    with path.open("wb", buffering=0) as file:

        def flush() -> None:
            file.write(b"a few bytes, as a record has\n")
            os.fsync(file.fileno())

        return median_s(clock, flush)


def _links(folder: Path) -> Finding:
    with _scratch(folder) as path:
        other = path.with_name(f"{path.name}.link")
        try:
            path.touch()
            other.hardlink_to(path)
        except OSError as error:
            if error.errno in NO_ROOM:
                return Finding(topic="durability", what="hard links", value="not tried", meaning=UNTRIED)
            meaning = f"a new store cannot be put in its place at once ({error.strerror})"
            return Finding(
                topic="durability", what="hard links", value="refused", grade="bad", meaning=meaning, advice="name a path on another disk"
            )
        finally:
            other.unlink(missing_ok=True)
    return Finding(topic="durability", what="hard links", value="work")


def _room(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    value = f"{in_bytes(free)} free"
    if free >= LITTLE_BYTES:
        return Finding(topic="room", what="disk", value=value)
    grade: Grade = "bad" if free < TOO_LITTLE_BYTES else "warn"
    meaning = "when nothing is left, runs stop with StoreFull and go on once there is room"
    return Finding(topic="room", what="disk", value=value, grade=grade, meaning=meaning, advice="free some space, or prune: holdfast prune")


def _lost(mount: Mount) -> tuple[str, Grade, str]:
    if mount.kind in IN_MEMORY:
        return "everything", "bad", f"because {mount.kind} is memory"
    if mount.options & UNFLUSHED or PRELOADED in os.environ.get("LD_PRELOAD", ""):
        return "the last steps, and perhaps the whole store", "bad", "because flushes do not reach the disk"
    if mount.kind in NETWORK:
        return "perhaps the last steps", "bad", "because it depends on a server elsewhere"
    return NOTHING, "ok", "as long as the disk keeps what it has flushed"


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A name for a moment."""
    path = folder / f".holdfast-doctor-{secrets.token_hex(8)}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
