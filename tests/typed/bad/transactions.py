"""What the type checker refuses of transactions."""

from __future__ import annotations

import holdfast as hf


def unbook(booked: int, order: str) -> None: ...


@hf.transaction(undo=unbook)  # E: incompatible type
def book(order: str) -> str:
    return order


@hf.transaction(in_doubt="ask")  # E: Unexpected keyword argument "in_doubt"
def doubtful(order: str) -> str:
    return order


@hf.transaction
def short(order: str) -> int:
    return len(order)


def use() -> None:
    short(5)  # E: expected "str"
    hf.connection().fetch()  # E: has no attribute "fetch"
