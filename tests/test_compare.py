"""What an agent knew at one checkpoint, compared with another: of one run, of two, and as the command line tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from cli_stage import Stage, staged
from holdfast.cli.differences import place
from holdfast.errors import Refusal
from holdfast.stores.sqlite import SqliteStore
from test_cli_terminal import on_a_terminal


@hf.step
def think(messages: list[str]) -> str:
    hf.usage(input_tokens=10, usd=0.5)
    return f"thought {len(messages)}"


@hf.step
def look(city: str) -> str:
    if city == "Nowhere":
        raise ValueError("no such city")
    return f"rain\nin {city}"


@hf.agent
def travel(city: str) -> list[str]:
    kept, messages = hf.state({"seen": 0}), ["hello"]
    for _ in range(2):
        messages.append(think(messages))
        try:
            messages.append(look(city))
        except ValueError as error:
            messages.append(str(error))
        kept["seen"] += 1
    return messages


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    stage = Stage(tmp_path, capsys)
    with hf.Holdfast(SqliteStore(stage.store)) as app:
        for run_id, city in (("oslo", "Oslo"), ("rome", "Rome"), ("again", "Oslo"), ("nowhere", "Nowhere")):
            app.run(travel, city, run_id=run_id)
    return stage


def changes(stage: Stage, left: str, right: str) -> dict[str, Any]:
    with hf.Holdfast(stage.store) as app:
        return {change.pointer(): change.after for change in app.diff(left, right).changes}


def test_between_two_steps_of_one_run_only_what_came_is_told(stage: Stage) -> None:
    assert changes(stage, "oslo@1", "oslo@3") == {
        "/step/arguments/messages/1": "thought 1",
        "/step/arguments/messages/2": "rain\nin Oslo",
        "/results/2": {"call": "look", "result": "rain\nin Oslo"},
        "/results/3": {"call": "think", "result": "thought 3"},
        "/state/~1state.1": {"seen": 1},
        "/spent/usd": 1.0,
        "/spent/tokens": 20,
        "/spent/steps": 3,
    }


def test_backwards_it_is_taken_away(stage: Stage) -> None:
    with hf.Holdfast(stage.store) as app:
        found = app.diff("oslo@2", "oslo@1")
    assert ("remove", "/results/2") in [(operation["op"], operation["path"]) for operation in found.patch]
    assert (found.left.name, found.right.name, found.parting) == ("oslo@2", "oslo@1", None)


def test_two_runs_part_where_a_call_or_its_outcome_is_not_the_same(stage: Stage) -> None:
    with hf.Holdfast(stage.store) as app:
        parting = app.diff("oslo", "rome").parting
        assert parting is not None
        assert (parting.step_id, parting.what, parting.before, parting.after) == ("2", "arguments", {"city": "Oslo"}, {"city": "Rome"})
        assert app.diff("oslo", "again").parting is None
        assert app.diff("oslo", "again").changes == []
        ahead = app.diff("oslo@2", "again").parting
    assert ahead is not None
    assert (ahead.step_id, ahead.what, ahead.before, ahead.after) == ("3", "call", None, "think")


def test_a_failure_is_what_the_agent_knew_of_a_step(stage: Stage) -> None:
    found = changes(stage, "oslo@2", "nowhere@2")
    assert found["/results/2/error"] == {"type": "ValueError", "message": "no such city"}
    assert "/results/2/result" in found


def test_what_came_later_is_not_known_yet(stage: Stage) -> None:
    with hf.Holdfast(stage.store) as app:
        document = app.diff("oslo@2", "oslo@4").left.document
    assert list(document["results"]) == ["1", "2"]
    assert document["spent"]["steps"] == 2
    assert "status" not in document


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ("oslo@9", r"run 'oslo' has no step '9'; the nearest it has: 2, 3, 4"),
        ("oslo@2.1", r"run 'oslo' has no step '2.1'; the nearest it has: 1, 2, 3, 4"),
        ("olso@1", r"there is no run 'olso'.*oslo"),
        ("oslo@", r"'oslo@' is neither RUN@STEP"),
        ("@2", r"'@2' is neither RUN@STEP"),
        ("", r"'' is neither RUN@STEP"),
        ("a b@2", r"'a b@2' is neither RUN@STEP"),
    ],
)
def test_what_does_not_exist_is_refused(stage: Stage, left: str, said: str) -> None:
    with hf.Holdfast(stage.store) as app, pytest.raises((Refusal, hf.UnknownRun), match=said):
        app.diff(left, "oslo@1")


def test_a_run_that_has_no_step_yet_says_so(stage: Stage) -> None:
    @hf.agent
    def idle() -> None:
        return None

    with hf.Holdfast(stage.store) as app:
        app.run(idle, run_id="idle")
        with pytest.raises(Refusal, match="run 'idle' has no step '1'; it has none yet"):
            app.diff("idle@1", "oslo@1")


def test_an_effect_that_is_in_doubt_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = staged(tmp_path, capsys)
    assert changes(shop, "dead@2", "dead@3")["/results/3"] == {"call": "charge", "open": True}
    assert "+ charge: not finished" in shop.told("diff", "dead@2", "dead@3")
    assert "\x1b" not in shop.told("diff", "done", "failed")


def test_the_command_shows_each_place_with_what_went_and_what_came(stage: Stage) -> None:
    text = stage.told("diff", "oslo@1", "oslo@2")
    assert text == (
        "oslo@1 -> oslo@2: 4 differences\n"
        "\n"
        'this call: call\n  - "think"\n  + "look"\n'
        'this call: arguments.city\n  + "Oslo"\n'
        "\n"
        "step 2\n  + look: rain\n  + in Oslo\n"
        "\n"
        "spent: steps\n  - 1\n  + 2\n"
    )


def test_the_command_shows_where_two_runs_part(stage: Stage) -> None:
    text = stage.told("diff", "oslo", "rome")
    assert 'They part at step 2, in its arguments:\n  oslo: {"city": "Oslo"}\n  rome: {"city": "Rome"}\n' in text
    assert "step 2: result\n    rain\n  - in Oslo\n  + in Rome\n" in text
    assert stage.told("diff", "oslo", "again") == "oslo -> again: no difference\n"


def test_on_a_terminal_what_went_is_red_and_what_came_is_green(stage: Stage) -> None:
    text = on_a_terminal("diff", "oslo@1", "oslo@2", "--store", str(stage.store), columns=80)
    assert '\x1b[31m  - "think"\x1b[0m' in text
    assert '\x1b[32m  + "look"\x1b[0m' in text
    assert "\x1b[3" not in on_a_terminal("diff", "oslo@1", "oslo@2", "--store", str(stage.store), columns=80, NO_COLOR="1")


def test_for_scripts_it_is_a_json_patch(stage: Stage) -> None:
    document = stage.document("diff", "oslo@3", "oslo@4")
    assert document["patch"][:2] == [
        {"op": "replace", "path": "/step/call", "value": "look"},
        {"op": "remove", "path": "/step/arguments/messages"},
    ]
    assert (document["left"]["run_id"], document["left"]["step_id"], document["parting"]) == ("oslo", "3", None)
    assert stage.document("diff", "oslo@9", "oslo", code=1)["error"]["message"].startswith("run 'oslo' has no step '9'")


def test_a_long_value_is_cut_for_people_alone(stage: Stage) -> None:
    @hf.agent
    def prints(lines: int) -> str:
        return "\n".join(str(number) for number in range(lines))

    with hf.Holdfast(stage.store) as app:
        app.run(prints, 1, run_id="short")
        app.run(prints, 100, run_id="long")
    assert "... 60 more lines; --json shows all" in stage.told("diff", "short", "long")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ((), "everything"), (("results", "12"), "step 12"), (("results", "12", "result", 3, "name"), "step 12: result[3].name"),
        (("state", "/state.1", "seen"), "state 1: seen"), (("state", "3.1/state.2"), "state 2 of 3.1"),
        (("agent", "arguments", "city"), "the agent's call: arguments.city"), (("result", 3), "result: [3]"),
    ],
)  # fmt: skip
def test_places_are_written_as_one_would(path: tuple[str | int, ...], said: str) -> None:
    assert place(path) == said
