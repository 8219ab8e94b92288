"""The test kit: what the writer of a store, or of an agent, needs to show that promises are kept."""

from typing import TYPE_CHECKING

from holdfast.testing.crashproof import crashproof
from holdfast.testing.lives import Crashed
from holdfast.testing.replies import Replies, replies
from holdfast.testing.rig import Rig

if TYPE_CHECKING:
    from holdfast.testing.conformance import StoreConformance as StoreConformance

__all__ = ["Crashed", "Replies", "Rig", "StoreConformance", "crashproof", "replies"]


def __getattr__(name: str) -> object:
    """The conformance suite, loaded when somebody asks: it needs pytest and Hypothesis, and the writer of an agent neither."""
    if name != "StoreConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.testing.conformance import StoreConformance

    return StoreConformance
