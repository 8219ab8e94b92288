"""Which models answered the steps of a run: read from replies and reports, folded by step name, and compared with earlier lives.

A call is a pair: the model that was asked for and the one that answered. `gpt-4o` answered by `gpt-4o-2024-08-06` is how things are; that
the same step is now answered by another, or asks for another, than in all earlier lives of the run is a change. Within one life nothing
is compared, because an agent may use several models. What one side does not say is not compared.

Replies are known by the package of their class, without importing it: openai and anthropic tell their model and tokens alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from holdfast.records import kinds as rec

OnModelChange: TypeAlias = Literal["warn", "ask", "fail"]

SDKS = frozenset({"openai", "anthropic"})
_INPUT = ("input_tokens", "prompt_tokens")
_OUTPUT = ("output_tokens", "completion_tokens")


class Pair(NamedTuple):
    """The model that was asked for and the one that answered; empty where that was not told."""

    asked: str
    answered: str

    def fits(self, other: Pair) -> bool:
        """Whether both may be the same, as far as both say."""
        return all(not mine or not theirs or mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __str__(self) -> str:
        if not self.asked or self.asked == self.answered:
            return self.answered
        return f"{self.asked} (answered by {self.answered})" if self.answered else self.asked


def is_reply(result: object) -> bool:
    """Whether a result is a reply of a known SDK that tells its model and what it cost; of a builtin type that is seen at once."""
    kind = type(result)
    return kind.__module__ != "builtins" and _of_an_sdk(kind) and bool(read(result))


def _of_an_sdk(kind: type) -> bool:
    """Whether a class is one of a known SDK, or built from one: a parsed reply is a class of its own."""
    return any(str(base.__module__).partition(".")[0] in SDKS for base in kind.__mro__)


def read(reply: object) -> rec.Json:
    """What a reply tells: the model that answered and the tokens; nothing where it is no reply."""
    model, usage = _part(reply, "model"), _part(reply, "usage")
    if not isinstance(model, str) or usage is None:
        return {}
    entry = {"model": model, "input_tokens": _tokens(usage, _INPUT), "output_tokens": _tokens(usage, _OUTPUT)}
    return {name: value for name, value in entry.items() if value}


def _tokens(usage: object, names: Sequence[str]) -> int:
    found = (_part(usage, name) for name in names)
    return next((count for count in found if isinstance(count, int)), 0)


def _part(whole: Any, name: str) -> Any:
    """A part of somebody else's object; one that cannot be read is not there, because the outcome of a step must not depend on it."""
    try:
        return whole.get(name) if isinstance(whole, Mapping) else getattr(whole, name, None)
    except Exception:  # noqa: BLE001 (a property may raise anything)
        return None


def pairs_of(usage: Sequence[rec.Json]) -> list[Pair]:
    """The calls that the usage of a step tells of."""
    pairs = (Pair(str(entry.get("asked") or ""), str(entry.get("model") or "")) for entry in usage)
    return list(dict.fromkeys(pair for pair in pairs if any(pair)))


class Models:
    """The pairs of a run by step name, those of earlier lives apart from those of this one; `open` are changes that nobody accepted."""

    __slots__ = ("_earlier", "_here", "open")

    def __init__(self) -> None:
        self._earlier: dict[str, list[Pair]] = {}
        self._here: dict[str, list[Pair]] = {}
        self.open: dict[tuple[str, Pair], rec.ModelChanged] = {}

    def begin_life(self) -> None:
        """From here on another process speaks."""
        for name, pairs in self._here.items():
            self._earlier[name] = list(dict.fromkeys([*self._earlier.get(name, ()), *pairs]))
        self._here = {}

    def fold(self, record: rec.StepDone | rec.StepFailed) -> None:
        """Take what a step recorded into account."""
        if record.usage:
            self._here.setdefault(record.name, []).extend(pairs_of(record.usage))

    def fold_change(self, record: rec.ModelChanged | rec.ModelAccepted) -> None:
        """A change was recorded, or somebody accepted it."""
        key = (record.name, Pair(record.asked, record.answered))
        if isinstance(record, rec.ModelAccepted):
            self.open.pop(key, None)
        elif record.action != "warn":
            self.open[key] = record

    def news(self, name: str, usage: Sequence[rec.Json]) -> list[tuple[Pair, list[Pair]]]:
        """The calls that fit none of earlier lives, each told once, with what there was."""
        before = self._earlier.get(name)
        if before is None:
            return []
        found = [(pair, before) for pair in pairs_of(usage) if not any(pair.fits(one) for one in before)]
        if found:
            self._earlier[name] = [*before, *(pair for pair, _ in found)]
        return found
