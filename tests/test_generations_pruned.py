"""Generations that are over go as whole records; the run keeps its numbers, keys and cost, goes on, and can be checked and forked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from crashing import LEASE_S, Crash, loaded, records
from holdfast.errors import Damaged, Refusal
from holdfast.operating import pruning
from holdfast.operating.pruning import Pruning
from holdfast.records import kinds as rec
from holdfast.records import shedding
from holdfast.records.journal import Journal
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

LONG = "x" * 500
did: list[str] = []
mood: dict[str, Any] = {}


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hf.Holdfast]:
    did.clear()
    mood.clear()
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    with hf.Holdfast(store, lease=LEASE_S) as app:
        yield app


@pytest.fixture
def twin() -> Iterator[hf.Holdfast]:
    with hf.Holdfast(MemoryStore(), lease=LEASE_S) as app:
        yield app


@hf.step
async def look(day: int, what: str) -> str:
    did.append(f"look {day}")
    hf.usage(usd=0.1, input_tokens=3)
    return LONG + what


@hf.effect(in_doubt="ask")
async def mail(day: int) -> str:
    did.append(f"mail {day}")
    return hf.key()


@hf.agent
async def child(day: int) -> int:
    await look(day, "child")
    return day


@hf.agent
async def daily(day: int, last: int, keys: list[str]) -> list[str]:
    days: list[int] = hf.state([])
    await look(day, "a")
    days.append(await child(day))
    keys = [*keys, await mail(day), str(hf.current().uuid())][-4:]
    if mood.get("crash") == day:
        raise Crash
    await look(day, "b")
    if day < last:
        hf.continue_as(day + 1, last, keys)
    return [*keys, str(days), str(hf.current().generation)]


def played(app: hf.Holdfast, run_id: str = "r", **how: Any) -> Any:
    mood.update(how)
    with suppress(Crash):
        return app.run(daily, 1, 9, [], run_id=run_id, wait=False)


def pruned(app: hf.Holdfast, **more: Any) -> Pruning:
    return app.prune(hf.Retention(details=0), dry_run=False, by="ann", agent="daily", **more)


def wrong(app: hf.Holdfast) -> list[str]:
    return [*app.store.check(), *(verdict.what for verdict in app.check() if not verdict.good)]


def on_the_way(app: hf.Holdfast, day: int = 6) -> Journal:
    """A run whose process died in the sixth generation."""
    played(app, crash=day)
    mood.clear()
    return Journal.load(*loaded(app.store))


def test_a_run_without_its_earlier_generations_goes_on_as_the_whole_one(app: hf.Holdfast, twin: hf.Holdfast) -> None:
    before, other = on_the_way(app), on_the_way(twin)
    report = pruned(app)
    assert (report.lightened, report.kept) == (1, 0)
    head, rows = loaded(app.store)
    assert [row.seq for row in rows][:2] == [1, before.head.seq - len(rows) + 3]
    assert (head.usd, head.tags, head.created_us) == (before.head.usd, before.head.tags, before.head.created_us)
    after = Journal.load(head, rows)
    assert repr(after.ledger.outlay()) == repr(before.ledger.outlay()) == repr(other.ledger.outlay())
    assert after.ledger.charged == before.ledger.charged
    did.clear()
    whole, executed = played(twin), list(did)
    did.clear()
    result = played(app)
    assert did == executed
    assert result[0] == whole[0]
    assert result[-2:] == whole[-2:]
    assert Journal.load(*loaded(app.store)).ledger.outlay() == Journal.load(*loaded(twin.store)).ledger.outlay()
    assert wrong(app) == []


def test_it_is_pruned_again_and_the_gap_stays_one(app: hf.Holdfast) -> None:
    on_the_way(app, 3)
    pruned(app)
    on_the_way(app, 7)
    usd = loaded(app.store)[0].usd
    pruned(app, reason="again")
    assert [record.kind for record in records(app.store)][:2] == ["run.started", "run.continued"]
    assert loaded(app.store)[0].usd == usd
    (said,) = [record for record in records(app.store) if isinstance(record, rec.RunPruned)]
    begun = records(app.store)[1]
    assert isinstance(begun, rec.RunContinued)
    assert begun.generation == 6
    assert said.dropped == begun.dropped
    assert played(app)[-1] == "8"
    assert wrong(app) == []


def test_the_account_of_a_gap_cannot_be_made_up(app: hf.Holdfast, twin: hf.Holdfast) -> None:
    on_the_way(app)
    pruned(app)
    head, rows = loaded(app.store)
    for bad in ([rows[0], *rows[2:]], rows[1:], [*rows[:3], *rows[4:]], [rows[0], rows[1]._replace(seq=rows[1].seq - 1), *rows[2:]]):
        with pytest.raises(Damaged):
            Journal.load(head, bad)
    on_the_way(twin)
    head, rows = loaded(twin.store)
    index = next(index for index, row in enumerate(rows) if row.kind == "run.continued")
    with pytest.raises(Damaged, match="record 2 is missing"):
        Journal.load(head, [rows[0], *rows[index:]])


def test_a_message_that_an_edit_put_back_before_a_generation_began_keeps_its_records(app: hf.Holdfast) -> None:
    @hf.agent
    async def told(day: int) -> str:
        first = (await look(day, "a"))[-1:]
        if day == 1 and "again" not in mood:
            await hf.receive("word", str)
            raise Crash
        if day < 3:
            hf.continue_as(day + 1)
        if "stop" in mood:
            raise Crash
        return first + await hf.receive("word", str)

    def run() -> Any:
        with suppress(Crash, hf.RunWaiting):
            return app.run(told, 1, run_id="r", wait=False)

    def prune() -> Pruning:
        return app.prune(hf.Retention(details=0), dry_run=False, by="ann")

    run()
    app.send("r", "word", "tea")
    run()
    app.edit("r", "1", "A", by="ann")
    mood.update(again=1, stop=1)
    run()
    assert (prune().kept, loaded(app.store)[1][1].seq) == (0, 2)
    del mood["stop"]
    assert run() == "atea"
    assert (prune().kept, loaded(app.store)[1][1].kind) == (0, "run.continued")
    assert run() == "atea"


def test_a_fork_of_such_a_run_and_a_prune_of_the_fork(app: hf.Holdfast) -> None:
    on_the_way(app)
    pruned(app)
    app.fork("r", at="2", new_id="f", by="ann", effects="reuse")
    assert app.fork("r", at="2", new_id="f", by="ann", effects="reuse") == "f"
    assert loaded(app.store, "f")[0].usd <= loaded(app.store)[0].usd
    assert played(app, "f")[-1] == "8"
    assert pruned(app).kept == 0
    kinds = [record.kind for record in records(app.store, "f")]
    assert kinds.index("run.forked") < kinds.index("run.continued", kinds.index("run.forked"))
    assert kinds.count("run.continued") == 4  # it knows effects of its source, and later records say which were taken over
    assert wrong(app) == []


def test_whoever_follows_it_sees_what_is_there(app: hf.Holdfast) -> None:
    on_the_way(app)
    pruned(app)
    assert played(app)[-1] == "8"
    seqs = [row.seq for row in loaded(app.store)[1]]
    for after in (0, 1, 2, seqs[1] - 1, seqs[1], seqs[-1]):
        assert [event.seq for event in app.tail("r", after=after)] == [seq for seq in seqs if seq > after]
    assert app.show("r").generation == 8
    assert [line.state for line in app.history("r")][:2] == ["run started", "run continued"]


def test_a_repair_never_goes_back_to_before_what_was_pruned(app: hf.Holdfast) -> None:
    on_the_way(app)
    pruned(app)
    rows = loaded(app.store)[1]
    tampered(app.store, rows[3].seq)
    mending = app.repair("r", dry_run=False, by="ann")
    assert (mending.bad_seq, mending.keeps, mending.unreadable) == (rows[3].seq, rows[2].seq, 1)
    assert app.store.check() == []
    tampered(app.store, rows[1].seq)
    with pytest.raises(Refusal, match="those of the generations before it were pruned; nothing was changed"):
        app.repair("r", dry_run=False, by="ann")


def tampered(store: Store, seq: int) -> None:
    if isinstance(store, MemoryStore):
        store._rows["r"] = [row._replace(body=row.body + b" ") if row.seq == seq else row for row in store._rows["r"]]
    else:
        with apsw.Connection(str(store.url).removeprefix("sqlite:///")) as connection:
            connection.set_busy_timeout(5000)
            connection.execute("UPDATE journal SET body = CAST(body || ' ' AS BLOB) WHERE run_id = 'r' AND seq = ?", (seq,))


def test_a_prune_that_forgets_the_cost_is_found_out(app: hf.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: an account that is wrong keeps the run as it is."""
    on_the_way(app)
    account = shedding._continued

    def wrong_account(*given: Any) -> Any:
        row = account(*given)
        return row._replace(body=row.body.replace(b'"usd":', b'"usd":1'))

    monkeypatch.setattr(shedding, "_continued", wrong_account)
    (kept,) = pruned(app).runs
    assert (kept.what, kept.why) == ("kept", pruning.UNLIKE)
    assert loaded(app.store)[1][1].seq == 2
