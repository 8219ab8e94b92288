"""`holdfast schedules` (holdfast.cli.scheduled): the schedules of a file, their next times, and their last runs."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import holdfast as hf
from holdfast.cli import main

APP = """
import holdfast as hf

@hf.agent
async def plan(city: str) -> str:
    return city

S = [
    hf.Schedule(plan, "Rome", cron="0 9 * * 1-5", zone="Europe/Rome", name="rome", queue="reports", priority=3, tags={"team": "sales"}),
    hf.Schedule(plan, "Oslo", every="1h", catch_up="none", name="oslo"),
]
"""


@hf.agent
async def plan(city: str) -> str:
    return city


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "app.py").write_text(APP)
    return tmp_path / "app.py"


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["schedules", *words]) == code
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(told(capsys, *words, "--json"))["schedules"]
    return found


def test_schedules_tell_their_next_times_in_their_zone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(UTC)
    rome, oslo = document(capsys, str(file))
    times = [datetime.fromisoformat(time) for time in rome["next"]]
    assert [(time.astimezone(ZoneInfo("Europe/Rome")).hour, time.weekday() < 5) for time in times] == [(9, True)] * 3
    assert now < times[0] <= now + timedelta(days=3)
    assert (rome["queue"], rome["priority"], rome["tags"], rome["catch_up"]) == ("reports", 3, {"team": "sales"}, "last")
    hours = [datetime.fromisoformat(time) for time in oslo["next"]]
    assert [later - earlier for earlier, later in pairwise(hours)] == [timedelta(hours=1)] * 2
    assert (oslo["every_s"], oslo["catch_up"], oslo["queue"], oslo["last_run"]) == (3600, "none", "default", None)
    lines = told(capsys, str(file)).splitlines()
    assert re.search(r"^rome +0 9 \* \* 1-5 \(Europe/Rome\) +reports +last +none +\w{3} [-\d]+ 09:00:00 \(in \d+ \w+\), ", lines[1])
    assert re.search(r"^oslo +every 1 h +default +none +none +\w{3} \d{4}-", lines[2])


def test_schedules_tell_the_run_of_each_that_changed_last(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hf.Holdfast(file.parent / "runs.db") as app:
        app.submit(plan, "Rome", run_id="rome-20260101T080000Z", tags={"schedule": "rome"})
        app.run(plan, "Oslo", run_id="oslo-20260101T080000Z", tags={"schedule": "oslo"})
    rome, oslo = document(capsys, str(file), "--store", str(file.parent / "runs.db"))
    assert (rome["last_run"], rome["last_status"]) == ("rome-20260101T080000Z", "queued")
    assert (oslo["last_run"], oslo["last_status"]) == ("oslo-20260101T080000Z", "done")


def test_schedules_begin_nothing_and_need_no_store_unless_one_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none" in told(capsys, str(file))
    assert not (file.parent / ".holdfast").exists()
    told(capsys, str(file), "--store", "nothing.db", code=5)
    assert not (file.parent / "nothing.db").exists()
    file.write_text("x = 1")
    assert "declares no schedule" in told(capsys, str(file))
