"""Probes that do not fit their effect, and effects that do not say what to do in doubt."""

import holdfast as hf


async def probe(order: str, cents: int) -> hf.Verdict[int]:
    return hf.Landed(cents)


async def probe_with_fewer(order: str) -> hf.Verdict[int]:
    return hf.Landed(len(order))


def probe_with_other_type(order: str, cents: str) -> hf.Verdict[int]:
    return hf.Landed(len(cents))


async def probe_with_other_result(order: str, cents: int) -> hf.Verdict[str]:
    return hf.Landed(order)


async def not_a_probe(order: str, cents: int) -> int:
    return cents


def undo_other(order: str) -> None: ...


@hf.effect(in_doubt=hf.verify(probe_with_fewer))  # E: incompatible type
async def fewer(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt=hf.verify(probe_with_fewer))  # E: incompatible type
def fewer_now(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt=hf.verify(probe_with_other_type))  # E: incompatible type
async def other_type(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt=hf.verify(probe_with_other_result))  # E: incompatible type
async def other_result(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt=hf.verify(probe_with_other_result))  # E: incompatible type
def other_result_now(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt=hf.verify(not_a_probe))  # E: to "verify" has incompatible type
async def no_verdict(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt=hf.reset(undo_other))  # E: incompatible type
async def reset_other(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt="repeat")  # E: No overload variant of "effect"
async def unknown_word(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt="ask", errors={ValueError: "landed"})  # E: No overload variant of "effect"
async def no_word(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt="ask", errors={"ValueError": "answer"})  # E: No overload variant of "effect"
async def no_class(order: str, cents: int) -> int:
    return cents


@hf.step(errors={ValueError: "answer"})  # E: Unexpected keyword argument "errors"
async def no_effect(order: str, cents: int) -> int:
    return cents


def undo_without_result(order: str, cents: int) -> None: ...


def undo_of_other_result(receipt: str, order: str, cents: int) -> None: ...


@hf.effect(in_doubt="ask", undo=undo_without_result)  # E: incompatible type
async def undone_without_result(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt=hf.verify(probe), undo=undo_without_result)  # E: incompatible type
async def probed_and_undone_without_result(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt="resend", undo=undo_of_other_result)  # E: incompatible type
async def undone_with_other_result(order: str, cents: int) -> int:
    return cents


@hf.agent(on_failure="retry")  # E: No overload variant of "agent"
async def no_such_way(order: str) -> int:
    return len(order)


@hf.effect()  # E: require at least one argument
async def says_nothing(order: str, cents: int) -> int:
    return cents


@hf.effect(in_doubt=hf.verify(probe))
async def charge(order: str, cents: int) -> int:
    return cents


async def use() -> None:
    await charge("o-1")  # E: Missing positional argument
    await charge("o-1", "5")  # E: expected "int"
