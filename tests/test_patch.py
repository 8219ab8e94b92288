"""Two documents compared: the patch leads from the first to the second, whatever they are, and is no longer than need be."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.operating import patch as patch_room
from holdfast.operating.patch import Change, compared, same

Names = st.text(st.sampled_from("ab/~0é"), max_size=3)
Leaves = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 2.5]) | st.text("ab", max_size=2)
Documents = st.recursive(Leaves, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(Names, inner, max_size=4), max_leaves=20)


def applied(document: Any, patch: list[dict[str, Any]]) -> Any:
    """The document after the operations of RFC 6902 that a patch of ours has."""
    root = {"": copy.deepcopy(document)}
    for operation in patch:
        target: Any = root
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")]
        for part in way:
            target = target[int(part)] if isinstance(target, list) else target[part]
        match target, operation["op"]:
            case list(), "add":
                assert int(last) <= len(target)
                target.insert(int(last), operation["value"])
            case list(), "remove":
                del target[int(last)]
            case _, "remove":
                del target[last]
            case _, op:
                assert (op == "add") == (not isinstance(target, list) and last not in target)
                target[int(last) if isinstance(target, list) else last] = operation["value"]
    return root[""]


def patch_of(left: Any, right: Any) -> list[dict[str, Any]]:
    return [change.operation() for change in compared(left, right)]


@settings(max_examples=400, deadline=None)
@given(Documents, Documents)
@example([1, True], [True, 1.0])
@example({"a/b": [1], "~": 0}, {"a/b": [1, 2], "~0": 0})
def test_applying_the_patch_to_the_first_gives_the_second(left: Any, right: Any) -> None:
    assert same(applied(left, patch_of(left, right)), right)


@settings(max_examples=50, deadline=None)
@given(st.lists(Documents, max_size=8), st.lists(Documents, max_size=8))
def test_lists_too_long_to_be_aligned_are_patched_all_the_same(left: list[Any], right: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patch_room, "MAX_ALIGNED", 0)
        assert same(applied(left, patch_of(left, right)), right)


def test_the_check_would_notice_a_patch_that_forgets_something() -> None:
    left, right = {"a": [1, 2, 3]}, {"a": [2, 3, 4], "b": 1}
    whole = patch_of(left, right)
    assert same(applied(left, whole), right)
    assert not any(same(applied(left, [each for each in whole if each is not gone]), right) for gone in whole)


def test_nothing_is_said_of_what_is_equal() -> None:
    assert patch_of({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) == []


def test_a_list_that_grew_shows_only_what_was_added() -> None:
    messages = [{"role": "user", "content": str(number)} for number in range(50)]
    new = {"role": "tool", "content": "new"}
    assert list(compared(messages, [*messages, new])) == [Change("add", (50,), None, new)]
    assert list(compared(messages, [new, *messages])) == [Change("add", (0,), None, new)]
    assert list(compared(messages, messages[:3] + messages[4:])) == [Change("remove", (3,), messages[3])]


def test_an_item_that_changed_is_looked_into() -> None:
    assert list(compared([{"a": 1, "b": 2}, 7], [{"a": 1, "b": 3}, 7])) == [Change("replace", (0, "b"), 2, 3)]


def test_numbers_and_truths_are_not_mixed_up() -> None:
    assert list(compared([1, 0], [True, 0.0])) == [Change("replace", (0,), 1, True), Change("replace", (1,), 0, 0.0)]
