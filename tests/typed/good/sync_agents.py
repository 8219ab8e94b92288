"""`holdfast.sync`: the same names, with waiting verbs that block; branches are functions instead of coroutines."""

from __future__ import annotations

from typing import assert_type

import holdfast.sync as hf


@hf.step
def fetch(page: int) -> str:
    return str(page)


@hf.step
def weigh(page: int) -> float:
    return page / 2


def find(name: str) -> hf.Verdict[int]:
    return hf.Landed(len(name))


@hf.effect(in_doubt=hf.verify(find))
def publish(name: str) -> int:
    return len(name)


@hf.agent
def read(pages: list[int], title: str = "") -> list[str]:
    assert_type(hf.gather(lambda: fetch(1), lambda: weigh(2)), tuple[str, float])
    assert_type(hf.gather(lambda: fetch(1), lambda: weigh(2), lambda: fetch(3), lambda: weigh(4)), tuple[str, float, str, float])
    assert_type(hf.map(fetch, pages, limit=4), list[str])
    assert_type(hf.map(fetch, pages, errors="return"), list[str | Exception])
    assert_type(hf.first(lambda: fetch(1), lambda: fetch(2)), str)
    assert_type(publish("a"), int)
    with hf.timeout("5s"):
        fetch(1)
    return [fetch(page) for page in pages]


def use() -> None:
    assert_type(hf.run(read, [1, 2], run_id="r"), list[str])
