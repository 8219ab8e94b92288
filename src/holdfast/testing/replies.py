"""A scripted model: it gives the replies that a test has prepared, one by one, and remembers what it was asked."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from holdfast.life.run import Body, place

T = TypeVar("T")

SHOWN = 200
"""Characters of a question that an error shows."""


class Replies(Generic[T]):
    """Prepared replies; an exception among them is raised. Call it, or await `later` where the client is asynchronous."""

    def __init__(self, *replies: T | BaseException) -> None:
        self.asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._left = list(replies)
        self._prepared = len(replies)
        self._given: dict[tuple[str, str, int], T] = {}
        self._body: Body | None = None
        self._nth = 0

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        """The next reply; a step that is executed again after a crash gets the one that it had got."""
        place_in_run = self._place()
        self.asked.append((args, kwargs))
        if place_in_run in self._given:
            return self._given[place_in_run]
        reply = self._next(args, kwargs)
        if isinstance(reply, BaseException):
            raise reply
        if place_in_run[0]:
            self._given[place_in_run] = reply
        return reply

    async def later(self, *args: Any, **kwargs: Any) -> T:
        """The same, to be awaited."""
        return self(*args, **kwargs)

    def _place(self) -> tuple[str, str, int]:
        """The run, the step, and how many questions its body has put before this one."""
        where = place.get()
        if not isinstance(where, Body):
            return "", "", 0
        self._nth = self._nth + 1 if where is self._body else 0
        self._body = where
        return where.run.id, where.call.step_id, self._nth

    def _next(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T | BaseException:
        if not self._left:
            asked = ", ".join([*(repr(each) for each in args), *(f"{name}={value!r}" for name, value in kwargs.items())])
            raise AssertionError(f"all {self._prepared} prepared replies are used up, and the model was asked once more: ({asked[:SHOWN]})")
        return self._left.pop(0)


def replies(*prepared: T | BaseException) -> Replies[T]:
    """A model that gives these replies one by one."""
    return Replies(*prepared)


