"""Messages that nobody took yet: in order, each once, repetitions of one sending dropped, and no letter left behind."""

from __future__ import annotations

import threading
from typing import Any

from holdfast.life.mail import Mail


def body(name: str, value: Any, key: str = "") -> dict[str, Any]:
    return {"name": name, "value": value, "by": "ann", "key": key}


def test_the_oldest_of_a_name_is_taken_first_and_once() -> None:
    mail = Mail(set())
    for letter_id, (name, value) in enumerate([("a", 1), ("b", 2), ("a", 3)], 1):
        assert mail.put(letter_id, body(name, value)) == name
    first, second = mail.take("a"), mail.take("a")
    assert first is not None
    assert second is not None
    assert (first.value, second.value, mail.take("a")) == (1, 3, None)
    assert mail.left() == (2,)


def test_a_repetition_is_dropped_whether_the_first_was_taken_before_now_or_not_yet() -> None:
    mail = Mail({"taken long ago"})
    assert mail.put(1, body("a", 1, "taken long ago")) == ""
    assert mail.put(2, body("a", 1, "new")) == "a"
    assert mail.put(3, body("a", 1, "new")) == ""
    message = mail.take("a")
    assert message is not None
    assert mail.put(4, body("a", 1, "new")) == ""
    assert mail.letters_of(message) == (2, 1, 3, 4)
    assert mail.left() == ()


def test_messages_without_a_key_are_never_the_same() -> None:
    mail = Mail({""})
    assert [mail.put(number, body("a", 1)) for number in (1, 2)] == ["a", "a"]
    assert [message.letter_id for message in (mail.take("a"), mail.take("a")) if message] == [1, 2]
    assert mail.put(3, body("a", 1)) == "a"


def test_threads_that_take_at_once_get_different_messages() -> None:
    mail, taken = Mail(set()), list[int]()
    for number in range(200):
        mail.put(number, body("a", number))

    def take_all() -> None:
        while (message := mail.take("a")) is not None:
            taken.append(message.letter_id)

    threads = [threading.Thread(target=take_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(taken) == list(range(200))
