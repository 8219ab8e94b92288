"""A person's word in Python may be a typed value: it is written as typed values are, and checked in that form."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field

import holdfast as hf
from holdfast.codec.values import codec_for
from holdfast.codec.words import written
from holdfast.errors import NotKept, Refusal
from holdfast.testing import Rig


class Size(enum.Enum):
    SMALL = 1


class Plan(BaseModel):
    title: str = Field(alias="Title")
    price: Decimal = Decimal("1.50")


@dataclass
class Receipt:
    number: int


class Hidden:
    pass


@hf.step
async def look() -> Receipt:
    return Receipt(1)


@hf.effect(in_doubt="ask")
async def pay() -> Receipt:
    raise TimeoutError("no reply")


@hf.agent
async def buying() -> list[Any]:
    plan = await hf.ask("Plan?", Plan)
    size = await hf.ask("Size?", Size)
    note = await hf.receive("note", Receipt)
    seen = await look()
    return [plan.title, str(plan.price), size.value, note.number, seen.number, (await pay()).number]


@hf.agent
async def telling(run_id: str) -> None:
    await hf.send(run_id, "note", Receipt(4))


@hf.agent
async def looking() -> int:
    seen = await look()
    await hf.ask("go on?")
    return seen.number


TYPED = [Plan(Title="a"), Receipt(2), Size.SMALL, Decimal("0.10"), datetime(2026, 1, 2, tzinfo=UTC), b"\xff", None, "é", 1.5]


@pytest.mark.parametrize("value", TYPED, ids=lambda value: type(value).__name__)
def test_a_word_is_written_so_that_its_type_reads_it_back(value: object) -> None:
    kept = codec_for(type(value), "it")
    assert kept.give_back(written(value).encode()) == value
    assert codec_for(list[type(value)], "it").give_back(written([value]).encode()) == [value]  # type: ignore[misc]


def test_a_rig_answers_questions_and_doubts_with_typed_values() -> None:
    with Rig() as rig:
        rig.answers({"Plan?": Plan(Title="x"), "Size?": Size.SMALL, "pay": hf.Landed(Receipt(7))})
        run_id = rig.start(buying)
        rig.send(run_id, "note", Receipt(3))
        assert rig.result(run_id) == ["x", "1.50", 1, 3, 1, 7]


def test_a_step_is_edited_to_a_typed_value() -> None:
    with Rig() as rig:
        run_id = rig.start(looking)
        with rig.app() as app:
            app.edit(run_id, 1, Receipt(5))
        rig.answers({"go on?": True})
        assert rig.result(run_id) == 5


def test_an_agent_sends_a_typed_value() -> None:
    with Rig() as rig:
        rig.answers({"Plan?": Plan(Title="x"), "Size?": Size.SMALL, "pay": hf.Landed(Receipt(7))})
        run_id = rig.start(buying)
        rig.run(telling, run_id)
        assert rig.result(run_id)[3] == 4


def test_a_typed_value_of_another_shape_is_no_answer() -> None:
    with Rig() as rig, rig.app() as app:
        run_id = rig.start(buying)
        with pytest.raises(Refusal, match="'title'"):
            app.answer(run_id, 1, Receipt(1))
        app.answer(run_id, 1, Plan(Title="x"))


NO_FORM: list[tuple[Callable[[], object], str]] = [
    (Hidden, "Hidden"),
    (lambda: [Hidden()], "Hidden"),
    (lambda: float("nan"), "float"),
    (lambda: Receipt(float("nan")), "Receipt"),  # type: ignore[arg-type]
    (lambda: Decimal("NaN"), "Decimal"),
    (lambda: {(1, 2): 3}, "dict"),
]


@pytest.mark.parametrize(("make", "name"), NO_FORM)
def test_what_has_no_json_form_is_refused_by_the_name_of_its_type(make: Callable[[], object], name: str) -> None:
    with pytest.raises(NotKept, match=f"^{name} cannot be kept.* Give plain JSON, a pydantic model, a dataclass"):
        written(make())
    with Rig() as rig, rig.app() as app:
        run_id = rig.start(looking)
        with pytest.raises(Refusal, match=f"it must be JSON, and {name} is not .*; nothing was changed. Give plain JSON"):
            app.answer(run_id, 2, make())
