"""How a process that serves many orders forks a child for each of them: what all children need was done before."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import tempfile

from pydantic import TypeAdapter

import holdfast as hf
import holdfast.sync as hfs
from holdfast.stores import files, objects, postgres, sqlite

LOADED = (files, objects, postgres, sqlite)
"""The stores that a child need not import for itself."""
RARELY = 50_000
"""New objects before anybody looks for garbage: more than most children make."""


@hfs.step
def look(what: str) -> list[str]:
    return [what]


@hfs.effect(in_doubt="ask")
def pay(cents: int) -> int:
    return cents


@hfs.agent
def blocks() -> int:
    return pay(len(look("a") + look("b")))


async def seen(what: str) -> list[str]:
    return look(what)


@hf.agent
async def awaits() -> int:
    return pay(len(await hf.gather(seen("a"), seen("b"))))


def prepare() -> None:
    """What Python and Holdfast do once in a process, in the parent: runs of both colours, in a store that is gone then."""
    gc.set_threshold(RARELY)
    TypeAdapter(None)  # the first one looks through everything that is installed, for plugins
    with tempfile.TemporaryDirectory() as folder, hf.Holdfast(f"sqlite:///{folder}/runs.db") as app:
        app.run(blocks, run_id="blocks")
        app.run(awaits, run_id="awaits")
    tempfile.tempdir = None  # a child may be told another one


def prepare_commands() -> None:
    """The same for the command line."""
    from holdfast.cli import main

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        store = f"sqlite:///{folder}/runs.db"
        with hf.Holdfast(store) as app:
            app.run(blocks, run_id="blocks")
        for words in (["runs"], ["show", "blocks"], ["history", "blocks"], ["inbox"], ["runs", "--json"]):
            assert main([*words, "--store", store]) == 0
    tempfile.tempdir = None


def forked() -> int:
    """0 in the child; in the parent, the child's process id."""
    gc.collect()  # what was played since the last fork
    gc.freeze()  # a child that collects garbage would copy every page that it looks at
    return os.fork()
