"""What must be true of a fleet's runs however it was disturbed, read from the journals and the ledger; each violation in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from agents_for_tests import fleet_app
from agents_for_tests.fleet_ledger import Ledger
from holdfast import Holdfast
from holdfast.records import kinds as rec
from holdfast.records.chain import record_of
from holdfast.store import Head, Query, Row, Store

LISTED = 100_000
CLAIMS = (rec.RunStarted.kind, rec.RunResumed.kind)


class Stored(NamedTuple):
    """One run as it stands in the store."""

    head: Head
    rows: Sequence[Row]


def stored(store: Store) -> list[Stored]:
    found = [store.load(head.run_id) for head in store.heads(Query(limit=LISTED))]
    return [Stored(*each) for each in found if each is not None]


# --- finished, and once ---------------------------------------------------------------------------------------------


def unfinished(runs: Iterable[Stored], wanted: Mapping[str, str]) -> Iterator[str]:
    """Every run that was left to the fleet is done, with its result."""
    by_id = {run.head.run_id: run for run in runs}
    for run_id, result in wanted.items():
        run = by_id.get(run_id)
        if run is None:
            yield f"run {run_id} is lost: it was recorded when it was left to the fleet"
        elif run.head.status != "done":
            yield f"run {run_id} is {run.head.status}, not done ({run.head.note})"
        elif run.rows[-1].value != f'"{result}"'.encode():
            yield f"run {run_id} gave {run.rows[-1].value!r}, not {result!r}"


def repeated(ledger: Ledger) -> Iterator[str]:
    """No effect was booked twice under one key, nor for one order."""
    for (name, key), count in ledger.counts().items():
        if count > 1:
            yield f"effect {name} was booked {count} times under the key {key}"
    for (name, order), count in Counter((one["name"], one["order"]) for one in ledger.booked).items():
        if count > 1:
            yield f"effect {name} of order {order} was booked {count} times"


def lost_effects(ledger: Ledger, wanted: Mapping[str, str], effects: Callable[[str], set[str]]) -> Iterator[str]:
    """What a run that is done says it did, it did."""
    booked: dict[str, set[str]] = defaultdict(set)
    for one in ledger.booked:
        booked[one["order"]].add(one["name"])
    for run_id, order in wanted.items():
        if missing := effects(run_id) - booked[order]:
            yield f"run {run_id}: {', '.join(sorted(missing))} never happened"


# --- one owner ------------------------------------------------------------------------------------------------------


def owned_twice(runs: Iterable[Stored]) -> Iterator[str]:
    """Epochs rise by one with each claim, and every record is of the epoch that was claimed last: no two owners wrote at a time."""
    for run in runs:
        epoch = 0
        for before, row in pairwise([None, *run.rows]):
            if row is None:
                continue
            claims = row.kind in CLAIMS
            if row.epoch != epoch + claims:
                behind = f"behind record {before.seq} of epoch {before.epoch}" if before is not None else "at the beginning"
                yield f"run {run.head.run_id} was owned twice: record {row.seq} ({row.kind}) is of epoch {row.epoch}, {behind}"
                break
            epoch = row.epoch


class Takeover(NamedTuple):
    """A run that was taken from an owner who was held to be gone."""

    run_id: str
    owner: str
    by: str
    at_s: float
    silent: bool


def takeovers(runs: Iterable[Stored]) -> Iterator[Takeover]:
    for run in runs:
        owner = ""
        for row in run.rows:
            if row.kind in CLAIMS:
                record = record_of(row)
                assert isinstance(record, rec.RunStarted | rec.RunResumed)
                if isinstance(record, rec.RunResumed) and record.why == "taken over":
                    yield Takeover(run.head.run_id, owner, record.owner, row.at_us / 1e6, record.silent)
                owner = record.owner


def unexcused(runs: Iterable[Stored], excused: Callable[[str, float], bool]) -> Iterator[str]:
    """Nobody loses a run who was alive, in touch with the store, and not told to stop."""
    for one in takeovers(runs):
        if not excused(one.owner, one.at_s):
            why = "which was alive and undisturbed: it did not renew its lease"
            yield f"run {one.run_id} was taken over by {one.by} from {one.owner}, {why}"


# --- limits ---------------------------------------------------------------------------------------------------------


def crowded(runs: Iterable[Stored], ledger: Ledger) -> Iterator[str]:
    """No more runs of the narrow queue, and of each key, executed at a time than may: as the bodies told, and as the journals tell."""
    yield from ledger.exceeded
    spans: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for run in runs:
        for what in _counted(run.head):
            for began, ended in _owned_spans(run.rows):
                spans[what] += [(began, 1), (ended, -1)]
    for what, moves in spans.items():
        together = most = 0
        for _, move in sorted(moves):
            together += move
            most = max(most, together)
        limit = fleet_app.NARROW if what == "queue narrow" else 1
        if most > limit:
            yield f"{what}: by their journals {most} runs had an owner at a time, {limit} may"


def _counted(head: Head) -> list[str]:
    return [*(["queue narrow"] if head.queue == "narrow" else []), *([f"key {head.lane}"] if head.lane else [])]


def _owned_spans(rows: Sequence[Row]) -> Iterator[tuple[float, float]]:
    """When the run had an owner for sure: a claim was stored before what follows it was dated, and what ends it was dated before."""
    epochs: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        epochs[row.epoch].append(row)
    for first, *more in epochs.values():
        later = [row.at_us for row in more if row.at_us > first.at_us]
        if later and later[-1] > later[0]:
            yield later[0], later[-1]


def too_fast(ledger: Ledger, began_s: float) -> Iterator[str]:
    """By no moment had more calls been made than the rate lets, with what may be saved up."""
    for count, at_s in enumerate(sorted(ledger.called_s), 1):
        if count > fleet_app.CALLS * (1 + at_s - began_s) + 1:
            yield f"calls: {count} within {at_s - began_s:.1f} s, {fleet_app.CALLS} per second may be"
            return


def damaged(app: Holdfast) -> Iterator[str]:
    """What was written is what is there."""
    for verdict in app.check():
        if not verdict.good:
            yield f"run {verdict.run_id} is damaged at record {verdict.seq}: {verdict.what}"
