"""Values come back as they went in, or are refused when they are first kept."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NoReturn, Optional, TypeVar
from uuid import UUID

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, computed_field
from typing_extensions import TypedDict

from holdfast.codec.values import codec_for, same
from holdfast.errors import NotKept

T = TypeVar("T")


class Opaque:
    """Something that no annotation can keep."""


class Color(Enum):
    RED = 1
    BLUE = "b"


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


class Rights(IntFlag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: bytes = b""


class Movie(TypedDict):
    title: str
    poster: bytes


@dataclasses.dataclass
class Plain:
    name: str
    data: bytes = b""
    score: float = 0.0
    rest: list[int] = dataclasses.field(default_factory=list)

    @cached_property
    def loud(self) -> str:
        return self.name.upper()


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    when: datetime
    inner: Plain


@pydantic.dataclasses.dataclass
class Checked:
    size: int


class Offer(BaseModel):
    name: str
    cents: int = 0
    price: float | None = None


class Special(Offer):
    extra: str = "x"


class Aliased(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id_: str = Field(validation_alias="read", serialization_alias="written")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def loud(self) -> str:
        return self.id_.upper()


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Box(BaseModel, Generic[T]):
    item: T


class Secretive(BaseModel):
    _hidden: int = PrivateAttr(default=0)
    unwritten: int = Field(default=0, exclude=True)


class Reply(BaseModel):
    text: str
    _request_id: str | None = PrivateAttr(default=None)


class Photo(BaseModel):
    data: bytes


PLAIN = Plain("n", b"\xff\x00", math.nan, [1, 2])
OUTER = Frozen(datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=UTC), PLAIN)

SURVIVORS: list[tuple[object, object]] = [
    (None, None),
    (int, 10**40),
    (float, math.nan),
    (float, -math.inf),
    (bytes, b"\xff\xfe\x00>?"),
    (str, 'ü "\\\n\u2028'),
    (complex, 1 + 2j),
    (Any, {"a": [1, 2.5, None, True, "x", {"b": []}], "nan": math.nan}),
    (object, [1, "a"]),
    (NoReturn, None),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[bytes, int], {b"\xff": 1}),
    (dict[Color, date], {Color.BLUE: date(2020, 1, 2)}),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {3, 1, 2}),
    (set[tuple[int, str]], {(1, "a"), (2, "b")}),
    (frozenset[Color], frozenset(Color)),
    (deque[int], deque([1, 2])),
    (OrderedDict[str, int], OrderedDict(b=1, a=2)),
    (Counter[str], Counter("aab")),
    (Sequence[int], [1, 2]),
    (Color, Color.RED),
    (Level, Level.LOW),
    (Word, Word.YES),
    (Rights, Rights.READ | Rights.WRITE),
    (Point, Point(1, b"\xff")),
    (list[Movie], [{"title": "t", "poster": b"\xff"}]),
    (Movie, {"title": "t", "poster": b"\xff"}),
    (Plain, PLAIN),
    (Frozen, OUTER),
    (Checked, Checked(3)),
    (dict[str, Frozen], {"a": OUTER}),
    (Offer, Offer(name="a", cents=3)),
    (list[Offer | Special], [Special(name="s"), Offer(name="o")]),
    (Optional[Offer], None),  # noqa: UP045 - the old spelling must work too
    (Offer | None, Offer(name="a")),
    (Aliased, Aliased(read="x")),  # type: ignore[call-arg]
    (Open, Open(a=1, b=[2])),  # type: ignore[call-arg]
    (Box[Color], Box[Color](item=Color.BLUE)),
    (Box[list[Offer]], Box[list[Offer]](item=[Offer(name="a")])),
    (Literal["a", 1], 1),
    (Annotated[int, Field(gt=0)], 5),
    (int | str, "5"),
    (str | int, 5),
    (str | datetime, "2020-01-01T00:00:00"),
    (Word | str, "yes"),
    (datetime, datetime(2020, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001 - naive ones must survive too
    (datetime, datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
    (datetime | date, date(2020, 1, 2)),
    (time, time(1, 2, 3, 4)),
    (timedelta, timedelta(days=-3, microseconds=7)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Path, Path("/a/b")),
]


@pytest.mark.parametrize(("annotation", "value"), SURVIVORS, ids=[str(index) for index in range(len(SURVIVORS))])
def test_what_is_annotated_comes_back_the_same(annotation: object, value: object) -> None:
    codec = codec_for(annotation, "it")
    data, live = codec.keep(value)
    assert same(value, live)
    assert same(live, codec.give_back(data))


SHAPES: list[tuple[object, str]] = [
    (int, "int"),
    (None, "None"),
    (list[int], "list[int]"),
    (int | None, "int | None"),
    (Plain, "Plain with the fields name: str, data: bytes, score: float, rest: list[int]"),
    (Photo, "Photo with the fields data: bytes"),
    (Point, "Point with the fields x: int, y: bytes"),
    (Movie, "Movie with the fields title: str, poster: bytes"),
]


@pytest.mark.parametrize(("annotation", "told"), SHAPES, ids=[str(index) for index in range(len(SHAPES))])
def test_the_shape_of_a_type_names_its_fields(annotation: object, told: str) -> None:
    assert codec_for(annotation, "it").shape() == told


REFUSED: list[tuple[object, object, str]] = [
    (int, "5", "str"),
    (int, True, "bool"),
    (list[int], [1, True], "it[1] is bool and came back as int"),
    (str, 5, "int"),
    (bool, 1, "int"),
    (int, None, "`-> int | None`"),
    (Any, [None, (1,)], "`-> list[None | tuple[int]]`"),
    (float, 2**53 + 1, "came back"),
    (Any, (1, "a"), "`-> tuple[int, str]`"),
    (Any, {1, 2}, "`-> set[int]`"),
    (Any, {1: "a"}, "`-> dict[int, str]`"),
    (Any, {"a": [(1,)]}, "it['a'][0] is tuple and came back as list"),
    (Any, {1: "a", "1": "b"}, "int"),
    (Any, Offer(name="a"), "`-> Offer`"),
    (Any, [Offer(name="a")], "`-> list[Offer]`"),
    (Any, datetime(2020, 1, 1, tzinfo=UTC), "`-> datetime`"),
    (Any, Level.LOW, "`-> Level`"),
    (Any, b"x", "`-> bytes`"),
    (Any, object(), "No annotation helps here: return plain data instead"),
    (Any, [{"client": Opaque()}], "such as a dict, a dataclass or a pydantic model"),
    (Any, {"made": {1}}, "`-> dict[str, set[int]]`"),
    (list, [(1,)], "`-> list[tuple[int]]`"),
    (Offer, Special(name="s"), "`-> Special`"),
    (list[Offer], [Special(name="s")], "`-> list[Special]`"),
    (str | datetime, datetime(2020, 1, 1, tzinfo=UTC), "datetime"),
    (Word | str, Word.YES, "tells them apart"),
    (Sequence[int], (1, 2), "`-> tuple[int, int]`"),
    (str, "\ud800", "surrogates"),
    (Any, ["\ud800"], "surrogates"),
    (Photo, Photo(data=b"\xff"), "ser_json_bytes"),
    (Offer, Offer(name="a", price=math.nan), "ser_json_inf_nan"),
    (Offer, {"name": "a"}, "dict"),
    (Offer, Offer.model_construct(name=5), "str"),
    (Decimal, Decimal("NaN"), "finite"),
    (bytes, bytearray(b"x"), "bytearray"),
    (list[bytes], [bytearray(b"x")], "bytearray"),
    (deque[int], deque([1], maxlen=3), "maxlen"),
    (defaultdict[str, int], defaultdict(lambda: 7), "default_factory"),
    (pydantic.SecretStr, pydantic.SecretStr("s"), "changed"),
    (Callable[[], int], len, "builtin_function_or_method"),
]


@pytest.mark.parametrize(("annotation", "value", "told"), REFUSED, ids=[str(index) for index in range(len(REFUSED))])
def test_what_would_not_survive_is_refused_saying_what_to_do(annotation: object, value: object, told: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotKept) as refusal:
            codec_for(annotation, "the result of step 'search'").keep(value)
    assert str(refusal.value).startswith("the result of step 'search' cannot be kept: ")
    assert told in str(refusal.value)


def test_state_beside_the_written_fields_is_refused() -> None:
    codec, hidden = codec_for(Secretive, "it"), Secretive()
    assert codec.keep(hidden)[0] == b"{}"
    hidden._hidden = 5
    with pytest.raises(NotKept, match="_hidden"):
        codec.keep(hidden)
    with pytest.raises(NotKept, match="unwritten"):
        codec.keep(Secretive(unwritten=1))
    stray = Plain("n")
    stray.other = 1  # type: ignore[attr-defined]
    with pytest.raises(NotKept, match=r"it\.other is not a field"):
        codec_for(Plain, "it").keep(stray)


@dataclasses.dataclass
class Slugged:
    title: str

    def __post_init__(self) -> None:
        self.slug, self.seen = self.title.lower(), list[str]()


def test_what_a_dataclass_makes_of_its_fields_when_it_is_built_is_no_loss_unless_it_was_changed() -> None:
    data, live = codec_for(Slugged, "it").keep(Slugged("Kelp"))
    back = codec_for(Slugged, "it").give_back(data)
    assert (live.slug, live.seen, back.slug) == ("kelp", [], "kelp")  # type: ignore[attr-defined]
    changed = Slugged("Kelp")
    changed.seen.append("ann")
    with pytest.raises(NotKept, match=r"it\.seen is not a field"):
        codec_for(Slugged, "it").keep(changed)


def test_what_is_derived_or_only_about_transport_is_no_loss() -> None:
    computed, reply = Plain("n"), Reply(text="hi")
    assert computed.loud == "N"
    reply._request_id = "req-1"
    assert codec_for(Plain, "it").keep(computed)[1] == computed
    assert codec_for(Reply, "it").keep(reply)[0] == b'{"text":"hi"}'


def test_a_number_that_could_be_written_but_not_read_is_refused() -> None:
    for annotation in (int, Any, int | None):
        with pytest.raises(NotKept, match="out of range"):
            codec_for(annotation, "it").keep(10**4300)


def test_a_whole_number_is_a_float_where_one_is_annotated() -> None:
    data, live = codec_for(list[float], "it").keep([1, 2.5])
    assert (data, repr(live)) == (b"[1.0,2.5]", "[1.0, 2.5]")


def test_a_generic_model_that_was_made_without_its_parameter_is_kept_as_the_annotated_one() -> None:
    codec = codec_for(dict[str, Box[Point]], "it")
    data, live = codec.keep({"a": Box(item=Point(1))})
    assert repr(live) == repr(codec.give_back(data)) == "{'a': Box[Point](item=Point(x=1, y=b''))}"
    with pytest.raises(NotKept, match="Point was expected and list found"):
        codec.keep({"a": Box(item=[1, b""])})
    with pytest.raises(NotKept, match=r"Box\[Point\]"):
        codec.keep({"a": Box[Point | None](item=Point(1))})


def test_live_gets_a_copy_so_that_aliases_cannot_differ_from_replay() -> None:
    shared: list[int] = []
    value = [shared, shared]
    _, live = codec_for(Any, "it").keep(value)
    assert isinstance(live, list)
    assert live == value
    assert live[0] is not live[1]
    assert live[0] is not shared


def test_a_forgotten_await_and_a_stream_are_named() -> None:
    async def search() -> int:
        return 1

    forgotten = search()
    for annotation in (Any, int):
        with pytest.raises(NotKept, match="write `await`"):
            codec_for(annotation, "it").keep(forgotten)
    forgotten.close()
    with pytest.raises(NotKept, match="collect it"):
        codec_for(list[int], "it").keep(number for number in range(3))


def test_a_type_without_json_form_is_refused_before_anything_runs() -> None:
    class Client: ...

    for annotation in (Client, list[Client], range):
        with pytest.raises(NotKept, match="Annotate a pydantic model, a dataclass"):
            codec_for(annotation, "it")

    class Late(BaseModel):
        later: "NeverDefined"  # type: ignore[name-defined]  # noqa: F821, UP037

    with pytest.raises(NotKept, match="not defined yet"):
        codec_for(Late, "it")
    with pytest.raises(NotKept, match="'Unseen' names nothing"):
        codec_for("Unseen", "it")


def test_a_cycle_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    for annotation in (Any, list[Any]):
        with pytest.raises(NotKept, match=r"[Cc]ircular"):
            codec_for(annotation, "it").keep(loop)


@pytest.mark.parametrize("data", [b"", b"1,2", b"{", b'"x"', b"[1", b"1]", b"\xff"])
def test_bytes_that_are_not_the_value_are_a_value_error_without_the_content(data: bytes) -> None:
    with pytest.raises(ValueError) as error:
        codec_for(int, "it").give_back(data)
    assert len(str(error.value)) < 300
    assert "input_value" not in str(error.value)


def test_errors_do_not_tell_the_values() -> None:
    with pytest.raises(NotKept) as refusal:
        codec_for(dict[str, int], "it").keep({"key": "s3cret"})
    assert "s3cret" not in str(refusal.value)
    with pytest.raises(NotKept, match="int was expected and str found") as refusal:
        codec_for(Offer, "it").keep(Offer.model_construct(name="a", cents="s3cret"))
    assert "s3cret" not in str(refusal.value)
    with pytest.raises(ValueError, match="cents: Input should be a valid integer") as error:
        codec_for(Offer, "it").give_back(b'{"name":"a","cents":"s3cret"}')
    assert "s3cret" not in str(error.value)


def test_a_model_may_learn_a_field_with_a_default() -> None:
    assert codec_for(Special, "it").give_back(b'{"name":"a","cents":1}') == Special(name="a", cents=1)


def test_the_order_of_a_union_belongs_to_the_annotation() -> None:
    class One(BaseModel):
        x: int

    class Two(BaseModel):
        x: int

    for first, union in ((One, One | Two), (Two, Two | One)):
        assert type(codec_for(union, "it").give_back(b'{"x":1}')) is first


def test_codecs_are_built_once_and_unhashable_annotations_work_too() -> None:
    assert codec_for(list[Offer], "it") is codec_for(list[Offer], "it")
    assert codec_for(Annotated[int, ["unhashable"]], "it").keep(5) == (b"5", 5)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4),
    max_leaves=15,
)


@given(JSON)
@settings(max_examples=150, deadline=None)
def test_all_plain_json_survives_without_an_annotation(value: object) -> None:
    codec = codec_for(Any, "it")
    data, live = codec.keep(value)
    assert same(value, live)
    assert same(live, codec.give_back(data))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (1, "1"),
        ([1], (1,)),
        ({(1,)}, {(True,)}),
        ({1: 2}, {1: 2.5}),
        ({1: 2}, {True: 2}),
        ([math.nan], [1.0]),
        (Offer(name="a"), Special(name="a")),
        (Plain("a"), Plain("b")),
        ([1], [1, 2]),
        ({1}, {1, 2}),
        ({}, {"a": 1}),
    ],
)
def test_values_that_merely_resemble_each_other_are_not_the_same(a: object, b: object) -> None:
    assert not same(a, b)
    assert same(a, a)
