"""How a process that serves many orders forks a child for each of them: what all children need was done before."""

from __future__ import annotations

import gc
import os

from pydantic import TypeAdapter

from holdfast.stores import files, objects, postgres, sqlite

LOADED = (files, objects, postgres, sqlite)
"""The stores that a child need not import for itself."""


def prepare() -> None:
    TypeAdapter(None)  # the first one looks through everything that is installed, for plugins


def forked() -> int:
    """0 in the child; in the parent, the child's process id."""
    gc.freeze()  # a child that collects garbage would copy every page that it looks at
    return os.fork()
