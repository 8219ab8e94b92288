"""A fingerprint stands for the content of a call, in every process; its readable form never fails."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from holdfast.codec.fingerprint import args_match, encode_arguments, fingerprint, identity
from holdfast.codec.values import same
from holdfast.errors import NotKept


class Color(Enum):
    RED = 1
    BLUE = 2


class Shade(Enum):
    RED = 1


class Offer(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    tags: list[str] = Field(default_factory=list)
    cents: int = 0


@dataclasses.dataclass(frozen=True)
class Spot:
    x: int
    y: int = 0


class Client:
    def __init__(self, secret: str = "") -> None:
        self.secret = secret

    def __repr__(self) -> str:
        raise AssertionError("nobody may ask for this")


def of(value: object) -> str:
    return fingerprint({"value": value})


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals(allow_nan=False) | st.uuids()
KEYS = st.text(max_size=3) | st.integers(-3, 3) | st.booleans() | st.none() | st.tuples(st.integers(0, 2))
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | st.frozensets(st.integers() | st.text(max_size=3), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)


def shuffled(value: Any, dice: random.Random) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key], dice) for key in dice.sample(list(value), len(value))}
    if isinstance(value, list):
        return tuple(shuffled(item, dice) for item in value)
    if isinstance(value, frozenset):
        return set(dice.sample(sorted(value, key=repr), len(value)))
    return value


@given(VALUES, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_the_order_of_keys_and_sets_and_the_kind_of_sequence_do_not_matter(value: Any, dice: random.Random) -> None:
    assert of(shuffled(value, dice)) == of(value)


@given(VALUES, VALUES)
@settings(max_examples=300, deadline=None)
def test_different_values_differ(a: Any, b: Any) -> None:
    assert (of(a) == of(b)) == same(shuffled(a, random.Random(0)), shuffled(b, random.Random(0))) or a == b


DISTINCT: list[object] = [
    *(None, True, 1, 1.0, "1", "True", "null", b"1", "MQ==", math.nan, math.inf, -math.inf, "NaN", "Infinity"),
    *({1: "a"}, {"1": "a"}, {True: "a"}, {"true": "a"}, {None: "a"}, {"null": "a"}, {1.5: "a"}, {"1.5": "a"}, {(1,): "a"}, {"(1,)": "a"}),
    *({1: "a", "1": "b"}, {1: "b", "1": "a"}, {"a": {1: 2}}, {"a": {"1": 2}}, {math.nan: 1}, {"NaN": 1}, {'a"1': 1}, {"-1": 1}, {-1: 1}),
    *([], {}, set(), [1], {1}, [[1]], [{1}], {"a": []}, {frozenset({1})}, deque([1]), range(3), range(4), 1j, 10**5000, 10**5000 + 1),
    *(Color.RED, Color.BLUE, Shade.RED, Color, Shade, Decimal("1.0"), Decimal(1), Fraction(1, 2), UUID(int=1), UUID(int=2)),
    *(date(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC), time(1), timedelta(1), timedelta(2), PurePosixPath("/a"), "/a", "2020-01-01"),
    *(Offer(name="a"), Offer(name="b"), Offer(name="a", cents=1), Offer(name="a", more=1), Spot(1), Spot(2), {"name": "a"}, Client()),  # type: ignore[call-arg]
]


def test_things_that_resemble_each_other_have_different_fingerprints() -> None:
    found = [of(value) for value in DISTINCT]
    assert len(set(found)) == len(DISTINCT), [
        (a, b) for i, a in enumerate(DISTINCT) for j, b in enumerate(DISTINCT[:i]) if found[i] == found[j]
    ]


def test_a_fingerprint_is_its_version_and_32_digits_and_stays_what_it_is() -> None:
    assert fingerprint({}) == "1:d3875944080a326ad257acee26e445fb"
    assert of({"b": [1, 2.5, None], "a": {"x", "y"}, 3: b"\xff"}) == "1:1ccd4a2390a5c733fa43718ac30c4b36"


def test_every_process_finds_the_same() -> None:
    code = (
        "from holdfast.codec.fingerprint import fingerprint\n"
        "print(fingerprint({'a': {'x', 'y', 'z', 'u', 'v'}, 'b': {'k': frozenset('abcdef'), 1: 2}, 'c': object()}))"
    )
    found = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
        found.add(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


def test_a_field_added_with_a_default_changes_nothing() -> None:
    def older() -> list[object]:
        class Offer(BaseModel):
            name: str

        @dataclasses.dataclass
        class Spot:
            x: int

        Offer.__qualname__, Spot.__qualname__ = "Offer", "Spot"
        return [Offer(name="a"), Spot(1)]

    assert [of(value) for value in older()] == [of(Offer(name="a")), of(Spot(1))]
    assert of(Offer(name="a", tags=["x"])) != of(Offer(name="a"))


def test_what_cannot_be_encoded_counts_by_the_name_of_its_type() -> None:
    assert of(Client("a")) == of(Client("b")) != of(object())
    assert of([len, Client()]) == of([print, Client()])


def test_views_count_by_their_content() -> None:
    assert of(MappingProxyType({"a": 1})) == of({"a": 1})
    assert of(bytearray(b"x")) == of(memoryview(b"x")) == of(b"x")


def deep(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


def test_what_contains_itself_or_is_too_deep_is_refused() -> None:
    loop: dict[Any, Any] = {}
    loop["a"] = [loop]
    mixed: dict[Any, Any] = {1: 2, "1": 3}
    mixed["a"] = mixed
    around = Offer(name="a", more=[])  # type: ignore[call-arg]
    around.more.append(around)  # type: ignore[attr-defined]
    for value in (loop, mixed, around, deep(100_000), {1: deep(500), "a": 1}):
        with pytest.raises(NotKept, match="an argument cannot be kept: it contains itself or is nested too deeply"):
            of(value)


def test_a_broken_comparison_does_not_matter() -> None:
    class Array:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    @dataclasses.dataclass
    class Holder:
        array: object = dataclasses.field(default_factory=Array)
        other: object = Array

    assert of(Holder()).startswith("1:")


def test_arguments_are_readable() -> None:
    arguments = {
        "q": "ü",
        "data": b"\xff",
        "n": math.nan,
        "offer": Offer(name="a"),
        "client": Client("s3cret"),
        "kind": Client,
        "c": Color.RED,
    }
    assert encode_arguments(arguments).decode() == (
        '{"q":"ü","data":"/w==","n":NaN,"offer":{"name":"a","tags":[],"cents":0},"client":"<Client>","kind":"<Client>","c":1}'
    )


def test_reading_arguments_for_people_consumes_no_stream() -> None:
    stream: Iterator[int] = (number for number in range(3))
    assert encode_arguments({"stream": [stream]}) == b'{"stream":["<generator>"]}'
    assert list(stream) == [0, 1, 2]


@given(st.dictionaries(st.text(), VALUES, max_size=3))
@settings(max_examples=100, deadline=None)
def test_the_readable_form_is_json_whatever_is_given(arguments: dict[str, object]) -> None:
    assert isinstance(json.loads(encode_arguments(arguments)), dict)


def test_the_readable_form_never_fails() -> None:
    loop: dict[Any, Any] = {}
    loop["a"] = [loop]

    class Evil(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        client: Client

    twice: list[object] = []
    twice.extend([twice, twice])
    for value in (
        loop,
        twice,
        deep(100_000),
        {(1, "a"): 2},
        {Client(): Client()},
        "\ud800",
        Evil(client=Client()),
        {Color.RED: 1},
        10**5000,
    ):
        json.loads(encode_arguments({"value": value}))


IDENTIFIERS = st.text(min_size=1, max_size=4).filter(str.isidentifier)
NAMES = st.sampled_from(["number", "straße", "true", "NaN", "null", "Infinity", "_"]) | IDENTIFIERS
EDGES = st.sampled_from(["\x7f", "\x00", "\t", '"', "\\", "/", "é", "\u2028", "\ud800", "5", 2**63 - 1, 2**63, -(2**63), 10**5000, True, 1])


@settings(max_examples=500)
@given(arguments=st.dictionaries(NAMES, EDGES | SCALARS, max_size=2))
def test_the_short_way_to_a_fingerprint_gives_the_same_one_and_arguments_that_match_their_digest(arguments: dict[str, object]) -> None:
    found, text, args_sha = identity(arguments)
    assert found == fingerprint(arguments)
    if text is not None:
        assert json.loads(text) == arguments
        assert args_match(text, args_sha)
        assert not args_match(text + b" ", args_sha)
