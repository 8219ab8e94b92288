"""`python -m benchmarks` works and tells ratios; how fast the machine is, is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent


def bench(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--folder", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_table_has_a_line_for_every_figure_with_its_bar_and_nothing_is_left_behind(tmp_path: Path) -> None:
    table = bench(tmp_path)
    assert list(tmp_path.iterdir()) == []
    for bar in ("1.70x", "3.00x", "1.60x", "1.00x", "40.00 ms", "50.00 ms", "5.00 ms", "0.60 s", "0.25 s", "6.00", "1.50x"):
        assert bar in table


def test_json_gives_ratios_to_the_floor_of_the_same_rounds(tmp_path: Path) -> None:
    found = json.loads(bench(tmp_path, "--json"))
    ratios = [line["value"] for line in found["lines"] if line["unit"] == "x"]
    assert found["floor_ms"] > 0
    assert len(ratios) == 11
    assert all(line["value"] > 0 for line in found["lines"] if line["unit"] == "x" and "less the floor" not in line["what"])


def test_the_figures_of_a_fleet_have_a_table_of_their_own(postgres_url: str) -> None:
    command = [sys.executable, "-m", "benchmarks.fleet", "--tiny", postgres_url]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert table.count("3.00x") == 2
    assert "2 workers: " in table
    limited = "Claims at the store, 1 at a time, under one limit: "
    for what in ("2 workers under a limit of 4: ", limited, "Uses of one rate, 2 at a time: "):
        assert what in table
    assert "A worker that idles, one of 1: " in table


def test_the_figures_of_postgresql_have_a_table_of_their_own(postgres_url: str) -> None:
    command = [sys.executable, "-m", "benchmarks.postgres", "--tiny", postgres_url]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for bar in ("2.50x", "0.50x", "10.00 ms"):
        assert bar in table


def test_the_figures_of_files_have_a_table_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.files", "--tiny", "--folder", str(tmp_path)]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert list(tmp_path.iterdir()) == []
    assert "2.00x" in table
    assert "listing 50 of 5" in table
