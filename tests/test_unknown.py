"""Effects that nobody knows of: after a repair that could not read everything, what is not on record counts as in doubt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from crashing import LEASE_S, lines
from holdfast.errors import Misuse, Refusal
from holdfast.life import effects
from holdfast.records import kinds as rec
from holdfast.records.unknown import Unknown, folded, lasting
from holdfast.stores.postgres import PostgresStore

done: list[str] = []
landed: set[str] = set()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()
    landed.clear()
    troubles.clear()


troubles: list[BaseException] = []


def pay(what: str) -> str:
    if troubles:
        raise troubles.pop()
    done.append(f"{what} {hf.key()[-6:]}")
    landed.add(what)
    return f"r-{what}"


async def pay_async(what: str) -> str:
    return pay(what)


def probe(what: str) -> hf.Landed[str] | hf.NotLanded:
    if troubles:
        raise troubles.pop()
    done.append(f"probe {what}")
    return hf.Landed(f"r-{what}") if what in landed else hf.NotLanded()


def put_back(what: str) -> None:
    done.append(f"reset {what}")
    landed.discard(what)


@hf.step
def look(what: str) -> str:
    done.append(f"look {what}")
    return what


ACTIONS: dict[str, Any] = {
    "ask": "ask", "fail": "fail", "resend": hf.resend(within="1h"), "forgets": hf.resend(within=0.000001),
    "verify": hf.verify(probe, settle=0), "reset": hf.reset(put_back, settle=0),
}  # fmt: skip


def agent(action: str, *, is_async: bool = False, **options: Any) -> Callable[..., Any]:
    """An agent that looks, pays b and pays d, with effects that declare this."""
    declared = hf.effect(in_doubt=ACTIONS[action], name="pay", **options)
    if is_async:
        charge_async = declared(pay_async)

        @hf.agent(name="errand")
        async def errand_async(order: str) -> list[str]:
            return [look("a"), await charge_async("b"), await charge_async("d")]

        return errand_async
    charge = declared(pay)

    @hf.agent(name="errand")
    def errand(order: str) -> list[str]:
        return [look("a"), charge("b"), charge("d")]

    return errand


def played(path: Path, code: Callable[..., Any]) -> Any:
    with hf.Holdfast(path) as app:
        return app.run(code, "o", run_id="r", wait=False)


def harm(path: Path, seq: int = 5) -> None:
    """Make all records from there on unreadable: the intent of step 3 is the fifth."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE journal SET body = x'7b7d' WHERE run_id = 'r' AND seq >= ?", (seq,))


def mended(path: Path, code: Callable[..., Any], seq: int = 5, *, resumes: bool = True) -> str:
    """A run that was done, of which only what came before `seq` is left; gives what was done last."""
    played(path, code)
    harm(path, seq)
    with hf.Holdfast(path) as app:
        mending = app.repair("r", dry_run=False, by="ann")
        assert mending.unreadable
        assert mending.doubts == []
        if resumes:
            app.resume("r", by="ann")
    sent = done[-1]
    done.clear()
    return sent


both = pytest.mark.parametrize("is_async", [False, True])


@both
def test_a_person_is_asked_and_their_word_is_what_counts(tmp_path: Path, *, is_async: bool) -> None:
    path, code = tmp_path / "runs.db", agent("ask", is_async=is_async)
    mended(path, code)
    for _ in range(3):
        with pytest.raises(hf.RunWaiting, match=r'did pay\(what="d"\) at step 3 happen\? \(records that a repair could not read may have'):
            played(path, code)
    assert done == []
    with hf.Holdfast(path) as app:
        (item,) = app.inbox()
        assert (item.kind, item.step_id, bool(item.key)) == ("doubt", "3", True)
        assert item.commands[-1] == "holdfast resume r --effects repeat"
        app.resolve("r", "3", landed="r-d", by="ann")
    assert played(path, code) == ["a", "r-b", "r-d"]
    assert done == []


@both
def test_it_is_sent_again_under_the_key_that_it_had(tmp_path: Path, *, is_async: bool) -> None:
    path, code = tmp_path / "runs.db", agent("resend", is_async=is_async)
    sent = mended(path, code)
    assert played(path, code) == ["a", "r-b", "r-d"]
    assert done == [sent]
    with hf.Holdfast(path) as app:
        assert [line for line in lines(app.store) if line.endswith(" 3")] == ["doubt.opened 3", "step.started 3", "step.done 3"]


@both
def test_a_probe_says_whether_it_happened(tmp_path: Path, *, is_async: bool) -> None:
    path, code = tmp_path / "runs.db", agent("verify", is_async=is_async)
    mended(path, code)
    assert played(path, code)[2] == "r-d"
    assert done == ["probe d"]


def test_what_a_probe_does_not_find_is_done(tmp_path: Path) -> None:
    path, code = tmp_path / "runs.db", agent("verify")
    sent = mended(path, code)
    landed.clear()
    assert played(path, code)[2] == "r-d"
    assert done == ["probe d", sent]


@both
def test_it_is_put_back_before_it_is_done(tmp_path: Path, *, is_async: bool) -> None:
    path, code = tmp_path / "runs.db", agent("reset", is_async=is_async)
    sent = mended(path, code)
    assert played(path, code)[2] == "r-d"
    assert done == ["reset d", sent]


@both
def test_the_agent_is_told_and_the_doubt_stays(tmp_path: Path, *, is_async: bool) -> None:
    path, code = tmp_path / "runs.db", agent("fail", is_async=is_async)
    mended(path, code)
    for _ in range(2):
        with pytest.raises(hf.InDoubt, match="no attempt is on record"):
            played(path, code)
    with hf.Holdfast(path) as app:
        assert [item.step_id for item in app.inbox()] == ["3"]
        app.resolve("r", "3", not_landed=True, by="ann")
    assert done == []
    assert played(path, code)[2] == "r-d"
    assert len(done) == 1


@pytest.mark.parametrize(("action", "then"), [("resend", []), ("verify", ["probe d"])])
def test_who_is_interrupted_in_it_leaves_the_same_doubt(tmp_path: Path, action: str, then: list[str]) -> None:
    path, code = tmp_path / "runs.db", agent(action)
    sent = mended(path, code)
    for _ in range(2):
        troubles.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            played(path, code)
    assert played(path, code)[2] == "r-d"
    assert done == (then or [sent])


def test_that_it_is_refused_when_it_is_sent_again_says_nothing_of_the_first_time(tmp_path: Path) -> None:
    path, code = tmp_path / "runs.db", agent("resend", retry=hf.Retry(attempts=1))
    mended(path, code)
    troubles.append(ConnectionRefusedError())
    with pytest.raises(hf.InDoubt):
        played(path, code)
    assert done == []


def test_a_key_that_the_other_side_may_have_forgotten_is_not_sent_again(tmp_path: Path) -> None:
    path, code = tmp_path / "runs.db", agent("forgets")
    mended(path, code)
    with pytest.raises(hf.RunWaiting, match=r"the intent may be \d+ s old, the key is remembered for 0 s"):
        played(path, code)
    assert done == []


@pytest.mark.parametrize("action", ["ask", "fail", "resend", "verify", "reset"])
def test_without_the_rule_it_is_done_twice(tmp_path: Path, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: nothing else keeps what is not on record from being done again."""
    monkeypatch.setattr(effects, "_may_be_lost", lambda *_: False)
    path, code = tmp_path / "runs.db", agent(action)
    sent = mended(path, code)
    assert played(path, code)[2] == "r-d"
    assert done == [sent]


@pytest.mark.parametrize("action", ["resend", "verify", "reset"])
def test_behind_a_step_that_was_executed_again_a_key_of_its_place_proves_nothing(tmp_path: Path, action: str) -> None:
    """Its result may be another, and the same effect be called elsewhere: a person says."""
    path, code = tmp_path / "runs.db", agent(action)
    mended(path, code, 2)
    with pytest.raises(hf.RunWaiting, match="at step 2 happen"):
        played(path, code)
    assert done == ["look a"]


@pytest.mark.parametrize(("action", "then"), [("resend", ["b", "d"]), ("verify", ["probe b", "probe d"])])
def test_a_key_of_its_own_holds_wherever_it_is_called(tmp_path: Path, action: str, then: list[str]) -> None:
    path, code = tmp_path / "runs.db", agent(action, key=lambda what: f"key-{what}")
    mended(path, code, 2)
    assert played(path, code) == ["a", "r-b", "r-d"]
    assert [one.removesuffix(f" key-{one[0]}") for one in done] == ["look a", *then]


def test_where_somebody_may_have_taken_the_run_up_meanwhile_its_keys_may_have_been_others(tmp_path: Path) -> None:
    path, code = tmp_path / "runs.db", agent("resend")
    played(path, code)
    harm(path)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE runs SET epoch = epoch + 1")
    with hf.Holdfast(path) as app:
        app.repair("r", dry_run=False, by="ann")
        app.resume("r", by="ann")
    done.clear()
    with pytest.raises(hf.RunWaiting, match="at step 3 happen"):
        played(path, code)
    assert done == []


@pytest.mark.parametrize("action", ["ask", "resend"])
def test_commits_at_the_end_of_a_run_in_files_that_cannot_be_read_may_have_told_of_it(tmp_path: Path, action: str) -> None:
    """What is known of the run then is that of the last good commit, which looks as if nothing came behind it."""
    path, code = tmp_path / "runs", agent(action)
    with hf.Holdfast(f"file://{path}") as app:
        app.run(code, "o", run_id="r")
    for folder in ("sealed-*", "journal"):
        for file in sorted(path.glob(f"runs/r/{folder}/*.json"))[4:]:
            file.chmod(0o600)
            file.write_bytes(b"x")
    done.clear()
    with hf.Holdfast(f"file://{path}", lease=LEASE_S) as app:
        assert app.repair("r", dry_run=False, by="ann").status == "blocked"
        app.resume("r", by="ann")
        with pytest.raises(hf.RunWaiting, match="at step 3 happen"):
            app.run(code, "o", run_id="r", wait=False)
    assert done == []


def test_the_operators_word_ends_it_and_is_on_record(tmp_path: Path) -> None:
    path, code = tmp_path / "runs.db", agent("ask")
    mended(path, code, 3)
    with pytest.raises(hf.RunWaiting):
        played(path, code)
    with hf.Holdfast(path) as app:
        assert app.show("r").unreadable == 4
        app.resume("r", effects="repeat", by="ann", reason="the bank has nothing")
        told = [line.note for line in app.history("r")]
        assert "resume by ann: the bank has nothing; effects that are not on record did not happen" in told
        assert app.show("r").unreadable == 0
    assert played(path, code) == ["a", "r-b", "r-d"]
    assert [one[0] for one in done] == ["b", "d"]


def test_the_word_is_not_needed_where_all_was_read(tmp_path: Path) -> None:
    path, code = tmp_path / "runs.db", agent("ask")
    played(path, code)
    with hf.Holdfast(path) as app:
        app.submit(code, "o", run_id="q")
        with pytest.raises(Refusal, match="left anything unread"):
            app.resume("q", effects="repeat", by="ann")
        with pytest.raises(Refusal, match="it is ask or repeat"):
            app.resume("q", effects="reuse", by="ann")  # type: ignore[arg-type]
        with pytest.raises(Misuse, match="one after the other"):
            app.resume("q", effects="repeat", budget=hf.Budget(usd=1), by="ann")


def test_an_effect_that_is_in_doubt_for_another_reason_stays_so_whatever_is_said_of_the_rest(tmp_path: Path) -> None:
    path, code = tmp_path / "runs.db", agent("ask")
    played(path, code)
    harm(path, 6)
    with hf.Holdfast(path) as app:
        assert len(app.repair("r", dry_run=False, by="ann").doubts) == 1
        app.resume("r", effects="repeat", by="ann")
    done.clear()
    with pytest.raises(hf.RunWaiting, match="at step 3 happen"):
        played(path, code)
    assert done == []


def test_a_repair_that_read_everything_leaves_nothing_unknown(tmp_path: Path) -> None:
    path, code = tmp_path / "runs.db", agent("ask")
    played(path, code)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE runs SET status = 'failed'")
    with hf.Holdfast(path) as app:
        assert app.repair("r", dry_run=False, by="ann").unreadable == 0
        assert app.show("r").unreadable == 0


@pytest.mark.parametrize(("policy", "executes"), [("ask", False), ("reuse", False), ("repeat", True)])
def test_a_fork_knows_it_of_its_source(tmp_path: Path, policy: Any, *, executes: bool) -> None:
    path, code = tmp_path / "runs.db", agent("resend")
    mended(path, code, resumes=False)
    with hf.Holdfast(path) as app:
        made = app.fork("r", at=2, effects=policy, by="ann")
        if executes:
            assert app.run(code, "o", run_id=made, wait=False)[2] == "r-d"
        else:
            with pytest.raises(hf.RunWaiting, match="at step 3 happen"):
                app.run(code, "o", run_id=made, wait=False)
    assert len(done) == executes


@pytest.mark.parametrize(("policy", "executes"), [("ask", False), ("repeat", True)])
def test_an_edit_gives_new_keys_so_a_person_is_asked(tmp_path: Path, policy: Any, *, executes: bool) -> None:
    path, code = tmp_path / "runs.db", agent("resend")
    mended(path, code)
    with hf.Holdfast(path) as app:
        app.edit("r", 2, "r-x", effects=policy, by="ann")
    if executes:
        assert played(path, code)[1:] == ["r-x", "r-d"]
    else:
        with pytest.raises(hf.RunWaiting, match="at step 3 happen"):
            played(path, code)
    assert len(done) == executes


def test_an_approval_is_asked_for_once_it_is_known_that_it_did_not_happen(tmp_path: Path) -> None:
    path, code = tmp_path / "runs.db", agent("resend", approve=True)
    with hf.Holdfast(path) as app:
        for step in ("2", "3"):
            with pytest.raises(hf.RunWaiting):
                app.run(code, "o", run_id="r", wait=False)
            app.answer("r", f"approve:{step}", yes=True, by="ann")
        app.run(code, "o", run_id="r")
        found = app.store.load("r")
    assert found is not None
    harm(path, next(row.seq for row in found[1] if row.step_id == "approve:3"))
    with hf.Holdfast(path) as app:
        app.repair("r", dry_run=False, by="ann")
        app.resume("r", by="ann")
        done.clear()
        with pytest.raises(hf.RunWaiting, match="at step 3 happen"):
            app.run(code, "o", run_id="r", wait=False)
        app.resolve("r", "3", not_landed=True, by="ann")
        with pytest.raises(hf.RunWaiting, match="be executed at step 3"):
            app.run(code, "o", run_id="r", wait=False)
        assert done == []
        app.answer("r", "approve:3", yes=True, by="ann")
        assert app.run(code, "o", run_id="r", wait=False)[2] == "r-d"


def test_a_child_run_is_found_again_by_its_id(tmp_path: Path) -> None:
    path, inner = tmp_path / "runs.db", agent("ask")

    @hf.agent(name="outer")
    def outer(order: str) -> list[str]:
        return inner(order)  # type: ignore[no-any-return]

    with hf.Holdfast(path) as app:
        app.run(outer, "o", run_id="r")
        done.clear()
        harm(path, 2)
        app.repair("r", dry_run=False, by="ann")
        app.resume("r", by="ann")
        assert app.run(outer, "o", run_id="r", wait=False) == ["a", "r-b", "r-d"]
    assert done == []


def test_a_child_that_may_have_run_under_another_id_asks_too(tmp_path: Path) -> None:
    path, inner = tmp_path / "runs.db", agent("ask")
    shifts = iter([False, True, True])

    @hf.agent(name="outer")
    def outer(order: str) -> list[str]:
        look("first")
        if next(shifts):
            look("more")
        return inner(order)  # type: ignore[no-any-return]

    with hf.Holdfast(path) as app:
        app.run(outer, "o", run_id="r")
        harm(path, 2)
        app.repair("r", dry_run=False, by="ann")
        app.resume("r", by="ann")
        done.clear()
        with pytest.raises(hf.RunWaiting, match=r'pay\(what="b"\)'):
            app.run(outer, "o", run_id="r", wait=False)
    assert done == ["look first", "look more", "look a"]


def test_branches_are_asked_about_in_whatever_order_they_begin(tmp_path: Path) -> None:
    path, charge = tmp_path / "runs.db", hf.effect(in_doubt="ask", name="pay")(pay_async)

    @hf.agent(name="errand")
    async def errand(order: str) -> list[str]:
        return list(await hf.gather(*(charge(what) for what in ("b", "c", "d"))))

    mended(path, errand, 2)
    with pytest.raises(hf.RunWaiting):
        played(path, errand)
    with hf.Holdfast(path) as app:
        assert sorted(item.step_id for item in app.inbox()) == ["1", "2", "3"]
        app.resume("r", effects="repeat", by="ann")
    assert done == []
    assert played(path, errand) == ["r-b", "r-c", "r-d"]
    assert len(done) == 3


def test_it_outlives_a_run_that_begins_anew_and_a_prune(tmp_path: Path) -> None:
    path, charge = tmp_path / "runs.db", hf.effect(in_doubt="resend", name="pay")(pay)

    @hf.agent(name="errand")
    def errand(order: str, left: int = 1) -> str:
        look("a")
        if left:
            hf.continue_as(order, left - 1)
        return charge("d")

    mended(path, errand, 2)
    with hf.Holdfast(path) as app:
        with pytest.raises(hf.RunWaiting, match="at step 2 happen"):
            app.run(errand, "o", run_id="r", wait=False)
        app.prune(hf.Retention(max_age=0), dry_run=False)
        assert app.show("r").unreadable
        with pytest.raises(hf.RunWaiting, match="at step 2 happen"):
            app.run(errand, "o", run_id="r", wait=False)
    assert done == ["look a", "look a"]


def take_back(receipt: str, what: str) -> None:
    done.append(f"undo {what}")


def test_an_undo_may_have_happened_too_and_what_may_be_left_is_said(tmp_path: Path) -> None:
    path, code = tmp_path / "runs.db", agent("ask", undo=take_back)
    mended(path, code)
    with hf.Holdfast(path) as app:
        app.cancel("r", undo=True, by="ann")
        with pytest.raises(hf.RunWaiting, match="undo:2 happen"):
            app.run(code, "o", run_id="r", wait=False)
        assert done == []
        app.resolve("r", "undo:2", not_landed=True, by="ann")
        with pytest.raises(hf.RunCancelled, match="records that a repair could not read may have told of more, which is not undone"):
            app.run(code, "o", run_id="r", wait=False)
    assert done == ["undo b"]


@hf.transaction
def book(item: str) -> str:
    hf.connection().execute(b"SELECT 1")
    done.append(f"book {item}")
    return item


@hf.agent
def booking(item: str) -> str:
    return book(item)


def test_what_a_transaction_wrote_may_be_there_though_its_record_is_lost(postgres_store: PostgresStore) -> None:
    with hf.Holdfast(postgres_store) as app:
        app.run(booking, "a", run_id="r")
        postgres_store._others.run(lambda connection: connection.execute(b"UPDATE journal SET body = 'x' WHERE seq = 2"))
        assert app.repair("r", dry_run=False, by="ann").unreadable
        app.resume("r", by="ann")
        for _ in range(2):
            with pytest.raises(hf.RunWaiting, match=r"did book\(item=\"a\"\) at step 1 happen"):
                app.run(booking, "a", run_id="r", wait=False)
        assert done == ["book a"]
        app.resolve("r", "1", not_landed=True, by="ann")
        assert app.run(booking, "a", run_id="r", wait=False) == "a"
    assert done == ["book a", "book a"]


REPAIRED = rec.RunRepaired(bad_seq=5, what="", by="ann", unreadable=2, since_us=7, same_epoch=True)
SURE = Unknown(2, 9, 7, sure=True)
UNSURE = Unknown(2, 9, 7, sure=False)
SAFE = rec.StepDone(step_id="1", name="look", fingerprint="")


@pytest.mark.parametrize(
    ("before", "record", "after"),
    [
        (None, REPAIRED, SURE),
        (None, REPAIRED.but(unreadable=0), None),
        (None, REPAIRED.but(since_us=0, same_epoch=False), Unknown(2, 9)),
        (Unknown(3, 4, 5, sure=False), REPAIRED, Unknown(5, 9, 5, sure=False)),
        (SURE, SAFE, UNSURE),
        (SURE, SAFE.but(effect=True), SURE),
        (SURE, rec.DoubtSettled(step_id="1", verdict="not_landed", by="reset"), UNSURE),
        (SURE, rec.RunAccepted(step_id="1", by="ann"), UNSURE),
        (SURE, rec.RunResumed(owner="", why=""), SURE),
        (SURE, rec.RunResumed(owner="", why="", effects="repeat"), None),
        (UNSURE, rec.RunContinued(fingerprint="", generation=1, carried={"unreadable": 2}), Unknown(2, 9)),
        (SURE, rec.RunContinued(fingerprint="", generation=1), None),
    ],
)
def test_what_a_record_makes_of_it(before: Unknown | None, record: rec.Record, after: Unknown | None) -> None:
    assert folded(before, record, 9) == after


def test_only_where_keys_are_not_sure_does_it_last_when_the_run_begins_anew() -> None:
    assert [lasting(each) for each in (None, SURE, UNSURE)] == [0, 0, 2]
