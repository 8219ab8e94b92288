"""The rules of STYLE.md that a machine can hold: lengths, first lines, names, and what must not stand in any file."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from holdfast import errors

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "holdfast"

pytestmark = pytest.mark.xdist_group("tidy")  # every file is read and parsed once

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_SENTENCE = 140
BANNED_NAMES = frozenset({"utils", "helpers", "common", "base", "manager", "core", "misc", "types"})

# Spelled so that this file does not contain what it looks for.
FORBIDDEN_TEXT = {
    "a reminder of work to do": re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X)\b"),
    "a path of one machine": re.compile(r"(?<![\w.<>-])/(?:work|root|home|tmp)/\w"),
    "the host of a package registry": re.compile(r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|index[-]url)\b"),
}

PUBLIC = [
    "Artifact",
    "Breaker",
    "Budget",
    "BudgetExceeded",
    "CircuitOpen",
    "Damaged",
    "Drifted",
    "Handle",
    "Holdfast",
    "HoldfastError",
    "InDoubt",
    "Landed",
    "LeaseLost",
    "Limit",
    "LostContext",
    "Misuse",
    "ModelChanged",
    "NestedStep",
    "NoRun",
    "NotKept",
    "NotLanded",
    "Refused",
    "ReplayMismatch",
    "ResultNotKept",
    "Retention",
    "Retry",
    "RunCancelled",
    "RunConflict",
    "RunFailed",
    "RunInterrupted",
    "RunMoved",
    "RunPaused",
    "RunPruned",
    "RunWaiting",
    "Schedule",
    "Spent",
    "StepFailed",
    "StoreError",
    "Undeliverable",
    "Unknown",
    "UnknownRun",
    "Verdict",
    "agent",
    "ask",
    "cleanup",
    "connection",
    "continue_as",
    "current",
    "effect",
    "emit",
    "first",
    "gather",
    "key",
    "map",
    "milestone",
    "now",
    "partial",
    "plain",
    "receive",
    "resend",
    "reset",
    "resource",
    "run",
    "send",
    "sleep",
    "start",
    "state",
    "step",
    "timeout",
    "transaction",
    "usage",
    "verify",
    "watch",
]
"""The names of `holdfast`, and of `holdfast.sync`. A change here is a change of the interface."""


@cache
def project_files() -> list[Path]:
    """What is tracked, or would be; outside a checkout, the folders that hold the project."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode == 0:
        return [path for name in listing.stdout.splitlines() if (path := ROOT / name).is_file()]
    folders = [ROOT / name for name in ("src", "tests", "docs", "examples", "benchmarks")]
    return [path for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@cache
def tree_of(path: Path) -> ast.Module:
    """The file, parsed; Python 3.11 counts the depth of all threads together, and one that prints a traceback parses too."""
    for _ in range(10):
        with suppress(SystemError):
            return ast.parse(text_of(path))
    raise AssertionError(f"{path} could not be parsed")


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PYTHON_FILES = [path for path in project_files() if path.suffix == ".py"]
MODULES = [path for path in PYTHON_FILES if path.is_relative_to(PACKAGE)]


def first_sentence(path: Path) -> str:
    return (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]


def is_one_sentence(line: str) -> bool:
    return line.endswith(".") and len(line) <= MAX_SENTENCE and not re.search(r"[.!?] [A-Z]", line)


def test_every_module_says_in_one_sentence_what_it_is_for() -> None:
    assert {shown(path): first_sentence(path) for path in MODULES if not is_one_sentence(first_sentence(path))} == {}


def test_no_file_is_too_long() -> None:
    lengths = {shown(path): len(text_of(path).splitlines()) for path in PYTHON_FILES}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """Everything in which a function can stand: no expression, which is most of a file."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.stmt | ast.excepthandler | ast.match_case):
            yield part
            yield from statements_in(part)


def functions_of(path: Path) -> list[tuple[str, int]]:
    functions = [node for node in statements_in(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(f"{shown(path)}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1) for node in functions]


def test_no_function_is_too_long() -> None:
    lengths = [function for path in PYTHON_FILES for function in functions_of(path)]
    assert [(name, lines) for name, lines in lengths if lines > MAX_FUNCTION_LINES] == []


def test_every_module_has_found_its_noun() -> None:
    names = {shown(path): path.relative_to(PACKAGE).with_suffix("").parts for path in MODULES}
    assert [path for path, parts in names.items() if BANNED_NAMES & {part.strip("_") for part in parts}] == []


def test_every_module_is_known_to_a_test() -> None:
    tests = [path for path in PYTHON_FILES if path.is_relative_to(ROOT / "tests")]
    words = {word for path in tests for word in re.findall("[a-z_]+", f"{path.stem} {text_of(path)}")}
    known = " ".join(words)
    nouns = {path: (path.parent.name if path.stem == "__init__" else path.stem).strip("_") for path in MODULES}
    assert [shown(path) for path, noun in nouns.items() if not re.search(rf"(?<![a-z]){noun}(?![a-z])", known)] == []


@pytest.mark.parametrize("what", FORBIDDEN_TEXT)
def test_no_file_holds(what: str) -> None:
    found = {shown(path): match.group() for path in project_files() if (match := FORBIDDEN_TEXT[what].search(text_of(path)))}
    assert found == {}


@pytest.mark.parametrize("module", ["holdfast", "holdfast.sync"])
def test_public_names_are_exactly_these(module: str) -> None:
    facade = importlib.import_module(module)
    assert sorted(facade.__all__) == PUBLIC
    assert [name for name in PUBLIC if not hasattr(facade, name)] == []


SAMPLES = {"str": "a word", "int": 7, "float": 0.5, "bool": True, "HoldfastError": errors.StepFailed("broke", "3", "search", "OSError")}
ERRORS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, BaseException)]


def sample_of(kind: type[BaseException]) -> BaseException:
    """An error made from its own signature; one that takes anything is made from nothing."""
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    named = [each for each in parameters if each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}]
    return kind(*(SAMPLES[str(each.annotation)] for each in named))


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_survives_pickling(kind: type[BaseException]) -> None:
    error = sample_of(kind)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == str(error)
    assert vars(back).keys() == vars(error).keys()
    assert {name: str(value) for name, value in vars(back).items()} == {name: str(value) for name, value in vars(error).items()}
