"""The tree of errors: each says whose fault it is, what is true now, and what to do next.

Two trees. `HoldfastError` is for people and may be caught. `Unwinding` is a BaseException: it takes a run's code down
when the run must not go on here, and agent code must never catch it, because frameworks swallow `Exception`.
Constructor arguments go to `super().__init__` as they came and the text is built in `__str__`, so that every error survives pickling.
"""

from __future__ import annotations

SHOWN_ID = 60
"""Characters of a bad run id that a message shows."""


class HoldfastError(Exception):
    """Something Holdfast has to say."""


class Misuse(HoldfastError):
    """The code uses Holdfast in a way that cannot keep the promise; nothing was executed."""


class NoRun(Misuse):
    """An effect was called outside a run."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)

    def __str__(self) -> str:
        if self.name == "hf.key()":
            return "hf.key() is the key of the effect being executed; it was called outside one. Call it in the body of an @hf.effect"
        what = f"hf.{self.name}" if self.name in ("ask", "sleep", "receive", "send") else f"effect {self.name!r}"
        return (
            f"{what} was called outside a run, where nothing would remember it; it was not executed. "
            f"Call it from an agent under hf.run(...), or, in a unit test, inside `with hf.plain():`"
        )


class LostContext(Misuse):
    """A step was called where the run it belongs to cannot be seen, or from a task that has no place in it."""

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where
        super().__init__(name, where)

    def __str__(self) -> str:
        return (
            f"{self.name!r} was called from {self.where}, so its place in the run is not known; it was not executed. "
            f"Start parallel branches with hf.gather or hf.map, or give the call an identity of its own with call_id="
        )


class NestedStep(Misuse):
    """Something that must not be repeated was called inside a step's body, which may be."""

    def __init__(self, name: str, inside: str) -> None:
        self.name, self.inside = name, inside
        super().__init__(name, inside)

    def __str__(self) -> str:
        return (
            f"{self.name!r} was called inside the body of step {self.inside!r}: when that step is retried, it would be repeated; "
            f"it was not executed. Call it from the agent, beside the step"
        )


class WrongMode(Misuse):
    """An async verb in a `def` agent, or a blocking one in an `async def` agent."""

    def __init__(self, name: str, agent: str, remedy: str) -> None:
        self.name, self.agent, self.remedy = name, agent, remedy
        super().__init__(name, agent, remedy)

    def __str__(self) -> str:
        return f"{self.name!r} cannot be called in agent {self.agent!r}; nothing was executed. {self.remedy}"


class NotAwaited(Misuse):
    """A step was called and its coroutine never awaited."""

    def __init__(self, name: str, step_id: str) -> None:
        self.name, self.step_id = name, step_id
        super().__init__(name, step_id)

    def __str__(self) -> str:
        told = f"{self.name!r} (step {self.step_id}) was called and never awaited; it was not executed"
        return f"{told}. Write `await {self.name}(...)`, or await what it was given to: `await hf.gather(...)`"


class KeyReused(Misuse):
    """One business key, two different calls."""

    def __init__(self, key: str, name: str, step_id: str) -> None:
        self.key, self.name, self.step_id = key, name, step_id
        super().__init__(key, name, step_id)

    def __str__(self) -> str:
        return (
            f"the key {self.key!r} of effect {self.name!r} was already used at step {self.step_id} with other arguments; nothing was "
            "executed. The other side would take the second call for a repetition of the first: make key= depend on what differs"
        )


class StepFailed(HoldfastError):
    """A step failed with an error that is not rebuilt as itself; its text begins with the original message."""

    def __init__(self, message: str, step_id: str, name: str, kind: str) -> None:
        self.message, self.step_id, self.name, self.kind = message, step_id, name, kind
        super().__init__(message, step_id, name, kind)

    def __str__(self) -> str:
        return f"{self.message} ({self.kind} in step {self.step_id}, {self.name!r}; name the class in raises= to get it as itself)"


class InDoubt(HoldfastError):
    """It is not known whether an effect happened, and its in_doubt action could not settle it."""

    def __init__(self, step_id: str, name: str, reason: str) -> None:
        self.step_id, self.name, self.reason = step_id, name, reason
        super().__init__(step_id, name, reason)

    def __str__(self) -> str:
        return (
            f"it is not known whether effect {self.name!r} (step {self.step_id}) happened: {self.reason}. "
            f"Look, then say what is true: `holdfast inbox` shows the commands"
        )


class Refused(HoldfastError):
    """A person did not agree to an effect, or nobody answered in time; it was not executed."""

    def __init__(self, by: str, reason: str, timed_out: bool) -> None:  # noqa: FBT001 (errors are rebuilt from their arguments)
        self.by, self.reason, self.timed_out = by, reason, timed_out
        super().__init__(by, reason, timed_out)

    def __str__(self) -> str:
        if self.timed_out:
            return "nobody agreed in time; the effect was not executed"
        return f"{self.by} did not agree{': ' + self.reason if self.reason else ''}; the effect was not executed"


class Drifted(HoldfastError):
    """Something that the run relies on is not what it was; `too_late` to accept it where the run is undone for it."""

    too_late = False

    def __init__(self, name: str, what: str, old: str, new: str) -> None:
        self.name, self.what, self.old, self.new = name, what, old, new
        super().__init__(name, what, old, new)

    def __str__(self) -> str:
        told = f"{self.name} is {self.what} since the run last looked (it was: {self.old}; it is: {self.new}); no new step was executed"
        return self._with_advice(told, "Put it back and run again, or accept it by watching with on_change='ask' or 'warn'")

    def _with_advice(self, told: str, advice: str) -> str:
        return f"{told}. {'Its agent has what the run did undone for that' if self.too_late else advice}"


class ModelChanged(Drifted):
    """Another model answers a step than before the run was interrupted."""

    def __init__(self, run_id: str, name: str, old: str, new: str) -> None:
        super().__init__(name, "changed", old, new)
        self.run_id, self.args = run_id, (run_id, name, old, new)

    def __str__(self) -> str:
        told = (
            f"step {self.name!r} of run {self.run_id!r} has another model since the run was interrupted: "
            f"it is {self.new}, it was {self.old}. Its answer is recorded; no new step was executed"
        )
        accept, close = f"holdfast resume {self.run_id} --accept", f"holdfast cancel {self.run_id}"
        return self._with_advice(told, f"Go on with it: {accept}; or close the run: {close}")


class BudgetExceeded(HoldfastError):
    """A limit of the run's budget is reached, and nobody has raised it."""

    def __init__(self, run_id: str, limit: str, told: str, by: str = "", reason: str = "") -> None:
        self.run_id, self.limit, self.told, self.by, self.reason = run_id, limit, told, by, reason
        super().__init__(run_id, limit, told, by, reason)

    def __str__(self) -> str:
        said = f" {self.by} did not agree to more{': ' + self.reason if self.reason else ''}." if self.by else ""
        return (
            f"the budget of run {self.run_id!r} is used up: {self.told}.{said} No new step was executed, and finished ones are kept. "
            f"Raise the limit to go on: holdfast resume {self.run_id} --budget {self.limit}=AMOUNT"
        )


class CircuitOpen(HoldfastError):
    """Too many calls of a dependency failed in a row, so this one was not made."""

    def __init__(self, name: str, rest_s: float) -> None:
        self.name, self.rest_s = name, rest_s
        super().__init__(name, rest_s)

    def __str__(self) -> str:
        return (
            f"the breaker {self.name!r} is open for another {self.rest_s:.1f} s, because too many calls failed in a row; "
            f"this one was not made. It is tried again where retry= allows it; otherwise run again later"
        )


class NotKept(HoldfastError):
    """A value cannot be kept so that it comes back equal."""

    def __init__(self, what: str, reason: str, remedy: str) -> None:
        self.what, self.reason, self.remedy = what, reason, remedy
        super().__init__(what, reason, remedy)

    def __str__(self) -> str:
        return f"{self.what} cannot be kept: {self.reason}. {self.remedy}"


class ResultNotKept(HoldfastError):
    """An effect happened, but what it returned cannot be kept; the repr is all there is."""

    def __init__(self, run_id: str, step_id: str, name: str, shown: str, reason: str) -> None:
        self.run_id, self.step_id, self.name, self.shown, self.reason = run_id, step_id, name, shown, reason
        super().__init__(run_id, step_id, name, shown, reason)

    def __str__(self) -> str:
        return (
            f"effect {self.name!r} (step {self.step_id}) happened and will not be repeated, but its result {self.shown} could not be kept: "
            f"{self.reason}. Say what it was, and the run goes on: holdfast resolve {self.run_id} {self.step_id} --landed JSON"
        )


class RunError(HoldfastError):
    """Something about one run."""


class Undeliverable(HoldfastError):
    """A message cannot be left for a run."""

    def __init__(self, run_id: str, name: str, reason: str) -> None:
        self.run_id, self.name, self.reason = run_id, name, reason
        super().__init__(run_id, name, reason)

    def __str__(self) -> str:
        return f"message {self.name!r} was not left for run {self.run_id!r}: {self.reason}. Start that run first, or look at its id"


class UnknownRun(RunError):
    """There is no run with this id."""

    def __init__(self, run_id: str, store: str, near: str = "") -> None:
        self.run_id, self.store, self.near = run_id, store, near
        super().__init__(run_id, store, near)

    def __str__(self) -> str:
        place, near = self.store.removeprefix("sqlite:///"), f"; did you mean {self.near}?" if self.near else "."
        return f"there is no run {self.run_id!r} in {place}{near} `holdfast runs` lists them; another store is named with --store"


class RunPruned(RunError):
    """The run has ended and was removed; its id is kept, so that nothing is done twice."""

    def __init__(self, run_id: str, status: str, when: str, by: str, why: str) -> None:
        self.run_id, self.status, self.when, self.by, self.why = run_id, status, when, by, why
        super().__init__(run_id, status, when, by, why)

    def __str__(self) -> str:
        gone = f"run {self.run_id!r} had ended ({self.status}) and was pruned at {self.when} by {self.by} ({self.why})"
        return f"{gone}: its records and its result are gone, and it is not executed again. To do the work once more, give another run_id"


class RunMoved(RunError):
    """The run is in another store by now, or on its way there; here nobody can do anything with it."""

    def __init__(self, run_id: str, status: str, where: str) -> None:
        self.run_id, self.status, self.where = run_id, status, where
        super().__init__(run_id, status, where)

    def __str__(self) -> str:
        if self.status == "moved":
            return f"run {self.run_id!r} was moved {self.where}; what is left here is history, and nothing was changed. Name that store"
        way, _, url = self.where.partition(" ")
        here = f"--to {url}; or take it back: holdfast move {self.run_id} --back"
        finish = here if way == "to" else f"--store {url} --to URL, the URL of this store"
        return f"run {self.run_id!r} is being moved {self.where}; nothing was changed. To finish that: holdfast move {self.run_id} {finish}"


class BadRunId(RunError):
    """A run id that cannot be a file name or a path of a URL."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(run_id)

    def __str__(self) -> str:
        shown = self.run_id if len(self.run_id) <= SHOWN_ID else f"{self.run_id[:SHOWN_ID]}..."
        return (
            f"{shown!r} cannot be a run id; nothing was started. An id begins with a letter or digit, holds letters, digits, "
            f"'.', '_', ':' and '-', and is at most 128 long"
        )


class RunConflict(RunError):
    """The id belongs to a run of another agent or with other arguments."""

    def __init__(self, run_id: str, recorded: str, requested: str) -> None:
        self.run_id, self.recorded, self.requested = run_id, recorded, requested
        super().__init__(run_id, recorded, requested)

    def __str__(self) -> str:
        return (
            f"run {self.run_id!r} was started as {self.recorded}; this call asks for {self.requested}. The recorded run is unchanged. "
            f"Use another run_id for other work, or call it as it was started"
        )


class RunFailed(RunError):
    """The run stands as failed; the text is the error that escaped."""

    def __init__(self, run_id: str, message: str) -> None:
        self.run_id, self.message = run_id, message
        super().__init__(run_id, message)

    def __str__(self) -> str:
        return f"{self.message} (run {self.run_id!r} failed; finished steps are kept, and running it again goes on from the failed one)"


class ChildStopped(RunFailed):
    """A child run cannot go on before somebody has looked after it, and so neither can its parent."""

    def __str__(self) -> str:
        return f"child run {self.run_id!r} stopped: {self.message.rstrip('.')}. Nothing is lost: look after it, then run the parent again"


class RunWaiting(RunError):
    """The run waits for a person or a time, and holds nothing meanwhile."""

    parking: object = None
    """Where and with whom it waits, for whoever waits for it in this process."""

    def __init__(self, run_id: str, waits: str, asks: bool = True) -> None:  # noqa: FBT001, FBT002 (pickled by position)
        self.run_id, self.waits, self.asks = run_id, waits, asks
        super().__init__(run_id, waits, asks)

    def __str__(self) -> str:
        return f"{self.told()}; run it again afterwards"

    def while_it_waits(self) -> str:
        """The same for a process that goes on waiting."""
        return f"{self.told()}; it goes on by itself then"

    def told(self) -> str:
        """Where no person is asked, nobody is sent to the inbox."""
        says_so = self.waits.startswith(("waits for ", "sleeps "))
        told = f"run {self.run_id!r} {'' if says_so else 'waits: '}{self.waits}"
        return f"{told} `holdfast inbox` shows the commands that answer" if self.asks else told


class _Interfered(RunError):
    """Somebody decided something about the run."""

    def __init__(self, run_id: str, by: str, reason: str) -> None:
        self.run_id, self.by, self.reason = run_id, by, reason
        super().__init__(run_id, by, reason)

    def _who(self) -> str:
        return f"{self.by}: {self.reason}" if self.reason else self.by


class RunCancelled(_Interfered):
    """The run was cancelled and is closed for good."""

    def __str__(self) -> str:
        return f"run {self.run_id!r} was cancelled by {self._who()}. It is closed; start the work anew under another run_id"


class RunPaused(_Interfered):
    """Somebody paused the run; nobody takes it before it is resumed."""

    def __str__(self) -> str:
        return f"run {self.run_id!r} was paused by {self._who()}. Finished steps are kept; it goes on after: holdfast resume {self.run_id}"


class RunInterrupted(RunError):
    """Something outside Holdfast broke a step or branches off; going on would leave a path that replay cannot take."""

    def __init__(self, run_id: str, step_id: str, why: str = "") -> None:
        self.run_id, self.step_id, self.why = run_id, step_id, why
        super().__init__(run_id, step_id, why)

    def __str__(self) -> str:
        what = self.why or "it was cancelled from outside Holdfast (an asyncio time-out or task.cancel)"
        then = "" if self.why else ". For a time-out that is recorded use `async with hf.timeout(...)`"
        return f"run {self.run_id!r} was stopped at step {self.step_id}: {what}. Finished steps are kept; run it again to go on{then}"


class ReplayMismatch(RunError):
    """The code took another path than the journal holds."""

    def __init__(self, run_id: str, step_id: str, recorded: str, requested: str, remedy: str = "") -> None:
        self.run_id, self.step_id, self.recorded, self.requested, self.remedy = run_id, step_id, recorded, requested, remedy
        super().__init__(run_id, step_id, recorded, requested, remedy)

    def __str__(self) -> str:
        return (
            f"step {self.step_id} of run {self.run_id!r} was {self.recorded} when it was recorded; the code now {self.requested}. "
            f"{self._why()}. Nothing was executed and the run is blocked"
        )

    def _why(self) -> str:
        recorded, requested = self.recorded.partition("(")[0], self.requested.removeprefix("calls ").partition("(")[0]
        accept = f"or from here with this one: holdfast resume {self.run_id} --accept"
        if recorded == requested:
            return (
                "The code before this step changed, or it depends on time, chance or the environment: use hf.now(), "
                f"hf.current().random or a step. Go on with code that makes the same call, {accept}"
            )
        renamed = f"{self.remedy}. " if self.remedy else ""
        return f"The code before this step changed. {renamed}Go on with the version that the run was recorded with, {accept}"


class UndoFailed(RunError):
    """The run is being undone, and one effect cannot be."""

    def __init__(self, run_id: str, step_id: str, name: str, reason: str) -> None:
        self.run_id, self.step_id, self.name, self.reason = run_id, step_id, name, reason
        super().__init__(run_id, step_id, name, reason)

    def __str__(self) -> str:
        return (
            f"effect {self.name!r} (step {self.step_id}) of run {self.run_id!r} could not be undone: {self.reason}. What came after it "
            f"is undone; it and what came before it are not. Put right what hinders it, then: holdfast resume {self.run_id} --here APP.py"
        )


class UndecodableResult(RunError):
    """A recorded result no longer fits the type the code asks for."""

    def __init__(self, run_id: str, step_id: str, name: str, reason: str) -> None:
        self.run_id, self.step_id, self.name, self.reason = run_id, step_id, name, reason
        super().__init__(run_id, step_id, name, reason)

    def __str__(self) -> str:
        return (
            f"the recorded result of step {self.step_id}, {self.name!r}, of run {self.run_id!r} does not fit its type any more: "
            f"{self.reason}. It was not executed again and the run is blocked: "
            f"give the type back the shape it had, or make the new one read the old"
        )


class Damaged(RunError):
    """The stored rows of a run are not what was written."""

    def __init__(self, run_id: str, seq: int, what: str) -> None:
        self.run_id, self.seq, self.what = run_id, seq, what
        super().__init__(run_id, seq, what)

    def __str__(self) -> str:
        return (
            f"run {self.run_id!r} is damaged at record {self.seq}: {self.what}. It is not resumed from; nothing was executed. "
            f"`holdfast check {self.run_id}` shows what is still good"
        )


class ArtifactDamaged(Damaged):
    """The content of an artifact is gone, or is not what was kept."""

    def __init__(self, run_id: str, name: str, digest: str, what: str) -> None:
        super().__init__(run_id, 0, what)
        self.name, self.digest, self.args = name, digest, (run_id, name, digest, what)

    def __str__(self) -> str:
        return (
            f"artifact {self.name or 'without a name'!r} ({self.digest[:12]}) of run {self.run_id!r} is damaged: {self.what}. "
            f"Its records are good. Put the file back from a backup of the store: its name is the SHA-256 of what it holds"
        )


class RunRepaired(RunError):
    """Records of the run were lost to damage; it goes on when an operator says so."""

    def __init__(self, run_id: str, note: str) -> None:
        self.run_id, self.note = run_id, note
        super().__init__(run_id, note)

    def __str__(self) -> str:
        return f"run {self.run_id!r} does not go on by itself; nothing was executed. It was {self.note}"


class UnknownAgent(RunError):
    """The code given does not hold the agent that the run needs."""

    def __init__(self, agent: str, where: str, known: str) -> None:
        self.agent, self.where, self.known = agent, where, known
        super().__init__(agent, where, known)

    def __str__(self) -> str:
        lacks = f"{self.where} has no agent named {self.agent!r} (it has: {self.known or 'none'}); the run is unchanged"
        return f"{lacks}. Name the file that defines it; if it was renamed, keep its name: @hf.agent(name={self.agent!r})"


class Refusal(RunError):
    """An operator's verb that does not fit what is true now; nothing was changed."""

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)

    def __str__(self) -> str:
        return self.message


class StoreError(HoldfastError):
    """A store cannot do what was asked of it; what it acknowledged before is safe."""

    def __init__(self, store: str, reason: str) -> None:
        self.store, self.reason = store, reason
        super().__init__(store, reason)

    def __str__(self) -> str:
        return f"{self.store}: {self.reason}"


class StoreBusy(StoreError):
    """Somebody else holds the write lock."""


class StoreFull(StoreError):
    """There is no room left."""


class StoreReadOnly(StoreError):
    """The store cannot be written."""


class StoreForeign(StoreError):
    """What is there is not a Holdfast store."""


class StoreNewer(StoreError):
    """The store was written by a newer version of Holdfast."""


class StoreDamaged(StoreError):
    """The store itself, not one run, is damaged."""


class StoreFailed(StoreError):
    """The operating system refused a read, a write or a flush."""


class Unwinding(BaseException):
    """The run must not go on here; its code is taken down and nothing more is recorded."""


class Parked(Unwinding):
    """Every branch waits for a person or a time: the run lets go of everything."""


class Continued(Unwinding):
    """The run begins anew with other arguments, `kept` as JSON; this life of its code has come to its end."""

    def __init__(self, kept: str, fingerprint: str) -> None:
        self.kept, self.fingerprint = kept, fingerprint
        super().__init__(kept, fingerprint)


class LeaseLost(Unwinding):
    """Another process owns the run now; nothing more can be committed here."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"run {self.run_id!r} is owned by another process now; this one lost its lease and committed nothing more"


class Stopped(Unwinding):
    """The run ends here because of `error`, which `hf.run` raises."""

    def __init__(self, error: HoldfastError) -> None:
        self.error = error
        super().__init__(error)

    def __str__(self) -> str:
        return str(self.error)


class Cancelled(Unwinding):
    """Somebody cancelled the run."""

    def __init__(self, by: str, reason: str) -> None:
        self.by, self.reason = by, reason
        super().__init__(by, reason)


class Outspent(Unwinding):
    """A limit of a run above this one is reached: this one lets go, and the one above asks or fails."""


class BranchLost(BaseException):
    """This branch of a blocking race was not the first; it ends here and the race goes on without it."""
