"""A host of models that speaks the protocols of OpenAI and Anthropic; which model answers is the host's business, as it is out there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


def chat(model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": "yes"}
    return {
        "id": "c-1", "object": "chat.completion", "created": 1, "model": model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }  # fmt: skip


def response(model: str) -> dict[str, Any]:
    return {
        "id": "r-1", "object": "response", "created_at": 1, "model": model, "output": [], "parallel_tool_calls": False,
        "tool_choice": "auto", "tools": [], "usage": {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
    }  # fmt: skip


def message(model: str) -> dict[str, Any]:
    return {
        "id": "m-1", "type": "message", "role": "assistant", "model": model, "content": [{"type": "text", "text": "yes"}],
        "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 11, "output_tokens": 7},
    }  # fmt: skip


REPLIES = {"/v1/chat/completions": chat, "/v1/responses": response, "/v1/messages": message}


class Host:
    """Where it listens, which model answers, and which were asked for."""

    def __init__(self, url: str) -> None:
        self.url, self.answers, self.asked = url, "gpt-4o-2024-08-06", list[str]()


@contextlib.contextmanager
def hosting() -> Iterator[Host]:
    host = Host("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            host.asked.append(asked["model"])
            body = json.dumps(REPLIES[self.path](host.answers)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    host.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
