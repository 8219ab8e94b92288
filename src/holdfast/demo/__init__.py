"""`holdfast demo`: an agent of 60 steps is killed at step 47, started again, and does nothing twice."""

from __future__ import annotations


def main() -> int:
    """Play the demo on the screen; 0 if everything was as promised."""
    from .show import show  # the agent is a module of this package too, and does without the screen

    return show()
