"""From a file of the user's to the agent and the resources that a run needs: loaded as a module of its own, never as `__main__`."""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Coroutine
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from holdfast.errors import Refusal, UnknownAgent
from holdfast.running.ordering import loading
from holdfast.verbs.decorators import Agent

AnyAgent: TypeAlias = Agent[..., Any]
T = TypeVar("T")

STAYS = "the run is unchanged"
"""What is true where a file cannot be used for a run."""

RESOURCES_FUNCTION, RESOURCES_LIST = "holdfast_resources", "HOLDFAST_RESOURCES"
"""What an app file may define to hand resources to the agents in it: a function that gives a list, or the list."""


def agent_in(module: ModuleType, file: Path, name: str) -> AnyAgent:
    """The agent called `name` that the file holds; `Refusal` or `UnknownAgent` where it holds none, or two."""
    agents = agents_in(module)
    found = [agent for agent in agents if agent.name == name]
    if not found:
        raise UnknownAgent(name, str(file), ", ".join(sorted({agent.name for agent in agents})))
    if len(found) > 1:
        remedy = "Give each a name of its own: @hf.agent(name=...)"
        raise Refusal(f"{file} has {len(found)} different agents named {name!r}; the run is unchanged. {remedy}")
    return found[0]


def agents_in(module: ModuleType) -> list[AnyAgent]:
    """The agents that stand in a module under any name, each once."""
    return list({id(value): value for value in vars(module).values() if isinstance(value, Agent)}.values())


def declared_in(module: ModuleType, kind: type[T]) -> list[T]:
    """The limits or schedules that stand in a module, under any name, by themselves or in a list; each once."""
    values = [each for value in vars(module).values() for each in (value if isinstance(value, list | tuple) else [value])]
    return list({id(value): value for value in values if isinstance(value, kind)}.values())


def hidden_in(module: ModuleType, kind: type) -> list[str]:
    """What to say of limits or schedules where they are not found: in a dict or a set."""
    found = [
        (name, type(value).__name__)
        for name, value in vars(module).items()
        if isinstance(value, dict | set | frozenset) and not name.startswith("__")
        and any(isinstance(each, kind) for each in (value.values() if isinstance(value, dict) else value))
    ]  # fmt: skip
    return [f"{name} holds a {kind.__name__} in a {where}, where it is not looked for; put it in a list" for name, where in found]


def resources_in(module: ModuleType, file: Path, *, on: Callable[[Coroutine[Any, Any, Any]], Any], stays: str = STAYS) -> list[object]:
    """What the file hands to its agents for `hf.resource`; `Refusal` where that fails or is no list.

    An `async def` function is executed `on` the event loop of the runs: some clients can be made only there.
    """
    given = getattr(module, RESOURCES_FUNCTION, getattr(module, RESOURCES_LIST, []))
    try:
        found = given() if callable(given) else given
        found = on(found) if inspect.iscoroutine(found) else found
    except Exception as error:
        text = _shown(error, file.expanduser().absolute())
        text += f". Write `async def {RESOURCES_FUNCTION}()`" if "no running event loop" in text else ""
        raise Refusal(f"{RESOURCES_FUNCTION}() of {file} failed: {text}; {stays}") from error
    if not isinstance(found, list | tuple):
        what = f"{type(found).__name__}, not a list of objects"
        raise Refusal(f"the resources of {file} are {what}; {stays}. Let {RESOURCES_FUNCTION}() return a list")
    return list(found)


def loaded(file: Path, *, stays: str = STAYS) -> ModuleType:
    """The file as a module; `Refusal` where it cannot be read, its code fails, or it would start a run."""
    path = file.expanduser().absolute()
    if not path.is_file():
        raise Refusal(f"{file} is not a file; {stays}. Name the Python file that defines the agent")
    module = module_from_spec(_spec(path))
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(path.parent))
    token = loading.set(str(file))
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)  # noqa: S102 (the operator names the code to run)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise Refusal(f"{file} cannot be loaded: {_shown(error, path)}; {stays}") from error
    finally:
        loading.reset(token)
    return module


def _spec(path: Path) -> ModuleSpec:
    """A private name that no import of the user's can meet, the same for the same file."""
    name = f"_holdfast_app_{hashlib.sha256(str(path).encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)), origin=str(path))
    assert spec is not None
    spec.has_location = True
    return spec


def _shown(error: BaseException, path: Path) -> str:
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(path) else frames[-1] if frames else None
    where = f" (line {line})" if line else ""
    text = error.msg if isinstance(error, SyntaxError) and error.filename == str(path) else str(error)
    return f"{type(error).__name__}{where}: {text}"
