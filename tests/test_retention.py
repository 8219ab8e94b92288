"""What a policy means for the runs that there are, as a table; and policies that mean nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import Misuse
from holdfast.retention import decide
from holdfast.store import Head

HOUR_US = 3_600_000_000
NOW_US = 1_000 * HOUR_US


def head(run_id: str, status: str, age_h: float, agent: str = "a", owner: str | None = None) -> Head:
    return Head(run_id, agent, status, owner, 1, 3, b"", None, 1, NOW_US - int(age_h * HOUR_US), "{}", 0.0, "")


HEADS = [
    head("d1", "done", 1), head("d5", "done", 5), head("c9", "cancelled", 9), head("d30", "done", 30), head("f40", "failed", 40),
    head("w50", "waiting", 50), head("q50", "queued", 50), head("b50", "blocked", 50), head("r50", "running", 50, owner="o"),
    head("x30", "done", 30, agent="b"), head("x90", "cancelled", 90, agent="b"), head("o99", "done", 99, agent="b", owner="o"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "goes"),
    [
        ({"max_age": "24h"}, ["x90", "d30", "x30"]),
        ({"max_age": "6h"}, ["x90", "d30", "x30", "c9"]),
        ({"max_age": timedelta(hours=30)}, ["x90"]),
        ({"keep_last": 1}, ["x90", "d30", "c9", "d5"]),
        ({"keep_last": 2}, ["d30", "c9"]),
        ({"keep_last": 0}, ["x90", "d30", "x30", "c9", "d5", "d1"]),
        ({"keep_last": 1, "max_age": "24h"}, ["x90", "d30"]),
        ({"keep_last": 9, "max_age": "1s"}, []),
        ({"keep_last": 0, "max_age": "6h"}, ["x90", "d30", "x30", "c9"]),
        ({"max_age": "24h", "keep_failed": False}, ["x90", "f40", "d30", "x30"]),
        ({"keep_last": 4, "keep_failed": False}, ["f40"]),
        ({"details": "1h"}, []),
    ],
)
def test_the_policy_decides_which_runs_go(policy: dict[str, Any], goes: list[str]) -> None:
    found = decide(HEADS, hf.Retention(**policy), NOW_US)
    assert sorted(one.run_id for one in found.goes) == sorted(goes)
    assert [one.updated_us for one in found.goes] == sorted(one.updated_us for one in found.goes)
    assert {one.run_id for one in found.goes + found.stays} == {one.run_id for one in HEADS}
    assert len(found.goes) + len(found.stays) == len(HEADS)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({}, "keeps everything"),
        ({"keep_failed": False}, "keeps everything"),
        ({"keep_last": -1}, "from 0 on"),
        ({"keep_last": True}, "from 0 on"),
        ({"keep_last": 1.5}, "from 0 on"),
        ({"max_age": "soon"}, "max_age of Retention"),
        ({"keep_last": 1, "keep_failed": "no"}, "keep_failed"),
        ({"keep_last": 1, "keep_ids": -3}, "keep_ids of Retention"),
        ({"keeplast": 1}, "keep_last="),
    ],
)
def test_a_policy_that_means_nothing_is_refused(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        hf.Retention(**policy)


def test_a_policy_says_what_it_is() -> None:
    assert hf.Retention(keep_last=5, max_age="24h", keep_failed=False).told() == "keep_last=5, max_age=24h, keep_failed=False"
