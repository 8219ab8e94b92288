"""Identity: name and fingerprint of a recorded call against the call that the code makes now, and results that can or cannot be kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from crashing import Crash, crashing, lines, play, status
from holdfast.life import steps
from holdfast.records import replay
from holdfast.stores.memory import MemoryStore


@hf.step
async def search(query: str) -> str:
    return query.upper()


def changed_arguments() -> tuple[str, str, list[str]]:
    """A run that has ordered one thing, and that is continued by code which orders another at the same place."""
    queries, executed = ["shoes"], []

    @hf.effect(in_doubt="ask")
    async def order(query: str) -> str:
        executed.append(query)
        return query

    @hf.agent
    async def agent() -> str:
        found = await order(queries[-1])
        if len(queries) == 1:
            raise Crash
        return found

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    queries.append("boots")
    try:
        return play(store, agent), status(store), executed
    except hf.ReplayMismatch as error:
        return str(error), status(store), executed


def test_other_arguments_on_replay_block_the_run_and_name_both_sides() -> None:
    message, standing, executed = changed_arguments()
    assert 'order(query="shoes")' in message
    assert 'order(query="boots")' in message
    assert "step 1" in message
    assert (standing, executed) == ("blocked", ["shoes"])


def test_without_the_mismatch_the_other_call_would_be_executed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: one order becomes two."""

    def decide(*args: Any, **kwargs: Any) -> Any:
        decision = replay.decide(*args, **kwargs)
        return replay.Execute(1) if isinstance(decision, replay.Mismatch) else decision

    monkeypatch.setattr(steps, "decide", decide)
    assert changed_arguments() == ("boots", "done", ["shoes", "boots"])


def test_mismatch_cannot_be_swallowed_by_the_agent() -> None:
    names = ["one"]

    @hf.agent
    async def agent() -> str:
        try:
            return await hf.step(search, name=names[-1])("a")
        except Exception:  # noqa: BLE001
            return "swallowed"
        finally:
            if len(names) == 1:
                raise Crash

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    names.append("two")
    with pytest.raises(hf.ReplayMismatch, match=r"was one\(.*calls two\("):
        play(store, agent)


def test_blocked_run_goes_on_with_the_old_code() -> None:
    queries = ["shoes"]

    @hf.agent
    async def agent() -> str:
        found = await search(queries[-1])
        if len(queries) == 1:
            raise Crash
        return found

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    queries.append("boots")
    with pytest.raises(hf.ReplayMismatch):
        play(store, agent)
    queries.append("shoes")
    assert play(store, agent) == "SHOES"


GROUPS: list[Callable[[], Awaitable[object]]] = [hf.gather, lambda: hf.map(search, []), lambda: hf.first(search("b"))]


@pytest.mark.parametrize("group", GROUPS)
def test_group_where_a_step_was_recorded_is_a_mismatch(group: Callable[[], Awaitable[object]]) -> None:
    old = [True]

    @hf.agent
    async def agent() -> None:
        if not old:
            await group()
        await search("a")
        if old:
            old.clear()
            raise Crash

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    with pytest.raises(hf.ReplayMismatch, match="search"):
        play(store, agent)


def test_time_out_where_a_step_was_recorded_is_a_mismatch() -> None:
    old = [True]

    @hf.agent
    async def agent() -> None:
        if old:
            old.clear()
            await search("a")
            raise Crash
        async with hf.timeout(5):
            await search("a")

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    with pytest.raises(hf.ReplayMismatch, match=r"was search.*calls hf\.timeout"):
        play(store, agent)


class Offer(BaseModel):
    name: str


@dataclass
class Wish:
    color: str


def test_added_default_field_does_not_change_identity() -> None:
    class NewOffer(BaseModel):
        name: str
        rating: int = 0
        labels: list[str] = []

    NewOffer.__qualname__ = Offer.__qualname__

    @dataclass
    class NewWish:
        color: str
        sizes: list[int] = field(default_factory=list)

    NewWish.__qualname__ = Wish.__qualname__
    versions: list[tuple[type, type]] = [(Offer, Wish)]

    @hf.step
    async def rate(offer: object, wish: object) -> int:
        return 1

    @hf.agent
    async def agent() -> int:
        offer, wish = versions[-1]
        await rate(offer(name="x"), wish("red"))
        if len(versions) == 1:
            raise Crash
        return 1

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    versions.append((NewOffer, NewWish))
    assert play(store, agent) == 1


def test_added_parameter_with_a_default_does_not_change_identity() -> None:
    async def old(query: str) -> str:
        return query

    async def new(query: str, *, limit: int = 10) -> str:
        raise AssertionError("executed again")

    versions = [old]

    @hf.agent
    async def agent() -> str:
        result: str = await hf.step(versions[-1], name="look")("a")
        if len(versions) == 1:
            raise Crash
        return result

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    versions.append(new)
    assert play(store, agent) == "a"


def test_sets_and_keys_count_without_their_order() -> None:
    orders = [({"a", "b", "c"}, {"x": 1, "y": float("nan")}), ({"c", "b", "a"}, {"y": float("nan"), "x": 1})]

    @hf.step
    async def look(tags: set[str], options: dict[str, float]) -> int:
        return len(tags)

    @hf.agent
    async def agent() -> int:
        found = await look(*orders[0])
        if len(orders) == 2:
            orders.pop(0)
            raise Crash
        return found

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == 3


class Client:
    """Nothing that could be encoded."""

    def __init__(self) -> None:
        self.socket = object()


class OtherClient(Client):
    pass


def test_unencodable_argument_counts_by_type_name() -> None:
    clients: list[Client] = [Client()]

    @hf.step
    async def ask(client: Client, question: str) -> str:
        return question

    @hf.agent
    async def agent() -> str:
        answer = await ask(clients[-1], "?")
        if len(clients) == 1:
            raise Crash
        return answer

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    clients.append(OtherClient())
    with pytest.raises(hf.ReplayMismatch, match=r"<Client>.*<OtherClient>"):
        play(store, agent)
    clients.append(Client())
    assert play(store, agent) == "?"


def test_ignored_argument_does_not_count() -> None:
    traces = ["t1"]

    @hf.step(ignore=("trace",))
    async def ask(question: str, trace: str) -> str:
        return question + trace

    @hf.agent
    async def agent() -> str:
        answer = await ask("?", traces[-1])
        if len(traces) == 1:
            raise Crash
        return answer

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    traces.append("t2")
    assert play(store, agent) == "?t1"


def test_effect_whose_result_cannot_be_kept_is_landed() -> None:
    sent: list[int] = []

    @hf.effect(in_doubt="resend", retry=hf.Retry(base=0.001))
    async def send() -> object:
        sent.append(1)
        return Client()

    @hf.agent
    async def agent() -> str:
        with pytest.raises(hf.ResultNotKept) as lost:
            await send()
        if len(sent) == 1:
            sent.append(0)
            raise Crash
        return lost.value.shown

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert "Client object at" in play(store, agent)
    assert sent == [1, 0]


def test_return_type_without_a_form_is_refused_before_the_intent() -> None:
    @hf.effect(in_doubt="fail")
    async def send() -> Client:
        raise AssertionError("executed")

    @hf.agent
    async def agent() -> str:
        await send()
        return ""

    store = MemoryStore()
    with pytest.raises(hf.NotKept, match="Client"):
        play(store, agent)
    assert "step.started 1" not in lines(store)


def undecodable(*, effect: bool) -> tuple[list[int], str]:
    """A result recorded as text, asked for as a number."""
    done: list[int] = []
    types: list[type] = [str]

    async def make() -> str:
        done.append(1)
        return "many"

    @hf.agent
    async def agent() -> str:
        decorate = hf.effect(in_doubt="resend", returns=types[-1]) if effect else hf.step(returns=types[-1])
        await decorate(make)()
        if len(types) == 1:
            raise Crash
        return "went on"

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    types.append(int)
    with pytest.raises(hf.HoldfastError, match="does not fit its type any more"):
        play(store, agent)
    return done, status(store)


@pytest.mark.parametrize("effect", [False, True])
def test_result_that_no_longer_decodes_blocks_and_is_never_executed_again(*, effect: bool) -> None:
    assert undecodable(effect=effect) == ([1], "blocked")
