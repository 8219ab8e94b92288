"""The print of an agent's code is the same wherever the same files are, and another where one of them differs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.app_file import agents_in, loaded
from holdfast.running import code
from holdfast.running.code import print_of

APP = """
import holdfast as hf
import helper_of_a_deploy, installed_beside

@hf.agent(version=VERSION)
async def serves(): ...
"""
Printed = Callable[[Path], str]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Printed:
    """The print of the app in a folder, as a process would know it that has just begun."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def of(folder: Path) -> str:
        for name in ("helper_of_a_deploy", "installed_beside"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        sys.path.insert(0, str(folder / "venv" / "site-packages"))
        monkeypatch.setattr(code, "_began_us", 1 << 62)
        code._sources.cache_clear()
        (agent,) = agents_in(loaded(folder / "app.py"))
        return print_of(agent.fn, agent.version)

    return of


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "one"
    (folder / "venv" / "site-packages").mkdir(parents=True)
    (folder / "app.py").write_text(APP.replace("VERSION", "''"))
    (folder / "helper_of_a_deploy.py").write_text("LEVEL = 1\n")
    (folder / "unused.py").write_text("")
    (folder / "venv" / "site-packages" / "installed_beside.py").write_text("LEVEL = 1\n")
    return folder


def test_the_same_files_have_the_same_print_in_another_folder_at_another_time(tree: Path, tmp_path: Path, printed: Printed) -> None:
    shutil.copytree(tree, tmp_path / "far" / "away")
    os.utime(tmp_path / "far" / "away" / "app.py", (1, 1))
    assert printed(tree) == printed(tmp_path / "far" / "away")
    assert len(printed(tree)) == code.LENGTH


@pytest.mark.parametrize(
    ("file", "text", "prints"),
    [
        ("app.py", APP.replace("VERSION", "''") + "\n", 2),
        ("app.py", APP.replace("VERSION", "'2'"), 2),
        ("helper_of_a_deploy.py", "LEVEL = 2\n", 2),
        ("unused.py", "LEVEL = 2\n", 1),
        ("venv/site-packages/installed_beside.py", "LEVEL = 2\n", 1),
    ],
)
def test_what_was_loaded_from_beside_the_app_makes_another_print_and_nothing_else(
    tree: Path, printed: Printed, file: str, text: str, prints: int
) -> None:
    before = printed(tree)
    shutil.rmtree(tree / "__pycache__", ignore_errors=True)
    (tree / file).write_text(text)
    assert len({printed(tree), before}) == prints


def test_the_version_counts_where_the_files_are_the_same() -> None:
    def fn() -> None: ...

    assert len({print_of(fn, ""), print_of(fn, "1"), print_of(fn, "2")}) == 3


def test_files_that_changed_since_the_process_began_say_nothing(tree: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(tree)
    (agent,) = agents_in(loaded(tree / "app.py"))
    monkeypatch.setattr(code, "_began_us", (tree / "app.py").stat().st_ctime_ns // 1000 - 1)
    code._sources.cache_clear()
    assert print_of(agent.fn, agent.version) == ""


def test_code_that_no_file_has_is_known_by_its_version_alone() -> None:
    space = {"__name__": "nowhere"}
    exec("def fn(): ...", space)
    fn = space["fn"]
    assert callable(fn)
    assert print_of(fn, "") == ""
    assert print_of(fn, "1") != print_of(fn, "2")
