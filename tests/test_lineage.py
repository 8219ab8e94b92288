"""Runs that come of one another, as forks or children: each has keys of its own, and is ended, kept or taken on for what it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

import holdfast as hf
from crashing import LEASE_S, Crash, records, status
from holdfast.errors import Refusal
from holdfast.moving import moving
from holdfast.operating import operate, timetravel
from holdfast.records import kinds as rec
from holdfast.running import runner
from holdfast.store import Append, Stale
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


def test_a_fork_and_its_source_that_are_edited_send_under_keys_of_their_own() -> None:
    with opened(MemoryStore()) as app:
        run(app, buy)
        app.fork("r", at=1, new_id="f")
        for run_id in ("r", "f"):
            app.edit(run_id, 1, 7)
        assert [bought(app, run_id) for run_id in ("r", "f")] == ["receipt 1", "receipt 2"]
    assert [cents for _, cents in sent] == [7, 7]
    assert len({key for key, _ in sent}) == 2


def test_a_fork_whose_maker_died_is_the_same_one_and_keeps_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with opened(store) as app:
        run(app, buy)
        with monkeypatch.context() as patched:
            patched.setattr(timetravel, "Forked", None)  # he dies behind the append, and nobody is told
            with pytest.raises(TypeError):
                app.fork("r", at=1, edits={1: 7}, by="ann")
        before = [record.origin for record in records(store, "r.f1") if isinstance(record, rec.RunForked)]
        assert app.fork("r", at=1, edits={1: 7}, by="ann") == "r.f1"
        assert store.head("r.f2") is None
    assert before == [record.origin for record in records(store, "r.f1") if isinstance(record, rec.RunForked)]


@hf.agent
async def asks() -> str:
    return "yes" if await hf.ask("go?") else "no"


@hf.agent
async def between() -> str:
    return await asks()


@hf.agent
async def consoling(how: str = "") -> str:
    try:
        return await (between() if how == "deep" else asks())
    except hf.RunCancelled:
        return await charge(1)


class Followed(MemoryStore):
    """Something is done right after a run of this id is cancelled."""

    def __init__(self, run_id: str, fn: Callable[[], object]) -> None:
        super().__init__()
        self.run_id, self.fn = run_id, fn

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        went = super().append(batch, wait=wait)
        if any(append.run_id == self.run_id and row.kind == rec.RunCancelled.kind for append in batch for row in append.rows):
            self.fn()
        return went


def test_a_cancel_that_is_refused_has_cancelled_no_child() -> None:
    store = MemoryStore()
    with opened(store) as app:
        run(app, consoling)
        order = moving.ordered(app.engine, MemoryStore(), "r", by="ann", reason="")
        moving._token(order)  # the mover dies behind the first of two seals
        with pytest.raises(hf.RunMoved):
            app.cancel("r", by="bob")
        assert status(store, "r.1") == "waiting"
        app.move("r", back=True)
        app.answer("r.1", "1", yes=True)
        assert run(app, consoling) == "yes"


def test_who_takes_the_run_up_while_its_children_are_cancelled_finds_it_cancelled() -> None:
    def taken_up() -> None:
        with opened(store) as other, suppress(hf.RunCancelled):
            other.run(consoling, run_id="r", wait=False)

    store = Followed("r.1", taken_up)
    with opened(store) as app:
        run(app, consoling)
        assert app.cancel("r", by="ann") == "the run is cancelled"
    assert [status(store, each) for each in ("r", "r.1")] == ["cancelled", "cancelled"]
    assert sent == []


@pytest.mark.parametrize("dies_after", ["r", "r.1"])
def test_a_cancel_that_was_interrupted_is_completed_by_the_next_one(dies_after: str) -> None:
    def die() -> None:
        store.fn = lambda: None
        raise Crash

    store = Followed(dies_after, die)
    with opened(store) as app:
        run(app, consoling, "deep")
        with suppress(Crash, hf.HoldfastError):
            app.cancel("r", by="ann")
    with opened(store) as app:
        assert (status(store), status(store, "r.1.1")) == ("cancelled", "waiting")
        assert app.cancel("r", by="ann").endswith(" is now")
        assert {status(store, each) for each in ("r", "r.1", "r.1.1")} == {"cancelled"}
        with pytest.raises(Refusal, match="is cancelled and stays so"):
            app.cancel("r", by="ann")


def test_what_an_interrupted_cancel_of_a_child_left_is_closed_when_its_parent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with opened(store) as app:
        run(app, consoling, "deep")
        with monkeypatch.context() as patched:
            patched.setattr(operate, "cancel_children", lambda *_: {})  # as if it had died in between
            app.cancel("r.1", by="ann")
        assert run(app, consoling, "deep") == "receipt 1"
    assert [status(store, each) for each in ("r", "r.1", "r.1.1")] == ["done", "cancelled", "cancelled"]


def test_a_child_that_cannot_be_cancelled_with_its_parent_is_named() -> None:
    store = MemoryStore()
    with opened(store) as app:
        run(app, consoling)
        order = moving.ordered(app.engine, MemoryStore(), "r", by="ann", reason="")
        list(moving._sealed(order, "t"))
        moving._let_stand(order, "t", "r")  # whoever takes the move back dies before he comes to the child
        assert "child run 'r.1' is not: " in app.cancel("r", by="bob")
        app.move("r", back=True)
        assert app.cancel("r", by="bob") == "the run was cancelled before; child run 'r.1' is now"
    assert [status(store, each) for each in ("r", "r.1")] == ["cancelled", "cancelled"]


@hf.agent
async def paying(order: str) -> str:
    return await charge(len(order))


@hf.agent
async def ordering(order: str) -> str:
    return await paying(order)


def test_an_id_that_begins_anew_does_not_take_the_result_of_a_child_of_its_former_life() -> None:
    with opened(MemoryStore()) as app:
        assert run(app, ordering, "o-1") == "receipt 1"
        forget_all_that_ended(app, agent="ordering")
        with pytest.raises(Refusal, match=r"'r\.1' is a child of an earlier run 'r', not a child of this one; it is unchanged"):
            run(app, ordering, "o-1")
        forget_all_that_ended(app)
        assert run(app, ordering, "o-1") == "receipt 2"


def test_a_child_that_does_not_tell_since_when_its_parent_is_there_is_taken_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it was before children recorded since when their parent is there, and so it stays for those."""
    with opened(MemoryStore()) as app:
        with monkeypatch.context() as before:
            before.setattr(runner, "called_by", lambda call: {"run": call.run.id, "step": call.step_id})
            run(app, consoling)
        app.answer("r.1", "1", yes=True)
        assert run(app, consoling) == "yes"


def test_a_failed_child_of_a_former_life_is_closed_by_whoever_takes_it_up() -> None:
    @hf.agent
    async def fails() -> str:
        raise ValueError("no")

    @hf.agent
    async def forgiving() -> str:
        with suppress(ValueError):
            await fails()
        await hf.ask("go?")
        return "fine"

    store = MemoryStore()
    with opened(store) as app:
        run(app, forgiving)
        app.answer("r", "2", yes=True)
        assert run(app, forgiving) == "fine"
        forget_all_that_ended(app)
        run(app, asks)
        assert [status(store, each) for each in ("r", "r.1")] == ["waiting", "failed"]
        with pytest.raises(hf.RunCancelled, match="its parent was pruned, and another run has its id"):
            app.run(fails, run_id="r.1")


@hf.agent
async def shipping(order: str) -> str:
    receipt = await charge(len(order))
    await hf.ask("ship?")
    return receipt


@hf.agent
async def selling(order: str) -> str:
    await offer()
    return await shipping(order)


@pytest.mark.parametrize("forks", [1, 2])
def test_a_child_stays_as_long_as_a_fork_of_its_parent_may_branch_from_it(forks: int) -> None:
    """Of two forks, each of the one before, the first goes: only the second one knows the child then."""
    with opened(MemoryStore()) as app:
        run(app, selling, "o-1")
        app.cancel("r", by="ann")
        fork = app.fork("r", at=1, effects="reuse")
        if forks == 2:
            first, fork = fork, app.fork(fork, at=1, effects="reuse")
            app.cancel(first, by="ann")
        report = app.prune(hf.Retention(keep_last=0), dry_run=False, by="ann")
        assert [(one.run_id, one.why) for one in report.runs if one.what == "kept"] == [("r.2", f"fork {fork} has not ended")]
        run(app, selling, "o-1", run_id=fork)
        app.answer(f"{fork}.2", "2", yes=True)
        assert run(app, selling, "o-1", run_id=fork) == "receipt 1"
        assert app.prune(hf.Retention(keep_last=0), dry_run=False, by="ann").kept == 0
        assert app.runs() == []
    assert len(sent) == 1


def test_a_fork_that_is_damaged_keeps_the_children_of_its_source_only() -> None:
    store = MemoryStore()
    with opened(store) as app:
        run(app, ordering, "o-1")
        run(app, ordering, "o-2", run_id="other")
        app.fork("r", at=0, new_id="f")
        store._heads["f"] = store._heads["f"]._replace(note="somebody wrote into it")
        kept = [one for one in app.prune(hf.Retention(keep_last=0), dry_run=False, by="ann").runs if one.what == "kept"]
        assert [one.run_id for one in kept] == ["r.1"]
        assert "fork f is damaged" in kept[0].why
