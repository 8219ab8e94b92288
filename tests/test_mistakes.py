"""Mistakes that people make: each is refused at once, in words that say what is true and what to write instead."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import threading
import traceback
import types
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast as hf
import holdfast.sync as hfs
from holdfast.app.frames import without_our_frames
from holdfast.errors import Misuse, NotAwaited
from holdfast.stores.memory import MemoryStore


@hf.agent
async def idle(x: int = 0) -> int:
    return x


def wrong(**options: Any) -> Any:
    return hf.run(idle, 1, store=MemoryStore(), **options)


def test_an_option_of_run_that_does_not_exist_is_not_swallowed() -> None:
    with pytest.raises(Misuse, match=r"hf\.run has no option 'runid'; nothing was done\. Did you mean run_id=\?.*by position"):
        wrong(runid="x")


def test_the_options_of_run_are_all_told() -> None:
    with pytest.raises(Misuse, match=r"It has: run_id, tags, budget, park_after, store, wait\."):
        wrong(topic="kelp")
    with pytest.raises(Misuse, match=r"Did you mean wait=\?"):
        wrong(waits=False)


def test_a_store_of_its_own_is_no_option_of_a_run_on_an_opened_store() -> None:
    told = r"no option 'store'.*It has: run_id, tags, budget, park_after, wait\."
    with hf.Holdfast(MemoryStore()) as app, pytest.raises(Misuse, match=told):
        app.run(idle, 1, store=MemoryStore())  # type: ignore[call-overload]


@pytest.mark.parametrize(("options", "told"), [({"retries": 3}, "or retry=?"), ({"colour": 1}, "It has: name, retry")])
def test_an_option_of_a_step_that_does_not_exist_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(Misuse) as refused:
        hf.step(**options)(lambda: None)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("made", "options", "told"),
    [
        (hf.Retry, {"attempt": 3}, "hf.Retry has no option 'attempt'; nothing was done. Did you mean attempts=?"),
        (hf.Breaker, {"name": "bank", "failure": 3}, "hf.Breaker has no option 'failure'; nothing was done. Did you mean failures=?"),
        (partial(hf.Schedule, idle), {"evry": "1h"}, "hf.Schedule has no option 'evry'; nothing was done. Did you mean every=?"),
        (hf.Budget, {"dollars": 3}, "hf.Budget has no option 'dollars'; nothing was done. It has: usd, tokens, steps, time"),
    ],
)
def test_an_option_of_a_policy_that_does_not_exist_is_refused(made: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(Misuse) as refused:
        made(**options)
    assert str(refused.value).startswith(told)


def test_a_lease_of_no_time_is_refused_and_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"^lease=0: each process would count as gone at once"):
        hf.Holdfast(tmp_path / "runs.db", lease=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [hf.Schedule(idle, every="1h"), ["hourly"]])
def test_schedules_that_are_no_list_of_them_are_refused(given: Any) -> None:
    with hf.Holdfast(MemoryStore()) as app, pytest.raises(Misuse, match=r"^schedules= takes a list of hf\.Schedule; nothing was begun$"):
        asyncio.run(app.work([idle], schedules=given))


def test_policies_still_tell_their_parameters() -> None:
    assert list(inspect.signature(hf.Retry).parameters) == [field.name for field in dataclasses.fields(hf.Retry)]
    assert dataclasses.replace(hf.Retry(attempts=3), factor=4) == hf.Retry(attempts=3, factor=4)


def test_an_argument_that_is_missing_is_told_with_its_agent() -> None:
    @hf.agent
    def research(topic: str) -> str:
        return topic

    forgetful: Any = hf.run
    with pytest.raises(TypeError, match=r"research\(\) missing 1 required positional argument: 'topic'"):
        forgetful(research, store=MemoryStore())


def test_a_number_is_not_a_retry_policy() -> None:
    number: Any = 3
    with pytest.raises(Misuse, match=r"Write retry=hf\.Retry\(attempts=5\)"):
        hf.step(retry=number)(lambda: None)


@pytest.mark.parametrize("wrong", ["Closed", ("Closed",), 7, (ValueError, "Closed")])
def test_raises_that_is_no_class_of_errors_is_refused(wrong: Any) -> None:
    with pytest.raises(Misuse, match="is not an exception class"):
        hf.step(raises=wrong)(lambda: None)


def test_an_undo_that_is_no_function_is_refused() -> None:
    with pytest.raises(Misuse, match=r"undo='refund' is not a function. Write undo=refund"):
        cast("Any", hf.effect)(in_doubt="ask", undo="refund")(lambda: None)


def test_an_effect_says_what_to_do_in_doubt_even_without_parentheses() -> None:
    bare: Any = hf.effect
    for declare in (lambda: bare(lambda: None), bare, lambda: bare(hf.step(lambda: None, name="look"), call_id="x")):
        with pytest.raises(Misuse, match=r"^in_doubt= is missing, .* 'resend' or hf\.resend\(\), hf\.verify\(probe\)"):
            declare()


def test_a_mistyped_option_of_an_effect_is_named_before_what_is_missing() -> None:
    with pytest.raises(Misuse, match=r"an effect has no option 'in_dubt'; .* Did you mean in_doubt=\?"):
        cast("Any", hf.effect)(in_dubt="ask")


def test_a_run_id_is_text() -> None:
    with pytest.raises(Misuse, match="run_id='47'"):
        wrong(run_id=47)


def test_an_agent_that_was_called_is_told_from_one_that_was_not_decorated() -> None:
    called: Any = idle(1)
    with pytest.raises(Misuse, match=r"Hand over the agent: hf\.run\(agent, arguments\)"):
        hf.run(called)


def test_a_probe_with_other_parameters_is_found_when_decorating() -> None:
    async def probe(order: str) -> hf.Verdict[int]:
        return hf.NotLanded()

    with pytest.raises(Misuse, match=r"probe\(order.*\).* is called with the arguments of charge\(order.*cents"):

        @hf.effect(in_doubt=hf.verify(probe))  # type: ignore[arg-type]
        async def charge(order: str, cents: int) -> int:
            return cents


def test_a_forgotten_await_is_an_error_and_the_run_is_not_done() -> None:
    store, sent = MemoryStore(), list[int]()

    @hf.effect(in_doubt="ask")
    async def send(x: int) -> None:
        sent.append(x)

    @hf.agent
    async def forgetful() -> str:
        send(1)  # type: ignore[unused-coroutine]
        return "sent"

    with pytest.raises(NotAwaited, match=r"'send' \(step 1\) was called and never awaited; it was not executed"):
        hf.run(forgetful, run_id="r", store=store)
    with hf.Holdfast(store) as app:
        assert app.show("r").status == "failed"
    assert sent == []


def test_what_a_race_cancelled_before_it_began_counts_as_awaited() -> None:
    @hf.step
    async def quick(x: int) -> int:
        return x

    @hf.agent
    async def race() -> int:
        return await hf.first(quick(1), quick(2), quick(3))

    assert hf.run(race, store=MemoryStore()) == 1


def test_results_instead_of_branches_are_refused() -> None:
    @hfs.step
    def one(x: int) -> int:
        return x

    @hfs.agent
    def both() -> object:
        branch: Any = one(1)
        return hfs.gather(branch, branch)

    with pytest.raises(Misuse, match=r"hf\.gather\(lambda: one\(1\)"):
        hf.run(both, store=MemoryStore())


@hf.step
def blocking(x: int) -> int:
    return x


BRANCHES: list[tuple[Any, str]] = [
    (lambda: hf.gather(cast("Any", blocking(2))), r"a branch of hf\.gather is int, .* hf\.gather\(one\(1\), one\(2\)\)"),
    (lambda: hf.gather(cast("Any", [])), r"a branch of hf\.gather is list, .* hf\.gather\(\*calls\)"),
    (lambda: hf.first(cast("Any", blocking(2))), r"a branch of hf\.first is int"),
    (lambda: hf.map(cast("Any", blocking), [1]), r"'blocking' gives hf\.map nothing to await; nothing was executed"),
    (lambda: hf.map(cast("Any", lambda x: x), [1]), r"'<lambda>' gives hf\.map nothing to await; its result is not used"),
]


@pytest.mark.parametrize(("wrongly", "told"), BRANCHES)
def test_a_branch_that_cannot_be_awaited_is_refused_with_what_to_write(wrongly: Any, told: str) -> None:
    @hf.agent
    async def outer() -> object:
        return await wrongly()

    with pytest.raises(Misuse, match=told):
        hf.run(outer, store=MemoryStore())


def test_a_method_is_told_from_a_function_that_was_not_decorated() -> None:
    class Desk:
        @hf.agent
        def work(self, x: int) -> int:
            return x

    with pytest.raises(Misuse, match=r"'work' is a method, .*Make the agent a function"):
        hf.run(Desk().work, 1, store=MemoryStore())


def test_classmethod_stands_above_the_step() -> None:
    def look(_: object, x: int) -> int:
        return x

    with pytest.raises(Misuse, match=r"write @classmethod above @hf\.step"):
        hf.step(cast("Any", classmethod(look)))


def test_a_step_that_only_changes_its_argument_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    @hf.step
    def enrich(document: dict[str, int]) -> None:
        document["words"] = 7

    @hf.step
    def print_out(document: dict[str, int]) -> None: ...

    @hf.agent
    def outer() -> dict[str, int]:
        document = {"pages": 1}
        print_out(document)
        enrich(document)
        enrich(document)
        return document

    assert hf.run(outer, store=MemoryStore()) == {"pages": 1, "words": 7}
    (told,) = caplog.messages
    assert told.startswith("step 'enrich' has changed its arguments and returned nothing")


def test_a_client_is_handed_over_not_passed() -> None:
    @hf.agent
    async def talk(client: threading.Thread) -> None: ...

    with pytest.raises(hf.NotKept, match=r"resources=\[\.\.\.\]"):
        hf.run(talk, threading.Thread(), store=MemoryStore())


def test_a_person_can_say_what_an_effect_returned_that_could_not_be_kept() -> None:
    store, made = MemoryStore(), list[object]()

    @hf.effect(in_doubt="ask")
    async def make() -> Any:
        made.append(1)
        return object()

    @hf.agent
    async def maker() -> Any:
        return await make()

    with pytest.raises(hf.ResultNotKept, match="holdfast resolve r 1 --landed JSON"):
        hf.run(maker, run_id="r", store=store)
    with hf.Holdfast(store) as app:
        app.resolve("r", "1", landed={"id": 7}, by="ann")
    assert hf.run(maker, run_id="r", store=store) == {"id": 7}
    assert made == [1]


def test_a_mistyped_path_is_not_built_up(tmp_path: Path) -> None:
    with pytest.raises(hf.StoreError):
        hf.run(idle, store=tmp_path / "no" / "such" / "runs.db")
    assert list(tmp_path.iterdir()) == []


def test_the_traceback_shows_the_users_lines_and_not_the_engines() -> None:
    @hf.step
    async def divide(x: int) -> int:
        return 1 // x

    @hf.agent
    async def dividing() -> int:
        return await divide(0)

    with pytest.raises(ZeroDivisionError) as caught:
        hf.run(dividing, run_id="r", store=MemoryStore())
    shown = "".join(traceback.format_exception(caught.value))
    assert "return 1 // x" in shown
    assert "return await divide(0)" in shown
    assert "life/drive.py" not in shown
    assert "run 'r' failed at step 1; finished steps are kept" in shown


def test_all_frames_are_kept_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TRACEBACK", "full")
    with pytest.raises(hf.StoreError) as caught:
        hf.run(idle, store="nowhere:")
    before = caught.value.__traceback__
    without_our_frames(caught.value)
    assert isinstance(before, types.TracebackType)
    assert caught.value.__traceback__ is before


class Handle:
    """Has no JSON form."""


def test_an_effect_whose_type_cannot_be_kept_says_that_nothing_was_executed() -> None:
    executed: list[str] = []

    @hf.effect(in_doubt="ask", returns=Handle)
    def open_account(name: str) -> object:
        executed.append(name)
        return Handle()

    @hf.agent
    def opening() -> None:
        open_account("ann")

    with pytest.raises(hf.NotKept, match=r"result of effect 'open_account' .* JSON form .*; nothing was executed by this call\. Annotate"):
        hf.run(opening, store=MemoryStore())
    assert executed == []


def test_a_parameter_without_an_annotation_is_told_which_one() -> None:
    @hf.agent
    def paying(n, client=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return str(n)

    with pytest.raises(hf.NotKept, match=r"argument 'n' cannot be kept: .* Annotate the parameter: `n: Decimal`$"):
        hf.run(paying, Decimal("1.5"), store=MemoryStore())
    with pytest.raises(hf.NotKept, match=r"argument 'client' cannot be kept: .*hf\.resource\(Type\)"):
        hf.run(paying, 1, Handle(), store=MemoryStore())


def test_tags_are_texts_wherever_they_are_given() -> None:
    number: Any = {"team": 1}
    with hf.Holdfast(MemoryStore()) as app:
        app.run(idle, 1, run_id="r", tags=number)
        assert app.show("r").tags == {"team": "1"}
        assert [run.run_id for tags in (number, {"team": "1"}, {"team": "2"}) for run in app.runs(tags=tags)] == ["r", "r"]
        listed: Any = ["team"]
        for call in (lambda: app.run(idle, 1, tags=listed), lambda: app.runs(tags=listed), lambda: app.submit(idle, 1, tags=listed)):
            with pytest.raises(Misuse, match=r"tags=\['team'\]: they are texts by name, such as \{'team': 'sales'\}; nothing was done"):
                call()
        assert [run.run_id for run in app.runs()] == ["r"]
