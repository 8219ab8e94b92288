"""The lines of the result, judged against the bars, as a table and as JSON."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import apsw

from holdfast.stores._sqlite_file import file_system

COLUMNS = ("what", "measured", "floor", "ratio", "spread", "bar", "aim", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure: the medians over all rounds, and what is asked of it. `value` is what stands against `bar` and `aim`."""

    what: str
    measured: str
    floor: str
    value: float
    low: float
    high: float
    unit: str
    bar: float | None = None
    aim: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the bar is met, or None where there is none."""
        return None if self.bar is None else self.value <= self.bar

    def cells(self) -> tuple[str, ...]:
        mark = {None: "", True: "ok", False: "MISSED"}[self.met]
        if self.aim is not None and self.value <= self.aim:
            mark = "ok, aim reached"
        spread = f"{self.low:.2f} .. {self.high:.2f}"
        return (self.what, self.measured, self.floor, self._shown(self.value), spread, self._shown(self.bar), self._shown(self.aim), mark)

    def _shown(self, value: float | None) -> str:
        return "" if value is None else f"{value:.2f}{self.unit}"


def ratio_line(
    what: str, measured: Sequence[float], floors: Sequence[float], *, bar: float | None = None, aim: float | None = None
) -> Line:
    """A figure in multiples of the floor: the median of the ratios within each round."""
    ratios = [one / floor for one, floor in zip(measured, floors, strict=True)]
    low, high = _quartiles(ratios)
    return Line(
        what=what, measured=_ms(measured), floor=_ms(floors), unit="x",
        value=statistics.median(ratios), low=low, high=high, bar=bar, aim=aim,
    )  # fmt: skip


def time_line(what: str, measured: Sequence[float], *, unit: str, bar: float | None = None) -> Line:
    """A figure in seconds or milliseconds, which has no floor."""
    scaled = [one * (1000 if unit == " ms" else 1) for one in measured]
    low, high = _quartiles(scaled)
    return Line(what=what, measured=_ms(measured), floor="", value=statistics.median(scaled), low=low, high=high, unit=unit, bar=bar)


def count_line(what: str, measured: Sequence[float], *, bar: float) -> Line:
    """A number of something."""
    low, high = _quartiles(measured)
    return Line(what=what, measured="", floor="", value=statistics.median(measured), low=low, high=high, unit="", bar=bar)


def machine(folder: Path, floors: Sequence[float]) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "file_system": file_system(folder) or "unknown",
        "rounds": len(floors),
        "floor_ms": statistics.median(floors) * 1000,
    }


def as_json(lines: Sequence[Line], about: dict[str, Any]) -> dict[str, Any]:
    return {**about, "lines": [{**asdict(line), "unit": line.unit.strip(), "met": line.met} for line in lines]}


def as_text(lines: Sequence[Line], about: dict[str, Any]) -> str:
    head = (
        f"Python {about['python']}, SQLite {about['sqlite']}, {about['file_system']}; "
        f"medians of {about['rounds']} rounds, spread = quartiles.\n"
        f"The floor is one raw insert of 1 KB with its commit (WAL, synchronous=FULL): {about['floor_ms']:.3f} ms here."
    )
    return "\n".join([head, "", *as_table(lines)])


def as_table(lines: Sequence[Line]) -> list[str]:
    rows = [COLUMNS, *(line.cells() for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return ["  ".join(map(_padded, row, widths, range(len(row)))).rstrip() for row in rows]


def _padded(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column in (0, len(COLUMNS) - 1) else cell.rjust(width)


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _ms(values: Sequence[float]) -> str:
    return f"{statistics.median(values) * 1000:.3f} ms"
