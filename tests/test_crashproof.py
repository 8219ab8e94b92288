"""Crashproof: an agent that keeps its promises passes, and each way of breaking them is told with the crash that shows it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Literal

import pytest

import holdfast as hf
import holdfast.sync as hfs
from holdfast.testing import Rig, crashproof, replies
from holdfast.testing.replies import Replies


class Mailer:
    """Sends mails, and knows the keys under which they came unless it forgets them."""

    def __init__(self, *, forgets: bool = False) -> None:
        self.sent: list[str] = []
        self._keys: set[str] = set()
        self._forgets = forgets

    def send(self, to: str, key: str) -> str:
        if key not in self._keys or self._forgets:
            self.sent.append(to)
        self._keys.add(key)
        return f"m-{len(self._keys)}"


def sent(mailer: Mailer) -> list[str]:
    return mailer.sent


@hf.step
async def draft(to: str) -> str:
    return f"Dear {to}"


@hf.effect(in_doubt="resend")
async def mail(to: str) -> str:
    return hf.resource(Mailer).send(to, hf.key())


@hf.agent
async def invite(names: list[str]) -> list[str]:
    await hf.sleep("2d")
    if not await hf.ask("Invite them?", bool):
        return []
    return [await draft(name) + await mail(name) for name in names]


def test_an_agent_that_keeps_its_promises_passes() -> None:
    given = crashproof(invite, ["ann", "bob"], resources=[Mailer()], answers={"Invite them?": True}, seen=sent)
    assert given == ["Dear annm-1", "Dear bobm-2"]


@pytest.mark.parametrize("action", ["ask", "resend"])
def test_a_blocking_agent_with_branches_passes(action: Literal["ask", "resend"]) -> None:
    @hf.effect(in_doubt=action)
    def post(to: str) -> str:
        return hf.resource(Mailer).send(to, hf.key())

    @hf.agent
    def blocking() -> int:
        return len(hfs.gather(lambda: post("ann"), lambda: post("bob")))

    assert crashproof(blocking, resources=[Mailer()], seen=lambda mailer: sorted(mailer.sent)) == 2


def test_a_side_effect_beside_the_steps_is_caught() -> None:
    @hf.agent
    async def careless(name: str) -> str:
        hf.resource(Mailer).send(name, str(time.monotonic_ns()))
        return await draft(name)

    with pytest.raises(AssertionError) as caught:
        crashproof(careless, "ann", resources=[Mailer()], seen=sent)
    table = str(caught.value).splitlines()
    assert table[0] == "careless is not crashproof: 4 of 6 crashes change what happens"
    assert [row.strip().split("  ")[0] for row in table[2:-1]] == ["before draft", "inside draft", "after draft", "inside careless"]
    assert all("seen: ['ann', 'ann'], not ['ann']" in row for row in table[2:-1])


def test_a_probe_that_does_not_find_what_happened_is_caught() -> None:
    def blind(to: str) -> hf.Verdict[str]:
        return hf.NotLanded()

    @hf.effect(in_doubt=hf.verify(blind, settle=0))
    def post(to: str) -> str:
        return hf.resource(Mailer).send(to, hf.key())

    @hf.agent
    def trusting() -> str:
        return post("ann")

    with pytest.raises(AssertionError, match=r"inside post +'m-1' +post was done 2 times \(in_doubt=verify\)"):
        crashproof(trusting, resources=[Mailer()])


def test_a_service_that_forgets_keys_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"inside mail .*seen: \['ann', 'ann'\], not \['ann'\]"):
        crashproof(invite, ["ann"], resources=[Mailer(forgets=True)], answers={"*": True}, seen=sent)


def test_code_that_takes_another_path_on_replay_is_caught() -> None:
    coin = iter(range(1000))

    @hf.agent
    async def fickle() -> str:
        return await draft(str(next(coin))) + await draft("bob")

    with pytest.raises(AssertionError, match="ReplayMismatch"):
        crashproof(fickle)


def test_an_agent_that_waits_for_what_was_not_prepared_is_no_subject() -> None:
    with pytest.raises(hf.RunWaiting, match="Invite them"):
        crashproof(invite, ["ann"], resources=[Mailer()])


def test_a_resource_that_cannot_be_copied_is_told_with_what_to_give_instead() -> None:
    @hf.agent
    async def idle() -> int:
        return 1

    with pytest.raises(hf.Misuse, match=r"cannot be copied: lock .*Give a stand-in"):
        crashproof(idle, resources=[threading.Lock()])


def test_an_agent_that_fails_anyway_is_no_subject() -> None:
    @hf.agent
    async def broken() -> None:
        raise ValueError("always")

    with pytest.raises(AssertionError, match="broken fails without a crash: ValueError: always"):
        crashproof(broken)


@hf.step
async def think(messages: list[str]) -> str:
    return str(await hf.resource(Replies).later(messages))


@hf.agent
async def chat() -> list[str]:
    messages = ["hello"]
    for _ in range(2):
        messages.append(await think(messages))
    return messages


def test_a_scripted_model_gives_a_repeated_step_the_same_reply() -> None:
    assert crashproof(chat, resources=[replies("one", "two")]) == ["hello", "one", "two"]


def test_replies_come_one_by_one_and_are_remembered() -> None:
    model = replies("one", ValueError("busy"), "two")
    assert model("a", temperature=0) == "one"
    with pytest.raises(ValueError, match="busy"):
        model("b")
    assert asyncio.run(model.later("c")) == "two"
    assert model.asked == [(("a",), {"temperature": 0}), (("b",), {}), (("c",), {})]
    with pytest.raises(AssertionError, match=r"all 3 prepared replies .* \('d', n=1\)"):
        model("d", n=1)


def test_a_step_that_is_tried_again_after_an_error_gets_the_next_reply(rig: Rig) -> None:
    @hf.step(retry=hf.Retry(attempts=2))
    async def ask_model() -> str:
        return str(hf.resource(Replies)())

    @hf.agent
    async def retried() -> str:
        return await ask_model()

    assert rig.run(retried, resources=[replies(ConnectionError("gone"), "there")]) == "there"
