"""The artifacts of a run that is recorded: which there are, and whether each is still what was kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast._clock import SystemClock
from holdfast.errors import ArtifactDamaged, Refusal, StoreError
from holdfast.large.artifact import MARK, Artifact, Desk, at_desk
from holdfast.store import Row, Shelf, Store

SHORTEST = 6
"""Digits of a digest that are enough to name it, if no other begins with them."""


def artifacts_of(store: Store, run_id: str, rows: Sequence[Row]) -> list[Artifact]:
    """The artifacts that a run refers to, in the order of its records; each content once, under its first name."""
    if not isinstance(store, Shelf):
        return []
    referred, found = set(store.blob_refs(run_id)), dict[str, Artifact]()
    with at_desk(Desk(store, SystemClock(), run_id)):
        for told in (told for row in rows for told in _told(row)):
            if told.get("artifact") in referred and told["artifact"] not in found:
                found[told["artifact"]] = Artifact.given_back(told)
    return list(found.values())


def artifact(store: Store, run_id: str, rows: Sequence[Row], digest: str) -> Artifact:
    """The one artifact of a run whose digest begins so."""
    if len(digest) < SHORTEST:
        raise Refusal(f"{digest!r} is too short: give {SHORTEST} digits of the digest at least. `holdfast artifact {run_id}` lists them")
    every = artifacts_of(store, run_id, rows)
    found = [each for each in every if each.digest.startswith(digest)]
    if len(found) != 1:
        told = "several artifacts" if found else "no artifact"
        known = ", ".join(each.digest[:12] for each in every) or "it has none"
        raise Refusal(f"run {run_id!r} has {told} whose digest begins with {digest!r} ({known}). `holdfast artifact {run_id}` lists them")
    return found[0]


def damaged_artifacts(store: Store, run_id: str, rows: Sequence[Row]) -> list[str]:
    """What is wrong with what a run refers to, in plain words; every byte of it is read."""
    problems = []
    for each in artifacts_of(store, run_id, rows):
        try:
            for _ in each.verified():
                pass
        except (ArtifactDamaged, StoreError) as error:
            problems.append(str(error))
    return problems


def _told(row: Row) -> Iterator[dict[str, Any]]:
    for text in (row.body, row.value, row.args):
        if text is not None and MARK in text:
            yield from told_in(json.loads(text))


def told_in(value: Any) -> Iterator[dict[str, Any]]:
    """Whatever in decoded JSON has the shape of an artifact."""
    match value:
        case {"artifact": str(), "size": int(), "kind": "file" | "tree", "name": str(), "media_type": str()}:
            yield value
        case dict():
            for each in value.values():
                yield from told_in(each)
        case list():
            for each in value:
                yield from told_in(each)
