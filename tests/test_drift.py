"""`show --drift` compares what a run relies on with the world, and touches neither the run nor, unasked, the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast.sync as hf
from agents_for_tests.service import Service, serving
from cli_stage import Stage
from crashing import Crash
from holdfast.life.prints import Print, Thing, take
from holdfast.operating import drift


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A folder with a file `prices.csv`, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.csv").write_text("kelp,500")
    return Stage(tmp_path, capsys)


@pytest.fixture
def site() -> Iterator[Service]:
    with serving("404", "404", "404") as service:
        yield service


def watching(stage: Stage, *things: Thing) -> None:
    """A run `r` that watches these, and died."""

    @hf.step
    def read() -> str:
        return "read"

    @hf.agent
    def follow() -> None:
        for thing in things:
            hf.watch(thing)
        read()
        raise Crash

    with hf.Holdfast(stage.store) as app, pytest.raises(Crash):
        app.run(follow, run_id="r")


def compared(stage: Stage, *words: str, code: int) -> dict[str, str]:
    document = stage.document("show", "r", "--drift", *words, code=code)
    assert document["drifted"] == (code == 6)
    return {each["name"]: each["what"] for each in document["things"]}


def test_what_is_the_same_is_no_drift(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODE", "one")
    things = ("prices.csv", "env:HF_MODE", "package:pydantic", stage.folder / "none.csv")
    watching(stage, *things)
    assert compared(stage, code=0) == {str(thing): "same" for thing in things}
    assert stage.told("show", "r", "--drift").endswith("\nno drift\n")


def change(path: Path) -> None:
    path.write_text("kelp,900")


def lead_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize(("what", "done"), [("changed", change), ("gone", Path.unlink), ("unreachable", lead_nowhere)])
def test_changed_gone_and_unreachable_are_told_apart(stage: Stage, what: str, done: Callable[[Path], object]) -> None:
    watching(stage, "prices.csv")
    done(stage.folder / "prices.csv")
    assert compared(stage, code=6) == {"prices.csv": what}
    text = stage.told("show", "r", "--drift", code=6)
    assert text.splitlines()[0].split() == ["THING", "WHAT", "WAS", "IS"]
    assert text.splitlines()[1].split()[:4] == ["prices.csv", what, "8", "bytes"]
    assert text.endswith("1 of 1 thing not as the run knew it\n")


def test_a_thing_that_was_not_there_has_appeared(stage: Stage) -> None:
    watching(stage, "later.csv")
    (stage.folder / "later.csv").write_text("")
    assert compared(stage, code=6) == {"later.csv": "appeared"}


def test_a_relative_path_is_the_one_that_the_run_saw_wherever_one_looks_from(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    watching(stage, "prices.csv", Path("env:odd"))
    (stage.folder / "elsewhere").mkdir()
    monkeypatch.chdir(stage.folder / "elsewhere")
    assert compared(stage, code=0) == {"prices.csv": "same", "env:odd": "same"}
    (stage.folder / "prices.csv").write_text("")
    assert compared(stage, code=6) == {"prices.csv": "changed", "env:odd": "same"}


def test_what_only_the_code_can_see_is_not_compared_and_says_so(stage: Stage) -> None:
    looked: list[int] = []

    def look() -> int:
        looked.append(1)
        return 7

    watching(stage, ("prices.csv", look))
    (stage.folder / "prices.csv").unlink()
    assert compared(stage, code=0) == {"prices.csv": "not compared"}
    assert "only the agent's code can look at it" in stage.told("show", "r", "--drift")
    assert "no drift; 1 not compared" in stage.told("show", "r", "--drift")
    assert looked == [1]


def test_a_page_is_fetched_only_on_demand(stage: Stage, site: Service) -> None:
    watching(stage, site.url)
    assert len(site.seen) == 1
    assert compared(stage, code=0) == {site.url: "not compared"}
    assert len(site.seen) == 1
    assert compared(stage, "--urls", code=0) == {site.url: "same"}
    assert len(site.seen) == 2
    site.plan[:] = ["500"]
    assert compared(stage, "--urls", code=6) == {site.url: "unreachable"}


def test_looking_writes_nothing(stage: Stage) -> None:
    watching(stage, "prices.csv")
    (stage.folder / "prices.csv").write_text("other")
    before = stage.document("show", "r"), stage.document("history", "r")
    compared(stage, code=6)
    after = stage.document("show", "r"), stage.document("history", "r")
    assert [before[0]["run"][name] == after[0]["run"][name] for name in ("status", "updated_us", "attempt", "owner")] == [True] * 4
    assert before[1] == after[1]


def test_without_the_comparison_nothing_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    watching(stage, "prices.csv")
    (stage.folder / "prices.csv").unlink()
    monkeypatch.setattr(drift, "difference", lambda old, new: "")
    assert compared(stage, code=0) == {"prices.csv": "same"}


def test_a_model_that_nobody_accepted_is_part_of_the_drift(stage: Stage) -> None:
    models = ["m-1"]

    @hf.step
    def think(number: int) -> int:
        hf.usage(model=models[0])
        return number

    @hf.agent(on_model_change="fail")
    def solve() -> int:
        think(1)
        if hf.current().attempt == 1:
            raise Crash
        return think(2) + think(3)

    with hf.Holdfast(stage.store) as app:
        with pytest.raises(Crash):
            app.run(solve, run_id="r")
        models[0] = "m-2"
        with pytest.raises(hf.ModelChanged):
            app.run(solve, run_id="r")
    assert compared(stage, code=6) == {"model:think": "changed"}
    assert "model     think: it was m-1, it is m-2 -> fail" in stage.told("show", "r")
    assert stage.told("resume", "r", "--accept", "--by", "ann").startswith("the run goes on with m-2 in step think; the run is ready")
    assert stage.told("show", "r", "--drift") == "run r watches nothing\n"


@pytest.mark.parametrize("words", [("--at", "1", "--drift"), ("--urls",)])
def test_words_that_do_not_go_together_are_refused(stage: Stage, words: tuple[str, ...]) -> None:
    watching(stage, "prices.csv")
    assert stage.give("show", "r", *words)[0] == 2


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert (take("/dev/zero").shown, take(tmp_path / "pipe").shown) == ("no regular file", "no regular file")
    assert take(tmp_path) == Print(state="there", digest=take(tmp_path).digest, shown="1 files", thing=str(tmp_path))


def test_a_print_says_what_to_look_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    things: list[Thing] = ["a.csv", Path("b.csv"), "env:A", "package:a", ("a.csv", lambda: 1)]
    assert [take(thing).thing for thing in things] == [str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "env:A", "package:a", ""]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert take("a.csv").thing == ""
