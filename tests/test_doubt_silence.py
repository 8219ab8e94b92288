"""An owner that fell silent but is not proven dead: its request may still go out, so "not landed" is believed later than otherwise.

The owner before is frozen inside its effect, before its request, and thaws while whoever took the run over is settling the doubt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests import bank as banking
from agents_for_tests.bank import Bank
from agents_for_tests.buyer import charging
from agents_for_tests.sites import WatchedMemory, eventually
from holdfast.errors import StoreError
from holdfast.life import doubt
from holdfast.operating import telling
from holdfast.running import runner
from holdfast.store import Append, Stale
from holdfast.stores.memory import MemoryStore

LEASE_S = 0.2
TIMEOUT_S = 0.6
THAWS_S = 0.25
"""After the doubt was opened: long after a taker that does not wait has sent its own request, long before one that waits does."""


@pytest.fixture
def bank() -> Iterator[Bank]:
    with Bank() as opened:
        yield opened


@pytest.fixture
def store() -> WatchedMemory:
    return WatchedMemory()


@pytest.fixture(params=["verify", "reset"])
def action(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["taken at once", "resumed by an operator first"])
def takeover(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- the request of a frozen owner ----------------------------------------------------------------------------------


class Silent(MemoryStore):
    """A store in which nobody beats and no death is proven; it tells when a doubt was opened."""

    def __init__(self, opened: threading.Event) -> None:
        super().__init__()
        self.opened = opened

    def renew(self, owner: str) -> None:
        """Nothing."""

    def append(self, batch: Sequence[Append], *, wait: bool = True) -> list[Stale | None]:
        answers = super().append(batch, wait=wait)
        if any(row.kind == "doubt.opened" for one in batch for row in one.rows):
            self.opened.set()
        return answers


class Frozen:
    """An effect whose first call freezes before its request; it thaws a while after the doubt, or when another request has landed."""

    def __init__(self, bank: Bank) -> None:
        self.bank, self.began, self.opened, self.thaw = bank, threading.Event(), threading.Event(), threading.Event()

    def pay(self, order: str) -> str:
        key = hf.key()
        if not self.began.is_set():
            self.began.set()
            assert self.opened.wait(20)
            self.thaw.wait(THAWS_S)
            return banking.charge(self.bank.port, order, key)
        receipt = banking.charge(self.bank.port, order, key)
        self.thaw.set()
        return receipt

    def look(self, order: str) -> hf.Verdict[str]:
        found = banking.find(self.bank.port, order)
        return hf.Landed(found) if found else hf.NotLanded()

    def take_back(self, order: str) -> None:
        banking.charge(self.bank.port, f"-{order}", "reset")

    def agent(self, action: str) -> Any:
        in_doubt: Any = hf.verify(self.look, settle=0) if action == "verify" else hf.reset(self.take_back, settle=0)
        return charging("async", self.pay, in_doubt, timeout=TIMEOUT_S)


def charges_of_a_frozen_owner(action: str, takeover: str) -> list[str]:
    """What the bank has charged when an owner that was frozen before its request has thawed, and the run was taken from it meanwhile."""
    with Bank(remembers_keys=False) as bank:
        frozen = Frozen(bank)
        store, agent = Silent(frozen.opened), frozen.agent(action)

        def live() -> None:
            with suppress(BaseException), hf.Holdfast(store, lease=LEASE_S) as app:
                app.run(agent, "o-1", run_id="r")

        thread = threading.Thread(target=live)
        thread.start()
        assert frozen.began.wait(10)
        with hf.Holdfast(store, lease=LEASE_S) as app:
            if takeover != "taken at once":
                eventually(lambda: app.engine.observer.life_of(str(app.show("r").owner)) == "expired")
                app.resume("r", by="ann")
            app.run(agent, "o-1", run_id="r")
        thread.join(20)
        assert not thread.is_alive()
        return bank.charged


def test_an_owner_that_was_only_silent_does_not_charge_a_second_time(action: str, takeover: str) -> None:
    assert charges_of_a_frozen_owner(action, takeover) == ["o-1"]


def believing_at_once(call: Any, settle_s: float) -> float:
    """What is under way is forgotten."""
    return settle_s


def test_without_the_wait_for_a_silent_owner_it_charges_a_second_time(
    monkeypatch: pytest.MonkeyPatch, action: str, takeover: str
) -> None:
    """The negative control: the very same owner thaws too late for whoever does not wait for it."""
    monkeypatch.setattr(doubt, "_settle_wait_s", believing_at_once)
    assert charges_of_a_frozen_owner(action, takeover) == ["o-1", "o-1"]


def test_without_a_record_of_the_silence_it_charges_a_second_time(monkeypatch: pytest.MonkeyPatch, action: str, takeover: str) -> None:
    """The negative control of what is remembered: whoever takes the run next knows of the silence from the journal alone."""
    for module in (runner, telling):
        monkeypatch.setattr(module, "silent", lambda engine, head: False)
    assert charges_of_a_frozen_owner(action, takeover) == ["o-1", "o-1"]


# --- how long it is waited for --------------------------------------------------------------------------------------


def looking(bank: Bank, probed: list[float]) -> Any:
    def look(order: str) -> hf.Verdict[str]:
        probed.append(time.time())
        found = banking.find(bank.port, order)
        return hf.Landed(found) if found else hf.NotLanded()

    return look


def paying(bank: Bank) -> Any:
    return lambda order: banking.charge(bank.port, order, hf.key())


def crash(app: hf.Holdfast, store: WatchedMemory, agent: Any) -> None:
    """Run until the outcome of the effect would be written, and lose it: what a crash leaves behind."""
    store.trips_at = "step.done"
    with pytest.raises(StoreError):
        app.run(agent, "o-1", run_id="r")


def seldom_dead(store: WatchedMemory, agent: Any, probed: list[float]) -> float:
    """Take a run over from an owner that fell silent but is not proven dead; gives the moment of the takeover."""
    with hf.Holdfast(store, lease=0.2) as silent:
        crash(silent, store, agent)
    with hf.Holdfast(store, lease=0.2) as app:
        app.run(agent, "o-1", run_id="r")
        taken = next(line for line in app.history("r") if line.state == "run resumed")
    assert probed
    return taken.at_us / 1e6


def test_not_landed_is_not_believed_before_lease_plus_timeout_of_an_owner_that_may_live(store: WatchedMemory, bank: Bank) -> None:
    probed: list[float] = []
    bank.plan.append("drops, 200")
    agent = charging("async", paying(bank), hf.verify(looking(bank, probed), settle=0), timeout=0.3)
    taken_s = seldom_dead(store, agent, probed)
    assert probed[-1] - taken_s >= 0.2 + 0.3 - 0.01
    assert bank.charged == ["o-1"]


def test_that_an_owner_may_live_is_remembered_by_whoever_takes_the_run_next(store: WatchedMemory, bank: Bank) -> None:
    """The first to take it over is merely the first: the request of the silent owner is still under way for the second too."""
    probed: list[float] = []
    bank.plan.append("drops, 200")
    agent = charging("async", paying(bank), hf.verify(looking(bank, probed), settle=0), timeout=0.6)
    with hf.Holdfast(store, lease=0.2) as silent:
        crash(silent, store, agent)
    with hf.Holdfast(store, lease=0.2) as operator:
        eventually(lambda: operator.engine.observer.life_of(str(operator.show("r").owner)) == "expired")
        expired = time.time()
        operator.resume("r", by="ann")
    with hf.Holdfast(store, lease=0.2) as app:
        app.run(agent, "o-1", run_id="r")
    assert probed[-1] - expired >= 0.2 + 0.6 - 0.01


def test_a_reset_waits_too_for_an_owner_that_may_live(store: WatchedMemory, bank: Bank) -> None:
    """Otherwise: reset, run again, and the first request arrives after both."""
    called: list[float] = []
    agent = charging("async", paying(bank), hf.reset(lambda order: called.append(time.time()), settle=0), timeout=0.3)
    taken_s = seldom_dead(store, agent, called)
    assert called[0] - taken_s >= 0.2 + 0.3 - 0.01


def test_a_memory_store_never_proves_a_death() -> None:
    """What the tests of silent owners rest on."""
    store = MemoryStore()
    store.enroll("a")
    pulse = store.pulse("a")
    assert pulse is not None
    assert not pulse.dead
