"""Letters as files: one each, created once; taken by being named in a commit, and removed behind that.

A crash may leave a letter that was taken, and a sender whose reply was lost may bring it back. So a commit names all that were taken and
may still be there: who reads letters passes over those, and who appends next removes them, and flushes that, before no commit names them
any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast._clock import SystemClock
from holdfast.errors import StoreBusy, StoreError
from holdfast.store import Letter
from holdfast.stores._journal_runs import Runs
from holdfast.stores._place import Place
from holdfast.stores._safe_names import safe
from holdfast.stores._sealed import Unreadable, got_bytes, put_bytes, with_seal, without_seal

LETTERS = "letters/"
NAME = re.compile(r"[0-9]{20}\.json")
DAMAGED = "damaged"
"""The kind of a letter that is not what was posted."""
MOST_TRIES = 100
"""How often a number is looked for that nobody else took."""


@dataclass(slots=True)
class LetterFiles:
    """The letters of one place. A number is the microsecond in which it was given, or the next that is free."""

    place: Place
    runs: Runs
    _last: int = 0
    late_us: int = 0
    """How long after it was numbered a letter may still come, or come again, because its sender does not know that it is there."""

    def post(self, run_id: str, kind: str, body: bytes, at_us: int) -> int:
        """Keep a letter and give its number."""
        folder = f"{LETTERS}{safe(run_id)}/"
        for _ in range(MOST_TRIES):
            there = self._names(folder)
            number = max(SystemClock().now_us(), self._last + 1, _number(there[-1]) + 1 if there else 0)
            self._last = number
            shown: dict[str, Any] = {"letter": number, "run": run_id, "at_us": at_us, "kind": kind}
            put_bytes(shown, "body", body)
            self.place.make(folder)
            if self.place.create(f"{folder}{number:020d}.json", with_seal(shown)):
                return number
        raise StoreBusy(self.place.url, "somebody else took every number that this letter could have; it was not posted. Try again")

    def letters(self, run_ids: Sequence[str]) -> list[Letter]:
        """The letters that no append has taken, oldest first."""
        found: list[Letter] = []
        for run_id in set(run_ids):
            found += self._of(run_id)
        return sorted(found)

    def addressed(self) -> list[str]:
        """The safe names of runs to which there may be letters."""
        return [name[:-1] for name in self.place.names(LETTERS) if name.endswith("/") and self._names(f"{LETTERS}{name}")]

    def take(self, key: str, letter_ids: Sequence[int]) -> Sequence[int]:
        """Remove letters that were taken; gives those that are not gone for good."""
        folder = f"{LETTERS}{key}/"
        try:
            for number in letter_ids:
                self.place.remove(f"{folder}{number:020d}.json")
            self.place.settle(folder)
            self.place.drop(folder)
        except StoreError:  # the commit that took them is safe, and says that they are taken
            return letter_ids
        since_us = SystemClock().now_us() - self.late_us
        return [number for number in letter_ids if number > since_us] if self.late_us else ()

    def _names(self, folder: str) -> list[str]:
        """The names of ours in a folder: a person's tools may have left others."""
        return [name for name in self.place.names(folder) if NAME.fullmatch(name)]

    def _of(self, run_id: str) -> list[Letter]:
        key = safe(run_id)
        names = self._names(f"{LETTERS}{key}/")
        if not names:
            return []
        standing = self.runs.standing_of(key)  # looked up behind the list: who was listed and is not named as taken is read next, or gone
        taken = set(standing.taken) if standing else set()
        names = [name for name in names if _number(name) not in taken]
        found = zip(names, self.place.fetch([f"{LETTERS}{key}/{name}" for name in names]), strict=True)
        return [_letter(run_id, _number(name), data) for name, data in found if data is not None]


def _letter(run_id: str, number: int, data: bytes) -> Letter:
    """The letter as it was posted; one that is damaged is of a kind that nobody acts on."""
    try:
        shown = without_seal(data)
        body = got_bytes(shown, "body")
        if (shown["run"], shown["letter"]) == (run_id, number) and body is not None:
            return Letter(number, run_id, shown["at_us"], shown["kind"], body)
    except (Unreadable, LookupError, TypeError, ValueError):
        pass
    return Letter(number, run_id, 0, DAMAGED, data)


def _number(name: str) -> int:
    return int(name.partition(".")[0])
