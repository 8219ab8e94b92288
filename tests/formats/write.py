"""Write the fixture of the present stored format, once, when the format is new; a fixture is never written again.

PYTHONPATH=src:tests python tests/formats/write.py
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import holdfast as hf
from crashing import Crash, play
from holdfast.moving import moving
from holdfast.operating import pruning
from holdfast.store import FORMAT, Query, Row
from holdfast.stores.memory import MemoryStore

STORE = MemoryStore()
SEEN: list[str] = []


MODELS = ["m-1"]


@hf.step
async def remember(text: str) -> str:
    hf.usage(model="m", usd=0.25)
    return text


@hf.step
async def think(number: int) -> int:
    hf.usage(model=MODELS[0], asked="m")
    return number


@hf.step
async def slow() -> int:
    await asyncio.sleep(5)
    return 1


@hf.step(retry=hf.Retry(base=0.001))
async def shaky() -> int:
    SEEN.append("shaky")
    if len(SEEN) == 1:
        raise ConnectionResetError("once")
    return 1


@hf.step
async def wrong() -> int:
    raise ValueError("näh")


@hf.effect(in_doubt="ask", key=lambda cents: f"order-{cents}")
async def pay(cents: int) -> int:
    raise RuntimeError("reset by peer")


@hf.agent(name="remembering")
async def remembering(text: str) -> list[str]:
    await remember(text)
    await remember(text + "!")
    raise Crash


@hf.agent(name="hoarding")
async def hoarding() -> None:
    await remember("a lot")
    raise Crash


@hf.agent(name="everything", version="1")
async def everything() -> int:
    notes: dict[str, int] = hf.state({"n": 0})
    hf.now()
    notes["n"] = await shaky()
    try:
        async with hf.timeout(0.02):
            await slow()
    except TimeoutError:
        notes["n"] += 1
    return notes["n"] + len(await hf.gather(remember("a"), remember("b")))


@hf.agent(name="failing")
async def failing() -> int:
    return await wrong()


@hf.agent(name="paying")
async def paying() -> int:
    return await pay(3)


@hf.effect(in_doubt="ask", approve=True)
async def sign(text: str) -> str:
    return text


@hf.agent(name="signing")
async def signing(path: str) -> str:
    hf.watch(("price", lambda: len(SEEN)), on_change="warn")
    await remember(path)
    try:
        return await sign(path)
    except hf.Refused:
        return "refused"


@hf.agent(name="thinking", on_model_change="fail")
async def thinking() -> int:
    await think(1)
    if hf.current().attempt == 1:
        raise Crash
    return await think(2) + await think(3)


def unsay(said: str, text: str) -> None:
    SEEN.append(f"unsaid {said}")


@hf.effect(in_doubt="ask", undo=unsay)
async def say(text: str) -> str:
    return text


@hf.agent(name="undoing", on_failure="undo")
async def undoing() -> None:
    await say("hello")
    raise ValueError("never mind")


@hf.agent(name="spending", budget=hf.Budget(steps=1))
async def spending() -> str:
    await remember("a")
    await remember("b")
    return await remember("c")


@hf.agent(name="changing")
async def changing() -> str:
    result = await remember("old" if not SEEN else "new")
    SEEN.append(result)
    raise Crash


@hf.agent(name="waiting")
async def waiting() -> str:
    colour: str = await hf.ask("which colour?", Literal["red", "blue"], details={"shop": 7}, who="ann")
    with suppress(TimeoutError):
        async with hf.timeout(0.02):
            await hf.ask("sure?")
    await hf.sleep(0.001)
    return colour + await hf.receive("note", str)


@hf.step
async def collect(count: int) -> list[int]:
    saved = hf.partial(list[int])
    saved.save([*(saved.value or []), count])
    return saved.value or []


@hf.agent(name="rounds", durability="milestone")
async def rounds(number: int) -> list[int]:
    found = await collect(number)
    hf.milestone("collected")
    if number < 2:
        hf.continue_as(number + 1)
    return found


@hf.agent(name="parenting")
async def parenting() -> str:
    return await childlike("a") + await childlike("b")


@hf.agent(name="childlike")
async def childlike(text: str) -> str:
    return await remember(text)


@hf.agent
async def telling() -> str:
    known: list[str] = hf.state([])
    known.append("a")
    known.append(await remember("b"))
    return await say("c")


def record_waits() -> None:
    for answered in (False, True):
        with suppress(hf.RunWaiting):
            play(STORE, waiting, run_id="old-asked")
        if not answered:
            with hf.Holdfast(STORE) as app:
                app.answer("old-asked", "1", "blue", by="ann")
                app.send("old-asked", "note", 7, by="bob")
                app.send("old-asked", "note", "!", key="n-1", by="bob")
    time.sleep(0.05)
    play(STORE, waiting, run_id="old-asked")


def record() -> None:
    SEEN.clear()
    for run_id, agent, args in (
        ("old-done", everything, ()), ("old-queued", remembering, ("ä",)), ("old-failed", failing, ()), ("old-waiting", paying, ()),
        ("old-settled", paying, ()), ("old-cancelled", paying, ()), ("old-paused", paying, ()),
    ):  # fmt: skip
        with suppress(BaseException):
            play(STORE, agent, *args, run_id=run_id)
    with hf.Holdfast(STORE) as app:
        app.resolve("old-settled", "1", landed=3, by="ann", reason="seen")
        app.cancel("old-cancelled", by="ann", reason="too late")
        app.pause("old-paused", by="ann", reason="look first")
    play(STORE, paying, run_id="old-settled")
    SEEN.clear()
    with suppress(BaseException):
        play(STORE, signing, "a", run_id="old-signed")
    with hf.Holdfast(STORE) as app:
        app.answer("old-signed", "approve:2", yes=False, by="ann", reason="not this one")
    SEEN.append("another price")
    play(STORE, signing, "a", run_id="old-signed")
    for run_id in ("old-model-refused", "old-model-accepted"):
        for MODELS[0] in ("m-1", "m-2"):
            with suppress(BaseException):
                play(STORE, thinking, run_id=run_id)
    with hf.Holdfast(STORE) as app:
        app.accept("old-model-accepted", by="ann", reason="as good")
    with suppress(BaseException):
        play(STORE, spending, run_id="old-spent")
    with hf.Holdfast(STORE) as app:
        app.answer("old-spent", "budget", yes=True, by="ann")
    with suppress(BaseException):
        play(STORE, spending, run_id="old-spent")
    with hf.Holdfast(STORE) as app:
        app.resume("old-spent", budget=hf.Budget(steps=9), by="ann", reason="worth it")
    play(STORE, spending, run_id="old-spent")
    SEEN.clear()
    for _ in range(2):
        with suppress(BaseException):
            play(STORE, changing, run_id="old-blocked")
    SEEN.clear()
    for _ in range(2):
        with suppress(BaseException):
            play(STORE, changing, run_id="old-accepted")
    with hf.Holdfast(STORE) as app:
        app.accept("old-accepted", by="ann", reason="it is better so")
    with suppress(BaseException):
        play(STORE, remembering, "b", run_id="old-repaired")
    lose_the_tail("old-repaired")
    with hf.Holdfast(STORE) as app:
        app.repair("old-repaired", dry_run=False, by="ann", reason="a bad sector")
    with suppress(ValueError):
        play(STORE, undoing, run_id="old-undone")
    play(STORE, rounds, 1, run_id="old-continued")
    record_waits()
    play(STORE, parenting, run_id="old-parent")
    record_pruned()
    record_branches()
    record_moves()


def record_pruned() -> None:
    """Details of a run go."""
    with suppress(BaseException):
        play(STORE, hoarding, run_id="old-pruned")
    pruning.WORTH_BYTES = 1
    with hf.Holdfast(STORE) as app:
        app.prune(hf.Retention(details=0), agent="hoarding", dry_run=False, by="ann", reason="room")


def record_branches() -> None:
    """Somebody goes back in a run, in place and as another one."""
    play(STORE, telling, run_id="old-source")
    with hf.Holdfast(STORE) as app:
        app.fork("old-source", at=1, edits={1: "x"}, effects="reuse", new_id="old-fork", by="ann", reason="what if")
        app.edit("old-fork", 1, "y", by="ann", reason="rather so")
        app.edit_state("old-fork", ["z"], at=1, effects="repeat", by="ann", reason="and so")


def record_moves() -> None:
    """A run goes to another store, one comes from there, and one stays because the other store has another run of its id."""
    other = MemoryStore()
    for store, run_id in ((STORE, "old-moved"), (other, "old-arrived"), (STORE, "old-unsealed")):
        with suppress(hf.RunWaiting):
            play(store, waiting, run_id=run_id)
    with hf.Holdfast(STORE) as app, hf.Holdfast(other) as there:
        app.send("old-moved", "note", "!", by="bob")
        app.move("old-moved", to=other, by="ann", reason="room")
        there.send("old-arrived", "note", "!", by="bob")
        there.move("old-arrived", to=STORE, by="ann")
        order = moving.ordered(app.engine, other, "old-unsealed", by="ann", reason="")
        assert list(moving._sealed(order, "token"))
        app.move("old-unsealed", back=True, by="ann", reason="not there")


def lose_the_tail(run_id: str) -> None:
    """Damage a run as a disk would: its last row is not what was written."""
    row = STORE._rows[run_id][-1]
    STORE._rows[run_id][-1] = row._replace(body=b"{}")


def as_text(row: Row) -> dict[str, object]:
    """A row as JSON: what is JSON itself as text, the digest in hexadecimal."""
    shown: dict[str, object] = row._asdict()
    for name, data in (("body", row.body), ("value", row.value), ("args", row.args)):
        shown[name] = None if data is None else data.decode()
    return {**shown, "digest": row.digest.hex()}


def written() -> dict[str, object]:
    runs = []
    for head in sorted(STORE.heads(Query()), key=lambda head: head.run_id):
        found = STORE.load(head.run_id)
        assert found is not None
        described: dict[str, object] = {**head._asdict(), "digest": head.digest.hex()}
        runs.append({"head": described, "rows": [as_text(row) for row in found[1]]})
    return {"format": FORMAT, "runs": runs}


if __name__ == "__main__":
    path = Path(__file__).parent / f"{FORMAT}.json"
    if path.exists():
        raise SystemExit(f"{path} exists: what was written by an earlier version is not written again")
    record()
    path.write_text(json.dumps(written(), indent=1, ensure_ascii=False) + "\n")
