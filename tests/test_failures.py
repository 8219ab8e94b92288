"""An error comes back as its class where the code knows it, and as StepFailed otherwise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import errors
from holdfast.codec.failures import ARGS_LIMIT, MESSAGE_LIMIT, failure, rebuild


class Declined(Exception):
    """Text, arguments and attributes all differ."""

    def __init__(self, code: int, *, hint: str = "") -> None:
        self.code, self.hint = code, hint
        super().__init__(f"declined with {code}")


class Sooner(Declined): ...


class Silent(Exception):
    def __init__(self, client: object) -> None:
        self.client = client
        super().__init__(client)

    def __str__(self) -> str:
        return f"from {self.client.name}"  # type: ignore[attr-defined]


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Final(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


def roundtrip(error: BaseException, *raises: type[BaseException]) -> Exception:
    return rebuild(json.loads(json.dumps(failure(error))), raises=raises, step_id="3", name="search")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        ValueError(),
        KeyError("k"),
        FileNotFoundError(2, "No such file", "/a"),
        OSError("plain"),
        TimeoutError(),
        RuntimeError("several", 1, None, [True]),
        StopIteration(5),
        ZeroDivisionError("ü\n"),
    ],
    ids=repr,
)
def test_a_builtin_error_comes_back_as_itself(error: Exception) -> None:
    back = roundtrip(error)
    assert (type(back), back.args, str(back)) == (type(error), error.args, str(error))


def test_a_listed_error_comes_back_with_text_arguments_and_attributes() -> None:
    back = roundtrip(Declined(5, hint="later"), Declined)
    assert isinstance(back, Declined)
    assert (str(back), back.args, back.code, back.hint) == ("declined with 5", ("declined with 5",), 5, "later")


def test_an_unlisted_error_is_step_failed_and_begins_with_its_message() -> None:
    back = roundtrip(Declined(5))
    assert isinstance(back, errors.StepFailed)
    assert (back.step_id, back.name, back.kind) == ("3", "search", "Declined")
    assert str(back).startswith("declined with 5")


def test_a_subclass_comes_back_as_the_nearest_class_that_is_listed() -> None:
    assert type(roundtrip(Sooner(1), Exception, Declined)) is Declined
    assert type(roundtrip(Sooner(1), Declined, Sooner)) is Sooner
    assert type(roundtrip(FileNotFoundError(2, "x"), OSError)) is FileNotFoundError
    assert type(roundtrip(json.JSONDecodeError("m", "d", 0))) is errors.StepFailed
    assert type(roundtrip(json.JSONDecodeError("m", "d", 0), ValueError)) is ValueError


def named(name: str, module: str, base: type[Exception] = Exception) -> type[Exception]:
    return type(name, (base,), {"__module__": module})


def test_of_two_listed_classes_with_one_name_the_module_decides_and_a_moved_class_is_still_found() -> None:
    ours, theirs, moved = named("NotFound", "ours"), named("NotFound", "theirs"), named("NotFound", "elsewhere")
    assert type(roundtrip(theirs("x"), ours, theirs)) is theirs
    assert type(roundtrip(moved("x"), ours)) is ours


def test_a_class_that_only_bears_a_builtin_name_is_not_taken_for_it() -> None:
    impostor = named("ValueError", "shop")
    assert type(roundtrip(impostor("x"))) is errors.StepFailed
    assert type(roundtrip(impostor("x"), ValueError)) is errors.StepFailed
    assert type(roundtrip(ValueError("x"), impostor)) is ValueError


@pytest.mark.parametrize("name", ["builtins:eval", "builtins:SystemExit", "os:system", "builtins:BaseException", "subprocess:Popen", ""])
def test_a_record_cannot_name_anything_but_known_errors(name: str) -> None:
    forged: dict[str, Any] = {"type": "x", "classes": [name], "message": "m", "args": ["exit"]}
    assert type(rebuild(forged, raises=(KeyError,), step_id="1", name="n")) is errors.StepFailed


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"), "can't decode byte"),
        (ExceptionGroup("several", [ValueError("a")]), "several (1 sub-exception)"),
        (ValueError(object), "<class 'object'>"),
        (ValueError("x" * ARGS_LIMIT), "xxxx"),
    ],
    ids=["bytes", "group", "class", "long"],
)
def test_arguments_that_are_no_json_or_too_long_are_left_out_and_the_text_stays(error: Exception, told: str) -> None:
    record = failure(error)
    back = roundtrip(error)
    assert "args" not in record
    assert len(json.dumps(record)) < MESSAGE_LIMIT + 500
    assert told in str(back) + "".join(getattr(back, "__notes__", []))


def test_an_error_whose_text_needs_what_was_lost_is_step_failed() -> None:
    class Client:
        name = "bank"

    back = roundtrip(Silent(Client()), Silent)
    assert isinstance(back, errors.StepFailed)
    assert str(back).startswith("from bank")


def test_an_error_without_a_readable_text_still_has_a_record() -> None:
    assert failure(Broken())["message"] == "Broken, whose text cannot be read"
    assert failure(Final())["message"] == "Final, whose text cannot be read"
    assert failure(ValueError("\ud800"))["message"] == "?"


@pytest.mark.parametrize("make", [asyncio.CancelledError, KeyboardInterrupt, lambda: errors.LeaseLost("r")])
def test_what_is_no_exception_never_comes_back_as_itself(make: Callable[[], BaseException]) -> None:
    error = make()
    assert type(roundtrip(error, type(error))) is errors.StepFailed


def test_rebuilding_twice_gives_the_same() -> None:
    for error in (Declined(5), ValueError(object()), KeyError("k")):
        live = roundtrip(error, Declined)
        again = roundtrip(live, Declined)
        assert (type(again), str(again), again.args) == (type(live), str(live), live.args)


def test_notes_survive() -> None:
    error = ValueError("x")
    error.add_note("seen at noon")
    assert roundtrip(error).__notes__ == ["seen at noon"]
