"""Facts are compared and shown by what they hold; that nobody changes them is the type checker's word (typed/bad/facts.py)."""

from __future__ import annotations

import dataclasses
import pickle

from holdfast._facts import Fact, fact


@fact(kw_only=True)
class Seen(Fact):
    """Something was seen."""

    what: str
    often: int = 1
    tags: list[str] = dataclasses.field(default_factory=list)


@fact()
class Heard(Fact):
    """Something was heard."""

    what: str
    often: int = 1


def test_facts_that_hold_the_same_are_equal() -> None:
    assert Seen(what="a") == Seen(what="a", often=1)
    assert Seen(what="a") != Seen(what="a", often=2)
    assert Heard("a") != Seen(what="a")
    assert len({Heard("a"), Heard("a"), Heard("b")}) == 2


def test_a_fact_shows_what_it_holds() -> None:
    assert repr(Heard("a", 2)) == "Heard(what='a', often=2)"


def test_the_same_but_for_one_field() -> None:
    first = Seen(what="a", often=3)
    assert first.but(what="b") == Seen(what="b", often=3)
    assert first == Seen(what="a", often=3)


def test_facts_have_slots_and_survive_pickling() -> None:
    assert not hasattr(Heard("a"), "__dict__")
    assert pickle.loads(pickle.dumps(Heard("a", 4))) == Heard("a", 4)
