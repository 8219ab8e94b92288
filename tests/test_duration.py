"""A duration is seconds, a text or a timedelta; everything else is refused with examples."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from holdfast._duration import LONGEST_S, Duration, seconds
from holdfast.errors import Misuse


@pytest.mark.parametrize(
    ("duration", "expected_s"),
    [
        (0, 0.0),
        (2.5, 2.5),
        ("0.5s", 0.5),
        ("24h", 86_400),
        ("3d", 259_200),
        ("1h30m", 5_400),
        (" 1h 30m ", 5_400),
        ("250ms", 0.25),
        ("2w", 1_209_600),
        ("1m1ms", 60.001),
        (timedelta(minutes=2), 120),
    ],
)
def test_a_duration_is_read(duration: Duration, expected_s: float) -> None:
    assert seconds(duration, "timeout") == pytest.approx(expected_s)
    assert type(seconds(duration, "timeout")) is float


@pytest.mark.parametrize(
    "nonsense",
    [
        -1,
        -0.5,
        "-1s",
        math.nan,
        math.inf,
        True,
        "",
        "10",
        "h",
        "1x",
        "1 hour",
        "1.s",
        "٣s",
        timedelta(-1),
        LONGEST_S * 2,
        10**400,
        None,
        b"1s",
    ],
)
def test_nonsense_is_misuse_with_examples(nonsense: Duration) -> None:
    with pytest.raises(Misuse, match=r'timeout of step .* is .* no duration.*"1h30m"'):
        seconds(nonsense, "timeout of step 'search'")
