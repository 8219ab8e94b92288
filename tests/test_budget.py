"""What a run may spend: a limit that is reached keeps new steps from beginning, over restarts, and asks a person or ends the run."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, cast

import pytest

import holdfast as hf
import holdfast.sync
from agents_for_tests.sites import StillClock, eventually
from crashing import FailingStore, dies_at, lines, records, status
from holdfast.errors import Misuse, Refusal, StoreError
from holdfast.records import kinds as rec
from holdfast.records import ledger
from holdfast.records.chain import record_of
from holdfast.records.journal import Journal
from holdfast.stores.memory import MemoryStore

SECOND_US = 1_000_000


class Spender:
    """A run of five steps, each of which takes a second and costs a dollar and a hundred tokens."""

    def __init__(self, mode: str = "def", *, store: MemoryStore | None = None, budget: hf.Budget | None = None, steps: int = 5) -> None:
        self.store, self.clock, self.did = store or MemoryStore(), StillClock(), list[int]()

        def spend(number: int) -> int:
            self.did.append(number)
            self.clock.at_us += SECOND_US
            hf.usage(input_tokens=60, output_tokens=40, usd=1.0)
            return number

        async def spend_async(number: int) -> int:
            return spend(number)

        async def work_async() -> int:
            return sum([await step(number) for number in range(steps)])

        def work() -> int:
            return sum(step(number) for number in range(steps))

        step: Any = hf.step(spend_async if mode == "async" else spend, name="spend")
        self.agent: Any = hf.agent(name="work", budget=budget)(work_async if mode == "async" else work)

    def run(self, **options: Any) -> int:
        with hf.Holdfast(self.store, clock=self.clock, lease=0.02) as app:
            return int(app.run(self.agent, run_id="r", wait=False, **options))

    def waits(self, **options: Any) -> str:
        with pytest.raises(hf.RunWaiting) as raised:
            self.run(**options)
        return str(raised.value)

    def operate(self, act: Callable[[hf.Holdfast], Any]) -> Any:
        with hf.Holdfast(self.store, clock=self.clock) as app:
            return act(app)

    def answer(self, *, yes: bool) -> None:
        self.operate(lambda app: app.answer("r", "budget", yes=yes, by="ann", reason="so it is"))


def asked(store: MemoryStore) -> list[rec.AskOpened]:
    return [record for record in records(store) if isinstance(record, rec.AskOpened)]


@pytest.fixture(params=["async", "def"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- what is counted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        (hf.Budget(usd=2), r"\$2\.00 of \$2\.00 spent: go on, up to \$4\.00\?"),
        (hf.Budget(tokens=150), r"200 tokens of 150 tokens spent: go on, up to 300 tokens\?"),
        (hf.Budget(steps=2), r"2 steps of 2 steps spent: go on, up to 4 steps\?"),
        (hf.Budget(time="2s"), r"2\.0 s of 2\.0 s spent: go on, up to 4\.0 s\?"),
    ],
    ids=["usd", "tokens", "steps", "time"],
)
def test_a_limit_that_is_reached_is_put_before_a_person_before_the_next_step(mode: str, budget: hf.Budget, told: str) -> None:
    spender = Spender(mode, budget=budget)
    with pytest.raises(hf.RunWaiting, match=told):
        spender.run()
    assert spender.did == [0, 1]
    assert status(spender.store) == "waiting"


def test_it_is_noticed_when_the_budget_is_not_looked_at(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(ledger.Ledger, "reached", lambda *args, **kwargs: None)
    assert Spender(mode, budget=hf.Budget(usd=2)).run() == 10


@pytest.mark.parametrize("kind", ["step.done", "run.started", "run.waiting", "ask.opened", "ask.answered", "budget.set"])
@pytest.mark.parametrize("written", [False, True])
def test_nothing_is_counted_twice_or_lost_by_a_crash_at_any_record(kind: str, *, written: bool) -> None:
    """However the process dies, each step is paid for as often as it was executed, and no limit is passed unasked."""
    spender = Spender(store=dies_at(kind, written=written), budget=hf.Budget(usd=2))
    yes_said = 0
    for _ in range(12):
        try:
            assert spender.run() == 10
            break
        except StoreError:
            spender.store.mend()  # type: ignore[attr-defined]
        except hf.RunWaiting:
            try:
                if yes_said:
                    spender.operate(lambda app: app.resume("r", budget=hf.Budget(usd=9), by="ann"))
                else:
                    spender.answer(yes=True)
                yes_said += 1
            except StoreError:
                spender.store.mend()  # type: ignore[attr-defined]
            except Refusal:
                yes_said += 1  # the answer that was thought lost had gone in
        assert len(spender.did) <= 2 * (1 + yes_said) + 1
    lost = kind == "step.done" and not written
    assert spender.did == ([0] if lost else []) + [0, 1, 2, 3, 4]
    assert spender.operate(lambda app: app.show("r").spent.usd) == 5.0
    assert lines(spender.store)[-1] == "run.done"


def test_totals_are_the_same_after_any_number_of_replays(mode: str) -> None:
    spender = Spender(mode, budget=hf.Budget(steps=3))
    before = [spender.waits() for _ in range(4)]
    assert len(set(before)) == 1
    spent = spender.operate(lambda app: app.show("r").spent)
    assert spent == hf.Spent(usd=3.0, tokens=300, steps=3, retries=0, seconds=3.0)
    assert spender.did == [0, 1, 2]


def test_it_is_noticed_when_replay_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: an engine that folds every record of the journal a second time when it goes on."""
    spender = Spender(budget=hf.Budget(steps=3))
    spender.waits()
    load = Journal.load

    def twice(head: Any, rows: Any) -> Journal:
        journal = load(head, rows)
        for row in rows:
            journal.ledger.fold(record_of(row), row.at_us)
        return journal

    monkeypatch.setattr(Journal, "load", twice)
    assert spender.operate(lambda app: app.show("r").spent.steps) == 6


def test_time_counts_only_while_somebody_executes_the_run() -> None:
    spender = Spender(budget=hf.Budget(time="2s"))
    spender.waits()
    spender.clock.at_us += 3_600 * SECOND_US
    spender.answer(yes=True)
    spender.clock.at_us += 3_600 * SECOND_US
    assert "4.0 s of 4.0 s spent" in spender.waits()
    assert spender.operate(lambda app: app.show("r").spent.seconds) == 4.0


def test_time_between_the_last_record_and_a_takeover_is_not_executing() -> None:
    spender = Spender(store=dies_at("step.done", "3"), budget=hf.Budget(time="1h"))
    with pytest.raises(StoreError):
        spender.run()
    assert isinstance(spender.store, FailingStore)
    spender.store.mend()
    spender.clock.at_us += 7_200 * SECOND_US
    assert spender.run() == 10


@pytest.mark.parametrize("retries", [0, 2])
def test_retries_are_failed_attempts_and_new_steps_may_still_begin(retries: int) -> None:
    store, tried = MemoryStore(), list[str]()

    @hf.step(retry=hf.Retry(attempts=9, base=0, on=OSError))
    def call(name: str, fails: int) -> str:
        tried.append(name)
        if tried.count(name) <= fails:
            raise OSError(name)
        return name

    @hf.agent(budget=hf.Budget(retries=retries, on_limit="fail"))
    def work() -> str:
        return call("a", retries) + call("b", 0) + call("c", 1)

    with hf.Holdfast(store) as app, pytest.raises(hf.BudgetExceeded, match=r"retries|retry"):
        app.run(work, run_id="r")
    assert tried == ["a"] * (retries + 1) + ["b", "c"]


# --- asking ---------------------------------------------------------------------------------------------------------


def test_a_yes_grants_the_same_amount_once_more_and_the_next_limit_asks_anew(mode: str) -> None:
    spender = Spender(mode, budget=hf.Budget(usd=2))
    spender.waits()
    spender.answer(yes=True)
    assert "$4.00 of $4.00" in spender.waits()
    spender.answer(yes=True)
    assert spender.run() == 10
    assert spender.did == [0, 1, 2, 3, 4]
    assert len({question.about for question in asked(spender.store)}) == 2


def test_a_limit_that_was_overshot_by_more_is_granted_on_top_of_what_is_spent() -> None:
    spender = Spender(budget=hf.Budget(usd=0.25))
    assert "up to $1.25" in spender.waits()
    spender.answer(yes=True)
    assert "$2.00 of $1.25" in spender.waits()


def test_a_no_ends_the_run_and_whoever_resumes_it_is_asked_anew(mode: str) -> None:
    spender = Spender(mode, budget=hf.Budget(usd=2))
    spender.waits()
    spender.answer(yes=False)
    with pytest.raises(hf.BudgetExceeded, match=r"ann did not agree to more: so it is"):
        spender.run()
    assert status(spender.store) == "failed"
    spender.waits()
    assert spender.did == [0, 1]


def test_a_no_that_a_crash_follows_is_not_forgotten() -> None:
    spender = Spender(store=dies_at("run.failed"), budget=hf.Budget(usd=2))
    spender.waits()
    spender.answer(yes=False)
    with pytest.raises(StoreError):
        spender.run()
    assert isinstance(spender.store, FailingStore)
    spender.store.mend()
    with pytest.raises(hf.BudgetExceeded):
        spender.run()


def test_the_inbox_says_how_to_settle_it() -> None:
    spender = Spender(budget=hf.Budget(usd=2))
    spender.waits()
    [item] = spender.operate(lambda app: app.inbox())
    assert (item.kind, item.step_id, item.what) == ("budget", "budget", "$2.00 of $2.00 spent: go on, up to $4.00?")
    assert item.commands == ["holdfast answer r/budget yes", "holdfast answer r/budget no", "holdfast resume r --budget usd=AMOUNT"]


def gathering(mode: str, budget: hf.Budget, did: list[int]) -> Any:
    """An agent with three branches of two steps each."""

    def spend(number: int) -> int:
        did.append(number)
        hf.usage(usd=1.0)
        return number

    async def spend_async(number: int) -> int:
        return spend(number)

    async def branch_async(number: int) -> int:
        return int(await step(number)) + int(await step(number + 10))

    def branch(number: int) -> int:
        return int(step(number)) + int(step(number + 10))

    async def work_async() -> int:
        return sum(await hf.map(branch_async, [1, 2, 3]))

    def work() -> int:
        return sum(holdfast.sync.map(branch, [1, 2, 3]))

    step: Any = hf.step(spend_async if mode == "async" else spend, name="spend")
    return hf.agent(name="work", budget=budget)(work_async if mode == "async" else work)


def test_branches_are_each_held_and_put_one_question(mode: str) -> None:
    """Threads run ahead of each other: those under way when the limit is reached come to their end."""
    store, did = MemoryStore(), list[int]()
    agent = gathering(mode, hf.Budget(usd=3), did)
    with hf.Holdfast(store, lease=0.02) as app:
        for _ in range(2):
            with pytest.raises(hf.RunWaiting, match=r"of \$3\.00 spent"):
                app.run(agent, run_id="r", wait=False)
        assert len(did) == 3 if mode == "async" else 3 <= len(did) <= 5
        assert [question.topic for question in asked(store)] == ["budget"]
        app.answer("r", "budget", yes=True, by="ann")
        assert app.run(agent, run_id="r", wait=False) == 42
    assert sorted(did) == [1, 2, 3, 11, 12, 13]


def test_a_word_that_comes_while_other_branches_execute_reaches_every_branch_that_waits() -> None:
    store, did = MemoryStore(), list[int]()

    async def scenario() -> tuple[int, list[str]]:
        go = asyncio.Event()

        @hf.step
        async def spend(number: int) -> int:
            did.append(number)
            hf.usage(usd=1.0)
            return number

        @hf.step
        async def linger() -> int:
            await go.wait()
            return 100

        async def branch(number: int) -> int:
            return await spend(number) + await spend(number + 10)

        @hf.agent(budget=hf.Budget(usd=2))
        async def work() -> int:
            return sum(await hf.gather(linger(), branch(1), branch(2)))

        with hf.Holdfast(store) as app:
            handle = await app.start(work, run_id="r")
            await asyncio.to_thread(eventually, lambda: store.load("r") and "ask.opened budget" in lines(store))
            told = await asyncio.to_thread(app.resume, "r", budget=hf.Budget(usd=50), by="ann")
            await asyncio.to_thread(eventually, lambda: len(did) == 4)
            go.set()
            return await handle.result(timeout=20), [told]

    result, told = asyncio.run(scenario())
    assert result == 124 + 2
    assert "executes now" in told[0]
    assert "run.waiting" not in lines(store)


def test_a_recorded_time_out_around_the_wait_is_replayed_as_it_was() -> None:
    store, did = MemoryStore(), list[int]()

    async def guarded(spend: Callable[[int], Any]) -> str:
        try:
            async with hf.timeout(0.05):
                return str(await spend(2))
        except TimeoutError:
            return "late"

    @hf.step
    async def spend(number: int) -> int:
        did.append(number)
        return number

    @hf.agent(budget=hf.Budget(steps=1))
    async def work() -> str:
        await spend(1)
        return await guarded(spend)

    with hf.Holdfast(store, lease=0.02) as app:
        assert app.run(work, run_id="r") == "late"
        assert app.run(work, run_id="r") == "late"
    assert did == [1]
    assert "timeout.fired 2" in lines(store)


def test_a_cancellation_from_outside_while_it_waits_stops_the_run_and_loses_nothing() -> None:
    """Code that went on after that would take a path that replay cannot take."""
    store, did, brief = MemoryStore(), list[int](), list[float]([0.05, 20])

    @hf.step
    async def spend(number: int) -> int:
        did.append(number)
        return number

    @hf.step
    async def linger() -> int:
        await asyncio.sleep(0.3)
        return 0

    async def guarded() -> str:
        await spend(1)
        try:
            return str(await asyncio.wait_for(spend(2), brief.pop(0)))
        except Exception:  # noqa: BLE001 (as frameworks do)
            return "swallowed"

    @hf.agent
    async def work() -> list[Any]:
        return list(await hf.gather(linger(), guarded()))

    with hf.Holdfast(store, lease=0.02) as app:
        with pytest.raises(hf.RunInterrupted):
            app.run(work, run_id="r", wait=False, budget=hf.Budget(steps=1))
        assert (did, status(store)) == ([1], "queued")
        assert app.run(work, run_id="r", wait=False, budget=hf.Budget(steps=9)) == [0, "2"]


# --- failing --------------------------------------------------------------------------------------------------------


def test_on_limit_fail_ends_the_run_and_resume_goes_on_from_that_step(mode: str) -> None:
    spender = Spender(mode, budget=hf.Budget(steps=3, on_limit="fail"))
    with pytest.raises(hf.BudgetExceeded, match=r"3 steps of 3 steps spent\. No new step"):
        spender.run()
    assert (status(spender.store), spender.did) == ("failed", [0, 1, 2])
    assert spender.operate(lambda app: app.show("r").next_commands) == ["holdfast resume r --here APP.py --budget steps=AMOUNT"]
    spender.operate(lambda app: app.resume("r", budget=hf.Budget(steps=9), by="ann"))
    assert spender.run() == 10
    assert spender.did == [0, 1, 2, 3, 4]


def test_agent_code_cannot_swallow_it(mode: str) -> None:
    did: list[int] = []
    agent = gathering(mode, hf.Budget(usd=1, on_limit="fail"), did)

    async def stubborn_async() -> str:
        try:
            await agent.fn()
        except Exception as error:  # noqa: BLE001 (as frameworks do)
            return f"swallowed {error}"
        return "went on"

    def stubborn() -> str:
        try:
            agent.fn()
        except Exception as error:  # noqa: BLE001 (as frameworks do)
            return f"swallowed {error}"
        return "went on"

    wrapped: Any = hf.agent(name="stubborn", budget=agent.budget)(stubborn_async if mode == "async" else stubborn)
    store = MemoryStore()
    with hf.Holdfast(store) as app, pytest.raises(hf.BudgetExceeded):
        app.run(wrapped, run_id="r")
    assert status(store) == "failed"
    assert len(did) <= 3


def test_effects_are_held_before_their_intent(mode: str) -> None:
    store, paid = MemoryStore(), list[int]()

    def pay(cents: int) -> int:
        paid.append(cents)
        hf.usage(usd=1)
        return cents

    async def pay_async(cents: int) -> int:
        return pay(cents)

    charge: Any = hf.effect(in_doubt="ask", name="pay")(pay_async if mode == "async" else pay)

    async def work_async() -> int:
        return int(await charge(1)) + int(await charge(2))

    def work() -> int:
        return int(charge(1)) + int(charge(2))

    agent: Any = hf.agent(name="work")(work_async if mode == "async" else work)
    with hf.Holdfast(store) as app, pytest.raises(hf.BudgetExceeded):
        app.run(agent, run_id="r", budget=hf.Budget(usd=1, on_limit="fail"))
    assert paid == [1]
    assert "step.started 2" not in lines(store)


def test_a_cleanup_is_not_held() -> None:
    store, cleaned = MemoryStore(), list[str]()

    @hf.step
    def spend() -> None:
        hf.usage(usd=1)

    @hf.agent(budget=hf.Budget(usd=1, on_limit="fail"))
    def work() -> str:
        hf.cleanup(cleaned.append, "swept")
        spend()
        return "done"

    assert hf.run(work, run_id="r", store=store) == "done"
    assert cleaned == ["swept"]


# --- which budget holds ---------------------------------------------------------------------------------------------


def test_a_budget_of_the_run_holds_as_a_whole_and_is_remembered() -> None:
    spender = Spender(budget=hf.Budget(usd=1, steps=1))
    assert "$2.00 of $2.00" in spender.waits(budget=hf.Budget(usd=2))
    assert "$2.00 of $2.00" in spender.waits()
    assert spender.run(budget=hf.Budget(usd=99)) == 10


def test_a_change_of_the_agents_budget_holds_from_the_next_life_on_and_settles_the_question() -> None:
    spender = Spender(budget=hf.Budget(usd=2))
    spender.waits()
    spender.agent.budget = hf.Budget(usd=3)
    assert "$3.00 of $3.00" in spender.waits()
    spender.agent.budget = None
    assert spender.run() == 10
    assert spender.operate(lambda app: app.inbox()) == []


def test_what_an_operator_sets_beats_the_code_limit_by_limit_and_is_recorded_with_who_and_why() -> None:
    spender = Spender(budget=hf.Budget(usd=2, steps=4))
    spender.waits()
    spender.operate(lambda app: app.resume("r", budget=hf.Budget(usd=50), by="ann", reason="worth it"))
    assert spender.operate(lambda app: app.show("r").limits) == {"usd": 50, "steps": 4}
    assert "4 steps of 4 steps" in spender.waits(budget=hf.Budget(usd=1, steps=4))
    line = next(line for line in spender.operate(lambda app: app.history("r")) if line.state == "budget set")
    assert line.note == "ann: $50.00 (worth it)"


def test_an_operators_limit_can_be_lower_and_is_granted_by_the_same_amount() -> None:
    spender = Spender(budget=hf.Budget(usd=2))
    spender.waits()
    spender.answer(yes=True)
    spender.operate(lambda app: app.resume("r", budget=hf.Budget(usd=2.5), by="ann"))
    assert "$3.00 of $2.50 spent: go on, up to $5.00?" in spender.waits()
    spender.answer(yes=True)
    assert spender.run() == 10


def test_a_run_without_a_budget_can_be_given_one() -> None:
    spender = Spender(store=dies_at("step.done", "2"))
    with pytest.raises(StoreError):
        spender.run()
    assert isinstance(spender.store, FailingStore)
    spender.store.mend()
    spender.operate(lambda app: app.resume("r", budget=hf.Budget(usd=1), by="ann"))
    assert "$1.00 of $1.00" in spender.waits()


def test_limits_of_a_finished_run_are_refused() -> None:
    spender = Spender()
    spender.run()
    with pytest.raises(Refusal, match="done and stays so"):
        spender.operate(lambda app: app.resume("r", budget=hf.Budget(usd=1)))


def test_the_code_can_see_what_is_spent() -> None:
    seen: list[hf.Spent] = []

    @hf.step(retry=hf.Retry(attempts=2, base=0, on=OSError))
    def spend() -> None:
        hf.usage(input_tokens=1, output_tokens=2, usd=0.5)
        if not seen:
            seen.append(hf.current().spent)
            raise OSError

    @hf.agent
    def work() -> hf.Spent:
        spend()
        return hf.current().spent

    spent = hf.run(work, store=MemoryStore())
    assert (spent.usd, spent.tokens, spent.steps, spent.retries) == (1.0, 6, 1, 1)
    assert 0 <= spent.seconds < 60


def test_a_run_without_a_budget_does_not_even_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("it looked at the budget")

    monkeypatch.setattr(ledger.Ledger, "reached", looked)
    assert Spender().run() == 10
    with pytest.raises(AssertionError, match="looked"):
        Spender(budget=hf.Budget(usd=99)).run()


# --- nonsense -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nonsense",
    [
        {}, {"on_limit": "fail"}, {"usd": 0}, {"usd": -1}, {"usd": math.nan}, {"usd": math.inf}, {"usd": "5"}, {"usd": True},
        {"tokens": 0}, {"tokens": 1.5}, {"steps": 0}, {"retries": -1}, {"time": 0}, {"time": "soon"}, {"usd": 1, "on_limit": "stop"},
    ],
    ids=str,
)  # fmt: skip
def test_a_budget_that_makes_no_sense_is_refused(nonsense: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        hf.Budget(**nonsense)


def test_what_is_no_budget_is_refused_before_anything_starts() -> None:
    store, wrong = MemoryStore(), cast("hf.Budget", 5)
    with pytest.raises(Misuse, match=r"Write budget=hf\.Budget"):
        Spender(store=store).run(budget=5)
    with pytest.raises(Misuse, match="is no budget"):
        hf.agent(budget=wrong)(lambda: 1)
    assert store.load("r") is None


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, "1"])
def test_a_cost_that_is_no_amount_is_refused(wrong: Any) -> None:
    @hf.step
    def spend() -> None:
        hf.usage(usd=wrong)

    @hf.agent
    def work() -> None:
        spend()

    with pytest.raises(Misuse, match="is no amount"):
        hf.run(work, store=MemoryStore())
