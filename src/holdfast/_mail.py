"""Messages to a run that its code has not taken yet, in the order in which they came.

They stay in the store until a `receive` takes one together with its outcome, so that a crash loses none and doubles none. A sender that
repeats itself, because it died before it knew that it had sent, gives the same key: what was taken under a key is not taken again.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from . import _records as rec


class Message(NamedTuple):
    """What somebody sent under a name."""

    letter_id: int
    name: str
    value: object
    by: str
    key: str

    def encoded(self) -> bytes:
        """The value as bytes."""
        return json.dumps(self.value, ensure_ascii=False, separators=(",", ":")).encode()


class Mail:
    """The messages of one run; `spent` are letters that nobody will take, to be removed with the next commit that can."""

    __slots__ = ("_keys", "_messages", "spent")

    def __init__(self, taken: set[str]) -> None:
        self._keys = taken
        self._messages: list[Message] = []
        self.spent: list[int] = []

    def put(self, letter_id: int, body: rec.Json) -> str:
        """Keep a message; gives its name, or nothing where it was taken before."""
        message = Message(letter_id, str(body["name"]), body["value"], str(body["by"]), str(body.get("key") or ""))
        if message.key and (message.key in self._keys or any(other.key == message.key for other in self._messages)):
            self.spent.append(letter_id)
            return ""
        self._messages.append(message)
        return message.name

    def first(self, name: str) -> Message | None:
        """The oldest message of that name."""
        return next((message for message in self._messages if message.name == name), None)

    def drop(self, message: Message) -> None:
        """The message was taken."""
        self._messages = [other for other in self._messages if other is not message]
        if message.key:
            self._keys.add(message.key)

    def refuse(self, message: Message) -> None:
        """The message cannot be taken: it does not fit what the code waits for."""
        self._messages = [other for other in self._messages if other is not message]
        self.spent.append(message.letter_id)
