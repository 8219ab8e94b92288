"""What the replies of the real model SDKs tell of their model and tokens is recorded by itself, against a real host."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast as hf
from agents_for_tests.model_host import Host, chat, hosting
from crashing import Crash, play, records
from holdfast.records import kinds as rec
from holdfast.records.models import is_reply
from holdfast.stores.memory import MemoryStore

EXPECTED = {"model": "gpt-4o-2024-08-06", "asked": "gpt-4o", "input_tokens": 11, "output_tokens": 7}


pytestmark = pytest.mark.xdist_group("sdk")  # one process loads them


@pytest.fixture
def sdk() -> Any:
    return importlib.import_module("agents_for_tests.model_sdks")


@pytest.fixture
def host() -> Iterator[Host]:
    with hosting() as host:
        yield host


def usage_of(store: MemoryStore, step_id: str = "1") -> list[rec.Json]:
    return next(record.usage for record in records(store) if isinstance(record, rec.StepDone) and record.step_id == step_id)


@pytest.mark.parametrize("call", ["by_chat", "by_responses", "by_messages"])
@pytest.mark.parametrize("effect", [False, True], ids=["step", "effect"])
def test_a_reply_that_a_blocking_body_returns_tells_both_models_and_its_tokens(call: str, effect: bool, sdk: Any, host: Host) -> None:  # noqa: FBT001
    store, declare = MemoryStore(), hf.effect(in_doubt="ask", ignore=("host",)) if effect else hf.step(ignore=("host",))
    declared: Any = declare(getattr(sdk, call))

    @hf.agent
    def think() -> str:
        return str(declared(host, "gpt-4o").model)

    assert play(store, think) == "gpt-4o-2024-08-06"
    assert usage_of(store) == [EXPECTED]
    assert host.asked == ["gpt-4o"]


@pytest.mark.parametrize("call", ["by_async_chat", "by_async_messages"])
def test_and_so_does_one_of_an_async_body(call: str, sdk: Any, host: Host) -> None:
    store, declared = MemoryStore(), hf.step(getattr(sdk, call), ignore=("host",))

    @hf.agent
    async def think() -> str:
        return str((await declared(host, model="gpt-4o")).model)

    assert play(store, think) == "gpt-4o-2024-08-06"
    assert usage_of(store) == [EXPECTED]


def test_the_method_of_a_client_is_a_step_by_itself(sdk: Any, host: Host) -> None:
    store = MemoryStore()
    with sdk.openai.OpenAI(base_url=f"{host.url}/v1", api_key="k") as client:
        ask: Callable[..., Any] = hf.step(client.chat.completions.create, name="ask", returns=sdk.ChatCompletion)

        @hf.agent
        def think() -> str:
            return str(ask(model="gpt-4o", messages=sdk.MESSAGES).model)

        assert play(store, think) == "gpt-4o-2024-08-06"
    assert usage_of(store) == [EXPECTED]


def test_a_body_that_returns_only_the_text_hands_the_reply_over(sdk: Any, host: Host) -> None:
    store = MemoryStore()

    @hf.step
    def ask(question: str, model: str = "gpt-4o") -> str:
        reply = sdk.by_chat(host, model)
        hf.usage(reply, usd=0.5)
        return str(reply.choices[0].message.content)

    @hf.agent
    def think() -> str:
        return ask("may I?")

    assert play(store, think) == "yes"
    assert usage_of(store) == [{**EXPECTED, "usd": 0.5}]


def test_a_reply_that_the_body_has_reported_is_not_counted_twice(sdk: Any, host: Host) -> None:
    store = MemoryStore()

    @hf.step(returns=sdk.ChatCompletion)
    def ask() -> Any:
        hf.usage(model="mine", usd=1.0)
        return sdk.by_chat(host, "gpt-4o")

    @hf.agent
    def think() -> None:
        ask()

    play(store, think)
    assert usage_of(store) == [{"model": "mine", "usd": 1.0}]


def test_a_parsed_reply_is_a_reply_though_its_class_was_made_elsewhere(sdk: Any) -> None:
    assert sdk.Parsed.__module__ == sdk.__name__
    assert is_reply(sdk.Parsed.model_validate(chat("m")))
    assert not is_reply(sdk.openai.types.Model(id="m", created=1, object="model", owned_by="o"))


def test_what_is_no_reply_is_refused_with_what_to_give_instead() -> None:
    @hf.step
    def ask() -> str:
        hf.usage("gpt-4o")
        return "yes"

    @hf.agent
    def think() -> None:
        ask()

    with pytest.raises(hf.Misuse, match=r"was given str, .* Give model=, input_tokens= and output_tokens= instead"):
        play(MemoryStore(), think)


@pytest.mark.parametrize(("asked", "answers"), [("gpt-4o", "gpt-4o-2024-11-20"), ("gpt-5", "gpt-5-2025-08-07")])
def test_a_host_that_has_moved_on_is_noticed_by_the_resumed_run(asked: str, answers: str, sdk: Any, host: Host) -> None:
    store, deaths, models = MemoryStore(), [Crash()], ["gpt-4o"]
    ask: Callable[..., Any] = hf.step(sdk.by_async_chat, name="ask", ignore=("host", "model"))

    @hf.agent(on_model_change="fail")
    async def think() -> None:
        await ask(host, models[0])
        if deaths:
            raise deaths.pop()
        await ask(host, models[0])
        await ask(host, models[0])

    with pytest.raises(Crash):
        play(store, think)
    host.answers, models[0] = answers, asked
    with pytest.raises(hf.ModelChanged) as stopped:
        play(store, think)
    assert (stopped.value.old, stopped.value.new) == ("gpt-4o (answered by gpt-4o-2024-08-06)", f"{asked} (answered by {answers})")
    assert len(host.asked) == 2
