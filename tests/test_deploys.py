"""Deploys: workers of the old and the new code side by side on one store, as real processes.

A run goes on with code that fits what is recorded, whoever takes it first; what fits nobody waits, listed, for a deploy that does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

import holdfast as hf
import starting
from agents_for_tests.sites import eventually
from chaos_fleet import SOURCES
from cli_stage import Stage
from holdfast import Holdfast
from holdfast.cli.app_file import loaded
from holdfast.records import kinds as rec

BOUND_S = 30.0

CODE = """
import os
import holdfast as hf

NAME = "@"

def noted(word):
    with open(os.environ["DEPLOY_BOOK"], "a") as book:
        book.write(word + chr(10))
    return word

@hf.step
async def check(run):
    return noted(f"{run} check {NAME}")

@hf.step
async def begin(run):
    return noted(f"{run} begin {NAME}")

@hf.step
async def finish(run):
    return noted(f"{run} finish {NAME}")

@hf.effect(in_doubt="ask")
async def pay(run):
    return noted(f"{run} pay {NAME}")

@hf.agent
async def serves(run):
    CALLS
    first = await hf.receive("first", str)
    paid = await pay(run)
    return [first, paid, await hf.receive("second", str), await finish(run)]
"""
OLD, NEW = "await begin(run)", "await check(run); await begin(run)"


def deployed(folder: Path, name: str, calls: str) -> Path:
    """An app file of the code `name`, in a folder of its own."""
    file = folder / name / "app.py"
    file.parent.mkdir()
    file.write_text(CODE.replace("CALLS", calls).replace('@"', f'{name}"'))
    return file


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOY_BOOK", str(tmp_path / "book"))
    return tmp_path / "book"


@contextmanager
def worker(file: Path, url: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    said = [sys.executable, "-m", "holdfast", "worker", str(file), "--store", url]
    with starting.Popen[bytes](said, env={**os.environ, "PYTHONPATH": SOURCES, **env}, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def begun(app: Holdfast, module: ModuleType, run_id: str) -> None:
    """A run that this code has begun and that waits now."""
    with pytest.raises(hf.RunWaiting):
        app.run(module.serves, run_id, run_id=run_id, wait=False)


def ended_with(app: Holdfast, run_id: str, name: str) -> None:
    eventually(lambda: app.show(run_id).status == "done", within_s=BOUND_S)
    assert app.show(run_id).result == ["go", f"{run_id} pay {name}", "on", f"{run_id} finish {name}"]


def stands(app: Holdfast, runs: list[str], status: str) -> None:
    eventually(lambda: {app.show(run_id).status for run_id in runs} == {status}, within_s=BOUND_S)


def codes(app: Holdfast, run_id: str) -> list[str]:
    """The prints of the code that the run was blocked by, in order."""
    found = app.engine.store.load(run_id)
    assert found is not None
    return [json.loads(row.body)["code"] for row in found[1] if row.kind == rec.RunBlocked.kind]


def side_by_side(folder: Path, url: str, book: Path) -> None:
    old, new = deployed(folder, "old", OLD), deployed(folder, "new", NEW)
    modules = {"old": loaded(old), "new": loaded(new)}
    runs = [f"{name}-{number}" for name in modules for number in range(3)]
    with Holdfast(url) as app:
        for run_id in runs:
            begun(app, modules[run_id[:3]], run_id)
        with worker(new, url):
            for run_id in runs:
                app.send(run_id, "first", "go")
            stands(app, runs[:3], "blocked")
            stands(app, runs[3:], "waiting")
            with worker(old, url):
                stands(app, runs, "waiting")
                for run_id in runs:  # both look for what was woken now, and nobody says who comes first
                    app.send(run_id, "second", "on")
                for run_id in runs:
                    ended_with(app, run_id, run_id[:3])
        assert all(len(set(codes(app, run_id))) <= 1 for run_id in runs)
    done = Counter(book.read_text().splitlines())
    assert set(done.values()) == {1}
    assert {line.split()[2] for line in done if line.startswith("old")} == {"old"}
    assert len(done) == 3 * 3 + 3 * 4


def test_each_run_goes_on_with_the_code_that_fits_it_whoever_takes_it_first(tmp_path: Path, book: Path) -> None:
    side_by_side(tmp_path, str(tmp_path / "runs.db"), book)


def test_the_same_on_postgres(tmp_path: Path, book: Path, postgres_url: str) -> None:
    side_by_side(tmp_path, f"{postgres_url}?schema=deploys", book)


def test_what_fits_nobody_stays_listed_and_a_later_deploy_goes_on_with_it(
    tmp_path: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage(tmp_path, capsys)
    url, old, new = str(tmp_path / "runs.db"), deployed(tmp_path, "old", OLD), deployed(tmp_path, "new", NEW)
    mended = deployed(tmp_path, "mended", f"{OLD}  # as it was, in another deploy")
    with Holdfast(url) as app:
        begun(app, loaded(old), "run")
        with worker(new, url):
            app.send("run", "first", "go")
            stands(app, ["run"], "blocked")
            (print_,) = codes(app, "run")
            (working,) = [one for one in app.workers() if one.agents]
            assert working.codes == {"serves": print_}
            assert print_ in stage.told("workers")
            for words in (" ".join(stage.told(*said).split()) for said in (["inbox"], ["show", "run"])):
                assert "step 1 was begin" in words
                assert f"tried in vain: {working.owner} (code {print_})" in words
                assert "holdfast resume run --accept" in words
            with worker(mended, url):
                stands(app, ["run"], "waiting")
                app.send("run", "second", "on")
                eventually(lambda: app.show("run").status == "done", within_s=BOUND_S)
        assert app.show("run").result == ["go", "run pay mended", "on", "run finish mended"]
        assert set(codes(app, "run")) == {print_}
    assert book.read_text().splitlines() == ["run begin old", "run pay mended", "run finish mended"]


@pytest.mark.parametrize("where", ["claim.after", "block.before"])
def test_a_worker_that_is_killed_before_it_can_say_that_its_code_does_not_fit_leaves_the_run_to_others(
    tmp_path: Path, book: Path, where: str
) -> None:
    url, old, new = str(tmp_path / "runs.db"), deployed(tmp_path, "old", OLD), deployed(tmp_path, "new", NEW)
    with Holdfast(url) as app:
        begun(app, loaded(old), "run")
        app.send("run", "first", "go")
        app.send("run", "second", "on")
        with worker(new, url, HOLDFAST_FAILPOINT=where) as process:
            assert process.wait(BOUND_S) == -signal.SIGKILL
        assert app.show("run").status == "running"
        assert codes(app, "run") == []
        if where == "block.before":  # it has not tried, by the records: another one with the same code does
            with worker(new, url):
                stands(app, ["run"], "blocked")
        with worker(old, url):
            ended_with(app, "run", "old")
        assert len(codes(app, "run")) == (where == "block.before")
    assert set(Counter(book.read_text().splitlines()).values()) == {1}
