"""Where the answer of a command goes: a page for people, a document for scripts."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO, TypeVar

from holdfast.cli.document import document
from holdfast.cli.page import INDENT, Line, Page, plain
from holdfast.cli.sentences import advises, completed, wrapped
from holdfast.cli.views import Setting
from holdfast.cli.wording import lines_of
from holdfast.stores.opening import without_password

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Screen:
    """What the command was told about its output: --store, which commands to try must repeat, and --json."""

    store: str | None
    as_json: bool

    def setting(self) -> Setting:
        """What a page must know of here and now."""
        return Setting(time.time_ns() // 1000, None if self.store is None else without_password(self.store))

    def say(self, page: Page, **parts: Any) -> None:
        """Print the page or, under --json, the document of these parts."""
        if self.as_json:
            print(document(**parts))
        elif is_terminal(sys.stdout):
            from holdfast.cli.terminal import draw

            draw(page, sys.stdout)
        else:
            for line in plain(page):
                print(line)

    def told(self, run_id: str, said: str) -> None:
        """Print what a verb that changed something has to say; a command in it names the store that was named."""
        said = completed(said, self.setting().command)
        self.say([Line(said)], run_id=run_id, said=said)

    def followed(self, items: Iterable[T], total: int, what: str) -> Iterable[T]:
        """The items, with a bar on stderr where a person looks."""
        if self.as_json or not is_terminal(sys.stderr):
            return items
        from holdfast.cli.terminal import followed

        return followed(items, total, what)

    @contextlib.contextmanager
    def to_itself(self) -> Iterator[None]:
        """Where stdout must hold one document, what an agent and its children print goes to stderr."""
        if not self.as_json:
            yield
            return
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def complain(text: str, store: str = "") -> None:
    """Say on stderr what is wrong, with further lines set in; commands in it are those of every store, so one that was named is told."""
    if store and advises(text) and f"--store {store}" not in text:
        text = f"{text}\nHere a command needs, too: --store {store}"
    lines = lines_of(f"holdfast: {text}")
    if is_terminal(sys.stderr):
        lines = [part for line in lines for part in wrapped(line, shutil.get_terminal_size().columns - len(INDENT))]
    print("\n  ".join(lines), file=sys.stderr)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream, on something that can do more than print lines."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"
