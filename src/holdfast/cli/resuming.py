"""Going on with a run in this process, with an agent from a file."""

from __future__ import annotations

import sys
import traceback
from dataclasses import replace
from pathlib import Path

from holdfast import Holdfast
from holdfast.cli.app_file import agent_in, loaded, resources_in
from holdfast.cli.document import error_document
from holdfast.cli.exits import Exit
from holdfast.cli.screen import Screen, complain
from holdfast.cli.views import run_page
from holdfast.cli.wording import lines_of
from holdfast.errors import HoldfastError, InDoubt, Refused, RunCancelled, StepFailed
from holdfast.operating import operate
from holdfast.running.engine import Order

OURS = str(Path(__file__).parent.parent)

AGENTS = (StepFailed, Refused, InDoubt)
"""Classes of ours that agent code is to catch: one that escapes it is the agent's error, like any other."""


def order_from(holdfast: Holdfast, run_id: str, file: Path, *, wait: bool) -> Order:
    """The order to go on, and its resources; whatever is wrong with the run or the file is said here, before anything is changed."""
    name = holdfast.show(run_id).agent
    module = loaded(file)
    order = operate.order_for(holdfast.engine, run_id, [agent_in(module, file, name)], where=str(file), wait=wait)
    holdfast.engine = replace(holdfast.engine, resources=tuple(resources_in(module, file, on=holdfast.loop.run)))
    return order


def go_on(holdfast: Holdfast, order: Order, screen: Screen, *, undo: bool = False) -> Exit:
    """Execute the order, and tell how the run stands then. An error that ended the run is its agent's, any other is ours.

    A run that is undone ends as cancelled: then that is what was wanted.
    """
    undoing = undo or bool(holdfast.show(order.run_id).undoing)
    try:
        with screen.to_itself():
            holdfast.carry_out(order)
    except RunCancelled:
        if not undoing:
            raise
    except Exception as error:
        if isinstance(error, HoldfastError) and not isinstance(error, AGENTS):
            raise
        stands = holdfast.show(order.run_id)
        if stands.status not in ("failed", "cancelled"):
            raise
        return _failed(error, order, screen, undone=stands.note if stands.status == "cancelled" else "")
    view = holdfast.show(order.run_id)
    screen.say(run_page(view, screen.setting()), run_id=view.run_id, status=view.status, result=view.result)
    return Exit.FINE


def _failed(error: Exception, order: Order, screen: Screen, *, undone: str) -> Exit:
    """The agent's own error: where in its code it happened, what it says, and whether it had the run undone."""
    if screen.as_json:
        print(error_document(error, str(error)))
        return Exit.REFUSED
    for text in traceback.format_list(_frames(error, order)):
        print("\n".join(lines_of(text.rstrip("\n"))), file=sys.stderr)
    complain(f"the run failed: {type(error).__name__}: {error}")
    if undone:
        complain(f"the run is cancelled {undone}")
    return Exit.REFUSED


def _frames(error: Exception, order: Order) -> list[traceback.FrameSummary]:
    """The lines of code from the agent on, without ours."""
    frames = traceback.extract_tb(error.__traceback__)
    file = order.agent.fn.__code__.co_filename
    first = next((index for index, frame in enumerate(frames) if frame.filename == file), 0)
    return [frame for frame in frames[first:] if not frame.filename.startswith(OURS)]
