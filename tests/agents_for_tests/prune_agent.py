"""Somebody who prunes a store, made to be killed; it is served by `serving.py`.

The store is made by the order "make": runs that have ended, and two that wait in their second generation with much to let go of.
"""

from __future__ import annotations

from contextlib import suppress

import holdfast as hf
import holdfast.sync as hfs
from agents_for_tests import sweep_agent
from holdfast.operating import pruning

LONG = "x" * 3_000
POLICY = hf.Retention(keep_last=1, details=0, keep_ids="1000d")


@hf.step
def look(what: str) -> str:
    return sweep_agent.did("look", what[:10])


@hf.effect(in_doubt="ask")
def pay(what: str) -> str:
    return sweep_agent.did("pay", what[:10])


@hf.agent
def ends(what: str) -> str:
    return look(what) + pay(what)


@hf.agent
def waits(what: str) -> list[str]:
    if what == "w":
        look(LONG)
        hf.continue_as("the second generation")
    return [look(LONG), pay(LONG), look(f"b{LONG}"), str(hfs.ask("go on?", bool)), look("end")]


def run_once(variant: str, store: str = "") -> int:
    pruning.BATCH = 2
    with hf.Holdfast(store) as app:
        match variant:
            case "make":
                for number in range(6):
                    app.run(ends, f"{number}", run_id=f"ends-{number}")
                for run_id in ("waits-1", "waits-2"):
                    with suppress(hf.RunWaiting):
                        app.run(waits, "w", run_id=run_id, wait=False)
            case "prune":
                app.prune(POLICY, dry_run=False, by="test")
            case _:
                raise AssertionError(variant)
    return 0


def break_transactions() -> None:
    """What belongs together is written one after the other: the head goes first, the records later."""
    from holdfast._failpoints import reach
    from holdfast.stores.sqlite import SqliteStore

    real = SqliteStore.remove

    def remove(self: SqliteStore, removals: object) -> list[bool]:
        with self._writer.transaction() as cursor:
            for one in removals:  # type: ignore[attr-defined]
                cursor.execute("DELETE FROM letters WHERE run_id = ?", (one.found.run_id,))
                cursor.execute("DELETE FROM runs WHERE run_id = ?", (one.found.run_id,))
        reach("prune.after")
        return real(self, removals)  # type: ignore[arg-type]

    SqliteStore.remove = remove  # type: ignore[method-assign]


BREAKS = {"transactions": break_transactions}
