"""Calls that do not fit the decorated step."""

import holdfast as hf


@hf.step
async def search(query: str) -> list[str]:
    return [query]


@hf.step(name="parse")
def parse(text: str) -> int:
    return len(text)


@hf.step(colour="red")  # E: colour
def typo(text: str) -> int:
    return len(text)


class Shop:
    @hf.step
    async def find(self, name: str) -> int:
        return len(name)


async def use(shop: Shop) -> None:
    await search(3)  # E: expected "str"
    await search("a", "b")  # E: Too many arguments
    wrong: int = await search("a")  # E: Incompatible types in assignment
    parse()  # E: Missing positional argument
    parse(txt="a")  # E: txt
    await shop.find(3)  # E: expected "str"
    hf.step(len)(3)  # E: expected "Sized"
    search("a")  # E: must be used
    hf.gather(search("a"))  # E: must be used
