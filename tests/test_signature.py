"""A call by parameter name, however it is spelled, and the type of its result."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.codec.signature import Arguments, return_annotation
from holdfast.errors import Misuse

if TYPE_CHECKING:
    from collections import Unseen  # type: ignore[attr-defined]


def ordinary(a: int, b: int, c: object = 3, d: object = None) -> int:
    return 1


def keyword_only(a: int, *, b: int, c: int = 3) -> None: ...


def positional_only(a: int, b: int = 2, /, c: int = 3) -> None: ...


def catch_all(a: int, *rest: int, b: int = 2, **more: int) -> None: ...


def bind(fn: Callable[..., object], *args: object, ignore: tuple[str, ...] = (), **kwargs: object) -> dict[str, object]:
    return Arguments(fn, ignore).bind(args, kwargs)


def test_positional_and_keyword_spelling_give_the_same_in_the_same_order() -> None:
    spellings = [bind(ordinary, 1, 2, 4), bind(ordinary, 1, c=4, b=2), bind(ordinary, c=4, b=2, a=1)]
    assert all(list(found.items()) == [("a", 1), ("b", 2), ("c", 4)] for found in spellings)


def test_what_equals_the_default_is_left_out() -> None:
    assert bind(ordinary, 1, 2, 3, d=None) == {"a": 1, "b": 2}
    assert bind(ordinary, 1, 2, 3.0) == {"a": 1, "b": 2, "c": 3.0}
    assert bind(positional_only, 1, 2, c=3) == {"a": 1}
    assert bind(catch_all, 1, b=2) == {"a": 1}


def test_a_default_that_cannot_be_compared_is_not_left_out() -> None:
    class Array:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth value is ambiguous")

        __hash__ = None  # type: ignore[assignment]

    default, other = Array(), Array()

    def fn(a: object = default) -> None: ...

    assert bind(fn, other) == {"a": other} or bind(fn, other)["a"] is other
    assert bind(fn, default) == {}


def test_catch_all_parameters_are_bound_by_their_names() -> None:
    assert bind(catch_all, 1, 5, 6, z=7) == {"a": 1, "rest": (5, 6), "more": {"z": 7}}
    assert bind(positional_only, 1, 5) == {"a": 1, "b": 5}
    assert bind(keyword_only, 1, b=2) == {"a": 1, "b": 2}


def test_ignored_names_are_left_out_and_unknown_ones_are_misuse() -> None:
    assert bind(ordinary, 1, 2, 4, ignore=("b", "d")) == {"a": 1, "c": 4}
    assert bind(catch_all, 1, 2, ignore=("rest",)) == {"a": 1}
    with pytest.raises(Misuse, match=r"'x', which is none of its parameters \(a, b, c, d\)"):
        Arguments(ordinary, ("x",))


def test_self_is_an_argument_like_any_other() -> None:
    class Bank:
        def pay(self, cents: int) -> None: ...

    bank = Bank()
    assert bind(Bank.pay, bank, 5) == {"self": bank, "cents": 5}
    assert bind(bank.pay, 5) == {"cents": 5}


def complaint(fn: Callable[..., object], *args: object, **kwargs: Any) -> str:
    try:
        fn(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""


NAMES = st.dictionaries(st.sampled_from("abcdez"), st.integers(0, 9), max_size=4)


@given(st.sampled_from([ordinary, keyword_only, positional_only, catch_all]), st.lists(st.integers(0, 9), max_size=5), NAMES)
def test_a_wrong_call_raises_what_the_function_would_and_a_right_one_nothing(
    fn: Callable[..., object], args: list[int], kwargs: Any
) -> None:
    assert complaint(bind, fn, *args, **kwargs) == complaint(fn, *args, **kwargs)


def test_a_wrong_call_does_not_run_the_function() -> None:
    ran: list[object] = []

    def inner(a: int) -> None: ...

    @functools.wraps(inner)
    def wrapper(*args: object) -> None:
        ran.append(args)

    with pytest.raises(TypeError, match=r"inner\(\) missing 1 required positional argument: 'a'"):
        bind(wrapper)
    assert not ran


async def coroutine() -> list[int]:
    return []


def awaitable() -> Awaitable[int]: ...  # type: ignore[empty-body]


def returns_coroutine() -> Coroutine[Any, Any, str]: ...  # type: ignore[empty-body]


def unannotated():  # type: ignore[no-untyped-def] # noqa: ANN201
    return 1


def with_extras(a: Unseen) -> Annotated[int, "extra"]: ...  # type: ignore[empty-body]


def nothing() -> None: ...


def unseen() -> Unseen: ...


class Callee:
    def __call__(self) -> bytes: ...  # type: ignore[empty-body]

    def method(self) -> float: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (coroutine, list[int]),
        (awaitable, int),
        (returns_coroutine, str),
        (unannotated, Any),
        (with_extras, Annotated[int, "extra"]),
        (nothing, type(None)),
        (unseen, "Unseen"),
        (Callee(), bytes),
        (Callee().method, float),
        (functools.partial(ordinary, 1), int),
        (len, Any),
    ],
)
def test_the_type_of_the_result_is_read_from_the_function(fn: Callable[..., object], expected: object) -> None:
    assert return_annotation(fn) == expected


def test_a_class_that_the_function_sees_around_it_is_found() -> None:
    class Local: ...

    def make() -> Local:
        return Local()

    assert return_annotation(make) is Local


def test_the_value_of_one_parameter_is_found_however_it_was_given_or_ignored() -> None:
    assert Arguments(ordinary).value_of("c", (1, 2, 4), {}) == Arguments(ordinary).value_of("c", (1, 2), {"c": 4}) == 4
    assert Arguments(ordinary).value_of("c", (1, 2), {}) == 3
    assert Arguments(ordinary, ("b",)).value_of("b", (1, 2), {}) == 2
    assert Arguments(positional_only).value_of("c", (1, 2, 4), {}) == 4
    assert Arguments(catch_all).value_of("model", (1,), {"model": 7}) == 7
    assert Arguments(ordinary).value_of("model", (1, 2), {}) is None
