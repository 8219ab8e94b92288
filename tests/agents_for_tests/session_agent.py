"""An agent with a session at a site that sends a one-time code: `session_agent.py SITE STORE MODE [park_after]`.

Exit status: 0 done, the result on standard output; 75 it waits; anything else is a defect.
"""

from __future__ import annotations

import http.client
import sys
from typing import Self

import holdfast as hf
import holdfast.sync as hfs

RUN_ID, WAITS = "session", 75


class Session:
    """A connection that is kept open, and what the site wants to be shown again."""

    def __init__(self, site: str) -> None:
        self.connection, self.cookie = http.client.HTTPConnection(site, timeout=10), ""

    def request(self, path: str) -> str:
        self.connection.request("POST", path, headers={"Cookie": self.cookie})
        reply = self.connection.getresponse()
        text = reply.read().decode()
        if reply.status != http.HTTPStatus.OK:
            raise PermissionError(text)
        return text

    def __enter__(self) -> Self:
        self.request("/open")
        return self

    def __exit__(self, *_: object) -> None:
        self.request("/close")
        self.connection.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


def forget(site: str) -> None:
    Session(site).request("/forget")


@hf.step(ignore=("session",))
def log_in(session: Session) -> str:
    return session.request("/login")


@hf.step(ignore=("session",))
def fetch(session: Session, code: str) -> str:
    return session.request(f"/bill/{code}")


@hf.agent(name="bill")
async def bill(site: str) -> str:
    hf.cleanup(forget, site)
    async with Session(site) as session:
        session.cookie = log_in(session)
        return fetch(session, await hf.ask("code?", str))


@hf.agent(name="bill")
def bill_def(site: str) -> str:
    hf.cleanup(forget, site)
    with Session(site) as session:
        session.cookie = log_in(session)
        return fetch(session, hfs.ask("code?", str))


if __name__ == "__main__":
    where, path, mode, *more = sys.argv[1:]
    with hf.Holdfast(path) as app:
        try:
            print(app.run(bill if mode == "async" else bill_def, where, run_id=RUN_ID, wait=False, park_after=more[0] if more else 0))
        except hf.RunWaiting:
            sys.exit(WAITS)
