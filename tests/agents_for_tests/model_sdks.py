"""Calls of the real model SDKs, against a host of one's own; to be imported late: they take longer to load than a test runs."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
from anthropic.types import Message
from openai.types.chat import ChatCompletion, ParsedChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from agents_for_tests.model_host import Host

MESSAGES: Any = [{"role": "user", "content": "may I?"}]


class Answer(BaseModel):
    yes: bool


Parsed = ParsedChatCompletion[Answer]


def by_chat(host: Host, model: str) -> ChatCompletion:
    with openai.OpenAI(base_url=f"{host.url}/v1", api_key="k") as client:
        return client.chat.completions.create(model=model, messages=MESSAGES)


def by_responses(host: Host, model: str) -> Response:
    with openai.OpenAI(base_url=f"{host.url}/v1", api_key="k") as client:
        return client.responses.create(model=model, input="may I?")


def by_messages(host: Host, model: str) -> Message:
    with anthropic.Anthropic(base_url=host.url, api_key="k") as client:
        return client.messages.create(model=model, messages=MESSAGES, max_tokens=9)


async def by_async_chat(host: Host, model: str) -> ChatCompletion:
    async with openai.AsyncOpenAI(base_url=f"{host.url}/v1", api_key="k") as client:
        return await client.chat.completions.create(model=model, messages=MESSAGES)


async def by_async_messages(host: Host, model: str) -> Message:
    async with anthropic.AsyncAnthropic(base_url=host.url, api_key="k") as client:
        return await client.messages.create(model=model, messages=MESSAGES, max_tokens=9)
