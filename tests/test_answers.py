"""What an answer must look like: said by the type, checked without the code where that can be, and by the code where not."""

from __future__ import annotations

import enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, field_validator

import holdfast as hf
import holdfast.sync as hfs
from crashing import records
from holdfast.codec.answers import misfit, read, shown, wants_of
from holdfast.errors import Refusal
from holdfast.records import kinds as rec
from holdfast.stores.memory import MemoryStore
from test_waits import MODES, Stage, _kept


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    number: int = 1
    tags: list[str] = []

    @field_validator("number")
    @classmethod
    def _exists(cls, number: int) -> int:
        if number > 100:
            raise ValueError("the street is not that long")
        return number


class Strict(BaseModel):
    name: str
    model_config = {"extra": "forbid"}


FITTING: list[tuple[Any, str, Any]] = [
    (bool, "yes", True), (bool, "No", False), (str, "yes", "yes"), (str, "", ""), (int, "7", 7), (float, "0.5", 0.5), (float, "3", 3.0),
    (Literal["red", "blue"], "blue", "blue"), (Literal[1, "two"], "1", 1), (Colour, "red", Colour.RED),
    (Address, '{"street": "Kelp Lane"}', Address(street="Kelp Lane")), (list[int], "[1, 2]", [1, 2]), (int | None, "null", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "typed", "value"), FITTING)
@pytest.mark.parametrize("mode", MODES)
def test_what_is_typed_becomes_a_value_of_the_type(mode: str, kind: Any, typed: str, value: Any) -> None:
    got: list[Any] = []

    @hf.agent(name="asking")
    async def waiting() -> None:
        got.append(await hf.ask("which?", kind))

    @hf.agent(name="asking")
    def blocking() -> None:
        got.append(hfs.ask("which?", kind))

    stage = Stage(MemoryStore(), waiting if mode == "async" else blocking)
    stage.parks()
    with _kept(stage.app()) as app:
        app.answer("r", "1", typed=typed, by="ann")
    stage.run()
    assert got == [value]
    assert type(got[0]) is type(value)


UNFIT: list[tuple[Any, object, str]] = [
    (bool, "maybe", "yes or no"), (bool, 1, "yes or no"), (str, 7, "text"), (int, 1.5, "integer"), (int, True, "integer"),
    (float, "x", "number"), (Literal["red", "blue"], "green", '"red" | "blue"'), (Literal[1], True, "1"), (Colour, "green", '"red"'),
    (Address, "home", "not an object with street"), (Address, {"number": 1}, "{\"number\": 1} has no 'street'; Address has"),
    (Address, {"stret": "a"}, "{\"stret\": \"a\"} has no 'street' and has 'stret', which is not asked for; Address has the fields street"),
    (Address, {"street": "a", "flor": 2}, "has 'flor', which is not asked for; Address has the fields street"),
    (Strict, {"name": "a", "nmae": "b"}, "has 'nmae', which is not asked for; Strict has the fields name"),
    (Address, {"street": 3}, "'street' must be of type string"), (Address, {"street": "a", "tags": "b"}, "'tags' must be of type array"),
    (list[int], {}, "not a list"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "why"), UNFIT)
def test_what_does_not_fit_is_refused_at_once_and_changes_nothing(kind: Any, value: object, why: str) -> None:
    @hf.agent
    def waiting() -> str:
        return str(hfs.ask("which?", kind))

    stage = Stage(MemoryStore(), waiting)
    stage.parks()
    recorded = len(records(stage.store))
    with pytest.raises(Refusal) as refused:
        stage.answer("1", value)
    assert why in str(refused.value)
    assert str(refused.value).endswith("nothing was changed")
    assert len(records(stage.store)) == recorded


def test_what_only_the_code_can_see_has_the_question_put_anew_with_the_reason() -> None:
    @hf.agent
    def waiting() -> int:
        return hfs.ask("where?", Address).number

    stage = Stage(MemoryStore(), waiting)
    stage.parks()
    for _ in range(2):
        stage.answer("1", {"street": "Kelp Lane", "number": 700})
        asked = stage.parks()
        assert asked.startswith("where? (the answer of ann does not fit: ")
        assert "the street is not that long" in asked
        assert "\n" not in asked
    stage.answer("1", {"street": "Kelp Lane", "number": 7})
    assert stage.run() == 7
    assert sum(isinstance(record, rec.AskAnswered) for record in records(stage.store)) == 3


@pytest.mark.parametrize(
    ("kind", "told"),
    [(bool, "yes or no"), (str, "text"), (Literal["a", 1], '"a" | 1'), (Address, "JSON: Address with street, number, tags")],
)
def test_a_person_is_told_what_to_give(kind: Any, told: str) -> None:
    assert shown(wants_of(kind)) == told


def test_an_object_without_fields_of_its_own_is_told_as_one() -> None:
    assert misfit(wants_of(dict[str, str]), "sent") == '"sent" is not an object'
    assert misfit(wants_of(Address), 7).startswith("7 is not an object with ")


def test_a_question_of_an_older_kind_wants_yes_or_no() -> None:
    assert (shown({}), read({}, "yes"), misfit({}, value=True)) == ("yes or no", True, "")
    assert misfit({}, "yes") == '"yes" is not what is asked for: yes or no'


@pytest.mark.parametrize("given", [{}, {"value": True, "yes": True}, {"yes": True, "typed": "yes"}])
def test_an_answer_is_given_in_one_way(given: dict[str, Any]) -> None:
    with hf.Holdfast("memory:") as app, pytest.raises(hf.Misuse, match="one of value, yes= and typed="):
        app.answer("r", "1", **given)
