"""A place for named bytes that are created once: what the store of readable files and the one of objects stand on.

All logic (`_journal_store.py`) is written once over this seam; a folder and a bucket differ only in what is here.

Layout, names relative to the place, `ID` a run id made safe (`_safe_names.py`):

    holdfast.json                          what this is, which format it has
    runs/ID/run.json                       the run's birth: id, agent, when, and the name of its first generation
    runs/ID/sealed-0001-TOKEN/000000000047.json   one commit: its rows and the head after them; the name is its first seq
    runs/ID/journal/000047-charge.json     the same for people (folders only): a view, created from the sealed commit
    runs/ID/state.json                     what the agent knows now: a view, replaced
    runs/ID/artifacts/DIGEST               a blob that the run refers to
    runs/ID/aside/...json                  what repairs moved away
    letters/ID/0000001763266674000000.json one letter; its number is its name
    pruned/ID.json                         a tombstone
    owners/OWNER.json                      an owner and its beat

The fence. A commit that believes in seq 46 is `create("runs/ID/sealed-.../000000000047.json")`: whoever comes second finds the name
taken. A claim (a raised epoch) is such a commit. Inside a generation no name ever goes, so "47 is not there" and "the commit that
ends at 46 has epoch 3" together say where the run stands. The name has the seq alone: two writers who differ in the step must collide.

Turns. What cannot be said by adding a commit (rows rewritten or dropped by a prune, rows moved aside by a repair, the run removed) is
one more commit at the same fence, a *turn*: it carries all rows and the head, and the name of the next generation, in which the run
goes on; the turn of a removal carries the tombstone. Whoever finds a turn finishes what its writer may not have: puts the same bytes
into the next generation as its number 0, and vacates the old one. Folders of generations are made before they are named anywhere and
their names are never used again, so a zombie of an old generation, or of an earlier life of the same run id, finds its place vacated
and is refused.

A create whose answer was lost is read back: our own bytes mean that it went in (each commit carries a token that no other has).

Every method may be called from any thread, and raises errors of `holdfast.errors` (`StoreFull`, `StoreFailed`, `StoreReadOnly` ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Place(Protocol):
    """Named bytes. A name is parts joined by `/`, each safe on any file system; a folder ends in `/`."""

    url: str

    def make(self, folder: str) -> None:
        """Let names be created in `folder`, durably, and in the folders above it. Nothing to do where there are no folders."""

    def create(self, name: str, data: bytes) -> bool | None:
        """Put the bytes there, whole and durable when this returns True; False, with nothing changed, where the name is taken.

        False too where its folder was never made, or was vacated; None where that was vacated with the name in it, before it was durable.
        An error means that it is not known: read it back.
        """

    def read(self, name: str) -> bytes | None:
        """The bytes, or None where there is no such name."""

    def has(self, name: str) -> bool:
        """Whether the name is there, without reading it."""

    def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        """What `read` gives of each; a place that is far away asks for several at once."""

    def names(self, folder: str, *, after: str = "") -> list[str]:
        """The names in `folder` behind `after`, in order, however many pages that takes; folders in it end in `/`.

        A name that was created, or removed, while this went on may be among them or not. None where there is no such folder.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Put the bytes there, whatever was there before, whole but not flushed: for what can be made again."""

    def remove(self, name: str) -> None:
        """Take a name away, if it is there; not flushed: it may come back after a power loss."""

    def confirm(self, name: str) -> None:
        """From here on a name that was read survives power loss, also where its creator died before it was flushed."""

    def settle(self, folder: str) -> None:
        """From here on what was removed in `folder` stays away."""

    def drop(self, folder: str) -> None:
        """Let go of a folder in which there is nothing, if there is nothing in it; `make` makes it again."""

    def vacate(self, folder: str) -> None:
        """Everything in `folder` goes, in the order of its names; from the beginning of this on no create in it succeeds, by anybody."""

    def purge(self, folder: str) -> None:
        """What `vacate` had to leave so that no create succeeds goes too: whoever could still try it has long been forgotten."""

    def room(self) -> int:
        """How many bytes all of it takes."""

    def close(self) -> None:
        """Let go of everything. Closing twice is harmless."""
