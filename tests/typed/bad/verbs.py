"""Verbs that are handed the wrong things."""

import holdfast as hf


@hf.step
async def fetch(page: int) -> str:
    return str(page)


def close(name: str) -> None: ...


@hf.agent
async def read() -> None:
    await hf.map(fetch, ["a"])  # E: incompatible type
    wrong: list[int] = await hf.map(fetch, [1])  # E: incompatible type
    await hf.gather(fetch)  # E: No overload variant of "gather"
    hf.cleanup(close, 3)  # E: expected "str"
    with hf.timeout("5s"):  # E: __enter__
        await fetch(1)
