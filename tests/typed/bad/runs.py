"""Arguments that do not fit the agent."""

import holdfast as hf


@hf.agent
async def buy(order: str, cents: int = 100) -> list[str]:
    return [order] * cents


@hf.agent
def count(order: str) -> int:
    return len(order)


def use(app: hf.Holdfast) -> None:
    hf.run(buy, 47)  # E: incompatible type
    hf.run(buy)  # E: incompatible type
    hf.run(buy, "o-1", 5, 6)  # E: incompatible type
    hf.run(count, 47)  # E: incompatible type
    hf.run(buy, "o-1", cents=5)  # E: cents
    wrong: str = hf.run(count, "o-1")  # E: Incompatible types in assignment
    app.run(buy, 47)  # E: incompatible type


async def use_handle() -> None:
    await hf.start(buy, 47)  # E: incompatible type
    handle: hf.Handle[str] = await hf.start(count, "o-1")  # E: to "start" has incompatible type
