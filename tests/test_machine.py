"""Whatever is done to runs in whatever order, and wherever processes die: a simple model knows what must come of it.

Hypothesis draws the plans, the deaths and the orders; on failure it prints the steps that led there and the seed that draws them again.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from agents_for_tests import planner
from agents_for_tests.planner import Death, Killed, Place, Process, planned
from crashing import records
from holdfast import _records as rec
from holdfast._replay import Execute, History
from holdfast.errors import HoldfastError, Refusal, RunWaiting, StoreError

WORDS = ("step", "effect", "ask", "sleep", "receive")
MOST_LIVES = 60
AT_A_WRITE = st.builds(Death, write=st.integers(1, 9), written=st.booleans())
IN_A_BODY = st.builds(Death, body=st.tuples(st.sampled_from(["before", "after"]), st.sampled_from(["step", "effect"])))
DEATHS = st.one_of(st.just(Death()), AT_A_WRITE, IN_A_BODY)


@dataclass
class Model:
    """What must come of one run: what each act gives, as far as it is known."""

    acts: list[str]
    answers: dict[str, set[str]] = field(default_factory=dict)
    messages: dict[str, list[str]] = field(default_factory=dict)
    result: list[Any] | None = None

    def misfit(self, result: list[Any]) -> str:
        """What is wrong with a result, or nothing."""
        for act, got in zip(self.acts, result, strict=True):
            word, what = act.split(":")
            due: dict[str, set[Any]] = {"step": {f"saw {what}"}, "effect": {f"paid {what}"}, "sleep": {None}}
            due |= {"ask": set(self.answers.get(what, ())), "receive": set(self.messages.get(what, [])[:1])}
            if got not in due[word]:
                return f"{act} gave {got!r}"
        return ""


class Machine(RuleBasedStateMachine):
    """Runs, what people do with them, and processes that die."""

    on_disk = False

    def __init__(self) -> None:
        super().__init__()
        planner.world = planner.World()
        self.folder = tempfile.TemporaryDirectory()
        self.place = Place(Path(self.folder.name) / "runs.db" if self.on_disk else None)
        self.models: dict[str, Model] = {}
        self.drawn = 0

    def teardown(self) -> None:
        try:
            for run_id in () if planner.world.broken else self.models:
                self._bring_to_its_end(run_id)
        finally:
            self.folder.cleanup()

    # what can happen

    @initialize()
    def nothing(self) -> None:
        """Begin with an empty store."""

    @rule(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5), death=DEATHS)
    def start(self, words: list[str], death: Death) -> None:
        acts = [f"{word}:{self._new()}" for word in words]
        run_id = f"run-{self._new()}"
        self.models[run_id] = Model(acts)
        self._play(run_id, death)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), death=DEATHS)
    def resume(self, data: st.DataObject, death: Death) -> None:
        self._play(self._some_run(data), death)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), death=DEATHS)
    def answer(self, data: st.DataObject, death: Death) -> None:
        run_id = self._some_run(data)
        for ask_id, what in self._open_asks(run_id):
            self._answer(run_id, ask_id, what, death)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def answer_again(self, data: st.DataObject) -> None:
        """The second answer is an error, and the first stays."""
        run_id = self._some_run(data)
        for record in [record for record in self._records(run_id) if isinstance(record, rec.AskAnswered)]:
            with Process(self.place) as app, pytest.raises(Refusal):
                app.answer(run_id, record.step_id, "too late")

    @precondition(lambda self: self.models)
    @rule(data=st.data(), death=DEATHS)
    def send(self, data: st.DataObject, death: Death) -> None:
        run_id = self._some_run(data)
        names = [act.split(":")[1] for act in self.models[run_id].acts if act.startswith("receive")]
        for name in names[:1]:
            self._send(run_id, name, death)

    @rule(hours=st.integers(0, 3))
    def advance(self, hours: int) -> None:
        self.place.clock.sleep(hours * 3600.0)

    # what must hold whatever happens

    @invariant()
    def nothing_is_done_twice(self) -> None:
        assert planner.world.broken == []
        assert [what for what, times in planner.world.charged.items() if times > 1] == []

    @invariant()
    def everything_is_whole(self) -> None:
        with Process(self.place) as app:
            assert [verdict for verdict in app.check() if not verdict.good] == []

    # how it is done

    def _new(self) -> str:
        self.drawn += 1
        return f"n{self.drawn}"

    def _some_run(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.models)))

    def _records(self, run_id: str) -> list[rec.Record]:
        store = self.place.store()
        try:
            return records(store, run_id) if store.head(run_id) else []
        finally:
            store.close()

    def _play(self, run_id: str, death: Death) -> None:
        """Have a process execute the run until it ends, waits or dies; what it gives must be what the model says."""
        model = self.models[run_id]
        with suppress(Killed, RunWaiting, StoreError), Process(self.place, death) as app:
            result = app.run(planned, model.acts, run_id=run_id, wait=False)
            assert model.misfit(result) == ""
            assert model.result in (None, result)
            model.result = result
        self._note_what_is_kept(run_id)

    def _note_what_is_kept(self, run_id: str) -> None:
        acts = self.models[run_id].acts
        for record in self._records(run_id):
            if isinstance(record, rec.StepDone) and record.name == "look":
                planner.world.kept.add(acts[int(record.step_id) - 1].split(":")[1])

    def _open_asks(self, run_id: str) -> list[tuple[str, str]]:
        asked = {record.step_id: record.question for record in self._records(run_id) if isinstance(record, rec.AskOpened)}
        answered = {record.step_id for record in self._records(run_id) if isinstance(record, rec.AskAnswered)}
        return [(ask_id, question.removesuffix("?")) for ask_id, question in asked.items() if ask_id not in answered]

    def _answer(self, run_id: str, ask_id: str, what: str, death: Death) -> None:
        said = f"answer {self._new()}"
        candidates = self.models[run_id].answers.setdefault(what, set())
        candidates.add(said)  # where the process dies, nobody knows whether it was taken
        with suppress(StoreError), Process(self.place, death) as app:
            try:
                app.answer(run_id, ask_id, said)
                candidates.intersection_update({said})
            except Refusal:  # one is under way already
                candidates.remove(said)
                assert candidates

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
        self.models[run_id].messages.setdefault(name, []).append(value)

    def _bring_to_its_end(self, run_id: str) -> None:
        model = self.models[run_id]
        for _ in range(MOST_LIVES):
            self._play(run_id, Death())
            self.nothing_is_done_twice()
            if model.result is not None:
                return
            for ask_id, what in self._open_asks(run_id):
                self._answer(run_id, ask_id, what, Death())
            for act in model.acts:
                word, name = act.split(":")
                if word == "receive" and name not in model.messages:
                    self._send(run_id, name, Death())
            self.advance(2)
        raise AssertionError(f"{run_id} does not come to its end: {self._records(run_id)[-1]}")


class OnDisk(Machine):
    """The same in a file."""

    on_disk = True


def played(machine: type[Machine], examples: int, **more: Any) -> None:
    how = settings(
        max_examples=examples, stateful_step_count=15, deadline=None, print_blob=True, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], **more,
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=how)


@pytest.mark.parametrize(("machine", "examples"), [(Machine, 60), (OnDisk, 20)])
def test_no_order_of_events_breaks_a_promise(machine: type[Machine], examples: int) -> None:
    played(machine, examples)


def test_the_machine_finds_out_an_engine_that_repeats_effects_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast._replay._decide_unfinished", lambda history: Execute(history.attempts + 1))
    with pytest.raises(AssertionError, match="charged again"):
        played(Machine, 200, phases=[Phase.generate], report_multiple_bugs=False)


def test_the_machine_finds_out_an_engine_that_forgets_results(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = History.fold

    def forgetful(self: History, record: rec.Record, **at: int) -> None:
        if not (isinstance(record, rec.StepDone) and record.name == "look"):
            fold(self, record, **at)

    monkeypatch.setattr(History, "fold", forgetful)
    with pytest.raises(AssertionError, match="ran again"):
        played(Machine, 200, phases=[Phase.generate], report_multiple_bugs=False)
