"""The rig: prepared answers, simulated crashes, time that is advanced, and counts of what was really executed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
import holdfast.sync as hfs
from holdfast.errors import Misuse, Refusal, StoreFailed
from holdfast.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import Crashed, Rig
from holdfast.testing.lives import Life, Point


class Bank:
    """Charges by key, as a bank that knows keys would, and can be asked about an order."""

    def __init__(self) -> None:
        self.charges: list[tuple[str, str]] = []

    def charge(self, order: str, key: str) -> str:
        if (order, key) not in self.charges:
            self.charges.append((order, key))
        return f"r-{len(self.charges)}"


@hf.step
async def price(order: str) -> int:
    return len(order)


async def find_charge(order: str, cents: int) -> hf.Verdict[str]:
    found = [number for number, (one, _) in enumerate(hf.resource(Bank).charges, 1) if one == order]
    return hf.Landed(f"r-{found[0]}") if found else hf.NotLanded()


@hf.effect(in_doubt=hf.verify(find_charge, settle=0))
async def charge(order: str, cents: int) -> str:
    return hf.resource(Bank).charge(order, hf.key())


@hf.agent
async def buy(order: str) -> str:
    cents = await price(order)
    if not await hf.ask("Buy shoes?", bool):
        return "declined"
    return await charge(order, cents)


@hf.effect(in_doubt="ask")
def pay(order: str) -> str:
    return hf.resource(Bank).charge(order, hf.key())


@hf.agent
def buy_blocking(order: str) -> str:
    return pay(order) if hfs.ask("Buy shoes?", bool) else "declined"


@pytest.mark.parametrize("agent", [buy, buy_blocking])
def test_a_run_is_played_through_its_answers_and_a_crash(rig: Rig, agent: Any) -> None:
    rig.answers({"Buy shoes?": True})
    rig.crash(after="charge" if agent is buy else "pay")
    assert rig.run(agent, "o-47", resources=[Bank()]) == "r-1"
    assert rig.count("charge") + rig.count("pay") == 1
    assert rig.count(agent.name) == 3  # the beginning, the answer, and the crash


@pytest.mark.parametrize(("where", "bodies", "probes"), [("before", 1, 1), ("inside", 1, 1), ("after", 1, 0)])
def test_a_crash_around_an_effect_is_settled_as_it_declares(rig: Rig, where: str, bodies: int, probes: int) -> None:
    bank = Bank()
    rig.answers({"Buy *": True})
    rig.crash(**{where: "charge"})  # type: ignore[arg-type]
    assert rig.run(buy, "o-47", resources=[bank]) == "r-1"
    assert (rig.count("charge"), rig.count("find_charge"), len(bank.charges)) == (bodies, probes, 1)


@pytest.mark.parametrize(("where", "bodies"), [("before", 1), ("inside", 2), ("after", 1)])
def test_a_crash_around_a_step_repeats_only_what_was_not_recorded(rig: Rig, where: str, bodies: int) -> None:
    rig.answers({"Buy shoes?": False})
    rig.crash(**{where: "price"})  # type: ignore[arg-type]
    assert rig.run(buy, "o-47") == "declined"
    assert (rig.count("price"), rig.count("charge")) == (bodies, 0)


@pytest.mark.parametrize("name", ["buy", "ask"])
@pytest.mark.parametrize("where", ["before", "inside", "after"])
def test_agents_and_waits_have_points_too(rig: Rig, where: str, name: str) -> None:
    rig.answers({"Buy shoes?": True})
    rig.crash(**{where: name})  # type: ignore[arg-type]
    assert rig.run(buy, "o-47", resources=[Bank()]) == "r-1"
    assert (rig.count("charge"), rig.count("ask")) == (1, 1)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")


def test_nothing_is_recorded_while_a_crash_unwinds_the_code(store: Store) -> None:
    left: list[str] = []

    @hf.agent
    async def careful(order: str) -> int:
        try:
            return await price(order)
        finally:
            left.append("finally")
            await price("another")

    with Rig(store) as rig:
        rig.crash(inside="price")
        with pytest.raises(Crashed) as crashed:
            rig.run(careful, "o-1", run_id="r", resume=False)
        assert (crashed.value.run_id, crashed.value.point, left) == ("r", "inside price", ["finally"])
        assert [line.state for line in rig.history("r")] == ["run started"]
        assert rig.status("r") == "running"
        assert rig.run(careful, "o-1", run_id="r") == 3
        assert rig.count("price") == 3  # once in vain, and then both
    store.close()


def test_a_store_that_took_words_from_the_dead_would_be_noticed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def undead(life: Life, where: Any, name: str) -> None:
        point = life.log.reach(where, name)
        if point is not None:
            raise StoreFailed("memory:", "it died, and its store goes on")

    @hf.agent
    async def once() -> int:
        return await price("o-1")

    monkeypatch.setattr(Life, "pass_point", undead)
    rig.crash(inside="price")
    with pytest.raises(StoreFailed):
        rig.run(once, run_id="r", resume=False)
    assert [line.state for line in rig.history("r")] != ["run started"]


def test_the_same_point_can_be_hit_again_and_later(rig: Rig) -> None:
    @hf.agent
    async def thrice() -> list[int]:
        return [await price(order) for order in ("a", "bb", "ccc")]

    rig.crash(inside="price", nth=2)
    rig.crash(inside="price", nth=3)
    assert rig.run(thrice) == [1, 2, 3]
    assert rig.count("price") == 5
    assert rig.reached[:3] == [Point("before", "thrice"), Point("before", "price"), Point("inside", "price")]


def test_branches_crash_together_and_go_on(rig: Rig) -> None:
    @hf.agent
    async def both() -> tuple[str, str]:
        return await hf.gather(charge("a", 1), charge("b", 2))

    bank = Bank()
    rig.crash(inside="charge", nth=2)
    assert len(rig.run(both, resources=[bank])) == 2
    assert sorted(order for order, _ in bank.charges) == ["a", "b"]


@hf.step
async def remind(name: str) -> str:
    return f"reminded {name}"


@hf.agent
async def monthly(name: str) -> list[str]:
    said = []
    for _ in range(3):
        await hf.sleep("30d")
        said.append(await remind(name))
    return said


def test_months_take_milliseconds(rig: Rig) -> None:
    began_s = time.monotonic()
    run = rig.start(monthly, "ann")
    assert (rig.status(run), rig.count("remind")) == ("waiting", 0)
    rig.advance("59d")
    assert rig.count("remind") == 1
    rig.advance("31d")
    assert rig.result(run) == ["reminded ann"] * 3
    assert time.monotonic() - began_s < 2
    assert rig.now == datetime(2030, 4, 1, tzinfo=UTC)


def test_the_code_is_really_unwound_at_each_wait(rig: Rig) -> None:
    log: list[str] = []

    @hf.agent
    async def noted() -> None:
        try:
            log.append("in")
            await hf.sleep("1h")
        finally:
            log.append("out")

    with pytest.raises(hf.RunWaiting):
        rig.run(noted, run_id="r")
    assert log == ["in", "out"]
    rig.advance("1h")
    assert rig.result("r") is None
    assert log == ["in", "out", "in", "out"]


def test_time_jumps_by_itself_where_the_test_has_patience(rig: Rig) -> None:
    assert rig.run(monthly, "ann", patience="90d") == ["reminded ann"] * 3


def test_time_jumps_only_as_far_as_the_patience(rig: Rig) -> None:
    with pytest.raises(hf.RunWaiting, match="sleeps until 2030-03-02"):
        rig.run(monthly, "ann", patience="31d")
    assert rig.count("remind") == 1


@hf.effect(in_doubt="resend", approve="24h")
async def wire(cents: int) -> str:
    return f"w-{cents}"


@hf.agent
async def transfer() -> str:
    try:
        return await wire(500)
    except hf.Refused as refused:
        return f"refused by {refused.by}"


def test_approvals_are_answered_by_the_name_of_the_effect(rig: Rig) -> None:
    rig.answers({"wire": False}, by="ann")
    assert rig.run(transfer) == "refused by ann"
    rig.answers({"wire": True})
    assert rig.run(transfer) == "w-500"


def test_an_approval_that_nobody_gives_ends_when_its_time_does(rig: Rig) -> None:
    run = rig.start(transfer)
    rig.advance("23h")
    assert rig.status(run) == "waiting"
    rig.advance("1h")
    assert rig.result(run) == "refused by the clock"


def test_a_budget_is_a_question_like_any_other(rig: Rig) -> None:
    @hf.agent(budget=hf.Budget(steps=1))
    async def greedy() -> int:
        return await price("a") + await price("bb")

    rig.answers({"budget": True})
    assert rig.run(greedy) == 3


@pytest.mark.parametrize(("said", "result", "bodies"), [(hf.Landed("r-9"), "r-9", 1), (hf.NotLanded(), "r-1", 2)])
def test_a_doubt_is_settled_with_what_was_prepared(rig: Rig, said: Any, result: str, bodies: int) -> None:
    rig.answers({"Buy shoes?": True, "pay": said})
    rig.crash(inside="pay")
    assert rig.run(buy_blocking, "o-47", resources=[Bank()]) == result
    assert rig.count("pay") == bodies


def test_a_doubt_that_nothing_was_prepared_for_waits(rig: Rig) -> None:
    rig.answers({re.compile("shoes"): lambda question: question == "Buy shoes?"})
    rig.crash(inside="pay")
    with pytest.raises(hf.RunWaiting, match="did pay"):
        rig.run(buy_blocking, "o-47", resources=[Bank()])
    rig.answers({"pay": "r-9"})
    with pytest.raises(Misuse, match=r"prepare hf.Landed"):
        rig.run(buy_blocking, "o-47", run_id="buy_blocking-1", resources=[Bank()])


def test_an_answer_that_does_not_fit_or_by_somebody_else_is_refused(rig: Rig) -> None:
    @hf.agent
    async def colour() -> str:
        return await hf.ask("Which?", str, who="ann")

    rig.answers({"Which?": 7}, by="ann")
    with pytest.raises(Refusal, match="7"):
        rig.run(colour)
    rig.answers({"Which?": "red"})
    with pytest.raises(Refusal, match="for ann to answer, not rig"):
        rig.run(colour)


def test_a_time_out_around_a_question_fires_when_its_time_comes(rig: Rig) -> None:
    @hf.agent
    async def hurried() -> str:
        try:
            async with hf.timeout("1h"):
                return await hf.ask("Which?", str)
        except TimeoutError:
            return "too late"

    run = rig.start(hurried)
    rig.advance("59m")
    assert rig.status(run) == "waiting"
    rig.advance("1m")
    assert rig.result(run) == "too late"


def test_branches_wait_side_by_side(rig: Rig) -> None:
    @hf.step
    async def asked(question: str) -> str:
        return question

    async def slowly(days: int) -> int:
        await hf.sleep(f"{days}d")
        return len(await asked("x" * days))

    @hf.agent
    async def beside() -> tuple[int, int, bool]:
        two, five, yes = await hf.gather(slowly(2), slowly(5), hf.ask("Really?", bool))
        return two, five, yes

    rig.answers({"Really?": True})
    run = rig.start(beside)
    rig.advance("3d")
    assert (rig.status(run), rig.count("asked")) == ("waiting", 1)
    rig.advance("2d")
    assert rig.result(run) == (2, 5, True)


def test_an_async_test_uses_a_thread(rig: Rig) -> None:
    rig.answers({"Buy shoes?": False})

    async def test() -> str:
        return await asyncio.to_thread(rig.run, buy, "o-47")

    assert asyncio.run(test()) == "declined"


def test_a_run_that_was_answered_or_written_to_goes_on_when_time_does(rig: Rig) -> None:
    @hf.agent
    async def slowly() -> str:
        colour = await hf.ask("Which colour?", str)
        await hf.sleep("3d")
        return f"{colour}, {await hf.receive('size', int)}"

    run, idle = rig.start(slowly), rig.start(slowly)
    with rig.app() as app:
        app.answer(run, "1", "red")
    rig.advance("2d")
    assert rig.status(run) == rig.status(idle) == "waiting"
    rig.advance("1d")
    rig.send(run, "size", 4)
    rig.advance(0)
    assert (rig.status(run), rig.status(idle), rig.result(run)) == ("done", "waiting", "red, 4")


def test_messages_reach_a_run(rig: Rig) -> None:
    @hf.agent
    async def listens() -> str:
        return await hf.receive("hello", str)

    run = rig.start(listens)
    rig.send(run, "hello", "world")
    assert rig.result(run) == "world"


@hf.step(retry=hf.Retry(attempts=4, base="60s", max="600s"))
async def flaky(failures: list[int]) -> str:
    if hf.resource(list).pop():
        raise ConnectionError("not now")
    return "there"


def test_the_waits_of_retries_and_short_sleeps_take_no_time(rig: Rig) -> None:
    @hf.agent
    async def patient() -> str:
        await hf.sleep("0.9s")
        return await flaky([])

    began_s, began = time.monotonic(), rig.now
    assert rig.run(patient, resources=[[0, 1, 1, 1]]) == "there"
    assert time.monotonic() - began_s < 2
    assert (rig.now - began).total_seconds() > 60


def test_a_crash_that_never_comes_fails_the_test() -> None:
    rig = Rig()
    rig.crash(after="chrage")
    rig.answers({"*": True})
    rig.run(buy, "o-47", resources=[Bank()])
    with pytest.raises(AssertionError, match=r"after chrage.*reached: buy, price, ask, charge"):
        rig.check()


def test_a_failure_is_the_result_of_a_run_that_was_advanced(rig: Rig) -> None:
    @hf.agent
    async def fails_late() -> None:
        await hf.sleep("1d")
        raise ValueError("late")

    run = rig.start(fails_late)
    rig.advance("1d")
    assert rig.status(run) == "failed"
    with pytest.raises(ValueError, match="late"):
        rig.result(run)


@pytest.mark.parametrize("points", [{}, {"before": "a", "after": "b"}, {"after": "a", "nth": 0}])
def test_a_crash_needs_one_point(rig: Rig, points: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match="one of before="):
        rig.crash(**points)


def test_a_run_that_was_not_begun_here_has_no_result(rig: Rig) -> None:
    with pytest.raises(Misuse, match="has played: none"):
        rig.result("r-9")


def test_runs_of_others_are_not_counted(rig: Rig, tmp_path: Path) -> None:
    rig.start(monthly, "ann")
    with hf.Holdfast(MemoryStore()) as app:

        @hf.agent
        async def elsewhere() -> int:
            return await price("abc")

        assert app.run(elsewhere) == 3
    assert rig.count("price") == 0


A_TEST_OF_SOMEBODYS = """
import holdfast as hf

@hf.agent
def idle() -> str:
    return "done"

def test_idle(rig):
    rig.crash(after={name!r})
    assert rig.run(idle) == "done"
"""


@pytest.mark.parametrize(("name", "said"), [("idle", "1 passed"), ("ilde", "after ilde, and no run came there")])
def test_whoever_installs_the_package_has_the_fixture(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "test_idle.py").write_text(A_TEST_OF_SOMEBODYS.format(name=name))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_holdfast", "-p", "no:xdist", "-p", "no:cacheprovider", "test_idle.py"]
    done = subprocess.run(command, cwd=tmp_path, env=surroundings(), capture_output=True, text=True, timeout=60, check=False)
    assert said in done.stdout


def test_the_plugin_loads_nothing_of_holdfast() -> None:
    code = "import sys, pytest_holdfast; print([name for name in sys.modules if name.partition('.')[0] == 'holdfast'])"
    done = subprocess.run([sys.executable, "-c", code], env=surroundings(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_rig_needs_no_hypothesis() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; from holdfast.testing import Rig, crashproof; print(Rig)"
    done = subprocess.run([sys.executable, "-c", code], env=surroundings(), capture_output=True, text=True, timeout=60, check=True)
    assert "Rig" in done.stdout


def surroundings() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(hf.__file__).parent.parent)}


def test_the_page_on_testing_is_a_test_that_passes(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "testing.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "test_page.py").write_text("\n".join(snippets))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_holdfast", "-p", "no:xdist", "-p", "no:cacheprovider", "test_page.py"]
    done = subprocess.run(command, cwd=tmp_path, env=surroundings(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= page.count("\ndef test_")


def test_a_count_of_what_there_is_not_is_refused(rig: Rig) -> None:
    assert rig.count("price") == 0
    with pytest.raises(hf.Misuse, match="no step, effect, probe or agent is named 'prise'; did you mean 'price'"):
        rig.count("prise")


def test_prepared_answers_that_fitted_no_question_are_told(rig: Rig) -> None:
    @hf.agent
    async def planning() -> bool:
        return await hf.ask("Sure?") and await hf.ask("Plan?")

    rig.answers({"Sure?": True, "Plann?": True, re.compile("Plane"): True})
    with pytest.raises(hf.RunWaiting) as told:
        rig.run(planning)
    assert told.value.__notes__ == ["prepared answers that have fitted no question so far: 'Plann?', 'Plane'"]
    with Rig() as other, pytest.raises(hf.RunWaiting) as told:
        other.run(planning)
    assert not hasattr(told.value, "__notes__")


def test_what_a_run_waits_for_is_said_once(rig: Rig) -> None:
    @hf.agent
    async def noting() -> str:
        return await hf.receive("note", str)

    @hf.agent
    async def above() -> str:
        return await noting()

    @hf.agent
    async def asking() -> bool:
        return await hf.ask("Sure?")

    told = {}
    for agent in (noting, above, asking):
        with pytest.raises(hf.RunWaiting) as waiting:
            rig.run(agent, run_id=agent.__name__)
        told[agent.__name__] = str(waiting.value).partition(";")[0]
    assert told["noting"] == "run 'noting' waits for message note"
    assert told["above"] == "run 'above' waits: child run 'above.1' waits for message note"
    assert told["asking"].startswith("run 'asking' waits: Sure?")
