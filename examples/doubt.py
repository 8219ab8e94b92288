"""An effect without a clear answer, nobody to look it up: the run waits for a person, holding nothing, and goes on with the answer.

Here the same program is the agent and the person. As a rule the person types `holdfast inbox` and `holdfast resolve`.
"""

import holdfast as hf


@hf.step
async def write(topic: str) -> str:
    print(f"writing about {topic}")
    return f"All about {topic}"


@hf.effect(in_doubt="ask")
async def print_on_paper(text: str) -> str:
    print(f"printing: {text}")
    raise TimeoutError("the printer does not answer")


@hf.agent
async def pamphlet(topic: str) -> str:
    sheet = await print_on_paper(await write(topic))
    return f"done: {sheet}"


def main() -> None:
    with hf.Holdfast() as app:
        try:
            app.run(pamphlet, "kelp", run_id="pamphlet", wait=False)
        except hf.RunWaiting:
            print("the run is", app.show("pamphlet").status)
        for item in app.inbox():
            print("to be settled:", item.what)
            app.resolve(item.run_id, item.step_id, landed="sheet 1", by="ann", reason="it lies in the tray")
        print(app.run(pamphlet, "kelp", run_id="pamphlet"))


if __name__ == "__main__":
    main()
