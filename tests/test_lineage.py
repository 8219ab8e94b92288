"""Runs that come of one another, their forks and children, are told apart: by their keys, and by the life of the run that had called them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S, records
from holdfast import _records as rec
from holdfast import _timetravel
from holdfast.stores.memory import MemoryStore

sent: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    sent.clear()


@hf.step
async def offer() -> int:
    return 5


@hf.effect(in_doubt="ask")
async def charge(cents: int) -> str:
    sent.append((hf.key(), cents))
    return f"receipt {len(sent)}"


@hf.agent
async def buy() -> str:
    cents = await offer()
    await hf.ask("go?")
    return await charge(cents)


def opened(store: MemoryStore) -> hf.Holdfast:
    return hf.Holdfast(store, lease=LEASE_S)


def run(app: hf.Holdfast, agent: Any, *args: Any, run_id: str = "r") -> Any:
    with suppress(hf.RunWaiting):
        return app.run(agent, *args, run_id=run_id, wait=False)


def bought(app: hf.Holdfast, run_id: str) -> Any:
    run(app, buy, run_id=run_id)
    app.answer(run_id, "2", yes=True)
    return run(app, buy, run_id=run_id)


def forget_all_that_ended(app: hf.Holdfast, **more: Any) -> None:
    for _ in range(2):  # the first leaves tombstones, the second drops them
        app.prune(hf.Retention(keep_last=0, keep_ids="0s"), dry_run=False, by="ann", **more)


def test_forks_of_one_id_before_and_after_a_move_send_under_keys_of_their_own() -> None:
    source, target = MemoryStore(), MemoryStore()
    with opened(source) as here, opened(target) as there:
        run(here, buy)
        assert here.fork("r", at=1, edits={1: 7}) == "r.f1"
        here.move("r", to=target)
        assert there.fork("r", at=1, edits={1: 9}) == "r.f1"
        assert [bought(app, "r.f1") for app in (here, there)] == ["receipt 1", "receipt 2"]
    assert [cents for _, cents in sent] == [7, 9]
    assert len({key for key, _ in sent}) == 2


def test_a_fork_that_has_the_id_of_one_that_was_forgotten_sends_under_keys_of_its_own() -> None:
    with opened(MemoryStore()) as app:
        run(app, buy)
        for cents in (6, 8):
            app.fork("r", at=1, edits={1: cents}, new_id="f")
            bought(app, "f")
            forget_all_that_ended(app)
    assert [cents for _, cents in sent] == [6, 8]
    assert len({key for key, _ in sent}) == 2


def test_a_fork_whose_maker_died_is_the_same_one_and_keeps_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with opened(store) as app:
        run(app, buy)
        with monkeypatch.context() as patched:
            patched.setattr(_timetravel, "Forked", None)  # he dies behind the append, and nobody is told
            with pytest.raises(TypeError):
                app.fork("r", at=1, edits={1: 7}, by="ann")
        before = [record.origin for record in records(store, "r.f1") if isinstance(record, rec.RunForked)]
        assert app.fork("r", at=1, edits={1: 7}, by="ann") == "r.f1"
        assert store.head("r.f2") is None
    assert before == [record.origin for record in records(store, "r.f1") if isinstance(record, rec.RunForked)]
