"""At a terminal the question of a waiting run is shown and answered there; elsewhere the command is told that answers."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import starting
from holdfast import Holdfast
from holdfast.app.terminal import named
from holdfast.codec.answers import harmless

PROGRAM = """
import sys
import holdfast as hf
import holdfast.sync as hfs

@hf.agent
async def waiting() -> str:
    colour = await hf.ask("colour?", str, details={"shop": 7}, timeout="24h")
    if sys.argv[4:]:
        return await hf.ask("for whom?", str, who=sys.argv[4])
    return f"{colour} {await hf.ask('sure?')}"

@hf.agent(name="waiting")
def blocking() -> str:
    colour = hfs.ask("colour?", str, details={"shop": 7}, timeout="24h")
    return f"{colour} {hfs.ask('sure?')}"

@hf.agent
async def parent() -> str:
    return f"child {await waiting()}"

agents = {"async": waiting, "def": blocking, "child": parent}
print("=>", hf.run(agents[sys.argv[1]], run_id="r", store=sys.argv[2], park_after=sys.argv[3]))
"""


class Person:
    """A person at a terminal in which the program runs."""

    def __init__(self, folder: Path, mode: str, park_after: str = "0s", *more: str) -> None:
        (folder / "app.py").write_text(PROGRAM)
        self.seen = ""
        self._ours, theirs = pty.openpty()
        command = [sys.executable, str(folder / "app.py"), mode, str(folder / "runs.db"), park_after, *more]
        self.process = starting.Popen[bytes](command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)

    def sees(self, text: str, *, within_s: float = 20.0) -> None:
        deadline_s = time.monotonic() + within_s
        while text not in self.seen:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, self.seen
            if select.select([self._ours], [], [], left_s)[0]:
                self.seen += os.read(self._ours, 4096).decode()

    def types(self, text: str) -> None:
        self.seen = ""
        os.write(self._ours, text.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._ours)


@pytest.fixture(params=["async", "def"])
def person(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Person]:
    person = Person(tmp_path, request.param)
    yield person
    person.close()


def test_the_questions_are_shown_and_answered_one_after_the_other(person: Person) -> None:
    person.sees("run r asks: colour?")
    person.sees('{"shop": 7}')
    person.sees("(in 23 h), then it goes on without an answer")
    person.sees("text > ")
    person.types("dark red\n")
    person.sees("asks: sure?")
    person.types("perhaps\n")
    person.sees('"perhaps" is not what is asked for: yes or no; nothing was changed')
    person.types("yes\n")
    person.sees("=> dark red True")
    assert person.process.wait(20) == 0


@pytest.mark.parametrize("mode", ["async", "def"])
def test_a_run_that_stays_in_place_is_answered_at_the_terminal(tmp_path: Path, mode: str) -> None:
    person = Person(tmp_path, mode, "60s")
    try:
        person.sees("text > ")
        person.types("dark red\n")
        person.sees("asks: sure?")
        person.types("yes\n")
        person.sees("=> dark red True")
    finally:
        person.close()
    with Holdfast(tmp_path / "runs.db") as app:
        assert (app.show("r").attempt, app.show("r").status) == (1, "done")


@pytest.mark.parametrize("park_after", ["0s", "60s"])
def test_the_questions_of_a_child_run_are_answered_at_the_terminal_of_its_parent(tmp_path: Path, park_after: str) -> None:
    person = Person(tmp_path, "child", park_after)
    try:
        person.sees("run r.1 asks: colour?")
        person.sees("text > ")
        person.types("dark red\n")
        person.sees("run r.1 asks: sure?")
        person.types("yes\n")
        person.sees("=> child dark red True")
    finally:
        person.close()


def test_an_answer_from_elsewhere_is_noticed_while_the_question_stands(person: Person, tmp_path: Path) -> None:
    person.sees("text > ")
    with Holdfast(tmp_path / "runs.db") as app:
        app.answer("r", "1", "blue", by="ann")
    person.sees("asks: sure?")
    person.types("no\n")
    person.sees("=> blue False")


def test_ctrl_c_leaves_the_run_waiting(person: Person, tmp_path: Path) -> None:
    person.sees("text > ")
    person.process.send_signal(signal.SIGINT)
    assert person.process.wait(20) != 0
    with Holdfast(tmp_path / "runs.db") as app:
        assert (app.show("r").status, [item.step_id for item in app.inbox()]) == ("waiting", ["1"])


def test_at_the_end_of_the_input_the_run_waits_for_an_answer_from_elsewhere(person: Person, tmp_path: Path) -> None:
    person.sees("text > ")
    person.types("\x04")
    person.sees("holdfast answer r/1 ANSWER")
    with Holdfast(tmp_path / "runs.db") as app:
        app.answer("r", "1", "blue", by="ann")
        person.sees("run 'r' waits: sure?")
        app.answer("r", "2", value=True, by="ann")
    person.sees("=> blue True")


def test_without_a_terminal_the_command_is_told(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "app.py"), "async", str(tmp_path / "runs.db"), "0s"]
    with starting.Popen[str](command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        process.kill()
    where = f"holdfast inbox --store {tmp_path / 'runs.db'}"
    assert told.startswith(f"holdfast: run 'r' waits: colour? `{where}` shows the commands that answer")


def test_a_question_cannot_command_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM.replace('"colour?"', '"colour\\x1b[31m?"'))
    command = [sys.executable, str(tmp_path / "app.py"), "async", str(tmp_path / "runs.db"), "0s"]
    with starting.Popen[str](command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        process.kill()
    assert told.startswith("holdfast: run 'r' waits: colour\\x1b[31m? `holdfast inbox ")
    assert harmless("a\x1b[31mb\r\nc") == "a\\x1b[31mb\\r\\nc"


def test_the_command_that_answers_is_safe_to_paste() -> None:
    assert named("r", "approve:2:$(reboot)") == "'r/approve:2:$(reboot)'"


def test_the_command_names_the_store_and_a_question_for_somebody_else_is_not_put_here(tmp_path: Path) -> None:
    person = Person(tmp_path, "async", "0s", "no such user")
    try:
        person.sees(f"holdfast answer r/1 ANSWER --store {tmp_path / 'runs.db'}`")
        person.types("red\n")
        person.sees(f"holdfast answer r/2 ANSWER --by 'no such user' --store {tmp_path / 'runs.db'}`")
        person.sees("only there: here it is ")
        with Holdfast(tmp_path / "runs.db") as app:
            app.answer("r", "2", "for me", by="no such user")
        person.sees("=> for me")
        assert "is for no such user to answer" not in person.seen
    finally:
        person.close()
