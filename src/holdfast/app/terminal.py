"""The person at the terminal of a process that waits for a run: the question is shown there, and the answer taken.

Nothing blocks on the terminal. Whoever waits for the run looks now and then whether a line was typed, so that an answer from elsewhere, the
end of a time, or Ctrl-C are noticed as ever. At the end of the input (Ctrl-D) the run goes on waiting for an answer from elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast._clock import to_datetime
from holdfast._duration import in_words
from holdfast.codec.answers import harmless, shown
from holdfast.errors import HoldfastError
from holdfast.records.journal import Journal
from holdfast.running.engine import Engine
from holdfast.stores.opening import store_option
from holdfast.verbs.waits import AFTERWARDS

if TYPE_CHECKING:
    from holdfast.records.replay import Question

LINE = 4096
"""Bytes that are read of what was typed at once."""

MAX_TYPED = 1_000_000
"""Bytes of one typed answer at the most; what is longer is not typed."""


def at_a_terminal(engine: Engine) -> Terminal | None:
    """The terminal of this process, if a person can see what it writes and type an answer."""
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no such stream, or it is closed or something else
        if sys.stdin.isatty() and sys.stderr.isatty():
            return Terminal(engine, sys.stdin.fileno())
    return None


class Terminal:
    """Shows the questions of a run one by one, and answers them with what is typed."""

    def __init__(self, engine: Engine, typed_at: int) -> None:
        self._engine, self._typed_at = engine, typed_at
        self._typed = b""
        self._put: tuple[str, str, int] | None = None
        self._over = False

    def put(self, run_id: str) -> bool:
        """Show what the run asks; False where it asks nothing, or the input has come to its end."""
        asked = None if self._over else self._first_of(run_id)
        self._put = None
        if asked is None:
            return False
        ask_id, question = asked
        self._put = (run_id, ask_id, question.seq)
        self._show(run_id, ask_id, question)
        return True

    def look(self) -> None:
        """Answer with the line that was typed, if there is one by now; one that is refused leaves the question where it is."""
        while self._put is not None and select.select([self._typed_at], [], [], 0)[0]:
            part = os.read(self._typed_at, LINE)
            self._typed += part
            if not part or len(self._typed) > MAX_TYPED:
                self._end(*self._put)
                return
            line, newline, rest = self._typed.partition(b"\n")
            if newline:
                self._typed = rest
                self._answer(*self._put, line.decode(errors="replace").strip())
                return

    def _first_of(self, run_id: str) -> tuple[str, Question] | None:
        found = self._engine.store.load(run_id)
        asks = [] if found is None else Journal.load(*found).open_asks()
        now_us = self._engine.clock.now_us()
        found_open = [(ask_id, asked) for ask_id, asked in asks if not asked.too_late(now_us)]
        return next((pair for pair in found_open if _may_answer(pair[1])), found_open[0] if found_open else None)

    def _show(self, run_id: str, ask_id: str, question: Question) -> None:
        opened = question.opened
        who = f" (for {', '.join(opened.who)})" if opened.who else ""
        sys.stderr.write(f"holdfast: run {harmless(run_id)} asks{who}: {harmless(opened.question)}\n")
        if opened.details is not None:
            sys.stderr.write(f"  {harmless(json.dumps(opened.details, ensure_ascii=False))}\n")
        sys.stderr.write(self._until(opened.until_us))
        told = f"  here, or elsewhere with `{self._command(run_id, ask_id, opened.who)}`"
        if not _may_answer(question):
            sys.stderr.write(f"{told}\n  only there: here it is {harmless(_me())} who answers\n")
            sys.stderr.flush()
            self._put = None
            return
        sys.stderr.write(f"{told}\n  {harmless(shown(opened.wants))} > ")
        sys.stderr.flush()

    def _until(self, until_us: int) -> str:
        if not until_us:
            return ""
        left_s = max(0.0, (until_us - self._engine.clock.now_us()) / 1e6)
        return f"  until {to_datetime(until_us).astimezone():%Y-%m-%d %H:%M:%S} (in {in_words(left_s)}), {AFTERWARDS}\n"

    def _command(self, run_id: str, ask_id: str, who: Sequence[str]) -> str:
        by = f" --by {shlex.quote(who[0]) if len(who) == 1 else 'NAME'}" if who else ""
        return f"holdfast answer {named(run_id, ask_id)} ANSWER{by}{store_option(self._engine.store.url)}"

    def _answer(self, run_id: str, ask_id: str, about: int, typed: str) -> None:
        from holdfast.operating.words import Given, answer

        try:
            answer(self._engine, run_id, ask_id, given=Given(typed, typed=True), by=_me(), reason="", about=about)
        except HoldfastError as error:
            sys.stderr.write(f"  {harmless(str(error))}\n  > ")
            sys.stderr.flush()

    def _end(self, run_id: str, ask_id: str, _about: int) -> None:
        self._over, self._put = True, None
        sys.stderr.write(f"\nholdfast: the run goes on by itself once somebody says: {self._command(run_id, ask_id, ())}\n")


def _me() -> str:
    """Who sits at the terminal."""
    from holdfast.operating.telling import somebody

    return somebody()


def _may_answer(question: Question) -> bool:
    return not question.opened.who or _me() in question.opened.who


def named(run_id: str, ask_id: str) -> str:
    """A question as a command names it: its step may come from a model's tool call, and the command is made to be pasted."""
    return shlex.quote(f"{run_id}/{ask_id}")
