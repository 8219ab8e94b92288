"""Messages to a run that its code has not taken yet, in the order in which they came.

They stay in the store until a `receive` takes one together with its outcome, so that a crash loses none and doubles none. A sender that
repeats itself, because it died before it knew that it had sent, gives the same key: what was taken under a key is not taken again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.records import kinds as rec
from holdfast.records.lineage import Unread


class Message(NamedTuple):
    """What somebody sent under a name; `again` where it was taken before on a path that was given up, and has no letter any more."""

    letter_id: int
    name: str
    value: object
    by: str
    key: str
    again: str = ""

    def encoded(self) -> bytes:
        """The value as bytes."""
        return json.dumps(self.value, ensure_ascii=False, separators=(",", ":")).encode()


class Mail:
    """The messages of one run; letters that nobody will take are removed with the next one that is taken, or with the run's end."""

    __slots__ = ("_keys", "_lock", "_messages", "_spent")

    def __init__(self, taken: set[str], unread: Iterable[Unread] = ()) -> None:
        self._keys = taken
        self._messages = [Message(0, each.name, json.loads(each.value), each.by, each.key, each.mark) for each in unread]
        self._spent: list[int] = []
        self._lock = threading.Lock()

    def put(self, letter_id: int, body: rec.Json) -> str:
        """Keep a message; gives its name, or nothing where it was taken before."""
        message = Message(letter_id, str(body["name"]), body["value"], str(body["by"]), str(body.get("key") or ""))
        with self._lock:
            if message.key and (message.key in self._keys or any(other.key == message.key for other in self._messages)):
                self._spent.append(letter_id)
                return ""
            self._messages.append(message)
        return message.name

    def first(self, name: str) -> Message | None:
        """The oldest message of that name."""
        return next((message for message in self._messages if message.name == name), None)

    def take(self, name: str) -> Message | None:
        """The oldest message of that name; from here on nobody else gets it."""
        with self._lock:
            message = self.first(name)
            if message is not None:
                self._messages.remove(message)
                self._keys.add(message.key)
        return message

    def letters_of(self, message: Message) -> tuple[int, ...]:
        """The letters to remove when a message has been taken: its own, and those that nobody will take."""
        with self._lock:
            spent, self._spent = self._spent, []
        return (message.letter_id, *spent)

    def left(self) -> tuple[int, ...]:
        """The letters that nobody will take any more once the run has ended."""
        with self._lock:
            return (*self._spent, *(message.letter_id for message in self._messages))
