"""Declaring: a decorated function is called as before, what must not be called where it is says so, and typed values survive a run."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

import holdfast as hf
import holdfast.sync as hfs
from crashing import Crash, crashing, lines, play, records, status
from holdfast.errors import WrongMode
from holdfast.life.doubt import Fail
from holdfast.records import kinds as rec
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Rig

T = TypeVar("T")


@hf.step
async def think(text: str, *, loud: bool = False) -> str:
    """Ponder."""
    return text.upper() if loud else text


@hf.step
def compute(number: int = 2) -> int:
    """Reckon."""
    return number * number


@hf.effect(in_doubt="fail")
async def pay(cents: int) -> int:
    return cents


def test_signature_name_and_nature_are_kept() -> None:
    assert str(inspect.signature(think)) == "(text: 'str', *, loud: 'bool' = False) -> 'str'"
    assert (think.__name__, think.__doc__, compute.__name__) == ("think", "Ponder.", "compute")
    assert [inspect.iscoroutinefunction(fn) for fn in (think, compute, pay)] == [True, False, True]
    assert [asyncio.iscoroutinefunction(fn) for fn in (think, compute, pay)] == [True, False, True]


def test_agent_called_outside_a_run_is_the_plain_function() -> None:
    @hf.agent
    def agent(number: int) -> int:
        return number + 1

    assert agent(1) == 2
    assert inspect.signature(agent).parameters.keys() == {"number"}


def test_step_outside_a_run_is_the_plain_function_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    @hf.step
    def lonely() -> int:
        return 3

    with caplog.at_level(logging.WARNING, "holdfast"):
        assert [lonely(), lonely()] == [3, 3]
    assert [record.message for record in caplog.records if "lonely" in record.message] == [
        "step 'lonely' was called outside a run: it is the plain function there, and nothing is recorded"
    ]


def test_effect_outside_a_run_raises_no_run_at_the_call() -> None:
    with pytest.raises(hf.NoRun, match="'pay'"):
        _ = pay(1)


def test_wrong_arguments_raise_what_python_raises_and_take_no_number() -> None:
    @hf.agent
    async def agent() -> str:
        with pytest.raises(TypeError) as wrong:
            await think()  # type: ignore[call-arg]
        return str(wrong.value) + await think("x")

    store = MemoryStore()
    assert "missing 1 required positional argument: 'text'" in play(store, agent)
    assert status(store) == "done"


class Shop:
    def __init__(self, name: str) -> None:
        self.name, self.calls = name, 0

    @hf.step
    async def search(self, query: str) -> str:
        self.calls += 1
        return f"{self.name}: {query}"

    @hf.effect(in_doubt="fail")
    async def order(self, item: str) -> str:
        self.calls += 1
        return item

    @hf.step
    def price(self, item: str) -> int:
        return len(item)

    @staticmethod
    @hf.step
    async def tax(cents: int) -> int:
        return cents // 5


def test_methods_are_steps() -> None:
    shop = Shop("a")
    crashes = [True]

    @hf.agent
    async def agent() -> list[object]:
        result: list[object] = [await shop.search("shoes"), await shop.order(item="boots"), shop.price("hat"), await Shop.tax(10)]
        if crashes:
            crashes.clear()
            raise Crash
        return result

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == ["a: shoes", "boots", 3, 2]
    assert shop.calls == 2
    assert inspect.signature(shop.search).parameters.keys() == {"query"}


def test_step_as_a_function_and_copies_with_other_options() -> None:
    def foreign(number: int) -> int:
        return number + 1

    @hf.agent
    def agent() -> list[int]:
        named = hf.step(foreign, name="plus one")
        return [named(1), hf.step(named, name="again")(2), hf.step(compute, name="square")(3)]

    store = MemoryStore()
    assert play(store, agent) == [2, 3, 9]
    assert [record.name for record in records(store) if isinstance(record, rec.StepDone)] == ["plus one", "again", "square"]
    assert compute.__name__ == "compute"


def test_copy_keeps_what_was_not_given() -> None:
    tried: list[int] = []

    @hf.step(retry=hf.Retry(attempts=2, base=0.001), raises=LookupError)
    async def shaky() -> int:
        tried.append(1)
        raise ConnectionResetError

    @hf.agent
    async def agent() -> int:
        return await hf.step(shaky, name="renamed")()

    with pytest.raises(ConnectionResetError):
        play(MemoryStore(), agent)
    assert len(tried) == 2


def test_nested_step_is_a_plain_call() -> None:
    @hf.step
    async def outer() -> str:
        return await think("inner") + str(compute(3))

    @hf.agent
    async def agent() -> str:
        return await outer()

    store = MemoryStore()
    assert play(store, agent) == "inner9"
    assert lines(store) == ["run.started", "step.done 1", "run.done"]


@hf.agent
async def other_agent() -> int:
    return 1


def other_run() -> object:
    return hf.run(other_agent, store=MemoryStore())


NESTED: list[Callable[[], object]] = [
    partial(pay, 1), hf.gather, partial(hf.map, think, []), hf.first, partial(hf.timeout, 1), partial(hf.state, {}),
    partial(hf.cleanup, print), other_agent, other_run,
]  # fmt: skip


@pytest.mark.parametrize("call", NESTED)
def test_what_must_not_be_repeated_is_refused_inside_a_body(call: Callable[[], object]) -> None:
    @hf.step
    async def outer() -> str:
        call()
        return "done"

    @hf.agent
    async def agent() -> str:
        return await outer()

    with pytest.raises(hf.NestedStep, match="outer"):
        play(MemoryStore(), agent)


def test_a_run_inside_an_agent_is_refused() -> None:
    @hf.agent
    async def agent() -> None:
        other_run()

    with pytest.raises(hf.Misuse, match="inside a run"):
        play(MemoryStore(), agent)


def test_lost_context_in_a_thread_pool_is_an_error() -> None:
    @hf.agent
    async def agent() -> int:
        with ThreadPoolExecutor(1) as pool:
            return await asyncio.get_running_loop().run_in_executor(pool, compute, 4)

    with pytest.raises(hf.LostContext, match=r"compute.*does not see the run"):
        play(MemoryStore(), agent)


def test_step_in_to_thread_is_an_error_because_its_place_is_not_known() -> None:
    @hf.agent
    async def agent() -> int:
        return await asyncio.to_thread(compute, 4)

    with pytest.raises(hf.LostContext):
        play(MemoryStore(), agent)


def test_async_step_in_a_def_agent_fails_at_the_call() -> None:
    @hf.agent
    def agent() -> str:
        return "truthy" if think("x") else "falsy"

    with pytest.raises(WrongMode, match=r"think.*async def"):
        play(MemoryStore(), agent)


VERBS = [lambda: hf.ask("ok?"), lambda: hf.sleep(1), lambda: hf.receive("note", str), lambda: hf.send("other", "note")]


@pytest.mark.parametrize("verb", VERBS)
def test_a_def_agent_that_calls_an_async_verb_is_told_what_to_import(verb: Callable[[], object]) -> None:
    @hf.agent
    def agent() -> str:
        return str(verb())

    with pytest.raises(WrongMode, match=r"'hf\.\w+' cannot be called in agent 'agent'; .* use `import holdfast\.sync as hf`"):
        play(MemoryStore(), agent)


def test_def_agent_with_def_steps_and_effects() -> None:
    calls: list[str] = []

    @hfs.step(retry=hfs.Retry(base=0.001))
    def search() -> str:
        calls.append("search")
        if len(calls) == 1:
            raise ConnectionResetError
        return "found"

    @hfs.effect(in_doubt="resend", retry=hfs.Retry(base=0.001))
    def order(item: str) -> str:
        calls.append(hfs.key())
        if len(calls) == 3:
            raise TimeoutError
        return item

    @hfs.agent
    def agent() -> str:
        result = order(search())
        if "crash" not in calls:
            calls.append("crash")
            raise Crash
        return result

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    assert play(store, agent) == "found"
    assert calls[:2] == ["search", "search"]
    assert calls[2] == calls[3]
    assert len(calls) == 5


@pytest.mark.parametrize("in_doubt", ["perhaps", None, 7])
def test_in_doubt_must_be_one_of_five(in_doubt: Any) -> None:
    with pytest.raises(hf.Misuse, match="in_doubt="):
        hf.effect(in_doubt=in_doubt)(pay)


def test_what_cannot_be_a_step_is_refused_when_declared() -> None:
    def stream() -> Any:
        yield 1

    async def async_stream() -> Any:
        yield 1

    for wrong in (stream, async_stream, 7, "name"):
        with pytest.raises(hf.Misuse):
            hf.step(wrong)  # type: ignore[arg-type]
    with pytest.raises(hf.Misuse, match="ignore="):
        hf.step(ignore=("nothing",))(compute)


def test_async_probe_of_a_def_effect_is_refused() -> None:
    async def probe() -> hf.Verdict[int]:
        return hf.NotLanded()

    with pytest.raises(hf.Misuse, match="make both the same"):

        @hf.effect(in_doubt=hf.verify(probe))
        def send() -> int:
            return 1


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Money(BaseModel):
    amount: Decimal
    currency: Literal["EUR", "USD"] = "EUR"


class Page(BaseModel, Generic[T]):
    items: list[T]
    more: bool = False


@dataclass(frozen=True)
class Point:
    x: float
    tags: frozenset[str] = frozenset()


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict, total=False):
    limit: int
    since: date


VALUES: list[tuple[object, object]] = [
    (Money, Money(amount=Decimal("1.10"))),
    (list[Money], [Money(amount=Decimal(3), currency="USD")]),
    (Page[Money], Page[Money](items=[Money(amount=Decimal("0.1"))], more=True)),
    (Page[int], Page[int](items=[1, 2])),
    (Point, Point(1.5, frozenset({"a", "b"}))),
    (dict[str, list[Point]], {"p": [Point(0.0)]}),
    (Color, Color.BLUE),
    (dict[Color, int], {Color.RED: 1}),
    (Level, Level.LOW),
    (datetime, datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (Decimal, Decimal("1.500")),
    (bytes, b"\x00\xff\xfe"),
    (tuple[int, str, bytes], (1, "a", b"\xff")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"x"})),
    (deque[int], deque([1, 2])),
    (int | str | None, "7"),
    (int | str | None, 7),
    (int | str | None, None),
    (Money | Point, Point(2.0)),
    (Literal["a", "b"], "b"),
    (Pair, Pair(1, "r")),
    (Options, {"limit": 3, "since": date(2026, 1, 2)}),
    (UUID, UUID(int=5)),
    (Path, Path("folder/x")),
    (float, float("inf")),
    (int, 2**80),
    (dict[int, str], {1: "one"}),
    (Any, {"plain": [1, 2.5, None, True, "ä"]}),
]


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=[f"{n} {annotation}" for n, (annotation, _) in enumerate(VALUES)])
def test_typed_values_are_the_same_live_and_on_replay(annotation: object, value: object) -> None:
    views: list[object] = []

    async def make() -> object:
        return value

    @hf.agent
    async def agent() -> int:
        views.append(await hf.step(make, returns=annotation)())
        if len(views) == 1:
            raise Crash
        return 0

    store = MemoryStore()
    crashing(lambda: play(store, agent))
    play(store, agent)
    live, replayed = views
    assert live == replayed == value
    assert type(live) is type(replayed) is type(value)


REFUSED: list[tuple[object, object, str]] = [
    (Any, (1, 2), "tuple[int, int]"),
    (Any, {1, 2}, "set[int]"),
    (Any, Point(1.0), "Point"),
    (Any, [Color.RED], "list[Color]"),
    (Any, {1: "a"}, "dict[int, str]"),
    (Any, b"\xff", "bytes"),
    (Any, Decimal(1), "Decimal"),
    (list[int], [1, "a"], "list[int | str]"),
    (int, True, "bool"),
]


@pytest.mark.parametrize(("annotation", "value", "remedy"), REFUSED, ids=[remedy for _, _, remedy in REFUSED])
def test_value_that_would_not_come_back_equal_is_refused_with_the_annotation_to_add(annotation: object, value: object, remedy: str) -> None:
    async def make() -> object:
        return value

    @hf.agent
    async def agent() -> int:
        await hf.step(make, returns=annotation)()
        return 0

    store = MemoryStore()
    with pytest.raises(hf.NotKept) as refused:
        play(store, agent)
    assert f"`-> {remedy}`" in str(refused.value)
    assert status(store) == "failed"


def test_refused_value_is_refused_on_replay_too_and_fixed_by_the_annotation() -> None:
    annotations: list[object] = [Any]
    made: list[int] = []

    async def make() -> object:
        made.append(1)
        return {1, 2}

    @hf.agent
    async def agent() -> list[int]:
        made_now: Any = await hf.step(make, returns=annotations[-1])()
        return [int(item) for item in sorted(made_now)]

    store = MemoryStore()
    for _ in range(2):
        with pytest.raises(hf.NotKept, match=r"set\[int\]"):
            play(store, agent)
    annotations.append(set[int])
    assert play(store, agent) == [1, 2]
    assert len(made) == 3


def test_agents_own_result_is_kept_by_its_annotation() -> None:
    @hf.agent
    async def agent(text: str) -> Page[Money]:
        return Page[Money](items=[Money(amount=Decimal(len(text)))])

    store = MemoryStore()
    first, second = play(store, agent, "ab"), play(store, agent, "ab")
    assert first == second == Page[Money](items=[Money(amount=Decimal(2))])


def test_what_a_step_returns_is_a_copy_so_that_live_cannot_differ_from_replay() -> None:
    shared = {"n": [1]}

    @hf.step
    async def give() -> dict[str, list[int]]:
        return shared

    @hf.agent
    async def agent() -> bool:
        got = await give()
        got["n"].append(2)
        return got is shared

    assert play(MemoryStore(), agent) is False
    assert shared == {"n": [1]}


def test_runs_in_threads_do_not_see_each_other() -> None:
    store = MemoryStore()
    seen: dict[str, str] = {}

    @hfs.step
    def who() -> str:
        return hfs.current().id

    @hfs.agent
    def agent() -> str:
        return who()

    with hf.Holdfast(store) as app:
        threads = [threading.Thread(target=lambda i=i: seen.update({f"r{i}": app.run(agent, run_id=f"r{i}")})) for i in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == {f"r{i}": f"r{i}" for i in range(5)}


@hf.effect(in_doubt="ask", raises=ValueError)
async def send_mail(to: str) -> str:
    return f"sent to {to}"


async def plain_mail(to: str) -> str:
    return f"sent to {to}"


COPIES = [lambda: hf.effect(send_mail, call_id="c1"), lambda: hf.effect(plain_mail, in_doubt="ask", call_id="c1")]


@pytest.mark.parametrize("copied", COPIES)
def test_hf_effect_of_a_function_makes_an_effect_with_these_options(copied: Callable[[], Callable[..., Any]]) -> None:
    @hf.agent
    async def mailing() -> str:
        return str(await copied()("ann"))

    rig = Rig()
    rig.crash(inside=copied().spec.name)  # type: ignore[attr-defined]
    with pytest.raises(hf.RunWaiting, match=r"at step \S*c1 happen"):
        rig.run(mailing, run_id="m")
    with rig.app() as app:
        assert [(item.kind, "c1" in item.step_id) for item in app.inbox()] == [("doubt", True)]
    rig.answers({"*": hf.Landed("sent once")})
    assert rig.result("m") == "sent once"


def test_a_copy_of_an_effect_keeps_what_it_was_not_told() -> None:
    copy: Any = hf.effect(send_mail, call_id="c1")
    changed: Any = hf.effect(send_mail, in_doubt="fail")
    original: Any = send_mail
    assert (copy.spec.raises, copy.spec.in_doubt) == ((ValueError,), original.spec.in_doubt)
    assert (changed.spec.call_id, changed.spec.in_doubt) == (None, Fail())
    assert original.spec.call_id is None


class Post:
    def __init__(self) -> None:
        self.sent: list[str] = []

    @hf.effect(in_doubt="ask")
    async def send(self, to: str) -> str:
        self.sent.append(to)
        return hf.key()


@pytest.mark.parametrize("copying", [hf.effect, hf.step])
def test_a_method_that_is_an_effect_is_copied_with_its_object(copying: Any) -> None:
    post = Post()

    @hf.agent
    async def mailing() -> list[str]:
        return [await copying(post.send, call_id=call_id)("ann") for call_id in ("c1", "c2")]

    assert len(set(play(MemoryStore(), mailing))) == 2
    assert post.sent == ["ann", "ann"]
