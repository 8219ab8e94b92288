"""The runs of a bucket, found by going through names: a list of a thousand costs one request, where a folder each would cost many."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast._clock import SystemClock
from holdfast.stores._journal_runs import GENERATION, NAME, RUNS, Piece, Runs, Standing, piece_of
from holdfast.stores._object_place import ObjectPlace

PAGES_S = 30.0
"""How long the names may be known from before when somebody asks for the next page of all runs."""


@dataclass(slots=True)
class ObjectRuns(Runs):
    """All runs of one bucket."""

    place: ObjectPlace
    _names: dict[str, str] | None = None
    _listed_s: float = 0.0

    def all_keys(self) -> list[str]:
        return list(self.last_commits())

    def living(self, key: str) -> list[str]:
        """One list of all generations; those that were vacated do not show."""
        generations: dict[str, list[str]] = {}
        for name in self.place.below(f"{RUNS}{key}/"):
            if GENERATION.fullmatch(name.partition("/")[0]) and NAME.fullmatch(name.rpartition("/")[2]):
                generations.setdefault(name.partition("/")[0], []).append(f"{RUNS}{key}/{name}")
        *older, living = list(generations.values()) or [[]]
        for names in older:
            self._finish_behind(key, names[-1])
        return living

    def standings(self, keys: Collection[str] | None = None, *, next_page: bool = False) -> list[Standing]:
        """Where these runs stand, or all; only the last commits of those that have moved are read, side by side."""
        last = self.last_commits(next_page=next_page)
        wanted = [key for key in last if keys is None or key in keys]
        found = self.place.side_by_side(lambda key: self._at(key, last[key]), wanted)
        return [standing for standing in found if standing is not None]

    def last_commits(self, *, next_page: bool = False) -> dict[str, str]:
        """The name of the last commit of every run, in the last generation that has any: names come in order."""
        now_s = SystemClock().monotonic_s()
        if next_page and self._names is not None and now_s - self._listed_s < PAGES_S:
            return self._names
        found: dict[str, str] = {}
        for name in self.place.below(RUNS):
            key, _, rest = name.partition("/")
            if GENERATION.fullmatch(rest.partition("/")[0]) and NAME.fullmatch(rest.rpartition("/")[2]):
                found[key] = f"{RUNS}{name}"
        self._names, self._listed_s = found, now_s
        return found

    def _at(self, key: str, last: str) -> Standing | None:
        """Where a run stands whose last commit is this."""
        known = self._known.get(key)
        if known is not None and known.last == last:
            return known
        data = self.place.read(last)
        piece = Piece(last, b"", None) if data is None else piece_of(last, data)
        if piece.commit is None or (piece.commit.turn and piece.first() > 0):
            return self.standing_of(key)
        standing = Standing(piece.generation(), last, piece.commit.head, piece.commit.taken)
        if known is None or known.generation != standing.generation or known.head.seq < standing.head.seq:
            self.remember(key, standing)
        return standing

    def _finish_behind(self, key: str, last: str) -> None:
        """Finish a turn whose writer died between the beginning of the new generation and the end of the old."""
        data = self.place.read(last)
        if data is not None:
            self._finished(key, piece_of(last, data))
