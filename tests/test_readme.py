"""What README.md and the docs print is what happens, and the examples run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast
import starting

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
QUICKSTART = ROOT / "docs" / "quickstart.md"
GUIDE = ROOT / "docs" / "guide.md"
DRIFT = ROOT / "docs" / "drift.md"
DOUBT = ROOT / "docs" / "doubt.md"
LIMITS = ROOT / "docs" / "limits.md"
COMPARING = ROOT / "docs" / "comparing.md"
WAITING = ROOT / "docs" / "waiting.md"
ARTIFACTS = ROOT / "docs" / "artifacts.md"
CHILDREN = ROOT / "docs" / "children.md"
FOLLOWING = ROOT / "docs" / "following.md"
MILESTONES = ROOT / "docs" / "milestones.md"
PRUNING = ROOT / "docs" / "pruning.md"
TIME_TRAVEL = ROOT / "docs" / "time-travel.md"
MOVING = ROOT / "docs" / "moving.md"
FLEET = ROOT / "docs" / "fleet.md"
SCALE = ROOT / "docs" / "scale.md"
SILENT = [FLEET, SCALE, DOUBT, DRIFT, LIMITS, WAITING, FOLLOWING, PRUNING, ARTIFACTS, COMPARING, MILESTONES, CHILDREN, TIME_TRAVEL, MOVING]
"""Pages whose snippets print nothing."""
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

EXAMPLE_LINES = 20
LIMIT_S = 60.0
ELSEWHERE = ("git clone ", "cd ", "pip ", "make ", ".venv/", "source ", "python -m venv", "python3 -m venv")
"""Commands that install; `make` itself is what runs these tests."""


@dataclass(frozen=True)
class Shown:
    """A command and what the page says that it prints."""

    command: str
    output: str


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def programs(page: Path) -> dict[str, str]:
    """The programs of a page, by the name under which it says to save them."""
    found = re.findall(r"Save this as `(\w+\.py)`(?:(?!```).)*```python\n(.*?)```", page.read_text(), re.DOTALL)
    return dict(found)


def commands(page: Path) -> list[Shown]:
    """The commands of a page, with their output."""
    parts = [part for block in blocks(page, "console") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [Shown(*part.split("\n", 1)) for part in parts]


def surroundings(folder: Path) -> dict[str, str]:
    """`python` is this one, prints at once (a killed process loses what it holds back), and keeps runs in the folder."""
    ours = {"PYTHONPATH": str(Path(holdfast.__file__).parent.parent), "HOLDFAST_STORE": str(folder / "runs.db")}
    return {**os.environ, **ours, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "error"}


def typed(command: list[str], folder: Path) -> str:
    """What a command prints that is started as a reader would start it."""
    words = [sys.executable, *command[1:]] if command[0] == "python" else command
    env = surroundings(folder)
    return said_by(subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False))


def run(program: str | Path, folder: Path) -> str:
    """What a program prints."""
    return said_by(starting.run([sys.executable, program], cwd=folder, env=surroundings(folder), text=True, timeout=LIMIT_S))


def said_by(done: subprocess.CompletedProcess[str]) -> str:
    """What a process has printed; the shell's word for one that was killed comes last."""
    if done.returncode == -signal.SIGKILL:
        return f"{done.stdout}Killed\n"
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("page", [README, QUICKSTART], ids=lambda page: page.name)
def test_the_page_prints_what_happens(page: Path, tmp_path: Path) -> None:
    for name, code in programs(page).items():
        (tmp_path / name).write_text(code)
    shown = [each for each in commands(page) if not each.command.startswith(ELSEWHERE)]
    assert shown
    assert [Shown(each.command, typed(each.command.split(), tmp_path)) for each in shown] == shown
    assert any("Killed" in each.output for each in shown)


def test_the_example_of_the_readme_is_short_and_comes_before_any_list() -> None:
    example = programs(README)["trip.py"]
    assert example == blocks(README, "python")[0]
    assert len(example.splitlines()) <= EXAMPLE_LINES
    assert not re.search(r"^\s*([-*]|\d+\.) ", README.read_text().partition(example)[0], re.MULTILINE)


def test_what_the_readme_makes_exists() -> None:
    targets = set(re.findall(r"`make (\w+)`", README.read_text()))
    assert targets == {"demo"}
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """What a link may name after the #: the headings, as a forge writes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^):]+)\)", page.read_text())
    assert [link for link in links if not leads_somewhere(page, link)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_the_page_are_python(page: Path) -> None:
    for number, snippet in enumerate(blocks(page, "python"), 1):
        compile(snippet, f"snippet {number} of {page.name}", "exec")


@pytest.mark.parametrize(
    ("page", "printed"),
    [(GUIDE, "the run has ended\n"), *((page, "") for page in SILENT)],
    ids=["guide", *(page.stem for page in SILENT)],
)
def test_the_snippets_of_the_page_run_in_order(page: Path, printed: str, tmp_path: Path) -> None:
    (tmp_path / "snippets.py").write_text("\n".join(blocks(page, "python")))
    assert run("snippets.py", tmp_path) == printed


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_example_runs_and_gives_its_recorded_result_again(example: Path, tmp_path: Path) -> None:
    first, again = (run(example, tmp_path).splitlines() for _ in range(2))
    assert first
    assert first[-len(again) :] == again


DIE_ONCE = """
import os, signal
def die_once():
    if hf.current().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_tool_loop_goes_on(tmp_path: Path) -> None:
    code = (ROOT / "examples" / "tool_loop.py").read_text()
    example = tmp_path / "killed.py"
    example.write_text(DIE_ONCE + code.replace('return f"booked', 'die_once(); return f"booked'))
    first, second = (run(example, tmp_path).splitlines() for _ in range(2))
    assert [line.partition(":")[0] for line in first] == ["model", "tool", "tool", "model", "tool", "Killed"]
    assert second[0] == first[-2]
    assert second[1:] == ["model: reads 6 messages", "Rome is warmer. I booked three nights."]
