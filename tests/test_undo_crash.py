"""A run that is undone loses its store at every record: each effect is undone once, the newest first, whoever goes on.

The ledger is written by the bodies themselves. A person settles what is in doubt by looking into it. The same check over an engine that
is broken on purpose must find it out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import holdfast as hf
from crashing import FailingStore, play, records, status
from holdfast.errors import StoreError
from holdfast.life.calls import Call
from holdfast.life.commands import Commit, Invoke, Life
from holdfast.life.run import Body, Run
from holdfast.records import kinds as rec
from holdfast.records import replay
from holdfast.running import undo as undo_room
from holdfast.store import Row

PLAYS = 12
"""A run that is not closed after so many plays never will be."""
PAID = [1, 2, 3]


class Bank:
    """What was really done, in order: the word, the number and the key under which it came."""

    def __init__(self, in_doubt: Any = "ask") -> None:
        self.ledger: list[tuple[str, int, str]] = []

        def refunded(receipt: str, n: int) -> str:
            assert receipt == f"receipt {n}"
            self.did("refund", n)
            return f"refund {n}"

        refund: Callable[[str, int], str] = hf.effect(in_doubt=in_doubt, name="refund")(refunded)

        @hf.effect(in_doubt="ask", undo=refund)
        def pay_blocking(n: int) -> str:
            return self.did("pay", n)

        @hf.effect(in_doubt="ask", undo=refund)
        async def pay(n: int) -> str:
            return self.did("pay", n)

        @hf.agent(name="buy", on_failure="undo")
        def buy_blocking() -> None:
            for n in PAID:
                pay_blocking(n)
            raise ValueError("out of stock")

        @hf.agent(on_failure="undo")
        async def buy() -> None:
            for n in PAID:
                await pay(n)
            raise ValueError("out of stock")

        @hf.agent(name="keep")
        async def keep() -> None:
            await pay(1)
            await hf.gather(pay(2), pay(3))
            raise ValueError("out of stock")

        self.agents: dict[str, Callable[[], Any]] = {"async": buy, "def": buy_blocking, "keep": keep}

    def did(self, what: str, n: int) -> str:
        self.ledger.append((what, n, hf.key()))
        return f"receipt {n}"

    def verdict(self, key: str) -> dict[str, Any]:
        """What a person finds who looks for the key."""
        found = [(what, n) for what, n, sent in self.ledger if sent == key]
        return {"landed": f"{'receipt' if found[0][0] == 'pay' else 'refund'} {found[0][1]}"} if found else {"not_landed": True}

    def wrong(self) -> list[str]:
        """Everything that the ledger should not show."""
        told = []
        for word, expected in (("pay", PAID), ("refund", PAID[::-1])):
            seen = [(n, key) for what, n, key in self.ledger if what == word]
            numbers = [n for n, _ in seen]
            told += [f"{word} {n} was done {numbers.count(n)} times" for n in PAID if numbers.count(n) != 1]
            told += [f"the order of {word} was {numbers}"] if sorted(numbers) == PAID and numbers != expected else []
        keys = {key for _, _, key in self.ledger}
        return told + ([f"{len(keys)} keys for 6 things to do"] if len(keys) != 6 else [])


def until_closed(store: FailingStore, bank: Bank, agent: Callable[[], Any]) -> None:
    """Run it again and again, and play the person, until it is closed."""
    for _ in range(PLAYS):
        try:
            play(store, agent)
        except (ValueError, hf.RunCancelled):
            break
        except StoreError:
            store.mend()
        except hf.RunWaiting:
            with hf.Holdfast(store) as app:
                for item in app.inbox():
                    app.resolve("r", item.step_id, **bank.verdict(item.key), by="ann")
    assert status(store) == "cancelled"


def is_at(seq: int, row: Row) -> bool:
    return row.seq == seq


def kept_alive(colour: str, seq: int, *, written: bool, in_doubt: Any = "ask") -> Bank:
    """A run whose store is lost when this record is to be written, or has been; then it goes on."""
    bank = Bank(in_doubt)
    store = FailingStore(partial(is_at, seq), written=written)
    until_closed(store, bank, bank.agents[colour])
    return bank


def all_records(colour: str) -> int:
    bank, store = Bank(), FailingStore()
    until_closed(store, bank, bank.agents[colour])
    assert bank.wrong() == []
    return len(records(store))


def swept(colour: str, last: int) -> list[str]:
    """What is wrong after a loss at each record up to the last, before and after it is written."""
    return [
        f"{colour}, lost {'after' if written else 'before'} record {seq}: {what}"
        for seq in range(1, last + 1)
        for written in (False, True)
        for what in kept_alive(colour, seq, written=written).wrong()
    ]


@pytest.mark.parametrize("colour", ["async", "def"])
def test_a_store_lost_at_any_record_leaves_each_effect_undone_once_newest_first(colour: str) -> None:
    assert all_records(colour) == 15  # started, 3 x (intent, outcome), undoing, 3 x (intent, outcome), cancelled
    assert swept(colour, last=15) == []


def asked_to_undo() -> tuple[Bank, FailingStore]:
    """A run that failed, and that somebody wants to be undone."""
    bank, store = Bank(), FailingStore()
    with pytest.raises(ValueError):
        play(store, bank.agents["keep"])
    with hf.Holdfast(store) as app:
        app.cancel("r", undo=True, by="ann")
    return bank, store


def test_the_same_holds_when_somebody_asks_for_it_and_the_branches_are_replayed() -> None:
    bank, store = asked_to_undo()
    asked, agent = len(records(store)), bank.agents["keep"]
    until_closed(store, bank, agent)
    for seq in range(asked + 1, len(records(store)) + 1):
        for written in (False, True):
            bank, store = asked_to_undo()
            store.fails, store.written = partial(is_at, seq), written
            until_closed(store, bank, bank.agents["keep"])
            assert bank.wrong() == [], (seq, written)


def test_a_probe_settles_what_is_in_doubt_without_a_person() -> None:
    banks: list[Bank] = []

    def find(receipt: str, n: int) -> hf.Verdict[str]:
        landed = any(key == hf.key() for _, _, key in banks[-1].ledger)
        return hf.Landed(f"refund {n}") if landed else hf.NotLanded()

    class Probed(Bank):
        def __init__(self) -> None:
            banks.append(self)
            super().__init__(hf.verify(find, settle=0))

    for seq in range(8, 16):
        for written in (False, True):
            bank, store = Probed(), FailingStore(partial(is_at, seq), written=written)
            until_closed(store, bank, bank.agents["async"])
            assert bank.wrong() == [], (seq, written)
            assert not any(record.kind == "run.waiting" for record in records(store))


def test_resending_repeats_an_undo_under_its_key_alone() -> None:
    bank = kept_alive("async", 10, written=False, in_doubt="resend")
    refunds = [(n, key) for what, n, key in bank.ledger if what == "refund"]
    assert [n for n, _ in refunds] == [3, 3, 2, 1]
    assert len(set(refunds)) == 3


# --- negative controls ----------------------------------------------------------------------------------------------


def without_intent(call: Call, undo_id: str, value: bytes) -> Life[None]:
    """The undo is called, and written down afterwards."""
    spec = call.spec.undo
    assert spec is not None
    undo = Call(spec, call.run.scopes[0], undo_id, (call.spec.codec().give_back(value), *call.args), call.kwargs)
    undo.key = call.run.key_of(undo_id)
    yield Invoke(Body(undo), spec.fn, undo.args, undo.kwargs, None)
    yield Commit([rec.StepDone(step_id=undo_id, name=spec.name, fingerprint=undo.fingerprint, effect=True, value=b"null")])


def test_the_sweep_finds_out_undos_without_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo_room, "_called", without_intent)
    assert all_records("async") == 12  # the intents are missing
    found = swept("async", last=12)
    assert any("refund 3 was done 2 times" in line for line in found), found


def test_the_sweep_finds_out_undos_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    right = undo_room.newest_first

    def oldest_first(run: Run) -> list[Call]:
        return right(run)[::-1]

    monkeypatch.setattr(undo_room, "newest_first", oldest_first)
    assert kept_alive("def", 99, written=False).wrong() == ["the order of refund was [1, 2, 3]"]


def test_the_sweep_finds_out_an_engine_that_repeats_what_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_decide_unfinished", lambda history: replay.Execute(history.attempts + 1))
    found = kept_alive("async", 10, written=False).wrong()
    assert any("refund 3 was done 2 times" in line for line in found), found
