"""A plain loop over a model that asks for tools: every reply and every tool call is a step.

Run it, stop it with Ctrl-C or kill it at any moment, and run it again: it goes on.
The model is a script, so that the example needs no key; put your SDK's call into `ask_model`.
The messages have the shape that chat APIs want: the assistant's message carries its tool calls, and each result the id of its call.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import holdfast as hf


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass
class Reply:
    text: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


Message = dict[str, Any]


SCRIPT = [
    Reply(tool_calls=[ToolCall("call_0", "weather", {"city": "Oslo"}), ToolCall("call_1", "weather", {"city": "Rome"})]),
    Reply(tool_calls=[ToolCall("call_2", "book", {"city": "Rome", "nights": 3})]),
    Reply(text="Rome is warmer. I booked three nights."),
]


@hf.step(retry=hf.Retry(attempts=3))
async def ask_model(messages: list[Message]) -> Reply:
    print(f"model: reads {len(messages)} messages")
    await asyncio.sleep(0.1)
    hf.usage(model="script", input_tokens=100 * len(messages), output_tokens=20)
    replies = [message for message in messages if message["role"] == "assistant"]
    return SCRIPT[len(replies)]


@hf.step
async def weather(city: str) -> str:
    print(f"tool: weather in {city}")
    await asyncio.sleep(0.1)
    return {"Oslo": "4 degrees", "Rome": "19 degrees"}[city]


@hf.effect(in_doubt=hf.resend())
async def book(city: str, nights: int) -> str:
    print(f"tool: book {nights} nights in {city} under the key {hf.key()}")
    return f"booked: {city}, {nights} nights"


def said(reply: Reply) -> Message:
    """The assistant's message, with the tool calls that it asks for: without them an API refuses the results."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for call in reply.tool_calls
    ]
    return {"role": "assistant", "content": reply.text or None, "tool_calls": calls}


def answered(call: ToolCall, result: str) -> Message:
    """What a tool gave, under the id of the call that asked for it."""
    return {"role": "tool", "tool_call_id": call.id, "content": result}


TOOLS: dict[str, Callable[..., Awaitable[str]]] = {"weather": weather, "book": book}


async def call_tool(call: ToolCall) -> str:
    """The tool that the model asks for; the call's id, within the reply that asked, is its identity."""
    return await hf.step(TOOLS[call.name], call_id=call.id)(**call.arguments)


@hf.agent
async def travel(question: str) -> str:
    messages: list[Message] = [{"role": "user", "content": question}]
    while True:
        reply = await ask_model(messages)
        if not reply.tool_calls:
            return reply.text
        messages.append(said(reply))
        results = await hf.gather(*(call_tool(call) for call in reply.tool_calls))
        messages += [answered(call, result) for call, result in zip(reply.tool_calls, results, strict=True)]


if __name__ == "__main__":
    print(hf.run(travel, "Where is it warmer, Oslo or Rome? Book there.", run_id="travel"))
