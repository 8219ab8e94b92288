"""Going back in a run from the command line: `fork`, and `edit` with the value given or written in $EDITOR."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import Holdfast
from holdfast.cli.app_file import loaded
from holdfast.cli.exits import Exit
from holdfast.cli.location import opened
from holdfast.cli.options import ByOption, JsonOption, ReasonOption, RunArgument, StoreOption, UsageError, examples, read_json
from holdfast.cli.page import Line
from holdfast.cli.screen import Screen
from holdfast.errors import Refusal
from holdfast.moving import adopting
from holdfast.operating import timetravel
from holdfast.operating.telling import somebody
from holdfast.verbs.decorators import Step

FORK_EXAMPLES = examples(
    "holdfast fork order-47 --at 12 --effects reuse", """holdfast fork order-47 --at 12 --edit 12='{"text": "shorter"}' --id order-47b"""
)
EDIT_EXAMPLES = examples(
    "holdfast edit order-47 12", """holdfast edit order-47 12 --value '{"cents": 700}' --reason 'a better offer'""",
    """holdfast edit order-47 --state 1 --at 12 --value '{"tries": 0}'""", "holdfast edit order-47 --adopt --by ann",
)  # fmt: skip

EffectsOption = Annotated[
    str,
    typer.Option(
        "--effects", metavar="ask|reuse|repeat",
        help="What becomes of a call that was made already after the point: a person says, its result is taken over, it is made again.",
    ),
]  # fmt: skip


def fork(
    run: RunArgument,
    *,
    at: Annotated[str, typer.Option("--at", metavar="STEP", help="The step to go on from; 0 is before the first.", show_default=False)],
    edits: Annotated[
        list[str] | None, typer.Option("--edit", metavar="STEP=JSON", help="Another result for a step; may be repeated.")
    ] = None,
    effects: EffectsOption = "ask",
    new_id: Annotated[str | None, typer.Option("--id", metavar="NEW", help="The id of the new run; without it, RUN.f1 and so on.")] = None,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Branch a run: another one goes on from a step of it.

    The new run knows what the old one did after that step, and does none of it again unasked. The old run is not changed.
    """
    given, screen = read_edits(edits or ()), Screen(store, as_json)
    with opened(store) as holdfast:
        made = holdfast.fork(run, at=at, edits=given, effects=_read_effects(effects), new_id=new_id, by=by, reason=reason)
        next_command = screen.setting().command(f"holdfast resume {made} --here APP.py")
        said = f"{made} goes on from step {at} of {run}: {next_command}"
        screen.say([Line(said)], run_id=made, source=run, at=at, said=said)
    return Exit.FINE


def edit(
    run: RunArgument,
    step: Annotated[str | None, typer.Argument(metavar="[STEP]", help="The step whose result is another.", show_default=False)] = None,
    *,
    value: Annotated[str | None, typer.Option("--value", metavar="JSON", help="The value; without it, $EDITOR opens the old one.")] = None,
    state: Annotated[str | None, typer.Option("--state", metavar="NAME", help="Edit a state object, by its name or number.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="STEP", help="With --state: the step at which it is another.")] = None,
    adopt: Annotated[bool, typer.Option("--adopt", help="Take over what was changed by hand in the run's files.")] = False,
    here: Annotated[Path | None, typer.Option("--here", metavar="APP.py", help="Check it by the type of the step in this file.")] = None,
    effects: EffectsOption = "ask",
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> Exit:
    """Correct the result of a step, or a state; the run goes on from there.

    What came after is kept and marked as superseded. Effects that happened are not done again unasked.
    """
    if adopt:
        if any(given is not None for given in (step, value, state, at)):
            raise UsageError("--adopt takes what stands in the files: say neither a step nor a value")
        return _adopted(run, here, effects=effects, reason=reason, by=by, screen=Screen(store, as_json))
    if (state is None) != (at is None) or (state is None) == (step is None):
        raise UsageError("say either STEP, or --state NAME with --at STEP")
    if state is not None and here is not None:
        raise typer.BadParameter("a state is checked when the run goes on", param_hint="--here")
    policy = _read_effects(effects)
    with opened(store) as holdfast:

        def apply(given: object) -> str:
            if state is not None:
                return holdfast.edit_state(run, given, at=str(at), name=state, effects=policy, by=by, reason=reason)
            fits = _step_in(holdfast, run, str(step), here)
            return holdfast.edit(run, str(step), given, effects=policy, fits=fits, by=by, reason=reason)

        said = apply(read_json(value, "--value")) if value is not None else _written(holdfast, run, str(step or at), state, apply)
        Screen(store, as_json).told(run, said)
    return Exit.FINE


def _adopted(run: str, here: Path | None, *, effects: str, reason: str, by: str | None, screen: Screen) -> Exit:
    said = timetravel.word(by or somebody(), reason, _read_effects(effects))
    with opened(screen.store) as holdfast:
        told = adopting.adopt(holdfast.engine, run, said=said, fits=lambda step_id: _step_in(holdfast, run, step_id, here))
        screen.told(run, told)
    return Exit.FINE


def read_edits(given: Sequence[str]) -> dict[str | int, object]:
    """STEP=JSON, each."""
    pairs = [edit.partition("=") for edit in given]
    if bad := [step for step, separator, _ in pairs if not separator or not step]:
        raise typer.BadParameter(f"{bad[0]!r} is not STEP=JSON, such as 12='{{\"text\": \"shorter\"}}'", param_hint="--edit")
    return {step: read_json(value, "--edit") for step, _, value in pairs}


def _read_effects(given: str) -> Any:
    if given not in ("ask", "reuse", "repeat"):
        raise typer.BadParameter(f"{given!r} is not one of ask, reuse and repeat", param_hint="--effects")
    return given


def _step_in(holdfast: Holdfast, run_id: str, step_id: str, file: Path | None) -> Step | None:
    """The decorated step that was called there, from the user's file."""
    if file is None:
        return None
    name = timetravel.name_of(holdfast.engine, run_id, step_id)
    found = [value for value in vars(loaded(file)).values() if isinstance(value, Step) and value.spec.name == name]
    if not found:
        raise Refusal(f"{file} has no step {name!r} to check the value by; nothing was changed")
    return found[0]


def _written(holdfast: Holdfast, run_id: str, step_id: str, state: str | None, apply: Callable[[object], str]) -> str:
    """What came of the value that a person wrote; where it is refused, what was written is kept and named."""
    before = json.dumps(timetravel.recorded_value(holdfast.engine, run_id, step_id, state=state), indent=2, ensure_ascii=False) + "\n"
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise UsageError("no editor is known: say --value JSON, or set EDITOR")
    handle, name = tempfile.mkstemp(prefix=f"holdfast-{step_id.replace('/', '-')}-", suffix=".json")
    file = Path(name)
    with os.fdopen(handle, "w", encoding="utf-8") as opened_file:
        opened_file.write(before)
    code, after = _after(editor, file)
    if code or after == before:
        file.unlink()
        raise Refusal(f"the editor {'ended with code ' + str(code) if code else 'left it as it was'}; nothing was changed")
    try:
        said = apply(read_json(after, "--value"))
    except (Refusal, typer.BadParameter) as error:
        raise Refusal(f"{error}. What you wrote is kept in {file}") from error
    file.unlink()
    return said


def _after(editor: str, file: Path) -> tuple[int, str]:
    """How the editor ended, and what it left."""
    try:
        code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode  # noqa: S603 (the user's own editor)
    except (OSError, ValueError) as error:
        file.unlink()
        raise Refusal(f"the editor {editor!r} cannot be started ({error}); nothing was changed. Set EDITOR, or say --value JSON") from error
    try:
        return code, file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Refusal(f"what the editor left in {file} cannot be read ({error}); nothing was changed") from error
