"""The type checker sees through the decorators: `typed/good` passes, and each line of `typed/bad` fails as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

TYPED = Path(__file__).parent / "typed"
SOURCES = TYPED.parent.parent / "src"
GOOD = sorted(TYPED.glob("good/*.py"))
BAD = sorted(TYPED.glob("bad/*.py"))

EXPECTED = re.compile(r"# E: (?P<text>.+)$")
REPORTED = re.compile(r"^(?P<file>[^:]+\.py):(?P<line>\d+): error: (?P<text>.+)$", re.MULTILINE)

Errors = dict[int, str]
"""The errors of one file: all that is said about a line, joined."""

pytestmark = pytest.mark.xdist_group("mypy")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Errors]:
    """What mypy strict says of all files, without the settings of this project: as a user would see it."""
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--explicit-package-bases", "--hide-error-context"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(tmp_path_factory.mktemp("mypy")), "good", "bad"],
        cwd=TYPED,
        env=os.environ | {"MYPYPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1, checked.stdout + checked.stderr
    found: dict[str, Errors] = defaultdict(dict)
    for match in REPORTED.finditer(checked.stdout):
        errors, line = found[match["file"]], int(match["line"])
        errors[line] = f"{errors.get(line, '')} {match['text']}".strip()
    return found


def expected_of(path: Path) -> Errors:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return {number: match["text"] for number, line in lines if (match := EXPECTED.search(line))}


def named(path: Path) -> str:
    return path.relative_to(TYPED).as_posix()


@pytest.mark.parametrize("path", GOOD, ids=named)
def test_a_good_program_passes(path: Path, reported: dict[str, Errors]) -> None:
    assert reported.get(named(path), {}) == {}


@pytest.mark.parametrize("path", BAD, ids=named)
def test_a_bad_program_fails_where_it_says(path: Path, reported: dict[str, Errors]) -> None:
    expected, found = expected_of(path), reported.get(named(path), {})
    assert found.keys() == expected.keys(), found
    assert {line: found[line] for line, text in expected.items() if text not in found[line]} == {}
