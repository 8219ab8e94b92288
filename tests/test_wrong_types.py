"""What is of the wrong type is refused in words, before anything is done, wherever it is handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from crashing import play
from holdfast.errors import Refusal
from holdfast.stores.memory import MemoryStore
from holdfast.testing.rig import Rig


@hf.agent
async def asking() -> str:
    return await hf.ask("colour?", str)


@pytest.fixture
def app() -> hf.Holdfast:
    store = MemoryStore()
    with pytest.raises(hf.RunWaiting):
        play(store, asking)
    return hf.Holdfast(store)


VERBS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "answer by": ("by must be text, not 5", lambda app: app.answer("r", "1", "red", by=5)),
    "answer about": ("about='q' must be the number", lambda app: app.answer("r", "1", "red", about="q")),
    "send name": ("the name of a message must be text, not 5", lambda app: app.send("r", 5, 1)),
    "send key": ("key must be text, not 7", lambda app: app.send("r", "note", 1, key=7)),
    "diff": ("right must be text, not 5", lambda app: app.diff("r", 5)),
    "fork": ("edits=.1. must be a dict", lambda app: app.fork("r", at=1, edits=[1])),
    "tail": ("after='x' must be the number", lambda app: app.tail("r", after="x")),
    "runs": ("status='bogus' is not one; there are queued", lambda app: app.runs(status="bogus")),
    "show": (r"run_id=None is NoneType; an id is text$", lambda app: app.show(None)),
    "handle": ("app.handle was given 5, which is no agent", lambda app: app.handle("r", 5)),
    "submit": (r"app.submit was given int, not an agent; nothing .*: app.submit\(agent, arguments\)", lambda app: app.submit(5)),
    "submit option": ("app.submit has no option 'queu'; nothing was done. Did you mean queue=", lambda app: app.submit(asking, queu="q")),
    "submit queue": ("queue must be text, not 5", lambda app: app.submit(asking, queue=5)),
    "work": (r"app.work was given asking, not a list of agents; .*: app.work\(\[agent\]\)", lambda app: asyncio.run(app.work(asking))),
    "work on": (r"app.work was given int, not an agent; .*: app.work\(\[agent\]\)", lambda app: asyncio.run(app.work([5]))),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_refuses_what_is_of_the_wrong_type(app: hf.Holdfast, verb: str) -> None:
    told, call = VERBS[verb]
    before = app.store.head("r")
    with app, pytest.raises(hf.Misuse, match=told):
        call(app)
    assert (app.store.head("r"), app.store.letters(["r"])) == (before, [])


def test_an_answer_that_is_not_json_is_refused(app: hf.Holdfast) -> None:
    with app, pytest.raises(Refusal, match="it must be JSON"):
        app.answer("r", "1", object())


ASKS: dict[str, tuple[str, Callable[[], Any]]] = {
    "question": ("the question must be text, not 5", lambda: hf.ask(5)),  # type: ignore[call-overload]
    "who": ("who=5 must be a name or several", lambda: hf.ask("q", who=5)),  # type: ignore[call-overload]
    "kind": ("it is a function, not a type", lambda: hf.ask("q", lambda x: x)),
    "milestone": ("must be text, not 5", lambda: hf.milestone(5)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", ASKS)
def test_an_agent_is_told_what_is_of_the_wrong_type(what: str) -> None:
    told, call = ASKS[what]

    @hf.agent
    async def agent() -> None:
        call()

    with pytest.raises(hf.Misuse, match=told):
        play(MemoryStore(), agent)


def test_an_ask_outside_a_run_is_called_by_its_name() -> None:
    with pytest.raises(hf.NoRun, match=r"hf\.ask was called outside a run"):
        hf.ask("q")  # type: ignore[unused-coroutine]


def test_a_rig_refuses_answers_without_questions() -> None:
    with Rig() as rig, pytest.raises(hf.Misuse, match="answers takes a dict"):
        rig.answers(["x"])  # type: ignore[arg-type]


def test_steps_and_questions_are_named_by_numbers_too(app: hf.Holdfast) -> None:
    with app:
        assert app.show_at("r", 1).checkpoint.step_id == "1"
        app.answer("r", 1, "red")
        assert app.resume_here("r", [asking]) == "red"


def test_who_sends_the_same_key_again_is_told_what_holds(app: hf.Holdfast) -> None:
    with app:
        assert app.send("r", "note", 1, key="k") == "the message is kept until the run receives 'note'"
        assert app.send("r", "note", 1, key="k") == "a message with key 'k' was sent before; nothing was sent"
        other = app.send("r", "note", 2, key="k")
        assert other == "a message with key 'k' was sent before with something else in it, which holds; nothing was sent"
        assert len(app.store.letters(["r"])) == 1


def test_an_artifact_that_is_none_is_told_by_its_types() -> None:
    @hf.agent
    async def agent() -> hf.Artifact:
        wrong: Any = "text"
        return wrong  # type: ignore[no-any-return]

    with pytest.raises(hf.NotKept, match="Artifact was expected and str found"):
        play(MemoryStore(), agent)


def test_what_is_not_returned_is_not_to_be_annotated_as_a_result() -> None:
    @hf.step
    async def saving() -> None:
        wrong: Any = ["a"]
        hf.partial(list[int]).save(wrong)

    @hf.agent
    async def agent() -> None:
        await saving()

    with pytest.raises(hf.NotKept, match=r"Give what was declared: list\[int\]"):
        play(MemoryStore(), agent)
