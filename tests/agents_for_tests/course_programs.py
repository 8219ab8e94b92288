"""Programs for the usual course of a step: what goes its usual way, and all that can befall it on the way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import holdfast as hf
import holdfast.sync as hfs
from agents_for_tests.course_stage import ALWAYS_BUSY, Plan, Stage
from holdfast.running import lease

NOW = hf.Retry(attempts=3, base=0, on=Exception)


class Odd(Exception):
    """An error that replay does not know by itself."""


class Unkeepable:
    """A result that nothing can keep."""

    def __repr__(self) -> str:
        return "<unkeepable>"


def look(n: int) -> int:
    return n


def told_place(n: int) -> list[object]:
    here = hf.current()
    return [here.id, here.attempt, here.generation, here.replaying, here.spent.steps, here.random.random(), str(here.uuid())]


def told_key(n: int) -> list[object]:
    return [hf.key(), hf.current().random.random(), str(hf.current().uuid())]


def drawn() -> float:
    return hf.current().random.random()


def words(text: str) -> list[str]:
    return text.split()


def raises(error: BaseException, times: int = 1_000_000) -> Callable[[int], int]:
    left = [times]

    def trouble(n: int) -> int:
        if left[0]:
            left[0] -= 1
            raise error
        return n

    return trouble


def noted_key(stage: Stage, n: int) -> str:
    stage.seen.append(("key of", n))
    return f"order-{n % 2}"


def plain(stage: Stage) -> None:
    step, effect, place, key = stage.step(look), stage.effect(look), stage.step(told_place), stage.effect(told_key)
    keyed = stage.effect(look, key=partial(noted_key, stage), name="keyed")
    large = stage.step(words)
    calls = [partial(step, 1), partial(place, 2), partial(key, 3), partial(effect, 4), partial(keyed, 5), partial(large, "word " * 5000)]
    agent = stage.agent(*calls, partial(keyed, 7), drawn, partial(step, "ä"), stage.dies_once, swallows=True)
    stage.play(agent)
    stage.play(agent)


def raising(stage: Stage) -> None:
    odd = Odd("odd", 7)
    odd.add_note("a note")
    made: list[Any] = []
    for kind, more in ((stage.step, {}), (stage.effect, {"errors": {Exception: "answer"}})):
        errors = (ValueError("bad"), odd, StopIteration(3), hf.Misuse("ours"), ExceptionGroup("g", [odd]))
        made += [*(kind(raises(error), **more) for error in errors), kind(raises(odd), raises=(Odd,), **more)]
    calls = [partial(fn, 1) for fn in made]
    stage.play(stage.agent(*calls, stage.dies_once, swallows=True))
    stage.play(stage.agent(*calls, stage.dies_once, swallows=True))


def retried(stage: Stage) -> None:
    error: dict[str, Any] = {"errors": {ConnectionError: "not_landed"}}
    made: list[Any] = [stage.step(raises(Odd("x"), 2), retry=NOW), stage.step(raises(Odd("y")), retry=NOW, raises=(Odd,))]
    made += [stage.effect(raises(ConnectionError("x"), times), retry=NOW, **error) for times in (2, 3)]
    made += [stage.effect(raises(hf.NotLanded(), 1), retry=NOW), stage.effect(raises(hf.NotLanded()))]
    agent = stage.agent(*(partial(fn, 1) for fn in made), stage.dies_once, swallows=True)
    stage.play(agent)
    stage.play(agent)


def broken_off(stage: Stage) -> None:
    for error in (SystemExit(3), asyncio.CancelledError("within"), BaseException("base")):
        for kind, resend in ((stage.step, {}), (stage.effect, {"in_doubt": "resend"})):
            stage.another_run()
            calls = [partial(stage.step(look), 1), partial(kind(raises(error, 1), **resend), 2), partial(stage.step(look), 3)]
            stage.play(stage.agent(*calls))
            stage.play(stage.agent(*calls))


def resumed(stage: Stage) -> None:
    step, effect = stage.step(look), stage.effect(look)
    for trouble in (stage.step(raises(Odd("once"), 1)), stage.effect(raises(Odd("once"), 1), errors={Odd: "answer"})):
        stage.another_run()
        calls = [partial(step, 1), partial(effect, 2), partial(trouble, 3), partial(effect, 4), partial(step, 5)]
        stage.play(stage.agent(*calls))
        stage.play(stage.agent(*calls))


def not_kept(stage: Stage) -> None:
    step, effect = stage.step(lambda n: Unkeepable(), name="s"), stage.effect(lambda n: Unkeepable(), name="e")
    never = stage.effect(look, returns=Unkeepable, name="never")
    agent = stage.agent(partial(step, 1), partial(never, 2), partial(effect, 3), stage.dies_once, swallows=True)
    stage.play(agent)
    stage.play(agent)


def giving_nothing(stage: Stage) -> None:
    given: list[int] = [1]
    change = stage.step(lambda numbers: numbers.append(2), name="change")
    changing = stage.effect(lambda numbers: numbers.append(3), name="changing")
    again = stage.step(lambda numbers: [*numbers, numbers.append(4)], name="again")
    stage.play(stage.agent(partial(change, given), partial(change, given), partial(changing, given), partial(again, given), lambda: given))


def spending(stage: Stage) -> None:
    def spend(n: int) -> int:
        hf.usage(input_tokens=10 * n, usd=0.5, model=models[0], asked="m")
        return n

    models = ["one"]
    step, effect, odd = stage.step(spend), stage.effect(spend), stage.step(raises(Odd("once"), 1))
    agent = stage.agent(partial(step, 1), partial(effect, 2), partial(odd, 3), partial(step, 4), partial(effect, 5), on_model_change="ask")
    stage.play(agent)
    models[0] = "two"
    stage.play(agent)
    stage.play(agent)


def saving(stage: Stage) -> None:
    def crawl(n: int) -> list[int]:
        so_far = hf.partial(list[int])
        stage.seen.append(so_far.value)
        so_far.save([*(so_far.value or []), n])
        if len(so_far.value or []) < 2:
            raise Odd("half")
        return so_far.value or []

    step, effect = stage.step(crawl), stage.effect(crawl, errors={Odd: "answer"})
    agent = stage.agent(partial(step, 1), partial(effect, 2))
    for _ in range(3):
        stage.play(agent)


def riding(stage: Stage) -> None:
    notes: dict[str, Any] = {}
    step, effect, odd = stage.step(look), stage.effect(look, key=partial(noted_key, stage)), stage.step(raises(Odd("once"), 1))

    def change() -> object:
        notes.setdefault("of", hf.state({"n": 0}))["n"] += 1
        return notes["of"], hf.now() is None

    agent = stage.agent(change, partial(step, 1), change, partial(effect, 2), partial(odd, 3), change, partial(effect, 4))
    stage.play(agent)
    notes.clear()
    stage.play(agent)


def unkept_state(stage: Stage) -> None:
    step, effect = stage.step(look), stage.effect(look)
    unkept = {"n": Unkeepable()}
    stage.play(stage.agent(partial(step, 1), lambda: hf.state(dict[str, object]()).update(unkept), partial(effect, 2), partial(step, 3)))


def nested(stage: Stage) -> None:
    def calls_step(n: int) -> int:
        return hf.step(look)(n)

    def calls_effect(n: int) -> int:
        return hf.effect(look, in_doubt="ask")(n)

    made = [stage.step(calls_step), stage.step(calls_effect), stage.effect(calls_step), stage.effect(calls_effect)]
    stage.play(stage.agent(*(partial(fn, 1) for fn in made), swallows=True))


def stolen(stage: Stage) -> None:
    """At the intent, in a body and at an outcome somebody else takes the run; the one who had it learns that before it does more."""

    def robbed(n: int) -> int:
        stage.stolen()
        return n

    step, effect = stage.step(look), stage.effect(look, "resend")
    for place in ("step.done 1", "step.started 2", "step.done 2", ""):
        stage.another_run()
        calls = [partial(step, 1), partial(effect, 2), partial(stage.step(look if place else robbed), 3), partial(stage.effect(robbed), 4)]
        stage.plan.before = {place: stage.stolen} if place else {}
        stage.play(stage.agent(*calls, swallows=True))
        stage.play(stage.agent(*calls, swallows=True))


def busy(stage: Stage) -> None:
    step, effect = stage.step(look), stage.effect(look, key=partial(noted_key, stage))
    for place in ("step.done 1", "step.started 2", "step.done 2"):
        for times in (1, 2, ALWAYS_BUSY):
            stage.another_run()
            stage.plan.busy[place] = times
            stage.play(stage.agent(partial(step, 1), partial(effect, 2), partial(step, 3)))


def limited(stage: Stage) -> None:
    step, effect = stage.step(look), stage.effect(look)
    agent = stage.agent(partial(step, 1), partial(effect, 2), partial(step, 3), budget=hf.Budget(steps=2, on_limit="fail"))
    stage.play(agent)
    stage.play(agent)


def milestones(stage: Stage) -> None:
    step, effect, odd = stage.step(look), stage.effect(look), stage.step(raises(Odd("once"), 1))
    before, behind = [partial(step, 1), partial(step, 2)], [partial(step, 3), partial(effect, 4), partial(odd, 5), partial(step, 6)]
    agent = stage.agent(*before, partial(hf.milestone, "here"), *behind, durability="milestone")
    stage.play(agent)
    stage.play(agent)


def undone(stage: Stage) -> None:
    def take_back(result: int, n: int) -> None:
        stage.seen.append(("undo", result, n))

    step, effect, odd = stage.step(look), stage.effect(look, name="stays"), stage.step(raises(Odd("always")))
    back = stage.effect(look, undo=take_back)
    stage.play(stage.agent(partial(back, 1), partial(effect, 2), partial(step, 3), partial(back, 4), partial(odd, 5), on_failure="undo"))


def cleaned_up(stage: Stage) -> None:
    step = stage.step(look)
    stage.play(stage.agent(lambda: hf.cleanup(stage.seen.append, "cleaned"), partial(step, 1)))


def in_doubt(stage: Stage) -> None:
    probes = [hf.verify(lambda n: hf.Landed(10 * n), settle=0), hf.verify(lambda n: hf.NotLanded(), settle=0)]
    probes += [hf.verify(lambda n: hf.Unknown("no idea"), settle=0)]
    for action in ("resend", hf.resend(within=3600), *probes, hf.reset(lambda n: None, settle=0), "fail", "ask"):
        stage.another_run()
        effect, step = stage.effect(raises(Odd("who knows"), 1), action, retry=NOW), stage.step(look)
        agent = stage.agent(partial(step, 1), partial(effect, 2), partial(step, 3), swallows=True)
        stage.play(agent)
        if action != "ask":
            continue
        stage.play(agent, say=lambda app: stage.seen.append(app.resolve(stage.run_id, 2, landed=5, by="me")))


def told_to_stop(stage: Stage) -> None:
    """By a letter that comes in a body, and while something is written."""

    def told(how: str) -> str:
        if left:
            left.clear()
            ways[how]()
            stage.hear()
        return how

    ways: dict[str, Callable[[], object]] = {
        "pause": lambda: stage.app.pause(stage.run_id, by="me"), "pause now": lambda: stage.app.pause(stage.run_id, now=True, by="me"),
        "undo": lambda: stage.app.cancel(stage.run_id, undo=True, by="me"), "cancel": lambda: stage.app.cancel(stage.run_id, by="me"),
    }  # fmt: skip
    for how, kind, place in itertools.product(ways, (stage.step, stage.effect), ("", "step.started 1", "step.done 1")):
        stage.another_run()
        stage.plan.before = {place: partial(told, how)} if place else {}
        left, fn, then = ["once"], kind(look if place else told), stage.step(look)
        agent = stage.agent(partial(fn, 1 if place else how), partial(then, 1))
        stage.play(agent)
        stage.play(agent, say=stage.goes_on)


def anew(stage: Stage) -> None:
    """Behind `continue_as` the numbers begin anew, and so does the journal."""
    step, effect = stage.step(look), stage.effect(look)

    def blocking(n: int) -> int:
        stage.seen.append((step(n), effect(n), hf.current().generation))
        return n or hf.continue_as(n + 1)

    async def awaiting(n: int) -> int:
        given = [step(n), effect(n)] if stage.mode != "async" else [await step(n), await effect(n)]
        stage.seen.append((given, hf.current().generation))
        return n or hf.continue_as(n + 1)

    stage.play(hf.agent(name="anew")(blocking if stage.mode == "def" else awaiting), 0)


def at_once(stage: Stage) -> None:
    """Branches, races and time-outs around steps, and steps that go their usual way between them."""
    step, effect = stage.step(look), stage.effect(look)

    async def awaiting() -> list[object]:
        begun = step(1)
        told: list[object] = [await asyncio.create_task(begun), *await asyncio.gather(step(2), effect(3)), await step(4)]
        told += [*await hf.gather(step(5), effect(6)), await effect(7), *await hf.map(step, [8, 9]), await effect(10)]
        told.append(await hf.first(step(11), step(12)))
        async with hf.timeout("1h"):
            told += [await step(13), await effect(14)]
        return [*told, await effect(15)]

    def blocking() -> list[object]:
        told: list[object] = [step(1), *hfs.gather(partial(step, 2), partial(step, 3)), effect(4)]
        told += hfs.map(step, [5], limit=1)
        with hfs.timeout("1h"):
            told += [step(6), effect(7)]
        return [*told, effect(8)]

    if stage.mode != "def in async":
        stage.play(hf.agent(name="at once")(blocking if stage.mode == "def" else awaiting))


def interrupted(stage: Stage) -> None:
    """The task is cancelled by nothing recorded: in a body, and while something is written."""

    def cancelled(n: int) -> int:
        if stage.task is not None:
            ours = threading.current_thread() is stage.thread
            stage.task.cancel() if ours else stage.task.get_loop().call_soon_threadsafe(stage.task.cancel)
        return n

    def giving_way() -> Any:
        return asyncio.sleep(0) if stage.mode != "def" else None

    for kind in (stage.step, stage.effect):
        for place in ("", "step.done 1", "step.started 1"):
            for times in (0, ALWAYS_BUSY):
                stage.another_run()
                stage.plan.before, stage.plan.busy = {place: lambda: cancelled(0)} if place else {}, {place: times}
                fn, then = kind(look if place else cancelled), stage.step(look)
                agent = stage.agent(partial(fn, 1), giving_way, partial(then, 2))
                stage.play(agent)


def timed_out(stage: Stage) -> None:
    """What cancels a body is recorded, or is the step's own time."""

    async def endless(n: int) -> int:
        await asyncio.Event().wait()
        return n

    async def awaiting(kind: str) -> int:
        with contextlib.suppress(TimeoutError, hf.InDoubt):
            async with hf.timeout("10ms"):
                await made[kind](1)
        return int(await step(2))

    made = {"step": hf.step(endless), "effect": hf.effect(endless, in_doubt="resend")}
    made |= {"own step": hf.step(endless, timeout="1ms"), "own effect": hf.effect(endless, in_doubt="fail", timeout="1ms")}
    step = stage.step(look)
    for kind in made if stage.mode == "async" else ():
        stage.another_run()
        stage.play(hf.agent(name="timed out")(awaiting), kind)


def shown(stage: Stage) -> None:
    """A body takes so long that it is shown while it is under way."""

    def long(n: int) -> int:
        run, usual_s = stage.played[-1], lease.LONG_STEP_S
        lease.LONG_STEP_S = -1.0
        stage.app.engine.keeper._show_long_steps()
        lease.LONG_STEP_S = usual_s
        run.committer.flush(run.journal)
        return n

    step, effect = stage.step(long), stage.effect(long)
    agent = stage.agent(partial(step, 1), partial(effect, 2), stage.dies_once)
    stage.play(agent)
    stage.play(agent)


def slow(stage: Stage) -> None:
    """An intent takes so long that the run may be somebody else's: it is written once more before the body begins."""
    stage.plan.before["step.started 2"] = lambda: setattr(stage.clock, "ahead_s", 10.0)
    step, effect = stage.step(look), stage.effect(look)
    agent = stage.agent(partial(step, 1), partial(effect, 2), partial(effect, 3))
    stage.play(agent)


def closed(stage: Stage) -> None:
    """The code gives a step up in the middle of its body, which is none of the ways to end it."""

    async def half(kind: Any) -> None:
        begun = kind(1)
        begun.send(None)
        begun.close()

    step, made = stage.step(look), [stage.step(look), stage.effect(look, "resend")] if stage.mode == "async" else []
    for kind in made:
        stage.another_run()
        agent = stage.agent(partial(half, kind), partial(step, 2), stage.dies_once)
        stage.play(agent)
        stage.play(agent)


def dying(stage: Stage) -> None:
    """The store is gone at each append, which may have gone in; and then somebody else takes the run up."""
    step, effect, asking = stage.step(look), stage.effect(look, "resend"), stage.effect(told_key)
    agent = stage.agent(partial(step, 1), partial(effect, 2), partial(step, 3), partial(asking, 4))
    for number, written in itertools.product(range(2, 9), (False, True)):
        stage.another_run()
        stage.plan.fails_at, stage.plan.written = number, written
        stage.play(agent)
        stage.plan = Plan()
        stage.play(agent)


EVERYWHERE = (
    plain, raising, retried, broken_off, resumed, not_kept, giving_nothing, spending, saving, riding, unkept_state, nested, stolen, busy,
    limited, milestones, undone, cleaned_up, in_doubt, told_to_stop, anew, at_once, interrupted, timed_out,
    shown, slow, closed, dying,
)  # fmt: skip
IN_A_FILE = (plain, retried, spending, saving, riding, stolen, busy, milestones, in_doubt, anew, at_once, dying)
