"""Every store that outlives a process, made to break a promise: the conformance suite must notice it there, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.store import Append, Stale, Store
from holdfast.stores.opening import open_store
from holdfast.testing import StoreConformance
from sweeping import OTHERS, Home, sqlite_in

LATE: list[Sequence[Append]] = []
"""What was acknowledged and not written."""


def ignore_the_fence(store: Any) -> None:
    append = store.append

    def unfenced(batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        heads = [store.head(one.run_id) for one in batch]
        believed = [one._replace(epoch=head.epoch) if head else one for one, head in zip(batch, heads, strict=True)]
        answers: list[Stale | None] = append(believed, wait=wait)
        return answers

    store.append = unfenced


def acknowledge_early(store: Any) -> None:
    def early(batch: Sequence[Append], *, wait: bool = True) -> list[None]:
        LATE.append(batch)
        return [None] * len(batch)

    store.append = early


def write_when_somebody_looks(store: Any) -> None:
    """So that it is only noticed by who comes after the process."""
    append, load = store.append, store.load
    acknowledge_early(store)

    def looked(run_id: str) -> Any:
        while LATE:
            append(LATE.pop(0))
        return load(run_id)

    store.load = looked


NOTICED: dict[Callable[[Store], None], tuple[str, dict[str, object]]] = {
    ignore_the_fence: ("test_another_epoch_is_stale", {"epoch": 3}),
    acknowledge_early: ("test_what_was_appended_is_loaded", {}),
    write_when_somebody_looks: ("test_reopening_sees_everything", {}),
}


@pytest.mark.parametrize("broken", NOTICED, ids=lambda broken: broken.__name__)
@pytest.mark.parametrize("name", ["sqlite", *OTHERS])
def test_the_suite_notices(request: pytest.FixtureRequest, tmp_path: Path, name: str, broken: Callable[[Store], None]) -> None:
    home: Home = sqlite_in if name == "sqlite" else OTHERS[name].home(request)

    test, options = NOTICED[broken]
    given = {**options, **({"tmp_path": tmp_path} if broken is write_when_somebody_looks else {})}
    with ExitStack() as opened:

        class Suite(StoreConformance):
            def open(self, folder: Path) -> Store:
                return opened.enter_context(closing(open_store(home(folder))))

        broken(store := Suite().open(tmp_path))
        LATE.clear()
        with pytest.raises(AssertionError):
            getattr(Suite(), test)(store, **given)
