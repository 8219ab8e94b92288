"""Named checkpoints: a step without a body, whose record says that the code came to this place, with everything before it."""

from __future__ import annotations

from holdfast._failpoints import reach
from holdfast._ids import checked_text
from holdfast.errors import Misuse
from holdfast.life.calls import Call, Spec
from holdfast.life.commands import Came, Life
from holdfast.records import kinds as rec
from holdfast.verbs.decorators import Step
from holdfast.verbs.verbs import in_agent


def _milestone(name: str) -> None:
    """The arguments of a milestone, for its fingerprint."""


def _reached(call: Call) -> Life[Came]:
    reach("milestone.before")
    yield from ()  # a life is a generator; this one asks for nothing
    return Came(None, (rec.MilestoneReached(step_id=call.step_id, name=call.args[0]),))


_STEP = Step(Spec(fn=_milestone, name="milestone", is_async=False, returns=type(None), wait=_reached))


def milestone(name: str, /) -> None:
    """A named checkpoint: when this returns, everything before it is on the disk, whatever the agent's durability."""
    if not checked_text(name, "the name of a milestone"):
        raise Misuse("a milestone needs a name, by which it is shown; nothing was recorded")
    in_agent("milestone")
    _STEP(name)
    reach("milestone.after")
