"""An agent without `async`: the same names from `holdfast.sync`, with verbs that block; branches run in threads."""

import time

import holdfast.sync as hf


@hf.step
def read(page: int) -> str:
    print(f"reading page {page}")
    time.sleep(0.1)
    return f"text of page {page}"


@hf.step
def summarize(texts: list[str]) -> str:
    print(f"summarizing {len(texts)} pages")
    return f"{sum(len(text) for text in texts)} letters on {len(texts)} pages"


@hf.effect(in_doubt=hf.resend())
def publish(summary: str) -> str:
    print(f"publishing: {summary}")
    return f"post {hf.key()[-6:]}"


@hf.agent
def report(pages: int) -> str:
    texts = hf.map(read, range(1, pages + 1), limit=4)
    return publish(summarize(texts))


if __name__ == "__main__":
    print(hf.run(report, 6, run_id="report"))
