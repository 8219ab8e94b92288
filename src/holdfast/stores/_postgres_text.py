"""Text in PostgreSQL: it may hold U+0000, which the server refuses, so that and U+0001 are written as two characters, in the same order."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """Whatever came from the database, text as it was given."""
    if type(value) is str and "\x01" in value:
        return value.replace("\x01\x01", "\0").replace("\x01\x02", "\x01")
    return value


def sql_text(text: str) -> str:
    """Text as PostgreSQL can hold it, in the same order."""
    if "\0" in text or "\x01" in text:
        return text.replace("\x01", "\x01\x02").replace("\0", "\x01\x01")
    return text
