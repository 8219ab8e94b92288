"""`holdfast artifact`: list the artifacts of a run, or get one out; and how they stand on other pages."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import Artifact
from holdfast.cli.exits import Exit
from holdfast.cli.location import opened
from holdfast.cli.options import JsonOption, RunArgument, StoreOption, UsageError
from holdfast.cli.page import Block, Cell, Column, Commands, Line, Page, Table
from holdfast.cli.screen import Screen
from holdfast.cli.views import GAP, Setting
from holdfast.operating.shelved import told_in
from holdfast.operating.views import CheckpointView

SHORT = 12
"""Digits of a digest that a page shows."""
STEP = 1024
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")

ARTIFACTS = (Column("digest"), Column("name", least=12), Column("size", right=True), Column("type"))


def artifact(
    run: RunArgument,
    digest: Annotated[str | None, typer.Argument(metavar="[DIGEST]", help="Its first digits, as listed.", show_default=False)] = None,
    *,
    to: Annotated[Path | None, typer.Option("--to", metavar="PATH", help="Where to put it; nothing may stand there yet.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """List the artifacts of a run, or get one out.

    What comes out is checked: it is what was kept, or nothing. A folder comes out as a folder.
    """
    if (digest is None) != (to is None):
        raise UsageError("say both DIGEST and --to PATH to get one out, or neither to list them")
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        if digest is None or to is None:
            found = [each.told() for each in holdfast.artifacts(run)]
            screen.say(artifacts_page(run, found, screen.setting()), store=holdfast.store.url, run_id=run, artifacts=found)
            return Exit.FINE
        one = holdfast.artifact(run, digest)
        screen.say([Line(saved(one, to))], store=holdfast.store.url, run_id=run, artifact=one.told(), path=str(to.absolute()))
    return Exit.FINE


def saved(one: Artifact, to: Path) -> str:
    """Put it there, and say so."""
    path = one.save(to)
    return f"{one.name or one.kind} ({size(one.size)}) is at {path}"


def artifacts_page(run_id: str, found: Sequence[dict[str, Any]], setting: Setting) -> Page:
    """The artifacts of a run, one line each, and the command that gets the first one out."""
    if not found:
        return [Line(f"run {run_id} refers to no artifact")]
    return [*artifact_blocks(run_id, found, setting)]


def artifact_blocks(run_id: str, found: Any, setting: Setting) -> list[Block]:
    """What has the shape of an artifact in a decoded value, readable, with the command that gets it out."""
    told = list({each["artifact"]: each for each in told_in(found)}.values())
    if not told:
        return []
    first = told[0]
    name = shlex.quote(first["name"] or "artifact")
    command = f"holdfast artifact {run_id} {first['artifact'][:SHORT]} --to {name}"
    return [Table(ARTIFACTS, [_row(each) for each in told]), GAP, Commands([setting.command(command)])]


def checkpoint_blocks(run_id: str, known: Sequence[Any], setting: Setting) -> list[Block]:
    """The artifacts in what the agent knew at a step, as a part of that page."""
    blocks = artifact_blocks(run_id, list(known), setting)
    return [GAP, Line("Artifacts:", "bold"), *blocks] if blocks else []


def readable(view: CheckpointView) -> CheckpointView:
    """The same with each artifact in it as a few words: the table tells the rest."""
    parts = {name: _in_words(getattr(view, name)) for name in ("arguments", "result", "state")}
    return replace(view, **parts)


def _in_words(value: Any) -> Any:
    if isinstance(value, dict) and value in told_in(value):
        return f"artifact {value['artifact'][:SHORT]}, {value['name'] or 'without a name'}, {size(value['size'])}"
    if isinstance(value, dict):
        return {name: _in_words(each) for name, each in value.items()}
    return [_in_words(each) for each in value] if isinstance(value, list) else value


def _row(told: dict[str, Any]) -> list[Cell]:
    kind = "folder" if told["kind"] == "tree" else told["media_type"]
    return [Cell(told["artifact"][:SHORT]), Cell(told["name"] or "-"), Cell(size(told["size"])), Cell(kind, "dim")]


def size(count: float) -> str:
    """A number of bytes for people."""
    if count == 1:
        return "1 byte"
    for unit in UNITS[:-1]:
        if count < STEP:
            return f"{count:.0f} {unit}" if unit == UNITS[0] else f"{count:.1f} {unit}"
        count /= STEP
    return f"{count:.1f} {UNITS[-1]}"
