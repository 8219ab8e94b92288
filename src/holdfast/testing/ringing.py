"""The part of the conformance suite for stores that tell of news: every promise of `holdfast.store.Ringing` as a test."""

from __future__ import annotations

import queue
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store import Ringing, Store
from holdfast.testing.sample import create, onward

PATIENCE_S = 20
"""How long news may be under way in a test."""


def heard_by(store: Store) -> queue.Queue[str]:
    """What the store tells from now on; one that tells nothing is none the worse for it."""
    if not isinstance(store, Ringing):
        pytest.skip("this store tells no news")
    heard: queue.Queue[str] = queue.Queue()
    store.listen(heard.put)
    return heard


def until_told(heard: queue.Queue[str], run_id: str) -> None:
    """Wait for the news of a run; that some may have been missed is said of all."""
    while heard.get(timeout=PATIENCE_S) not in (run_id, ""):
        pass


class RingingConformance:
    """Mixed into `StoreConformance`."""

    lasting: bool

    def open(self, folder: Path) -> Store:
        """Open the store that lives in `folder`."""
        raise NotImplementedError

    def test_who_listens_is_told_of_letters_and_of_runs_that_rest(self, tmp_path: Path) -> None:
        with closing(self.open(tmp_path)) as store, closing(self.open(tmp_path) if self.lasting else store) as other:
            heard = heard_by(store)
            other.append([create("run")])
            other.post("sure", "word", b"{}", 1)
            until_told(heard, "sure")
            other.post("letter", "word", b"{}", 1)
            until_told(heard, "letter")
            rests = onward("run", 1)
            other.append([rests._replace(head=rests.head._replace(owner=None))])
            until_told(heard, "run")
