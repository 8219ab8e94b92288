"""A run that is in another store, or on its way there: what everybody is told who wants something of it here.

A letter cannot be fenced, so it may be posted in the moment in which its run is sealed. Whoever has posted one looks again: the record that
hands the run over takes the letters that go along, and one that is still there afterwards was left behind.
"""

from __future__ import annotations

from holdfast._clock import Clock
from holdfast._options import AWAY
from holdfast.errors import RunMoved
from holdfast.records import kinds as rec
from holdfast.store import Head, Store

LOOKS, LOOK_S = 60, 0.05
"""How often, and with what pause, it is looked whether a run that is being moved was handed over."""

HANDED_OVER = (rec.RunHandedOver.kind, rec.RunMoved.kind)


def refuse_away(head: Head) -> None:
    """Nobody takes or changes a run here that is elsewhere, or is about to be."""
    if head.status in AWAY:
        raise RunMoved(head.run_id, head.status, head.note)


def left(store: Store, clock: Clock, run_id: str, letter: tuple[str, bytes]) -> int:
    """Leave a run a letter, of a kind and with a body, and give its number; `RunMoved` where it has gone away meanwhile without it."""
    letter_id = store.post(run_id, *letter, clock.now_us())
    note = ""
    for _ in range(LOOKS):
        head = store.head(run_id)
        if head is None or head.status not in AWAY:
            return letter_id
        note, found = head.note, store.load(run_id)
        if found is not None and any(row.kind in HANDED_OVER for row in found[1][-2:]):
            if letter_id in [each.letter_id for each in store.letters([run_id])]:
                raise RunMoved(run_id, head.status, head.note)
            return letter_id
        clock.sleep(LOOK_S)
    raise RunMoved(run_id, "moving", f"{note} (and whether what was said goes along is not known: look there)")
