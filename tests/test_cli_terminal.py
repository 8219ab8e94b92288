"""On a terminal: tables that fit its width, colours unless they are not wanted, and the same harmless text."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest

import starting
from cli_stage import Stage, staged
from holdfast._duration import in_words as duration
from holdfast.cli.page import Cell, Column, Commands, Facts, Line, Page, Table, plain
from holdfast.cli.sentences import wrapped
from holdfast.cli.terminal import beside, widths
from holdfast.cli.views import Setting
from holdfast.cli.wording import ago, iso

STYLE = re.compile(r"\x1b\[[0-9;]*m")
BAR = re.compile(r"\x1b\[(?:\?25[hl]|[0-9]*[AK])|\r")


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stage:
    return staged(tmp_path, capsys)


def on_a_terminal(*words: str, columns: int, **environment: str) -> str:
    """What a command writes to a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    full, kept = [sys.executable, "-m", "holdfast", *words], {**kept, "TERM": "xterm-256color", **environment}
    process = starting.Popen[bytes](full, stdin=theirs, stdout=theirs, stderr=theirs, env=kept)
    os.close(theirs)
    found = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        found += part
    os.close(ours)
    process.wait(timeout=30)
    return found.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_fits_the_terminal_and_keeps_what_is_to_be_copied_whole(stage: Stage, columns: int) -> None:
    text = on_a_terminal("history", "waiting", "--store", str(stage.store), columns=columns)
    lines = STYLE.sub("", text).split("\n")
    assert text != STYLE.sub("", text)
    assert max(len(line) for line in lines) <= columns
    assert all(line.isprintable() for line in lines)
    assert any(re.search(r"hf-[0-9a-f]{32}$", line.rstrip()) for line in lines)


def test_a_fact_that_is_too_wide_is_broken_and_not_cut(stage: Stage) -> None:
    text = STYLE.sub("", on_a_terminal("show", "waiting", "--store", str(stage.store), columns=40))
    assert re.search(r"hf-[0-9a-f]{32}done2steps", re.sub(r"\s", "", text))
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_no_color_is_respected(stage: Stage) -> None:
    text = on_a_terminal("runs", "--store", str(stage.store), columns=80, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)
    assert r"[red]no stock[/red]" in text


def test_checking_everything_ends_with_a_clean_screen(stage: Stage) -> None:
    text = on_a_terminal("check", "--all", "--store", str(stage.store), columns=80)
    assert "checking runs" in text
    last = BAR.sub("", STYLE.sub("", text)).rstrip().rpartition("\n")[2]
    assert last.endswith("no damage")


def test_columns_that_can_give_way_get_what_the_others_leave() -> None:
    columns = (Column("run", least=10), Column("status"), Column("note", least=5))
    assert widths(columns, (20, 7, 50), 80) == [20, 7, 49]
    assert widths(columns, (20, 7, 50), 30) == [14, 7, 5]
    assert widths(columns, (3, 7, 2), 30) == [3, 7, 2]


def test_what_does_not_fit_beside_goes_below_and_what_is_copied_stays() -> None:
    columns = (Column("step"), Column("call", least=10), Column("note", below=True))
    assert beside(columns, (4, 20, 10), 40) == [0, 1, 2]
    assert beside(columns, (4, 20, 40), 40) == [0, 1]
    assert beside(columns, (35, 20, 40), 40) == [0]


def test_a_page_without_a_terminal_is_aligned_text() -> None:
    table = Table((Column("run"), Column("took", right=True)), [[Cell("a"), Cell("1 s")], [Cell("long"), Cell("10 min")]])
    page: Page = [Line("[b]x[/b]\n"), Facts([("run", "a"), ("result", ("{", "}"))]), table, Commands(["holdfast runs"])]
    assert list(plain(page)) == [
        "[b]x[/b]\\n", "  run     a", "  result  {", "          }", "RUN     TOOK", "a        1 s", "long  10 min", "  holdfast runs",
    ]  # fmt: skip


def test_one_long_text_does_not_push_the_rows_of_others() -> None:
    table = Table((Column("call"), Column("note")), [[Cell("a"), Cell("x")], [Cell("b" * 90), Cell("y")], [Cell("c" * 9), Cell("z")]])
    assert list(plain([table])) == ["CALL       NOTE", "a          x", f"{'b' * 90}  y", "ccccccccc  z"]


def test_messages_break_between_words_only() -> None:
    assert wrapped("say holdfast-resolve --landed now", 20) == ["say holdfast-resolve", "--landed now"]


SENTENCES = [
    ("it is blocked. Go on with: holdfast resume r --accept. Nothing was done", "holdfast resume r --accept."),
    ("`holdfast inbox` lists it, and `holdfast show r --at 3` tells what was known", "`holdfast show r --at 3`"),
    ("it is ready; else: holdfast resume r --here APP.py", "holdfast resume r --here APP.py"),
]


@pytest.mark.parametrize(("text", "command"), SENTENCES)
def test_a_command_in_a_sentence_is_not_broken(text: str, command: str) -> None:
    for room in (20, 30, 40):
        lines = wrapped(text, room)
        assert " ".join(lines) == text
        assert [line for line in lines if command in line]
        assert len(lines) > 1


def test_commands_name_the_store_as_the_shell_needs_it() -> None:
    assert Setting(0, "my runs.db").command("holdfast inbox") == "holdfast inbox --store 'my runs.db'"
    assert Setting(0).command("holdfast inbox") == "holdfast inbox"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0004, "0.4 ms"), (0.25, "250 ms"), (3.42, "3.4 s"), (42, "42 s"), (200, "3 min"), (7300, "2 h"), (900_000, "10 d")],
)
def test_durations_are_said_in_one_unit(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_times_are_relative_for_people_and_iso_for_machines() -> None:
    now_us = 1_700_000_000_000_000
    said = [ago(now_us - each * 1_000_000, now_us) for each in (0, 5, 42, 180, -60)]
    assert said == ["just now", "5 s ago", "42 s ago", "3 min ago", "in 1 min"]
    assert iso(now_us) == "2023-11-14T22:13:20.000000Z"
