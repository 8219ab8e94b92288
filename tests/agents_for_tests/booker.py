"""An agent that books in a table of its own, in processes that a test kills: a child is forked for each order on standard input.

An order is a line of JSON: url, table, failpoint and broken; the answer is how the child ended. `broken` commits what the body wrote and
its outcome one after the other: "doubles" the outcome last, "loses" the outcome first.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import holdfast.sync as hf
from agents_for_tests.forking import forked, prepare
from holdfast._failpoints import arm, reach
from holdfast.store import Append, Stale
from holdfast.stores._postgres_transaction import OpenTransaction
from holdfast.stores.postgres import PostgresStore


def booking(url: str, table: str, broken: str = "") -> list[int]:
    """Run the agent, or go on with it."""

    @hf.transaction
    def book(item: str) -> int:
        ((number,),) = hf.connection().execute(f"INSERT INTO {table} (item) VALUES (%s) RETURNING id".encode(), (item,)).fetchall()
        return int(number)

    @hf.agent
    def booker() -> list[int]:
        return [book("first"), book("second")]

    with hf.Holdfast(url, lease=3600) as app:
        if broken:
            _break(app.store, broken)
        return app.run(booker, run_id="r")


def _break(store: object, how: str) -> None:
    assert isinstance(store, PostgresStore)

    def commit(self: OpenTransaction, append: Append) -> Stale | None:
        both: list[Callable[[], object]] = [lambda: self._exit(None), lambda: store.append([append])]
        first, last = both if how == "doubles" else reversed(both)
        first()
        reach("transaction.before_commit")
        last()
        return None

    OpenTransaction.commit = commit  # type: ignore[method-assign]


def child(order: dict[str, str]) -> int:
    """A process that runs the agent; gives how it ended."""
    pid = forked()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if order["failpoint"]:
        arm(order["failpoint"])
    code = 1
    try:
        code = 0 if len(booking(order["url"], order["table"], order["broken"])) == 2 else 2
    finally:
        os._exit(code)


if __name__ == "__main__":
    prepare()
    for line in sys.stdin:
        print(child(json.loads(line)), flush=True)
