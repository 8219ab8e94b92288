"""A worker as a command: agents from a file, until it is told to stop."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import Holdfast, Limit, Schedule
from holdfast._turns import QUEUE
from holdfast.app.working import WORKERS_ROOM
from holdfast.cli.app_file import AnyAgent, agents_in, declared_in, hidden_in, loaded, resources_in
from holdfast.cli.exits import Exit
from holdfast.cli.fleet import fleet_page, queues_page
from holdfast.cli.health import Health, Pulse
from holdfast.cli.location import is_new, meant, opened
from holdfast.cli.options import JsonOption, StoreOption, examples, read_duration
from holdfast.cli.screen import Screen, complain
from holdfast.cli.signals import Signals
from holdfast.cli.stopping import held_footer
from holdfast.cli.wording import count
from holdfast.errors import Misuse, Refusal, StoreError
from holdfast.fleet import worker as fleet_worker
from holdfast.fleet.worker import Drained, Worker
from holdfast.operating import roster
from holdfast.running.lease import LEASE_S
from holdfast.store import Query

log = logging.getLogger("holdfast")

EXAMPLES = examples(
    "holdfast worker app.py --concurrency 50", "holdfast worker app.py --store postgresql://db/runs --health 8080",
    "holdfast worker app.py --watch"
)  # fmt: skip
WORKERS = examples("holdfast workers", "holdfast workers --json")
QUEUES = examples("holdfast queues", "holdfast queues --json")

UNTOUCHED = "no run was touched"
NO_AGENT = "Define one there with @hf.agent, or import it there"

CLOSE_S = 2.0
"""How long a worker that has let go of its runs may take to close the store."""

LINGER_S = 1.0
"""How long a worker that has closed everything waits for threads that its steps have given up."""

NAMED = 20
"""Runs that the last line of its log names."""

LOOK_S = 0.5
"""How often --watch looks at the files."""


def worker(
    app: Annotated[Path, typer.Argument(metavar="APP.py", help="The file that defines the agents.")],
    *,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="NAME", help="Take runs of this queue; may be repeated.  [default: default]")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", min=1, help="Runs at a time.")] = WORKERS_ROOM,
    grace: Annotated[str, typer.Option("--grace", metavar="DURATION", help="How long steps may take to end when it stops.")] = "30s",
    health: Annotated[
        int | None, typer.Option("--health", metavar="PORT", min=0, max=65535, help="Answer /health and /ready there, on every address.")
    ] = None,
    lease: Annotated[
        str, typer.Option("--lease", metavar="DURATION", help="Silent for so long, a worker elsewhere counts as gone; the same for all.")
    ] = f"{LEASE_S:g}s",
    watch: Annotated[bool, typer.Option("--watch", help="Start anew when a Python file beside APP.py changes: for development.")] = False,
    store: StoreOption = None,
) -> Exit:
    """Execute runs that were left to workers, and go on with those that can.

    It takes runs that are queued, whose time has come, that were answered, and whose process died. SIGTERM and Ctrl-C let the steps
    under way end, for the grace time, and hand the runs over; a second one ends it at once (the same one again
    within half a second counts as one). Ends with code 0 where every run was let go of
    between two steps, with 3 where steps had to be broken off.
    """
    grace_s, lease_s = read_duration(grace, "--grace") or 0.0, read_duration(lease, "--lease")
    if not lease_s:
        raise typer.BadParameter("a lease of 0 would let every worker count as gone; such as 15s", param_hint="--lease")
    if watch:
        return _watched(app)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    module = loaded(app, stays=UNTOUCHED)
    if not agents_in(module):
        raise Refusal(f"{app} defines no agent, and a worker needs the agents that it is to execute; {UNTOUCHED}. {NO_AGENT}")
    runner = asyncio.Runner()
    given, limits = resources_in(module, app, on=runner.run, stays=UNTOUCHED), declared_in(module, Limit)
    for doubtful in (*hidden_in(module, Limit), *hidden_in(module, Schedule), *_unheard_of(limits, agents_in(module))):
        log.warning("%s: %s", app, doubtful)
    new = is_new(meant(store)[0])
    with Holdfast(meant(store)[0], resources=given, limits=limits, lease=lease_s) as holdfast:
        try:
            working = Worker(
                holdfast.engine, agents_in(module), queues=queue or (QUEUE,), concurrency=concurrency, grace_s=grace_s,
                schedules=declared_in(module, Schedule),
            )  # fmt: skip
        except Misuse as error:
            raise Refusal(f"{app}: {error}; {UNTOUCHED}") from error
        stop = Stop(working, runner.get_loop(), grace_s + fleet_worker.BREAK_S + CLOSE_S)
        with _answering(health, holdfast, working, runner.get_loop()), Signals(stop.heard):
            if new:
                log.warning("a new store was made, %s: it holds no run yet. If you meant another, name it with --store", holdfast.store.url)
            log.info("working on %s with %s", holdfast.store.url, working.told())
            drained = _carried_through(runner.get_loop(), working.work())
        stop.ended(drained)
        if not drained.broken_off:
            runner.get_loop().set_default_executor(ThreadPoolExecutor(1))  # closing waits for its threads: a step that timed out left one
            runner.close()
    if drained.broken_off:
        _end_at_once(Exit.WAITING)  # the threads of what was broken off may never end
    _end_in_spite_of_threads()
    return Exit.FINE


def _unheard_of(limits: Sequence[Limit], agents: Sequence[AnyAgent]) -> list[str]:
    """The limits of agents that are not there: others may have them, or the name is misspelt."""
    names = sorted(agent.name for agent in agents)
    strange = [limit.agent for limit in limits if limit.agent and limit.agent not in names]
    return [f"a limit is of agent {name!r}, and this worker has {', '.join(names)}: it holds back none of them" for name in strange]


class Stop:
    """What signals mean to a worker: the first that it stops, within its time whatever hinders it, the second that it ends at once."""

    def __init__(self, working: Worker, loop: asyncio.AbstractEventLoop, bound_s: float) -> None:
        self._working, self._loop, self._bound_s = working, loop, bound_s
        self._told, self._broken_off = False, set[str]()

    def heard(self) -> None:
        """A signal came; on a thread of its own."""
        runs = count(len(self._working.executes), "run")
        if self._told:
            log.warning("ending at once: %s left for others to take over", runs)
            _end_at_once(Exit.INTERRUPTED)
        self._told = True
        log.info("stopping: %s asked to leave before the next step", runs)
        threading.Thread(target=self._bound, name="holdfast-bound", daemon=True).start()
        with suppress(RuntimeError):  # the loop is closed: it has stopped
            self._loop.call_soon_threadsafe(self._working.stop)

    def ended(self, drained: Drained) -> None:
        """Say which steps were broken off, and how it ended."""
        self.tell(drained)
        broken = drained.broken_off
        named = f"{', '.join(broken[:NAMED])}{', ...' if len(broken) > NAMED else ''}"
        left = f"{count(len(broken), 'run')} broken off in a step, for others to take over: {named}"
        log.info("stopped: %s", left if broken else "every run was let go of, no step was broken off")

    def tell(self, drained: Drained) -> None:
        """Say which steps were broken off, of each run once."""
        for run_id in sorted({*drained.broken_off} - self._broken_off):
            step = f"step {drained.steps[run_id]}" if drained.steps.get(run_id) else "a step"
            complain(f"run {run_id}: {step} was broken off; where it was an effect, `holdfast inbox` will ask about it")
        self._broken_off |= {*drained.broken_off}

    def _bound(self) -> None:
        """End it when its time is over: code may block the event loop, and a database may not answer."""
        time.sleep(self._bound_s)
        self.tell(Drained(tuple(self._working.executes), steps=self._working.under_way()))
        complain(f"ended {self._bound_s:g} s after it was told to stop: the code of a run, or the store, did not let it")
        _end_at_once(Exit.WAITING if self._broken_off else Exit.STORE)


def _carried_through(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Drained]) -> Drained:
    """Work to the end, even if a task that the code of a run has made raises what ends an event loop."""
    task = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            log.warning("the code of a run has raised %s in a task of its own; other runs go on", type(error).__name__)


def _end_at_once(code: Exit) -> None:
    """End this process, whatever its threads do; what it has recorded is on the disk."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _end_in_spite_of_threads() -> None:
    """Let this process end by itself, with the handlers of its exit; at once where a thread keeps it from coming to these."""
    came = threading.Event()

    def end() -> None:
        if not came.wait(LINGER_S):
            _end_at_once(Exit.FINE)

    atexit.register(came.set)
    threading.Thread(target=end, name="holdfast-linger", daemon=True).start()


def _answering(port: int | None, holdfast: Holdfast, working: Worker, loop: asyncio.AbstractEventLoop) -> AbstractContextManager[object]:
    """The pages that tell how the worker is, if somebody wants them."""
    if port is None:
        return nullcontext()
    try:
        return Health(port, lambda: _ready(working, holdfast), stuck=Pulse(loop).stuck)
    except OSError as error:
        raise Refusal(f"--health cannot have port {port}: {error.strerror}; no run was taken. Name another, or 0 for any") from error


def _ready(working: Worker, holdfast: Holdfast) -> str:
    """Why the worker takes no runs now, or nothing."""
    if working.stopping:
        return "it is stopping"
    try:
        holdfast.store.heads(Query(limit=1))
    except StoreError as error:
        return str(error)
    return ""


def _watched(app: Path) -> Exit:
    """Run the same command without --watch, and again whenever a file has changed."""
    command = [sys.executable, "-m", "holdfast", *(word for word in sys.argv[1:] if word != "--watch")]
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    while True:
        before = _stamps(app)
        process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 (this very command; Ctrl-C is passed on once)
        while _stamps(app) == before and process.poll() is None and not told.wait(LOOK_S):
            pass
        if process.poll() is not None and not told.is_set():
            complain(f"the worker ended with code {process.returncode}; it is started again when a file changes")
        while _stamps(app) == before and not told.wait(LOOK_S):
            pass
        _end(process, told)
        if told.is_set():
            return Exit(process.returncode) if process.returncode in set(Exit) else Exit.REFUSED


def _end(process: subprocess.Popen[bytes], told: threading.Event) -> None:
    """Let the worker hand its runs over; whoever says so a second time does not want to wait for that."""
    already = told.is_set()
    told.clear()
    process.terminate()
    while process.poll() is None:
        if told.wait(LOOK_S) and process.poll() is None:
            process.terminate()
            process.wait()
    if already:
        told.set()


def _stamps(app: Path) -> dict[Path, int]:
    """When each Python file beside the app was changed last."""
    found: dict[Path, int] = {}
    for path in sorted(app.absolute().parent.rglob("*.py")):
        with suppress(OSError):
            found[path] = path.stat().st_mtime_ns
    return found


def workers(*, store: StoreOption = None, as_json: JsonOption = False) -> Exit:
    """The processes that work on a store, and what they do."""
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        found, unserved = holdfast.workers(), roster.unserved(holdfast.engine, roster.in_line(holdfast.engine))
        held, setting = holdfast.held(), screen.setting()
        page = [*fleet_page(found, setting, unserved, held), *held_footer(held, setting)]
        screen.say(page, store=holdfast.store.url, workers=found, unserved=unserved, held=held)
    return Exit.FINE


def queues(*, store: StoreOption = None, as_json: JsonOption = False) -> Exit:
    """The queues: runs in line, executing and paused, and who serves them."""
    screen = Screen(store, as_json)
    with opened(store) as holdfast:
        found, held, setting = holdfast.queues(), holdfast.held(), screen.setting()
        screen.say([*queues_page(found, setting), *held_footer(held, setting)], store=holdfast.store.url, queues=found, held=held)
    return Exit.FINE
