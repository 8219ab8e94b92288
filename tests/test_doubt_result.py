"""What a person says that an effect returned is looked at when it is said: the doubt tells what it must be, without the code."""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

import holdfast as hf
from agents_for_tests import bank as banking
from agents_for_tests.bank import Bank
from agents_for_tests.buyer import DOUBTS, charging
from agents_for_tests.sites import WatchedMemory
from crashing import FailingStore, play
from holdfast.errors import Refusal, StoreFailed
from holdfast.records.chain import record_of


class Receipt(BaseModel):
    id: str
    cents: int


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Spot:
    x: int


@pytest.fixture
def store() -> WatchedMemory:
    return WatchedMemory()


@pytest.fixture
def app(store: WatchedMemory) -> Iterator[hf.Holdfast]:
    with hf.Holdfast(store) as opened:
        yield opened


@pytest.fixture
def bank() -> Iterator[Bank]:
    """One that takes a second request under the same key for a second charge."""
    with Bank(remembers_keys=False) as opened:
        yield opened


def paying(returns: Any) -> Any:
    """An agent whose one effect leaves in doubt whether it happened."""

    @hf.effect(in_doubt="ask", returns=returns)
    async def pay() -> Any:
        raise TimeoutError("no answer")

    @hf.agent
    async def payer() -> str:
        return repr(await pay())

    return payer


def in_doubt(app: hf.Holdfast, returns: Any) -> Any:
    agent = paying(returns)
    with pytest.raises(hf.RunWaiting):
        app.run(agent, run_id="r", wait=False)
    return agent


UNFIT = [
    (int, "x", "'\"x\" is not what is asked for: integer'"),
    (int, True, "'true is not what is asked for: integer'"),
    (str, 5, "'5 is not what is asked for: text'"),
    (bool, "yes", "'\"yes\" is not what is asked for: yes or no'"),
    (Literal["a", "b"], "c", "'\"c\" is not what is asked for: \"a\" | \"b\"'"),
    (Colour, "blue", "'\"blue\" is not what is asked for: \"red\"'"),
    (Receipt, {"id": "r-9"}, "has no 'cents'; Receipt has the fields id, cents"),
    (Receipt, {"id": 9, "cents": 5}, "'id' must be of type string, not 9"),
    (Receipt, {"id": "r-9", "cents": 5, "sum": 6}, "has 'sum', which is not asked for; Receipt has the fields id, cents"),
    (Receipt, "r-9", "is not an object with id, cents"),
    (Spot, {}, "has no 'x'"),
    (list[int], 5, "5 is not a list"),
    (type(None), "ok", "'\"ok\" is not null"),
]


@pytest.mark.parametrize(("returns", "said", "why"), UNFIT)
def test_a_result_that_is_plainly_another_one_is_refused_at_once(app: hf.Holdfast, returns: Any, said: Any, why: str) -> None:
    in_doubt(app, returns)
    before = app.store.load("r")
    with pytest.raises(Refusal) as refused:
        app.resolve("r", "1", landed=said, by="ann")
    assert why.strip("'") in str(refused.value)
    assert "nothing was changed" in str(refused.value)
    assert app.store.load("r") == before


FIT = [
    (int, 5, "5"),
    (float, 5, "5.0"),
    (str, "r-9", "'r-9'"),
    (bool, False, "False"),
    (Literal["a", "b"], "b", "'b'"),
    (Colour, "red", "<Colour.RED: 'red'>"),
    (Receipt, {"id": "r-9", "cents": 5}, "Receipt(id='r-9', cents=5)"),
    (Receipt, Receipt(id="r-9", cents=5), "Receipt(id='r-9', cents=5)"),
    (Spot, {"x": 1}, "Spot(x=1)"),
    (datetime, "2026-01-02T03:04:05", "datetime.datetime(2026, 1, 2, 3, 4, 5)"),
    (int | None, None, "None"),
    (tuple[int, str], [1, "a"], "(1, 'a')"),
    (type(None), None, "None"),
    (Any, {"any": [1, None]}, "{'any': [1, None]}"),
]


@pytest.mark.parametrize(("returns", "said", "result"), FIT)
def test_a_result_that_fits_is_taken(app: hf.Holdfast, returns: Any, said: Any, result: str) -> None:
    agent = in_doubt(app, returns)
    app.resolve("r", "1", landed=said, by="ann")
    assert app.run(agent, run_id="r", wait=False) == result


BLANKS = [
    (str, "'\"TEXT\"'"), (int, "NUMBER"), (float, "NUMBER"), (type(None), "null"),
    (Receipt, """'{"id": ..., "cents": ...}'"""), (Any, "RESULT"),
]  # fmt: skip


@pytest.mark.parametrize(("returns", "blank"), BLANKS)
def test_the_command_to_paste_has_a_blank_of_the_right_form(app: hf.Holdfast, returns: Any, blank: str) -> None:
    in_doubt(app, returns)
    (item,) = app.inbox()
    assert item.commands[0] == f"holdfast resolve r 1 --landed {blank}"


def test_the_inbox_tells_what_the_result_must_be(app: hf.Holdfast) -> None:
    in_doubt(app, Receipt)
    assert app.inbox()[0].wants == "JSON: Receipt with id, cents"


def test_who_gives_up_tells_it_as_well(app: hf.Holdfast) -> None:
    @hf.effect(in_doubt="fail")
    async def pay() -> int:
        raise TimeoutError("no answer")

    @hf.agent
    async def payer() -> int:
        return await pay()

    with pytest.raises(hf.InDoubt):
        app.run(payer, run_id="r")
    with pytest.raises(Refusal, match="integer"):
        app.resolve("r", "1", landed="many", by="ann")


def test_code_that_returns_something_else_by_now_puts_the_doubt_anew(app: hf.Holdfast) -> None:
    in_doubt(app, int)
    with pytest.raises(hf.RunWaiting):
        app.run(paying(Receipt), run_id="r", wait=False)
    with pytest.raises(Refusal, match="is not an object with id, cents"):
        app.resolve("r", "1", landed=5, by="ann")
    app.resolve("r", "1", landed={"id": "r-9", "cents": 5}, by="ann")
    assert app.run(paying(Receipt), run_id="r", wait=False) == "Receipt(id='r-9', cents=5)"


def test_code_that_returns_the_same_does_not(app: hf.Holdfast) -> None:
    for _ in range(3):
        in_doubt(app, Receipt)
    _, rows = app.store.load("r") or pytest.fail("it is there")
    assert [record_of(row).kind for row in rows].count("doubt.opened") == 1


def test_where_nobody_looks_it_is_asked_for_again(app: hf.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.operating.words.misfit", lambda wants, value, **_: "")
    agent = in_doubt(app, int)
    app.resolve("r", "1", landed="x", by="ann")
    with pytest.raises(hf.RunWaiting):
        app.run(agent, run_id="r", wait=False)


@pytest.mark.parametrize(("verdict", "bodies"), [(hf.Landed("r-1"), 1), (hf.NotLanded(), 2)])
def test_what_a_probe_said_holds_though_the_process_dies_before_it_acts_on_it(verdict: hf.Verdict[str], bodies: int) -> None:
    begun, probed = list[int](), list[int]()

    def probe() -> hf.Verdict[str]:
        probed.append(1)
        return verdict

    @hf.effect(in_doubt=hf.verify(probe, settle=0), retry=hf.Retry(base=0.001))
    async def pay() -> str:
        begun.append(1)
        if len(begun) == 1:
            raise RuntimeError("no reply")
        return "r-1"

    @hf.agent
    async def agent() -> str:
        return await pay()

    store = FailingStore(lambda row: row.kind == "step.done" or (row.kind == "step.started" and record_of(row).attempt == 2))  # type: ignore[attr-defined]
    with pytest.raises(StoreFailed):
        play(store, agent)
    store.mend()
    assert play(store, agent) == "r-1"
    assert (len(begun), len(probed)) == (bodies, 1)


@pytest.mark.parametrize("mode", ["async", "def"])
@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_a_person_says_has_happened_is_not_done_again_where_the_result_they_gave_does_not_fit(
    tmp_path: Path, bank: Bank, mode: str, doubt: str
) -> None:
    calm = False

    def pay(order: str) -> int:
        receipt = banking.charge(bank.port, order, hf.key())
        if not calm:
            os.kill(os.getpid(), signal.SIGKILL)
        return len(receipt)

    actions: dict[str, Any] = {"verify": hf.verify(lambda _: hf.NotLanded(), settle=0), "reset": hf.reset(bank.seen.append, settle=0)}
    agent = charging(mode, pay, actions.get(doubt, doubt), returns=Annotated[int, Field(gt=0)])
    if not (child := os.fork()):
        hf.run(agent, "o-1", run_id="r", store=tmp_path / "runs.db")
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    calm = True
    with hf.Holdfast(tmp_path / "runs.db") as app:
        app.resolve("r", "1", landed=-3, by="ann")  # a rule that only the code knows
        for _ in range(2):
            with pytest.raises(hf.RunWaiting):
                app.run(agent, "o-1", run_id="r", wait=False)
        assert "the result that ann gave does not fit: Input should be greater than 0; it must be int" in app.inbox()[0].what
        assert (bank.charged, len(bank.seen)) == (["o-1"], 1)
        app.resolve("r", "1", landed=3, by="ann")
        assert (app.run(agent, "o-1", run_id="r"), bank.charged) == ("3", ["o-1"])
