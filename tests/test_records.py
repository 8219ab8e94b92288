"""Every kind of record goes to a row's body and comes back, and rows of every earlier format can still be read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from crashing import play
from holdfast._turns import in_line_as_ever
from holdfast.records import kinds as rec
from holdfast.records.bodies import from_parts, to_body
from holdfast.records.chain import record_of
from holdfast.records.journal import Journal
from holdfast.store import FORMAT, Append, Head, Row
from holdfast.stores.memory import MemoryStore

FORMATS = Path(__file__).parent / "formats"
ERROR = {"type": "ValueError", "message": "näh \ud800", "args": [1, None]}

FULL: list[rec.Record] = [
    rec.RunStarted(agent="buy", fingerprint="1:a", origin="r", owner="o", version="2", tags={"kunde": "7"}, args=b'{"x":1}', args_sha="s"),
    rec.RunStarted(agent="buy", fingerprint="1:a", origin="r", budget={"by": "run", "usd": 5.0}, parent={"run": "p", "step": "7"}),
    rec.RunResumed(owner="o", why="taken over", version="3", cleared=["1", "2.1.1"], budget={"by": "agent"}),
    rec.RunDone(value=b'"fine"'),
    rec.RunFailed(error=ERROR, escaped=["4"], code="3f2a91c07e"),
    rec.RunCancelled(by="ann", reason="too late"),
    rec.RunWaiting(waits="for ann", steps=["4"]),
    rec.RunReleased(reason="crash"),
    rec.RunPaused(by="ann", reason="look"),
    rec.RunBlocked(step_id="4", error=ERROR, code="3f2a91c07e"),
    rec.RunAccepted(step_id="4", by="ann", reason="better"),
    rec.RunPruned(by="ann", policy="details=1d", pruned_us=7, was="ab", rows=2, bytes=900, reason="room", dropped=1),
    rec.RunRepaired(bad_seq=5, what="its digest", by="ann", moved=3, unreadable=1, escaped=["4"], since_us=7, same_epoch=True),
    rec.RunUndoing(by="ann", reason="not wanted", error=ERROR),
    rec.RunContinued(fingerprint="1:d", generation=2, args=b'{"x":2}', args_sha="s", carried={"usd": 1.5}, dropped=7, usd=1.5),
    rec.RunSealed(token="t", source="a.db", to="b.db", root="r", by="ann", reason="room", was={"status": "waiting"}, silent=True),
    rec.RunHandedOver(token="t", value=b'[{"kind":"message"}]'),
    rec.RunMoved(token="t", to="b.db"),
    rec.RunArrived(token="t", source="a.db", was={"status": "waiting", "wake_us": 7}, pending=True, value=b'{"messages":[]}'),
    rec.RunUnsealed(token="t", by="ann", reason="not there", was={"status": "queued", "note": "n"}),
    rec.MilestoneReached(step_id="3", name="half"),
    rec.StepPartial(step_id="4", name="1", about="pay 1:b", value=b"[1]"),
    rec.StepStarted(step_id="4", name="pay", fingerprint="1:b", attempt=2, effect=True, key="k", args=b"{}", args_sha="s"),
    rec.AttemptFailed(
        step_id="4", name="pay", fingerprint="1:b", error=ERROR, attempt=2, landed="unknown", delay_ms=20, started_us=5, usage=[{"usd": 1}]
    ),
    rec.StepDone(step_id="4", name="pay", fingerprint="1:b", value=b"7", attempt=2, effect=True, started_us=5, usage=[{"usd": 0.1}]),
    rec.StepDone(step_id="4", name="pay", fingerprint="1:b", not_kept="no form", shown="<object>"),
    rec.StepFailed(step_id="4", name="pay", fingerprint="1:b", error=ERROR, doubt=True, effect=True, usage=[{"usd": 0.1}]),
    rec.StepBrokenOff(step_id="4", name="pay", fingerprint="1:b", attempt=2, effect=True, cause="3", usage=[{"usd": 1}]),
    rec.DoubtOpened(step_id="4", name="pay", fingerprint="1:b", reason="died", action="resend", delay_ms=20),
    rec.DoubtOpened(step_id="4", name="pay", fingerprint="1:b", reason="lost", action="ask", lost=True, key="k", args=b"{}", args_sha="s"),
    rec.DoubtOpened(step_id="4", name="pay", fingerprint="1:b", reason="it timed out", action="ask", wants={"kind": "integer"}),
    rec.DoubtSettled(step_id="4", verdict="landed", by="ann", reason="seen", value=b"7", delay_ms=20),
    rec.AskOpened(step_id="approve:4", topic="approval", question="may it?", about="1:b", until_us=9),
    rec.AskOpened(step_id="budget", topic="budget", question="more?", about="usd 5.0 1", grants={"usd": 10.0}),
    rec.AskOpened(step_id="5", topic="ask", question="which?", wants={"kind": "text"}, who=["ann"], details={"a": [1]}),
    rec.AskAnswered(step_id="approve:4", yes=True, by="ann", reason="fine", timed_out=True),
    rec.AskAnswered(step_id="5", yes=True, by="ann", value=b'"blue"', letter=7),
    rec.AskClosed(step_id="5", reason="the run went on without an answer"),
    rec.WaitBegun(step_id="6", what="message:note", until_us=9, about="1:c"),
    rec.MessageTaken(step_id="6", name="note", by="ann", key="k-1", unfit="not a text"),
    rec.ChildStarted(step_id="7", child="r.7", name="buy", fingerprint="1:d", fork_of="q.7", of="q"),
    rec.BudgetSet(step_id="budget", limits={"usd": 50.0}, by="ann", reason="worth it"),
    rec.WatchTaken(step_id="prices.csv", found={"state": "there", "digest": "d"}, accepted=True),
    rec.WatchDrifted(step_id="prices.csv", what="changed", old="3 bytes", new="4 bytes", action="ask"),
    rec.ModelChanged(step_id="4", name="think", action="ask", asked="m", answered="m-2", before="m (answered by m-1)"),
    rec.ModelAccepted(name="think", by="ann", asked="m", answered="m-2", reason="as good"),
    rec.TimeoutFired(step_id="4"),
    rec.StateSaved(step_id="/state.1", value=b'{"a":1}'),
    rec.RunForked(source="r", at="2", after=5, origin="r.f1", by="ann", reason="what if", effects="reuse", value=b'{"effects":[]}'),
    rec.StepEdited(step_id="2", name="look", fingerprint="1:a", after=5, by="ann", effects="repeat", in_fork=True, value=b"1"),
    rec.StateEdited(step_id="/state.1", at="2", after=5, by="ann", reason="wrong", value=b'{"a":2}'),
    rec.TimeRead(step_id="2.1", times_us=[1, 2]),
]


def again(record: rec.Record) -> rec.Record:
    return from_parts(kind=record.kind, step_id=record.step_id, body=to_body(record), value=record.value, args=record.args)


@pytest.mark.parametrize("record", FULL, ids=lambda record: record.kind)
def test_every_kind_comes_back_equal(record: rec.Record) -> None:
    assert again(record) == record


def test_no_kind_is_missing_above() -> None:
    assert {record.kind for record in FULL} == set(rec.KINDS)


@pytest.mark.parametrize("cls", rec.KINDS.values(), ids=lambda cls: cls.kind)
def test_fields_that_hold_their_default_are_left_out(cls: type[rec.Record]) -> None:
    fields = [field for field in dataclasses.fields(cls) if field.default is field.default_factory is dataclasses.MISSING]
    required: dict[str, Any] = {field.name: f"<{field.name}>" for field in fields}
    bare = cls(**required)
    assert json.loads(to_body(bare)) == required
    assert again(bare) == bare


def test_what_has_a_column_of_its_own_is_not_in_the_body() -> None:
    body = json.loads(to_body(FULL[0]))
    assert not {"step_id", "value", "args"} & body.keys()
    assert body["args_sha"] == "s"


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown kind of record 'step\.dreamt'"):
        from_parts(kind="step.dreamt", step_id="1", body=b"{}", value=None, args=None)


@pytest.mark.parametrize("body", [b'{"soul":1}', b"[1]", b"1", b"{", b"\xff", b'{"value":"x"}'])
def test_a_body_with_other_fields_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        from_parts(kind="run.done", step_id="", body=body, value=None, args=None)


def test_a_missing_field_is_refused() -> None:
    with pytest.raises(ValueError, match="other fields"):
        from_parts(kind="timeout.fired", step_id="1", body=b'{"name":"x"}', value=None, args=None)
    with pytest.raises(ValueError, match="other fields"):
        from_parts(kind="run.failed", step_id="", body=b"{}", value=None, args=None)


def stored_runs(path: Path) -> list[tuple[Head, list[Row]]]:
    """The runs of a fixture: bytes are written as text, digests in hexadecimal."""
    runs = []
    for run in json.loads(path.read_text())["runs"]:
        head = Head(**{**in_line_as_ever(run["head"]), "digest": bytes.fromhex(run["head"]["digest"])})
        rows = [
            Row(
                seq=row["seq"], epoch=row["epoch"], at_us=row["at_us"], kind=row["kind"], step_id=row["step_id"], body=row["body"].encode(),
                value=None if row["value"] is None else row["value"].encode(),
                args=None if row["args"] is None else row["args"].encode(), digest=bytes.fromhex(row["digest"]),
            )
            for row in run["rows"]
        ]  # fmt: skip
        runs.append((head, rows))
    return runs


def test_this_format_has_a_fixture() -> None:
    assert (FORMATS / f"{FORMAT}.json").exists()


STATUSES = {"done", "failed", "waiting", "queued", "paused", "cancelled", "blocked", "moved"}


@pytest.mark.parametrize("path", sorted(FORMATS.glob("*.json")), ids=lambda path: f"format {path.stem}")
def test_runs_of_every_format_are_read_and_verified(path: Path) -> None:
    runs = stored_runs(path)
    newer = set() if path.stem == str(FORMAT) else {"paused"}
    assert {head.status for head, _ in runs} == STATUSES - newer
    for head, rows in runs:
        journal = Journal.load(head, rows)
        assert journal.head.seq == len(rows)
    kinds = {row.kind for _, rows in runs for row in rows}
    assert kinds == set(rec.KINDS) - {f"run.{status}" for status in newer}


@hf.step
async def remember(text: str) -> str:
    raise AssertionError("an old run would be executed again")


@hf.agent(name="remembering")
async def remembering(text: str) -> list[str]:
    return [await remember(text), await remember(text + "!")]


@pytest.mark.parametrize("path", sorted(FORMATS.glob("*.json")), ids=lambda path: f"format {path.stem}")
def test_an_old_run_is_continued_by_this_version(path: Path) -> None:
    head, rows = next((head, rows) for head, rows in stored_runs(path) if head.run_id == "old-queued")
    store = MemoryStore()
    store.append([Append("old-queued", 0, 0, rows, head)])
    assert play(store, remembering, "ä", run_id="old-queued") == ["ä", "ä!"]
    written = record_of(store.load("old-queued")[1][-1])  # type: ignore[index]
    assert written == rec.RunDone(value='["ä","ä!"]'.encode())
