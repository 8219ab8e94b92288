"""What must come of a run that carries out a plan: the simple model that the state machine holds the engine against.

A plan is carried out act by act, so that going back to an act is to give up all acts behind it. The model is told what people did to
the run, and reads from the records only which acts have an outcome; one that it has read must stay until somebody goes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.records import kinds as rec


class Told(NamedTuple):
    """What records say of the path that a run is on; acts are known by their numbers, the first being 1."""

    done: set[int]
    begun: set[int]
    asked: dict[int, str]
    answered: set[int]
    children: dict[int, str]
    taken: set[str]
    settled: set[int]
    """Those of `done` that have no outcome yet: it is known, and recorded when the run is taken up again."""


def told(records: Iterable[rec.Record]) -> Told:
    """Read records as somebody would who knows only that acts follow one another."""
    found = Told(set(), set(), {}, set(), {}, set(), set())
    for record in records:
        number = int(record.step_id) if record.step_id.isdigit() else 0
        match record:
            case rec.StepEdited() if not record.in_fork:
                _go_back(found, number)
            case rec.StepStarted():
                found.begun.add(number)
            case rec.StepDone() | rec.DoubtSettled(verdict="landed"):
                found.done.add(number)
                found.begun.discard(number)
                (found.settled.add if isinstance(record, rec.DoubtSettled) else found.settled.discard)(number)
            case rec.DoubtSettled():
                found.begun.discard(number)
            case rec.AskOpened():
                found.asked[number] = record.question.removesuffix("?")
            case rec.AskAnswered():
                found.answered.add(number)
            case rec.ChildStarted():
                found.children[number] = record.child
            case rec.MessageTaken():
                found.taken.add(record.name)
    return found


def _go_back(found: Told, number: int) -> None:
    for numbers in (found.done, found.begun, found.answered, found.settled):
        numbers -= {each for each in numbers if each > number}
    for by_number in (found.asked, found.children):
        for later in [each for each in by_number if each > number]:
            del by_number[later]


@dataclass
class Model:
    """What must come of one run: what each act gives, and how often each effect is charged, as far as it is known."""

    acts: list[Any]
    answers: dict[str, set[str]] = field(default_factory=dict)
    messages: dict[str, list[str]] = field(default_factory=dict)
    heard: frozenset[str] = frozenset()
    """The messages that a fork was given along: each had been taken on a path that it left."""
    result: list[Any] | None = None
    over: str = ""
    told: Told = field(default_factory=lambda: told([]))
    children: dict[int, Model] = field(default_factory=dict)

    edited: dict[str, str] = field(default_factory=dict)
    said: dict[str, set[str]] = field(default_factory=dict)
    """What effects were said to have returned: where the run goes back before one of them, this may be taken over."""

    policy: str = ""
    known: dict[str, bool] = field(default_factory=dict)
    """The effects that happened on a path that was given up, and whether that is certain."""
    spent: Counter[str] = field(default_factory=Counter)
    """How often each effect was charged on paths that were given up."""
    due: dict[str, int] = field(default_factory=dict)
    """How often it is charged on the path that the run is on; once, where nothing is said."""

    def numbered(self, *words: str) -> Iterator[tuple[int, str]]:
        """The acts of these words: their number and what they are about."""
        for number, act in enumerate(self.acts, 1):
            if isinstance(act, str) and act.split(":")[0] in words:
                yield number, act.split(":")[1]

    def read(self, records: Iterable[rec.Record]) -> None:
        """Take notice of what is recorded; what was there before must be there still."""
        now = told(records)
        assert self.told.done <= now.done, f"outcomes of {self.told.done - now.done} are lost"
        self.told = now

    def allowed(self, what: str) -> int:
        """How often an effect may have been charged by now; in a run that is done, how often it was."""
        return self.spent[what] + self.due.get(what, 1)

    def points(self) -> list[int]:
        """Where the run can go back to: after an act that has its outcome, and not before a child that has begun."""
        last = max(self.told.children, default=0)
        return [number for number in sorted(self.told.done - self.told.settled) if number >= last]

    def correctable(self, numbers: Iterable[int]) -> list[int]:
        """Those of these acts whose results can be edited."""
        found = set(numbers) & self.told.done
        return [number for number, _ in self.numbered("step", "effect", "ask") if number in found]

    def go_back(self, number: int, policy: str) -> None:
        """Somebody edited that act: what came after it is given up, and effects among it come again as he says."""
        for later, what in self.numbered("effect"):
            if later > number and later in self.told.done:
                self.spent[what] += self.due.get(what, 1)
                self.known.setdefault(what, True)
        self._turn(number, policy)
        _go_back(self.told, number)

    def branch(self, number: int, policy: str) -> Model:
        """The model of a fork at that act: it shares what is before, and knows what happened after."""
        fork = Model(self.acts, policy=policy, known=dict(self.known), edited=dict(self.edited))
        fork.said = {what: set(said) for what, said in self.said.items()}
        fork.answers = {what: set(said) for what, said in self.answers.items()}
        fork.messages = {name: sent[:1] for name, sent in self.messages.items() if name in self.told.taken | self.heard}
        fork.heard = frozenset(fork.messages)
        fork.children = {each: child for each, child in self.children.items() if each <= number}
        for each, what in self.numbered("effect"):
            if each <= number:
                fork.due[what] = 0
            elif each in self.told.done | self.told.begun:
                fork.known[what] = fork.known.get(what, True) and each in self.told.done
        fork._turn(number, policy)
        return fork

    def _turn(self, number: int, policy: str) -> None:
        self.policy = policy
        for later, what in self.numbered("step", "effect", "ask"):
            if later > number:
                self.edited.pop(what, None)
                self.answers.pop(what, None)
        for later, what in self.numbered("effect"):
            if later > number:
                self.due[what] = 0 if what in self.known and policy != "repeat" else 1

    def may_ask_about(self, what: str) -> bool:
        """Whether a person may be asked before that effect is executed: it was made before, and nobody has said what to do then."""
        return what in self.known and (self.policy == "ask" or (self.policy == "reuse" and not self.known[what]))

    def correct(self, number: int, value: str) -> None:
        """Somebody gave that act another result."""
        word, what = self.acts[number - 1].split(":")
        self.edited[what] = value
        if word == "effect":
            self.said.setdefault(what, set()).add(value)

    def misfit(self, result: list[Any]) -> str:
        """What is wrong with a result, or nothing."""
        for number, (act, got) in enumerate(zip(self.acts, result, strict=True), 1):
            if isinstance(act, list):
                wrong = self.children[number].misfit(got)
            else:
                wrong = "" if got in self._fitting(act) else f"{act} gave {got!r}"
            if wrong:
                return wrong
        return ""

    def _fitting(self, act: str) -> set[Any]:
        word, what = act.split(":")
        if what in self.edited:
            return {self.edited[what]}
        due: dict[str, set[Any]] = {"step": {f"saw {what}"}, "effect": {f"paid {what}", *self.said.get(what, ())}, "sleep": {None}}
        due |= {"ask": set(self.answers.get(what, ())), "receive": set(self.messages.get(what, [])[:1])}
        return due[word]
