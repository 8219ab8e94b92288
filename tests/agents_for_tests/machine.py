"""The state machine: runs, what people do with them, and processes that die; what must come of it is in `expecting.py`.

Going back before a child that has begun is left out: what becomes of that child is not said yet. So are editing and forking a child itself,
and correcting a message.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import holdfast as hf
from agents_for_tests import planner
from agents_for_tests.expecting import Model
from agents_for_tests.planner import Death, Killed, Place, Process, planned
from crashing import records
from holdfast.errors import HoldfastError, Refusal, RunCancelled, RunPruned, RunWaiting, StoreError
from holdfast.records import kinds as rec
from holdfast.store import Head, Query
from places import in_memory
from sweeping import Home

WORDS = st.sampled_from(["step", "effect", "step", "effect", "ask", "sleep", "receive"])
GRANDCHILD = st.lists(WORDS, min_size=1, max_size=2)
CHILD = st.lists(st.one_of(WORDS, WORDS, WORDS, GRANDCHILD), min_size=1, max_size=3)
FLAT = st.lists(WORDS, min_size=3, max_size=6)
PLAN = st.one_of(FLAT, FLAT, st.lists(st.one_of(WORDS, WORDS, WORDS, CHILD), min_size=1, max_size=5))
POLICIES = st.sampled_from(["ask", "reuse", "repeat"])
MOST_RUNS = 4
MOST_LIVES = 60
AT_A_WRITE = st.builds(Death, st.integers(1, 9), st.booleans(), st.none())
BODIES = st.tuples(st.sampled_from(["before", "after"]), st.sampled_from(["step", "effect"]))
IN_A_BODY = st.builds(Death, st.just(0), st.just(False), BODIES)
DEATHS = st.one_of(st.just(Death()), st.just(Death()), AT_A_WRITE, IN_A_BODY)
AT_ITS_WRITE = st.one_of(st.just(Death()), st.builds(Death, st.integers(1, 2), st.booleans(), st.none()))
"""Where those die who write little."""

begun = precondition(lambda self: self.begun())


class Machine(RuleBasedStateMachine):
    """Runs, what people do with them, and processes that die."""

    def __init__(self) -> None:
        super().__init__()
        planner.world = planner.World()
        self.folder = tempfile.TemporaryDirectory(dir=in_memory())
        self.place = Place(self.url_in(Path(self.folder.name)))
        self.models: dict[str, Model] = {}
        self.children: dict[str, Model] = {}
        self.drawn = 0

    def url_in(self, folder: Path) -> str:
        """The store to play in; none is one in memory."""
        return ""

    def teardown(self) -> None:
        try:
            for run_id in () if planner.world.broken else self.models:
                self._bring_to_its_end(run_id)
        finally:
            self.place.close()
            self.folder.cleanup()

    # what can happen

    @initialize()
    def nothing(self) -> None:
        """Begin with an empty store."""

    @precondition(lambda self: len(self.models) < MOST_RUNS)
    @rule(words=PLAN, death=DEATHS)
    def start(self, words: list[Any], death: Death) -> None:
        run_id = f"run-{self._new()}"
        self.models[run_id] = Model(self._named(words))
        self._play(run_id, death)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), death=DEATHS)
    def resume(self, data: st.DataObject, death: Death) -> None:
        self._play(data.draw(st.sampled_from(sorted(self.models))), death)

    @begun
    @rule(data=st.data(), death=DEATHS)
    def go_on(self, data: st.DataObject, death: Death) -> None:
        """Everybody does what the run waits for, and it is taken up again."""
        run_id = self._some_run(data)
        self._bring_on(run_id)
        self._play(run_id, death)

    @begun
    @rule(data=st.data(), death=DEATHS)
    def answer(self, data: st.DataObject, death: Death) -> None:
        for run_id, model in self._family(self._some_run(data)):
            self._answer_all(run_id, model, death)

    @begun
    @rule(data=st.data())
    def answer_again(self, data: st.DataObject) -> None:
        """The second answer is an error, and the first stays."""
        for run_id, model in self._family(self._some_run(data)):
            for number in model.told.answered:
                with Process(self.place) as app, pytest.raises(Refusal):
                    app.answer(run_id, f"{number}", "too late")

    @begun
    @rule(data=st.data(), death=AT_ITS_WRITE)
    def send(self, data: st.DataObject, death: Death) -> None:
        pairs = [(run_id, name) for run_id, model in self._family(self._some_run(data)) for _, name in model.numbered("receive")]
        for run_id, name in pairs[:1]:
            self._send(run_id, name, death)

    @begun
    @rule(hours=st.integers(0, 3))
    def advance(self, hours: int) -> None:
        self.place.clock.sleep(hours * 3600.0)

    @precondition(lambda self: self.correctable())
    @rule(data=st.data(), policy=POLICIES, death=AT_ITS_WRITE)
    def edit(self, data: st.DataObject, policy: Any, death: Death) -> None:
        run_id = data.draw(st.sampled_from(self.correctable()))
        model = self.models[run_id]
        number = data.draw(st.sampled_from(model.correctable(model.points())))
        refused = self._head(run_id).status in ("done", "cancelled") or any(each > number for each in model.told.begun)
        value = f"edited {self._new()}"

        def edit(app: hf.Holdfast) -> str:
            with suppress(Refusal):
                return app.edit(run_id, number, value, effects=policy, by="test")
            self.place.clock.sleep(planner.LEASE_S)  # an owner is taken for alive until it has been silent for so long
            return app.edit(run_id, number, value, effects=policy, by="test")

        if self._until_known(death, edit, refused=refused):
            kept = {what for each, what in model.numbered("step") if each <= number}
            planner.world.kept = {pair for pair in planner.world.kept if pair[0] != run_id or pair[1] in kept}
            model.go_back(number, policy)
            model.correct(number, value)
        self._note(run_id)

    @precondition(lambda self: self.begun(Model.points))
    @rule(data=st.data(), policy=POLICIES, death=AT_ITS_WRITE)
    def fork(self, data: st.DataObject, policy: Any, death: Death) -> None:
        source = data.draw(st.sampled_from(self.begun(Model.points)))
        model = self.models[source]
        at = data.draw(st.sampled_from([*([] if model.told.children else [0]), *model.points()]))
        number = data.draw(st.sampled_from([0, *model.correctable(range(at + 1))]))
        value, run_id = f"edited {self._new()}", f"fork-{self._new()}"
        given: dict[str | int, object] = {number: value} if number else {}
        self._until_known(death, lambda app: app.fork(source, at=at, edits=given, effects=policy, new_id=run_id, by="test"))
        self.models[run_id] = model.branch(at, policy)
        if number:
            self.models[run_id].correct(number, value)
        self._note(run_id)

    @begun
    @rule(keep=st.sampled_from([0, 1, None]), death=AT_ITS_WRITE)
    def prune(self, keep: int | None, death: Death) -> None:
        before, policy = self._heads(), hf.Retention(keep_last=keep, details=0)
        self.place.clock.sleep(1)
        self._until_known(death, lambda app: app.prune(policy, dry_run=False, by="test"))
        after, everybody = self._heads(), self.models | self.children
        for run_id in before.keys() - after.keys():
            everybody[run_id].over = "pruned"
        for run_id in before.keys() - after.keys():
            assert before[run_id].status in ("done", "cancelled"), f"{run_id} was removed though it is {before[run_id].status}"
        assert keep == 0 or after
        if keep == 0:
            needed = {child for run_id in after for child in everybody[run_id].told.children.values()}
            assert [run_id for run_id, head in after.items() if head.status == "done" and run_id not in needed] == []

    @begun
    @rule(data=st.data(), death=AT_ITS_WRITE)
    def cancel(self, data: st.DataObject, death: Death) -> None:
        run_id = self._some_run(data)
        over = self._head(run_id).status in ("done", "cancelled")
        self._until_known(death, lambda app: app.cancel(run_id, by="test"), refused=over or None)
        if not over:
            self.models[run_id].over = "cancelled"  # at the latest when it is taken up again

    # what must hold whatever happens

    @invariant()
    def nothing_is_done_twice(self) -> None:
        assert planner.world.broken == []
        for (run_id, what), times in planner.world.charged.items():
            assert times <= (self.models | self.children)[run_id].allowed(what), f"{run_id} charged {what} too often"

    @invariant()
    def everything_is_whole(self) -> None:
        assert [verdict for verdict in self.place.observer.check() if not verdict.good] == []

    # how it is done

    def _new(self) -> str:
        self.drawn += 1
        return f"n{self.drawn}"

    def _named(self, words: list[Any]) -> list[Any]:
        return [self._named(word) if isinstance(word, list) else f"{word}:{self._new()}" for word in words]

    def begun(self, fit: Callable[[Model], object] = lambda _: True) -> list[str]:
        """The runs that are in the store and of which this is true."""
        heads = self._heads()
        return [run_id for run_id, model in self.models.items() if run_id in heads and fit(model)]

    def correctable(self) -> list[str]:
        """The runs that have a result to edit; those that have ended are there to see that it is refused, but not often."""
        found = self.begun(lambda model: model.correctable(model.points()))
        going_on = [run_id for run_id in found if self._head(run_id).status not in ("done", "cancelled")]
        return [*going_on, *found[:1]]

    def _some_run(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(self.begun()))

    def _head(self, run_id: str) -> Head:
        return self._heads()[run_id]

    def _heads(self) -> dict[str, Head]:
        return {head.run_id: head for head in self.place.observer.store.heads(Query(limit=10_000))}

    def _records(self, run_id: str) -> list[rec.Record]:
        store = self.place.observer.store
        return records(store, run_id) if store.head(run_id) else []

    def _family(self, run_id: str) -> Iterator[tuple[str, Model]]:
        """The run and the children on its path, those that are still in the store, the run first."""
        model = (self.models | self.children)[run_id]
        if model.over != "pruned":
            yield run_id, model
            for child in model.told.children.values():
                yield from self._family(child)

    def _note(self, run_id: str) -> None:
        """Take notice of what is recorded of a run and its children."""
        model = (self.models | self.children)[run_id]
        if model.over == "pruned":
            return
        model.read(self._records(run_id))
        planner.world.kept |= {(run_id, what) for number, what in model.numbered("step") if number in model.told.done}
        for number, child in model.told.children.items():
            model.children[number] = self.children.setdefault(child, Model(model.acts[number - 1]))
            self._note(child)

    def _play(self, run_id: str, death: Death) -> None:
        """Have a process execute the run until it ends, waits or dies; what it gives must be what the model says."""
        model, result = self.models[run_id], None
        over = {"pruned": RunPruned, "cancelled": RunCancelled}.get(model.over)
        with suppress(Killed, RunWaiting, StoreError, *([over] if over else [])), Process(self.place, death) as app:
            result = app.run(planned, model.acts, run_id=run_id, wait=False)
            assert not over
        self._note(run_id)
        if result is not None:
            assert model.misfit(result) == ""
            assert model.result in (None, result)
            model.result = result

    def _until_known(self, death: Death, act: Callable[[hf.Holdfast], object], *, refused: bool | None = False) -> bool:
        """Do it, dying, and once more as whoever does not know what became of it would; whether it was done, and not refused.

        It must be refused, or not, as is said; None where it may be, since it was done by the one who died.
        """
        for one in (death, Death()):
            try:
                with Process(self.place, one) as app:
                    act(app)
            except StoreError:
                continue
            except Refusal:
                if refused is False:
                    raise
                return False
            break
        assert not refused
        return True

    def _answer_all(self, run_id: str, model: Model, death: Death) -> None:
        for number, what in model.told.asked.items():
            if number not in model.told.answered:
                self._answer(run_id, model, number, what, death)
        self._resolve_all(run_id, model, death)
        self._note(run_id)

    def _answer(self, run_id: str, model: Model, number: int, what: str, death: Death) -> None:
        said = f"answer {self._new()}"
        candidates = model.answers.setdefault(what, set())
        candidates.add(said)  # where the process dies, nobody knows whether it was taken
        with suppress(StoreError), Process(self.place, death) as app:
            try:
                app.answer(run_id, f"{number}", said)
                candidates.intersection_update({said})
            except Refusal:  # one is under way already, or it is cancelled
                candidates.remove(said)
                assert candidates or self._head(run_id).status == "cancelled"

    def _resolve_all(self, run_id: str, model: Model, death: Death) -> None:
        """Say of each call that was made before that it stands, or that it is to be made."""
        steps = [item.step_id for item in self.place.observer.inbox() if item.kind == "doubt" and item.run_id == run_id]
        for step_id in steps:
            what = model.acts[int(step_id) - 1].split(":")[1]
            if int(step_id) in model.told.begun:  # it finds out itself
                continue
            assert model.may_ask_about(what)
            landed = self.drawn % 2 == 0
            verdict: Any = {"landed": f"paid {what}"} if landed else {"not_landed": True}
            with suppress(Refusal):  # the one who died had said so
                self._until_known(death, lambda app, step_id=step_id, verdict=verdict: app.resolve(run_id, step_id, **verdict))  # type: ignore[misc]
            model.due[what] = 0 if landed else 1

    def _send(self, run_id: str, name: str, death: Death) -> None:
        """Send until it is known to have arrived, under one key, as whoever dies meanwhile would."""
        value = self._new()
        for one in (death, Death()):
            try:
                with Process(self.place, one) as app:
                    app.send(run_id, name, value, key=value)
            except StoreError:
                continue
            except HoldfastError:
                return  # it has ended, or never began
            break
        (self.models | self.children)[run_id].messages.setdefault(name, []).append(value)

    def _bring_to_its_end(self, run_id: str) -> None:
        model = self.models[run_id]
        for _ in range(MOST_LIVES):
            self._play(run_id, Death())
            self.nothing_is_done_twice()
            if model.over == "cancelled":
                heads = self._heads()
                left = [each for each, _ in self._family(run_id) if each in heads and heads[each].status not in ("cancelled", "done")]
                assert run_id not in left
                assert all(heads[each].owner for each in left)  # a letter tells it, or whoever takes it up
            if model.result is not None or model.over:
                return self._compare_charges(run_id)
            self._bring_on(run_id)
        raise AssertionError(f"{run_id} does not come to its end: {self._records(run_id)[-1]}")

    def _bring_on(self, run_id: str) -> None:
        for each, one in list(self._family(run_id)):
            self._answer_all(each, one, Death())
            for _, name in one.numbered("receive"):
                if name not in one.messages:
                    self._send(each, name, Death())
        self.advance(2)

    def _compare_charges(self, run_id: str) -> None:
        """In a run that is done, effects were charged as often as they should be, not only not more often."""
        heads = self._heads()
        for each, model in self._family(run_id):
            if each in heads and heads[each].status == "done":
                due = {what: model.allowed(what) for _, what in model.numbered("effect")}
                assert {what: planner.world.charged[each, what] for what in due} == due


def machine_on(home: Home) -> type[Machine]:
    """The same in another store."""
    return type("Elsewhere", (Machine,), {"url_in": lambda machine, folder: home(folder)})
