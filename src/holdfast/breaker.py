"""A circuit breaker per named dependency, shared by all runs of a process: after so many failures in a row nobody calls it for a while.

The machine has three states, and what follows from what is a table; nothing here waits or reads a clock:

| state   | may an attempt begin?           | it succeeds    | it fails                       | it says nothing |
|---------|---------------------------------|----------------|--------------------------------|-----------------|
| Closed  | yes                             | Closed(0)      | Closed(n + 1), or Open at last | as it was       |
| Open    | no; one, once the rest is over  | as it was      | as it was                      | as it was       |
| Trying  | not before the one has ended    | Closed(0)      | Open                           | Open, for no time |

In the state Trying only the one attempt that was let through counts; what others, begun before, come back with is not listened to.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from holdfast._clients import http_status
from holdfast._duration import Duration, seconds
from holdfast._facts import Fact, fact
from holdfast._ids import checked_text
from holdfast._landing import Rules, landing
from holdfast.errors import HoldfastError, Misuse
from holdfast.retry import Retry

Word: TypeAlias = Literal["success", "failure", "nothing"]
"""What the end of an attempt says of the other side."""

CLIENT_ERRORS = range(400, 500)
TOO_MANY_REQUESTS = 429

EARLY_S = 0.005
"""By how much a timer may wake too early: who has waited for the rest is not sent away again."""

log = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Breaker:
    """After `failures` in a row nobody calls the dependency `name` for the time of `rest`; then one attempt tries whether it is back."""

    name: str
    failures: int = 5
    rest: Duration = "30s"

    def __post_init__(self) -> None:
        if type(self.name) is not str or not checked_text(self.name, "the name of a Breaker"):
            raise Misuse(f"the name of a Breaker is {self.name!r}; it must be a text that names the dependency, such as 'bank'")
        if type(self.failures) is not int or self.failures < 1:
            raise Misuse(f"failures of Breaker {self.name!r} is {self.failures!r}; it must be a whole number from 1 on")
        if seconds(self.rest, f"rest of Breaker {self.name!r}") == 0:
            raise Misuse(f"rest of Breaker {self.name!r} is 0: it would never keep anybody from calling")

    def rest_s(self) -> float:
        """The rest in seconds."""
        return seconds(self.rest, "rest of Breaker")


@fact()
class Closed(Fact):
    """Attempts begin; `failed` in a row have failed."""

    failed: int = 0


@fact()
class Open(Fact):
    """No attempt begins before that time."""

    until_s: float


@fact()
class Trying(Fact):
    """One attempt, `who`, tries whether the other side is back."""

    who: object


State: TypeAlias = Closed | Open | Trying


@fact()
class Go(Fact):
    """The attempt may begin."""


@fact()
class Rest(Fact):
    """It may not, for so many seconds."""

    rest_s: float


@fact()
class Wait(Fact):
    """It may not before the one that tries has ended."""


Answer: TypeAlias = Go | Rest | Wait


def admitted(state: State, who: object, now_s: float) -> tuple[State, Answer]:
    """Whether an attempt may begin now, and the state after that."""
    match state:
        case Closed():
            return state, Go()
        case Open() if now_s < state.until_s - EARLY_S:
            return state, Rest(state.until_s - now_s)
        case Open():
            return Trying(who), Go()
        case Trying():
            return state, Wait()
        case _:
            assert_never(state)


def told(state: State, who: object, word: Word, now_s: float, breaker: Breaker) -> State:
    """The state after an attempt has ended."""
    match state, word:
        case Closed(), "success":
            return Closed()
        case Closed(failed), "failure":
            return Closed(failed + 1) if failed + 1 < breaker.failures else Open(now_s + breaker.rest_s())
        case Trying(one), "success" if one is who:
            return Closed()
        case Trying(one), "failure" if one is who:
            return Open(now_s + breaker.rest_s())
        case Trying(one), "nothing" if one is who:
            return Open(now_s)
    return state


def word_of(error: Exception, *, effect: bool, raises: tuple[type[BaseException], ...], errors: Rules, retry: Retry | None) -> Word:
    """What an error says of the other side: one that it answered with is as good as a result."""
    if isinstance(error, HoldfastError):
        return "nothing"
    landed = landing(error, raises, errors)
    status = http_status(error)
    if landed == "answer" or (status in CLIENT_ERRORS and status != TOO_MANY_REQUESTS):
        return "success"
    transient = Retry.transient(error) or (retry is not None and retry.applies(error))
    return "failure" if transient or (effect and landed == "unknown") else "nothing"


class Circuit:
    """The state of one breaker in this process. Its lock is held while the state changes, never while a body runs."""

    __slots__ = ("_lock", "_settings", "_state", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._settings: Breaker | None = None
        self._state: State = Closed()
        self._lock = threading.Lock()

    @property
    def breaker(self) -> Breaker:
        """Its settings: those somebody declared, or the defaults."""
        return self._settings or Breaker(self.name)

    @property
    def state(self) -> State:
        return self._state

    def admit(self, who: object, now_s: float) -> Answer:
        """Whether an attempt may begin now."""
        with self._lock:
            self._state, answer = admitted(self._state, who, now_s)
            return answer

    def rest_s(self, now_s: float) -> float:
        """For how long nobody may call yet."""
        state = self._state
        return max(0.0, state.until_s - now_s) if isinstance(state, Open) else 0.0

    def tell(self, who: object, word: Word, now_s: float) -> None:
        """An attempt has ended."""
        with self._lock:
            before, self._state = self._state, told(self._state, who, word, now_s, self.breaker)
            after = self._state
        if isinstance(after, Open) and word == "failure" and after != before:
            log.info("breaker %r is open: nobody calls it for %g s", self.name, self.breaker.rest_s())
        if isinstance(after, Closed) and isinstance(before, Trying):
            log.info("breaker %r is closed again", self.name)

    def settle_on(self, breaker: Breaker) -> None:
        """Take these settings; others than were declared elsewhere are refused."""
        with self._lock:
            if self._settings not in (None, breaker):
                raise Misuse(
                    f"{breaker} is declared, and {self._settings} elsewhere in this process: a name has one breaker. "
                    f"Make them the same, or give one another name; breaker={self.name!r} alone takes whatever is declared"
                )
            self._settings = breaker


_circuits: dict[str, Circuit] = {}
_registering = threading.Lock()


def circuit_of(declared: str | Breaker | Circuit | None, where: str) -> Circuit | None:
    """The circuit that `breaker=` means; all that name it share it."""
    match declared:
        case None | Circuit():
            return declared
        case str():
            return _circuit(Breaker(declared).name)
        case Breaker():
            circuit = _circuit(declared.name)
            circuit.settle_on(declared)
            return circuit
    raise Misuse(f"breaker={declared!r} of {where} is no breaker. Write breaker='bank' or breaker=hf.Breaker('bank', failures=5)")


def _circuit(name: str) -> Circuit:
    with _registering:
        return _circuits.setdefault(name, Circuit(name))
