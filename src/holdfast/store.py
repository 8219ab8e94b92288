"""The seam to the stores: what a store keeps, as bytes, and what it promises about it.

Five nouns:

- A *row* is one fact of one run: numbered, chained by digest to the row before it, never changed.
- A *head* is the one line that says where a run stands. It moves in the same transaction as the rows
  and can always be computed again from them.
- An *append* is everything one run wants to write at once: rows, the new head, the letters it took.
  It names the epoch and the last seq it believes in, and is refused when either has moved.
- A *letter* is how somebody who does not own a run speaks to it: a cancellation, a settled doubt.
- An *owner* is one process for its life. Its pulse tells whether it beats, and whether it is proven dead.

A store knows nothing of agents and steps: `kind`, `body`, `value`, `args` and `digest` are opaque to it.
Every method may be called from any thread. What `append` has returned survives power loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Protocol, runtime_checkable

from ._clock import Clock

if TYPE_CHECKING:
    from typing_extensions import TypeIs

FORMAT = 1
"""Version of the stored format. A store written by a newer version is refused, an older one is migrated."""

CHILD_OF = "child_of"
"""The tag that names the run which called another one: that one executes inside it."""

INSIDE = f'"{CHILD_OF}":'
"""How the tags of such a run can be told."""


class Row(NamedTuple):
    """One fact of one run. `body` is its JSON, `value` and `args` the encoded data it carries."""

    seq: int
    epoch: int
    at_us: int
    kind: str
    step_id: str
    body: bytes
    value: bytes | None
    args: bytes | None
    digest: bytes


class Head(NamedTuple):
    """Where a run stands. `note` says in a few words what it waits for or why it stopped."""

    run_id: str
    agent: str
    status: str
    owner: str | None
    epoch: int
    seq: int
    digest: bytes
    wake_us: int | None
    created_us: int
    updated_us: int
    tags: str
    usd: float
    note: str
    queue: str = ""
    """Where it stands in line for a worker."""
    turn: str = ""
    """Its place in that queue: runs are taken in the order of this text."""
    lane: str = ""
    """What it has in common with others of which only so many may execute at a time."""


class Ceiling(NamedTuple):
    """How many runs with the same `value` in a field of their head, queue, agent or lane, may have an owner at a time.

    A run inside another one (`INSIDE` is in its tags) goes with that one and is not counted.
    """

    field: str
    value: str
    most: int


class Append(NamedTuple):
    """What one run writes at once, one row at least, and what it believes: `epoch` and `seq` of the head before.

    A run is created by an append that expects epoch 0 and seq 0, and claimed by one whose head raises the epoch.
    """

    run_id: str
    epoch: int
    seq: int
    rows: Sequence[Row]
    head: Head
    takes: Sequence[int] = ()
    refs: Sequence[str] = ()
    """The blobs that its rows refer to, in a store that is a `Shelf`."""
    ceilings: Sequence[Ceiling] = ()
    """What must not be exceeded by it, in a store that is `Metered`: other runs that have an owner are counted."""
    goes_on: bool = False
    """The head stands as before but for its seq, digest and updated_us: a store need not write the rest of it."""


class Stale(NamedTuple):
    """The append was refused and nothing of it was written; `head` is what stands there now.

    Where it stands as the append believes, `missing` are blobs that the rows refer to and that are not there, and `full` are the ceilings
    that are reached.
    """

    head: Head | None
    missing: Sequence[str] = ()
    full: Sequence[Ceiling] = ()


class Letter(NamedTuple):
    """A word to a run from somebody who does not own it. The store numbers it when it is posted."""

    letter_id: int
    run_id: str
    at_us: int
    kind: str
    body: bytes


class Pulse(NamedTuple):
    """What can be seen of an owner: `beat` counts its renewals; `dead` means proven dead, not merely silent."""

    beat: int
    dead: bool


class Repair(NamedTuple):
    """What a damaged run becomes: `good` are the rows that stay, `rows` what follows them, and `head` stands behind those.

    `found` is the head as it was read, or None where there was none; `by` and `why` are kept with what is moved aside. Of `rows` those may
    be missing that a prune dropped where they come from: so a run that was moved here is put in place, by this, or else by an append.
    """

    run_id: str
    found: Head | None
    good: Sequence[Row]
    rows: Sequence[Row]
    head: Head
    at_us: int
    by: str
    why: str
    refs: Sequence[str] = ()
    """The blobs that `rows` refer to, in a store that is a `Shelf`."""


class Aside(NamedTuple):
    """A row or head that a repair moved away, as it was found: damaged, so its fields can hold anything."""

    run_id: str
    at_us: int
    by: str
    why: str
    what: str
    """"row" or "head"."""
    fields: tuple[object, ...]


class Tombstone(NamedTuple):
    """What stays of a run that was removed, so that its id is not used again: who removed it, when, and by what policy."""

    run_id: str
    agent: str
    fingerprint: str
    status: str
    ended_us: int
    pruned_us: int
    by: str
    why: str


class Removal(NamedTuple):
    """A run to be removed as a whole, if its head still is `found`; `grave` is what stays of it."""

    found: Head
    grave: Tombstone


class Shedding(NamedTuple):
    """A run to be made smaller, if its head still is `found`: `rows` take the place of those with the same seq, then `append` goes in.

    The rows from seq `drops[0]` to `drops[1]` go, unless both are 0; neither the first row nor the last is among them, and the others keep
    their seqs.
    """

    found: Head
    rows: Sequence[Row]
    append: Append
    drops: tuple[int, int] = (0, 0)


class Room(NamedTuple):
    """What a store takes up where it lives, and how much of that is free and will be used before it grows."""

    size_bytes: int
    free_bytes: int


class Query(NamedTuple):
    """Which heads to list, newest change first. An unset field does not filter; `tags` must all be equal.

    With `after` they come in the order of their ids instead, from the first behind it on: who walks all of them that way meets each
    one once, however they move meanwhile.

    Two questions are for those who wake runs, and a store answers them in the time that the answer is long, however many runs rest in it.
    With `due_by_us`: those that nobody owns, of `queue` where it is named, whose time to wake is not later, the earliest first. With
    `addressed`: those that nobody owns and to which there are letters that no append has taken, in the order of their ids, behind `after`.
    A third is answered in the
    same way: with `queue`, `agent` and one status, those of them that nobody owns, in their turn. Ask one of them at a time. With `behind`
    the first and the third go on behind a place: the time or the turn of a run there, and its id. `not_lanes` leaves these lanes out.
    """

    statuses: Sequence[str] = ()
    agent: str | None = None
    tags: Sequence[tuple[str, str]] = ()
    idle_before_us: int | None = None
    limit: int = 100
    offset: int = 0
    after: str | None = None
    due_by_us: int | None = None
    addressed: bool = False
    queue: str | None = None
    owner: str | None = None
    behind: tuple[int | str, str] | None = None
    not_lanes: Sequence[str] = ()


@runtime_checkable
class Store(Protocol):
    """Order, atomicity and durability for rows; everything else is somebody else's duty."""

    url: str
    inline: bool
    """Whether `append` is quick enough to be called on an event loop when nothing else waits."""

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        """Write the whole batch in one transaction and flush it; each append is fenced on its own.

        None for what went in, `Stale` for what was refused; a refused append does not hinder the others. A batch
        names a run at most once. With wait=False raise `StoreBusy`, having written nothing, unless the lock is free at once.
        Any other error means that it is not known whether the batch was written: load the runs again.
        """

    def load(self, run_id: str) -> tuple[Head, Sequence[Row]] | None:
        """The head and all rows by seq, seen at one moment; None where there is no such run."""

    def head(self, run_id: str) -> Head | None:
        """The head alone."""

    def heads(self, query: Query) -> list[Head]:
        """The heads that match, without reading any journal."""

    def post(self, run_id: str, kind: str, body: bytes, at_us: int) -> int:
        """Keep a letter, durably, and give its number. Letters of one run are numbered upwards."""

    def letters(self, run_ids: Sequence[str]) -> list[Letter]:
        """The letters of these runs that no append has taken, oldest first."""

    def enroll(self, owner: str) -> None:
        """Make `owner` known, beating from 1, with whatever proves its death later. Once per process and store."""

    def renew(self, owner: str) -> None:
        """One more beat."""

    def retire(self, owner: str) -> None:
        """Forget an owner that holds nothing any more."""

    def pulse(self, owner: str) -> Pulse | None:
        """What can be seen of `owner`; None where it was never enrolled or has retired."""

    def check(self) -> list[str]:
        """What the store's own integrity check finds, in plain words; empty when all is well."""

    def close(self) -> None:
        """Let go of everything. Closing twice is harmless."""


@runtime_checkable
class Repairable(Protocol):
    """A store that can move the damaged end of a run aside. It deletes nothing."""

    def found(self, run_id: str) -> tuple[Head | None, Sequence[Row]]:
        """All that can be read of a run, by seq, without relying on what may be damaged: an index, its head, the types of its fields."""

    def set_aside(self, repair: Repair) -> bool:
        """In one transaction: keep the head and every row that is not good where `aside` finds them, and put `rows` and `head` in place.

        False, with nothing changed, where the head is not the one that was found (somebody has moved the run), or where a blob is not
        there. `StoreDamaged`, with nothing changed, where the store would not be whole afterwards.
        """

    def aside(self, run_id: str) -> list[Aside]:
        """What repairs of this run have moved away, oldest first."""


@runtime_checkable
class Live(Protocol):
    """A store through which a run can be followed while it executes, from any process that has the store open."""

    def publish(self, run_id: str, payload: bytes) -> None:
        """Show one line (bytes without a line end) to whoever follows the run: at once, without a flush, and without ever raising.

        It need not last: a crash or a full disk may lose it, and of what was said long ago only the last megabytes stay.
        """

    def published(self, run_id: str, after: int) -> list[tuple[int, bytes]]:
        """What was published behind the position `after` and is still there, in order, each with its position; 0 is before all of it."""

    def rows_after(self, run_id: str, seq: int) -> tuple[Head, Sequence[Row]] | None:
        """The head and the rows behind `seq`, seen at one moment; None where there is no such run."""


@runtime_checkable
class Ringing(Protocol):
    """A store that tells when there is news of a run, also from other processes, so that who waits need not wait until it looks again."""

    def listen(self, hear: Callable[[str], object]) -> None:
        """From now on call `hear`, from a thread of the store's, with the id of each run that was posted to, or that nobody owns any more.

        With "" where some may have been missed. `hear` must be brief. News may be late, or lost: who waits looks now and then all the same.
        """


@runtime_checkable
class Prunable(Protocol):
    """A store that can give back the room of what nobody needs any more. An id with a tombstone cannot be created by an append."""

    def remove(self, removals: Sequence[Removal]) -> list[bool]:
        """In one transaction: the rows, head, letters and what repairs moved aside of each run go, and its tombstone stays.

        Each is fenced on its own: False, with nothing of it changed, where the head is not the one that was found, or where not all of
        its rows can be reached.
        """

    def shed(self, shedding: Shedding) -> bool:
        """In one transaction: drop rows, put others in place, and append; False, with nothing changed, where the head was another."""

    def tombstone(self, run_id: str) -> Tombstone | None:
        """What stays of a run that was removed."""

    def forget(self, before_us: int) -> int:
        """Drop the tombstones of runs that were removed before then; gives how many."""

    def room(self) -> Room:
        """How large the store is, and how much of that is free."""

    def compact(self) -> None:
        """Give free room back to whoever lent it. It may take long, need as much room again, and hold up everybody who writes."""


class HandEdit(NamedTuple):
    """A file that somebody changed by hand: the rows as they were recorded, and as they read now, where nothing but values is another."""

    path: str
    recorded: Sequence[Row]
    now: Sequence[Row] | None
    why: str
    """Where there is no `now`: what is wrong with the file."""


@runtime_checkable
class HandEdited(Protocol):
    """A store whose records people can read, and change, with an editor. `load` raises `Damaged` with the path of what was changed."""

    def edited(self, run_id: str) -> list[HandEdit]:
        """What was changed by hand and has neither been adopted nor put back, in the order of the rows."""

    def overlooking(self, run_id: str) -> AbstractContextManager[None]:
        """Inside this, the store object loads the run as it was recorded, in spite of that."""

    def put_back(self, run_id: str) -> None:
        """Show again what was recorded, and keep what somebody wrote aside."""


@runtime_checkable
class Distant(Protocol):
    """A store to which every question takes a while and costs something, and which says how often it wants to be asked."""

    letters_every_s: float
    """How often a process looks for letters to the runs that it executes."""
    looks_every_s: float
    """How often it looks whether a run has moved that it waits for."""


class Enrolled(NamedTuple):
    """An owner that is known, how often it has renewed, what it says of itself, and whether it is proven dead, as `pulse` tells it."""

    owner: str
    beat: int
    about: bytes
    dead: bool = False


@runtime_checkable
class Roster(Protocol):
    """A store that tells who works on it."""

    def introduce(self, owner: str, about: bytes) -> None:
        """Keep what an owner that is enrolled says of itself, until it retires; said again, the last holds."""

    def owners(self) -> list[Enrolled]:
        """All owners that are enrolled, in the order of their names."""


class Hold(NamedTuple):
    """Work that nobody is to go on with for now: what it is, and what whoever said so says of it."""

    what: str
    about: bytes


@runtime_checkable
class Holds(Protocol):
    """A store that keeps, for all who share it, which work is held back."""

    def hold_back(self, what: str, about: bytes) -> None:
        """Hold something back, durably, until it is released; said again, the last holds."""

    def release(self, what: str) -> bool:
        """Hold it back no longer; whether it was."""

    def held_back(self) -> list[Hold]:
        """All that is held back, in the order of what it is."""


class Draft(NamedTuple):
    """What somebody wants to draw from a meter: how far it moves, and how far ahead of now it may be when that is used."""

    meter: str
    step_us: int
    within_us: int


class Drawn(NamedTuple):
    """What somebody drew: when his turn is, and what is left for him to draw then. `wait_us` is how long that is from now.

    Both are by the clock that the meters go by, so that whoever waits need not know what time it is there.
    """

    at_us: int
    wait_us: int = 0
    left: tuple[Draft, ...] = ()


@runtime_checkable
class Metered(Protocol):
    """A store through which processes share limits: it heeds the ceilings of an append, and keeps meters."""

    def draw(self, drafts: Sequence[Draft], *, at_us: int) -> Drawn:
        """Draw from meters: each moves on by its step, from where it stands or from now, whichever is later.

        Where none of them is further ahead of now then than its draft allows, all is drawn. Otherwise, where none was before either, only
        that is drawn which takes longest until it may be used, whatever its step: so a large draft does not wait for ever behind small
        ones. Otherwise nothing is.

        Now is `at_us`, unless the store has a clock that all who share it see. `holdfast.stores._meters` says all of it in Python.
        """

    def give_back(self, draft: Draft, at_us: int) -> None:
        """Move the meter back by a draft that was to be used at `at_us` of its answer and is not, unless somebody has drawn since."""

    def turn(self, queue: str, lane: str, *, step_us: int, at_us: int) -> int:
        """A place in line for one more run: `step_us` behind the last that was given for this queue and lane, where that is later than now.

        Where no run of both is queued, it is now. Now is as for `draw`.
        """

    def stands(self, meter: str, at_us: int) -> int:
        """Where a meter stands; one that there was not stands at `at_us` from now on, durably."""

    def advance(self, meter: str, to_us: int) -> None:
        """Move a meter on to there, durably, unless it stands later already."""


class Swept(NamedTuple):
    """What a sweep removed, or would remove: blobs that no run refers to, and what crashes had left half-written."""

    blobs: int
    size: int


@runtime_checkable
class Shelf(Protocol):
    """A store that also keeps blobs: bytes of any size, known by the SHA-256 of what they hold, each kept once.

    A blob lives as long as a run refers to it, itself or through a blob that it is a part of. One that nobody refers to
    can be swept once it is older than what a process may need between keeping it and its append.
    """

    def keep_blob(self, chunks: Iterable[bytes], *, at_us: int, parts: Sequence[str] = ()) -> str:
        """Keep the bytes, durably, and give their digest; never more than a chunk is in memory. Kept again, it counts as kept now.

        `parts` are blobs that are there as long as this one is. `KeyError` names the first that is not there.
        """

    def touch_blob(self, digest: str, *, at_us: int) -> bool:
        """Whether the blob is there; if so, it counts as kept now."""

    def open_blob(self, digest: str) -> BinaryIO | None:
        """The bytes as a stream, unverified, also after the store was closed; None where there is no such blob."""

    def blob_refs(self, run_id: str) -> list[str]:
        """The blobs that appends of this run have referred to, without their parts."""

    def blob_parts(self, digest: str) -> list[str]:
        """The parts that the blob was kept with."""

    def sweep_blobs(self, before_us: int, *, dry_run: bool = False) -> Swept:
        """Remove what no run refers to and was kept before then, in a write transaction: an append that comes later is told `missing`."""


class Undone(Exception):
    """A transaction was rolled back, and nothing of it was written; `why` is the error that says so.

    `again` where that was no fault of its own (a lost connection, a deadlock), so that the same may succeed.
    """

    def __init__(self, why: Exception, again: bool) -> None:  # noqa: FBT001 (as it came, so that it survives pickling)
        self.why, self.again = why, again
        super().__init__(why, again)


class Transaction(Protocol):
    """A transaction that is open, for a step that writes to tables of the user's beside the store's."""

    connection: Any
    """What the user's code works with."""

    def commit(self, append: Append) -> Stale | None:
        """Commit what was done on `connection` and the append together, the append fenced as ever: None where both went in.

        `Stale` where the append was refused, and `Undone` where something else went wrong: then both were rolled back. Any other error
        means that it is not known whether they were written.
        """

    def again(self, error: BaseException) -> bool:
        """Whether an error that came out of the user's code was no fault of its own, as it is with `Undone`."""


@runtime_checkable
class Transactional(Protocol):
    """A store that lives in the database of the user's tables, and can write to both in one transaction."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begin a transaction; what is not committed when the context ends is rolled back. It holds up nobody else who appends."""


Topic = Literal["versions", "permissions", "durability", "clock", "room", "speed", "runs", "crash"]
Grade = Literal["ok", "warn", "bad"]
"""`warn`: it should be seen to. `bad`: a promise of the seam does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at, for people: what was found, what that means to whoever keeps runs there, and what to do.

    Those whose topic is "crash" say what an accident (`what`) would cost (`value`).
    """

    topic: Topic
    what: str
    value: str
    grade: Grade = "ok"
    meaning: str = ""
    advice: str = ""


@runtime_checkable
class Examined(Protocol):
    """A store that can tell what its promises rest on where it lives."""

    def examine(self, clock: Clock) -> list[Finding]:
        """Look at versions, permissions, settings, speed and room. No run is touched, and nothing stays of what is written to measure."""


def is_store(given: object) -> TypeIs[Store]:
    """Whether this is an opened store. The object is asked, not its class, as Python's own look at a protocol does: it may pass all on."""
    return all(hasattr(given, name) for name in (*Store.__annotations__, *vars(Store)) if not name.startswith("_"))
