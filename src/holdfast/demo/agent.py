"""The demo's agent: 20 orders, and for each a question to a scripted model, a charge and a mail, which makes 60 steps.

On standard output it says `did WHAT ORDER` when the body of a step or a probe is executed, and `step N` when step N has returned,
be it executed or given back from the journal.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import holdfast.sync as hf

RUN_ID = "demo"
ORDERS = 20
STEPS_PER_ORDER = 3
THINKING_S = 0.05
"""How long the scripted model takes to answer."""
PATIENCE_S = 20.0
"""How long an answer of the service is waited for."""


@dataclass(frozen=True)
class Plan:
    """What the model says is to be done for an order."""

    cents: int
    text: str


@dataclass(frozen=True)
class Receipt:
    """What the bank gives for a charge."""

    id: str
    order: str
    cents: int


@dataclass(frozen=True)
class Client:
    """A connection to the service; a resource, so that it is not recorded."""

    url: str

    def call(self, method: str, path: str, body: object = None, key: str = "") -> Any:
        """One request and its answer."""
        with closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), {"Idempotency-Key": key})
            return json.loads(connection.getresponse().read())


@hf.step
def ask_model(order: str) -> Plan:
    say("did model", order)
    time.sleep(THINKING_S)
    number = int(order.removeprefix("o-"))
    return Plan(cents=500 + 125 * number, text=f"Your order {order} is on its way.")


def find_charge(order: str, cents: int) -> hf.Verdict[Receipt]:
    """The probe: look the charge up by its order."""
    del cents
    say("did look-up", order)
    found = hf.resource(Client).call("GET", f"/charges/{order}")
    return hf.Landed(receipt(found[0])) if found else hf.NotLanded()


# On loopback a request that has not arrived after half a second never will.
@hf.effect(in_doubt=hf.verify(find_charge, settle="0.5s"))
def charge(order: str, cents: int) -> Receipt:
    say("did charge", order)
    return receipt(hf.resource(Client).call("POST", "/charges", {"order": order, "cents": cents}, key=hf.key()))


@hf.effect(in_doubt=hf.resend())
def send_mail(order: str, text: str) -> str:
    say("did mail", order)
    return str(hf.resource(Client).call("POST", "/mails", {"order": order, "text": text}, key=hf.key())["id"])


@hf.agent
def fulfil(orders: int) -> int:
    """Charge and mail every order; gives the cents that were charged."""
    steps, total = count(1), 0
    for number in range(1, orders + 1):
        order = f"o-{number:02}"
        plan = ask_model(order)
        say("step", next(steps))
        paid = charge(order, plan.cents)
        say("step", next(steps))
        send_mail(order, f"{plan.text} Receipt {paid.id}.")
        say("step", next(steps))
        total += paid.cents
    return total


def receipt(booked: dict[str, Any]) -> Receipt:
    return Receipt(id=booked["id"], order=booked["order"], cents=booked["cents"])


def say(*words: object) -> None:
    print(*words, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bank", required=True)
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    with hf.Holdfast(options.store, resources=[Client(options.bank)]) as app:
        app.run(fulfil, ORDERS, run_id=RUN_ID, wait=False)


if __name__ == "__main__":
    main()
