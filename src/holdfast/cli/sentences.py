"""Commands inside sentences, made to be pasted: found, completed with the store that was named, and not broken over lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

COMMAND = re.compile(r"`[^`]+`|\bholdfast [a-z][^;,]*?(?=[.;,](?:\s|$)|$)")
"""A command inside a sentence: between backticks, or up to the end of its part of the sentence."""
OURS = "holdfast "
"""How a command of ours begins."""
HELD = "\0"
"""Stands for a blank at which a line is not broken."""


def advises(text: str) -> bool:
    """Whether a text proposes a command of ours."""
    return any(_bare(found).startswith(OURS) for found in COMMAND.findall(text))


def completed(text: str, command: Callable[[str], str]) -> str:
    """The text, with what `command` makes of each command of ours in it."""

    def whole(found: re.Match[str]) -> str:
        bare = _bare(found.group())
        return found.group().replace(bare, command(bare)) if bare.startswith(OURS) else found.group()

    return COMMAND.sub(whole, text)


def wrapped(line: str, room: int) -> list[str]:
    """A long line as several, broken between words only; a command in it, which is to be copied, stays whole."""
    held = COMMAND.sub(lambda found: found.group().replace(" ", HELD), line)
    parts = textwrap.wrap(held, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [part.replace(HELD, " ") for part in parts]


def _bare(found: str) -> str:
    return found.strip("`")
