"""Transactions keep their signatures, and give a connection of psycopg's."""

from __future__ import annotations

from typing import Any, assert_type

import psycopg

import holdfast as hf


@hf.transaction
def book(order: str, seat: int) -> str:
    assert_type(hf.connection(), psycopg.Connection[tuple[Any, ...]])
    return f"{order} {seat}"


def unbook(booked: str, order: str, seat: int) -> None: ...


@hf.transaction(undo=unbook, retry=hf.Retry(attempts=3), raises=psycopg.errors.UniqueViolation)
def book_for_now(order: str, seat: int) -> str:
    return f"{order} {seat}"


@hf.transaction(name="cancel", approve=True)
def unbook_all(order: str) -> int:
    return len(order)


def use() -> None:
    assert_type(book("o-1", seat=5), str)
    assert_type(book_for_now("o-1", 5), str)
    assert_type(unbook_all("o-1"), int)
