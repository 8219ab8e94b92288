"""docs/reference.md names every option and public name with its parameters, and nothing that does not exist."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import holdfast as hf
import holdfast.sync
from holdfast import _ids, errors
from holdfast.app import working
from holdfast.app.transferring import Transferring
from holdfast.life import doubt
from holdfast.running import ordering
from holdfast.verbs import decorators
from holdfast.verbs.verbs import Current

ROOT = Path(__file__).parent.parent
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

INNER_METHODS = frozenset({"beside", "carry_out", "watch"})
"""Methods that only modules of Holdfast call: what they take is not public."""

MARKS = {
    inspect.Parameter.POSITIONAL_ONLY: "{}",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "{}",
    inspect.Parameter.VAR_POSITIONAL: "*{}",
    inspect.Parameter.KEYWORD_ONLY: "{}=",
    inspect.Parameter.VAR_KEYWORD: "**{}",
}


def tables(section: str) -> list[list[list[str]]]:
    """The tables of a section: their rows, without the headings, as cells."""
    text = re.split(r"^## ", REFERENCE.partition(f"\n## {section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^\|[-|]+\|\n((?:\|.*\|\n)+)", text, re.MULTILINE)
    return [[[cell.strip() for cell in line[1:-1].split(" | ")] for line in table.splitlines()] for table in found]


def cells(section: str, table: int = 0) -> list[str]:
    """What stands in the first column of a table, without the backticks."""
    return [row[0].strip(" `") for row in tables(section)[table]]


def names(section: str, table: int = 0) -> list[str]:
    """The names in the first column of a table, without their parameters."""
    return [cell.removeprefix("hf.").partition("(")[0] for cell in cells(section, table)]


def public(members: dict[str, Any] | Any) -> set[str]:
    return {name for name in members if not name.startswith("_")}


def parameters(fn: Callable[..., Any]) -> list[str]:
    """Parameters as the page writes them: `run_id`, `*args`, `limit=`."""
    found = [MARKS[each.kind].format(each.name) for each in inspect.signature(fn).parameters.values()]
    return ["..." if each == "**options" else each for each in found if each != "self"]


def written(cell: str) -> list[str]:
    return [part for part in cell.partition("(")[2].rpartition(")")[0].split(", ") if part]


def keywords(fn: Callable[..., Any]) -> set[str]:
    return {each.name for each in inspect.signature(fn).parameters.values() if each.kind is inspect.Parameter.KEYWORD_ONLY}


METHODS = public({**vars(Transferring), **vars(working.Working), **vars(hf.Holdfast)})
STEP = set(decorators.StepOptions.__annotations__)
EFFECT = set(decorators.EffectOptions.__annotations__) | keywords(hf.effect)
RUN = set(ordering.RunOptions.__annotations__) | keywords(hf.run)
OURS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__}
ERRORS = {name for name in public(OURS) if issubclass(OURS[name], hf.HoldfastError) or name in hf.__all__}
DECLARING = {"agent", "effect", "step", "resend", "reset", "verify", "run", "start", "transaction"}
VERBS = {name for name in hf.__all__ if name.islower()} - DECLARING


@pytest.mark.parametrize(
    ("section", "real"),
    [
        ("Options of a step", STEP),
        ("Options of an effect", EFFECT - STEP),
        ("Options of a transaction", {*decorators.TransactionOptions.__annotations__, "undo"}),
        ("Options of an agent", set(decorators.AgentOptions.__annotations__)),
        ("Options of a run", RUN),
        ("Retry", {field.name for field in dataclasses.fields(hf.Retry)}),
        ("Breaker", {field.name for field in dataclasses.fields(hf.Breaker)}),
        ("Budget", {field.name for field in dataclasses.fields(hf.Budget)}),
        ("Handle", public(vars(hf.Handle))),
        ("The current run", public(vars(Current))),
        ("Verbs", VERBS),
    ],
)
def test_a_table_names_all_there_are(section: str, real: set[str]) -> None:
    assert sorted(names(section)) == sorted(real)


def test_the_tables_of_holdfast_name_its_arguments_and_methods() -> None:
    assert names("Holdfast") == [name for name in inspect.signature(hf.Holdfast).parameters if name != "self"]
    assert set(names("Holdfast", 1)) == METHODS - INNER_METHODS


def test_the_tables_of_errors_name_each_one_in_the_table_of_its_root() -> None:
    assert sorted(names("Errors") + names("Errors", 1)) == sorted(ERRORS)
    assert all(issubclass(getattr(errors, name), hf.HoldfastError) for name in names("Errors"))
    assert not any(issubclass(getattr(errors, name), Exception) for name in names("Errors", 1))


def test_the_actions_in_doubt_are_those_of_the_engine() -> None:
    known = {kind.__name__.lower() for kind in get_args(doubt.Action)}
    assert {name.strip('"') for name in names("Actions in doubt")} == known
    assert set(names("Actions in doubt", 1)) == {"Landed", "NotLanded", "Unknown"}


@pytest.mark.parametrize(
    ("cell", "fn"),
    [
        *((cell, getattr(hf.Holdfast, cell.partition("(")[0])) for cell in cells("Holdfast", 1) if "(" in cell),
        *((cell, getattr(hf.Handle, cell.partition("(")[0])) for cell in cells("Handle") if "(" in cell),
        *((cell, getattr(hf, cell[3:].partition("(")[0])) for cell in cells("Verbs")),
        *((f"hf.{name}({call}", getattr(hf, name)) for name, call in re.findall(r"\| `hf\.(resend|verify|reset)\(([^`]+)`", REFERENCE)),
    ],
)
def test_a_call_is_shown_with_its_parameters(cell: str, fn: Callable[..., Any]) -> None:
    assert written(cell) == parameters(fn)


def test_the_defaults_of_retry_are_the_real_ones() -> None:
    shown = {row[0].strip("`"): row[1].strip("`") for row in tables("Retry")[0] if row[0] != "`on`"}
    assert {name: ast.literal_eval(value) for name, value in shown.items()} == {name: getattr(hf.Retry(), name) for name in shown}


def test_the_defaults_of_a_budget_are_the_real_ones() -> None:
    real = hf.Budget(usd=1)
    shown = {row[0].strip("`"): row[1].strip("`") for row in tables("Budget")[0] if row[0] != "`usd`"}
    assert {name: ast.literal_eval(value) for name, value in shown.items()} == {name: getattr(real, name) for name in shown}


def test_the_defaults_of_a_retention_are_the_real_ones() -> None:
    real = hf.Retention(keep_last=1)
    shown = {row[0].strip("`"): row[1].strip("`") for row in tables("Retention")[0]}
    assert shown.keys() == {each.name for each in dataclasses.fields(real)}
    assert {name: ast.literal_eval(shown[name]) for name in shown if name != "keep_last"} == {
        name: getattr(real, name) for name in shown if name != "keep_last"
    }


def test_every_public_name_is_on_the_page() -> None:
    assert [name for name in hf.__all__ if not re.search(rf"\b{name}\b", REFERENCE)] == []


def test_the_rule_for_run_ids_is_the_one_that_is_checked() -> None:
    assert f"`{_ids.RUN_ID.pattern}`" in REFERENCE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_nothing_that_does_not_exist(page: Path) -> None:
    text = page.read_text()
    said = set(re.findall(r"(?<![\w./-])hf\.([A-Za-z]\w*)", text))
    assert sorted(said - set(hf.__all__) - set(holdfast.sync.__all__)) == []
    assert sorted(set(re.findall(r"\bhf\.current\(\)\.(\w+)", text)) - public(vars(Current))) == []
    assert sorted(set(re.findall(r"(?<![\w./-])app\.(\w+)\(", text)) - METHODS) == []
