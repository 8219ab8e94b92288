"""Runs without end: the agent begins anew with other arguments under the same id, and what came before is no longer replayed."""

from __future__ import annotations

from typing import NoReturn

from holdfast.codec.fingerprint import fingerprint
from holdfast.errors import Continued, Misuse
from holdfast.life.run import Run
from holdfast.records import kinds as rec
from holdfast.records.chain import args_digest
from holdfast.records.unknown import CARRIED, lasting
from holdfast.verbs.verbs import in_agent

MAX_TAKEN = 1000
"""Keys of messages that are carried along, so that a repeated sending is dropped in the next generation too."""


def continue_as(*args: object) -> NoReturn:
    """End this generation of the run and begin the next one with these arguments; like `return`, nothing after it is executed."""
    scope = in_agent("continue_as")
    run, agent = scope.run, scope.run.agent
    assert agent is not None
    if scope.parent is not None:
        raise Misuse("hf.continue_as was called in a branch; nothing was recorded. Call it from the agent itself, after the gather")
    try:
        kept, identity = agent.orders.keep(args, {}), fingerprint(agent.arguments.bind(args, {}))
    except TypeError as error:
        raise Misuse(f"hf.continue_as was given what agent {agent.name!r} does not take: {error}; nothing was recorded") from None
    run.ended = Continued(kept.decode(), identity)
    raise run.ended


def continuation(run: Run, ended: Continued) -> rec.RunContinued:
    """The record that begins the next generation: all that is needed of those before it."""
    journal, args = run.journal, ended.kept.encode()
    carried = {**journal.ledger.carried(run.clock.now_us()), "taken": [key for key in journal.taken if key][-MAX_TAKEN:]}
    carried[CARRIED] = lasting(journal.unknown)
    return rec.RunContinued(
        fingerprint=ended.fingerprint, generation=journal.generation + 1, args=args, args_sha=args_digest(args),
        carried={name: value for name, value in carried.items() if value},
    )  # fmt: skip
