"""The verbs of `Holdfast` that take runs from one store to another: `move` hands one over, `copy` leaves it where it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import Misuse
from holdfast.store import Store, is_store

if TYPE_CHECKING:
    from holdfast.moving.copying import Copying
    from holdfast.moving.moving import Moving
    from holdfast.running.engine import Engine


MEMORY = "memory:"


class Transferring:
    """What an opened store can do with another one."""

    engine: Engine

    def watch(self, items: Iterable[str], total: int, what: str) -> Iterable[str]:
        """How far long work is: what is done, of how much, and its name; whoever shows it puts another function in this place."""
        del total, what
        return items

    def move(
        self,
        run_id: str,
        *,
        to: Store | str | Path | None = None,
        back: bool = False,
        dry_run: bool = False,
        by: str | None = None,
        reason: str = "",
    ) -> Moving:
        """Hand a run, with its child runs, over to another store: it goes on there, and is closed here. Interrupted, it is repeated.

        With back=True a move that was interrupted is taken back, as long as the run is not handed over. With dry_run=True only say what
        would be moved, or what hinders it.
        """
        from holdfast.moving import moving
        from holdfast.operating.telling import somebody
        from holdfast.stores.planning import PlannedStore

        who = by or somebody()
        if back == (to is not None) or (back and dry_run):
            raise Misuse("move takes one of to=, which dry_run=True goes with, and back=True; nothing was changed")
        if to is None:
            return moving.take_back(self.engine, run_id, by=who, reason=reason)
        with self.beside(to, make=False) as target:  # a store that is not there is made when nothing hinders the move
            order = moving.ordered(self.engine, target.engine.store, run_id, by=who, reason=reason)
            if not dry_run and not isinstance(target.store, PlannedStore):
                return moving.move(order, self.watch)
            plan = moving.planned(order)
        if dry_run:
            return plan
        with self.beside(to) as target:
            return moving.move(order._replace(target=target.engine.store), self.watch)

    def copy(
        self,
        what: str | Path,
        *,
        to: Store | str | Path | None = None,
        new_id: str | None = None,
        dry_run: bool = False,
        by: str | None = None,
        reason: str = "",
    ) -> Copying:
        """Copy a run to another store or into an archive, a file whose name ends in .holdfast; or, with such a file, read it back.

        A run that has ended comes in as it is. Any other one comes in as a fork, under `new_id` or an id of its own, and knows what its
        source did; the source is not changed. An archive is read into `to`, or into this store.
        """
        from holdfast.moving import copying
        from holdfast.operating.telling import somebody

        ordered = copying.Ordered(copying.word(by or somebody(), reason), new_id, dry_run)
        if copying.is_archive(what):
            with self.beside(to, make=not dry_run) if to is not None else _itself(self) as target:
                return copying.read_back(target.engine, Path(what), ordered, self.watch)
        if to is None:
            raise Misuse("copy needs to=, another store or a file that ends in .holdfast; nothing was copied")
        if not is_store(to) and copying.is_archive(to):
            return copying.write_out(self.engine, str(what), Path(str(to)), ordered, self.watch)
        with self.beside(to, make=not dry_run) as target:
            return copying.copy(self.engine, target.engine, str(what), ordered, self.watch)

    @contextmanager
    def beside(self, place: Store | str | Path, *, make: bool = True) -> Iterator[Any]:
        """Another store, opened for as long as it is used; one that somebody else has opened stays open.

        With make=False none is created: an empty one stands in for it.
        """
        if str(place) == MEMORY:
            raise Misuse("a store in memory is gone with this process, and the run would be too; nothing was changed. Name another store")
        from holdfast.stores.planning import open_planned

        opening: Any = type(self)
        other = opening(place if make or is_store(place) else open_planned(place))
        try:
            yield other
        finally:
            if not is_store(place):
                other.close()


@contextmanager
def _itself(app: Transferring) -> Iterator[Transferring]:
    yield app
