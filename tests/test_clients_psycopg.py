"""What psycopg's errors say of an effect: at the door, at a statement, and at the commit; psycopg is real, the database plays a part."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

import psycopg
import pytest

from agents_for_tests.postgres import postgres
from holdfast._landing import landing

ROLLED_BACK = ["23505", "23503", "23999", "40001", "40P01", "40002", "22012", "42P01", "42501", "3F000", "44000", "55P03"]
NOT_KNOWN = ["40003", "08006", "08007", "53100", "57014", "58030", "XX000"]


def insert(where: str) -> None:
    connection = psycopg.connect(where)
    with closing(connection), connection:
        connection.execute("INSERT")


async def insert_async(where: str) -> None:
    connection = await psycopg.AsyncConnection.connect(where)
    try:
        async with connection:
            await connection.execute("INSERT")
    finally:
        await connection.close()


def said(where: str, *, by_async: bool = False) -> str:
    with pytest.raises(psycopg.Error) as caught:
        asyncio.run(insert_async(where)) if by_async else insert(where)
    return landing(caught.value, ())


def test_the_database_takes_part() -> None:
    with postgres() as where:
        insert(where)


@pytest.mark.parametrize("statement", ["INSERT", "COMMIT"])
@pytest.mark.parametrize("state", ROLLED_BACK)
def test_what_was_rolled_back_did_not_happen(state: str, statement: str) -> None:
    with postgres(**{statement: f"ERROR {state}"}) as where:
        assert said(where) == "not_landed"


@pytest.mark.parametrize("statement", ["INSERT", "COMMIT"])
@pytest.mark.parametrize("planned", ["hang up", "FATAL 57P01", *(f"ERROR {state}" for state in NOT_KNOWN)])
def test_what_may_have_been_committed_is_doubt(planned: str, statement: str) -> None:
    with postgres(**{statement: planned}) as where:
        assert said(where) == "unknown"


@pytest.mark.parametrize("by_async", [False, True])
@pytest.mark.parametrize("state", ["28P01", "53300", "57P03"])
def test_who_was_not_let_in_did_nothing(state: str, *, by_async: bool) -> None:
    with postgres(login=f"FATAL {state}") as where:
        assert said(where, by_async=by_async) == "not_landed"


@pytest.mark.parametrize("by_async", [False, True])
def test_who_did_not_get_there_did_nothing(*, by_async: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for where in (f"host=127.0.0.1 port={port}", f"host=localhost,127.0.0.1 port={port}", "host=no-such-host.invalid"):
        assert said(where, by_async=by_async) == "not_landed"


def test_a_connect_that_takes_too_long_did_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert said(f"host=127.0.0.1 port={silent.getsockname()[1]} connect_timeout=2") == "not_landed"


def test_errors_made_by_hand_are_judged_by_their_class() -> None:
    assert landing(psycopg.errors.SerializationFailure("x"), ()) == "not_landed"
    assert landing(psycopg.errors.UniqueViolation("x"), ()) == "not_landed"
    for bare in (psycopg.IntegrityError("x"), psycopg.OperationalError("the connection is closed"), psycopg.Error("x")):
        assert landing(bare, ()) == "unknown"
