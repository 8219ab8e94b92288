"""`holdfast migrate`: what it says and does, once however many come, and all or nothing whoever is killed."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast.sync as hf
import starting
from holdfast.cli import main
from holdfast.stores import _postgres_schema, migrating
from holdfast.stores.opening import open_store

HERE = Path(__file__).parent
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}
PROCESSES = 8
MIGRATE = """
import os, sys
from pathlib import Path
from holdfast.stores import _postgres_schema
from holdfast.stores.postgres import migrate
_postgres_schema.FILES.append(Path(sys.argv[2]))
if sys.argv[3] == "unlocked":
    _postgres_schema.LOCK = "SELECT %s"
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[4])):
    if os.fork() == 0:
        code = 99
        try:
            code = len(migrate(sys.argv[1]))
        finally:
            os._exit(code)
print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(int(sys.argv[4]))), flush=True)
"""


@pytest.fixture
def schema() -> str:
    return "t_" + secrets.token_hex(6)


@pytest.fixture
def url(postgres_url: str, schema: str) -> str:
    return f"{postgres_url}?schema={schema}"


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def tables(admin: psycopg.Connection[Any], schema: str) -> set[str]:
    return {name for (name,) in admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,))}


def version(admin: psycopg.Connection[Any], schema: str) -> str:
    return str(admin.execute(f"SELECT value FROM {schema}.meta WHERE key = 'migration'".encode()).fetchall()[0][0])


def test_it_says_what_it_will_do_does_it_and_has_nothing_more_to_do(
    url: str, admin: psycopg.Connection[Any], schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", url, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("would apply postgres_1, postgres_2 ")
    assert tables(admin, schema) == set()
    assert main(["migrate", "--store", url]) == 0
    assert capsys.readouterr().out.startswith("applied postgres_1, postgres_2:")
    assert tables(admin, schema) >= {"runs", "journal"}
    assert main(["migrate", url]) == 0
    assert capsys.readouterr().out.startswith("nothing to do")


@pytest.mark.parametrize("there", [False, True])
def test_a_dry_run_says_no_to_a_user_who_may_not(
    url: str, admin: psycopg.Connection[Any], schema: str, capsys: pytest.CaptureFixture[str], *, there: bool
) -> None:
    admin.execute(f"CREATE ROLE r_{schema} LOGIN".encode())
    if there:
        admin.execute(f"CREATE SCHEMA {schema}; GRANT USAGE ON SCHEMA {schema} TO r_{schema}".encode())
    for words in (["--dry-run"], []):
        assert main(["migrate", url.replace("postgres@", f"r_{schema}@"), *words]) == 5
        said = capsys.readouterr()
        assert said.out == ""
        assert f"{'ALTER' if there else 'CREATE'} SCHEMA {schema} {'OWNER TO' if there else 'AUTHORIZATION'} r_{schema}" in said.err


def test_scripts_get_a_document_without_the_password(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", url.replace("postgres@", "postgres:hush@"), "--json"]) == 0
    out = capsys.readouterr().out
    assert "hush" not in out
    told = json.loads(out)
    assert told["files"] == ["postgres_1", "postgres_2"]
    assert told["dry_run"] is False
    assert told["store"].endswith(url.rpartition("?")[2])


def test_tables_of_a_newer_version_are_refused_and_left(
    url: str, admin: psycopg.Connection[Any], schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["migrate", url])
    admin.execute(f"UPDATE {schema}.meta SET value = '99' WHERE key = 'migration'".encode())
    for words in (["migrate", url], ["migrate", url, "--dry-run"]):
        assert main(words) == 5
        assert "newer Holdfast" in capsys.readouterr().err
    assert version(admin, schema) == "99"


def test_a_file_is_up_to_date_once_it_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.db"
    for words, named in ((["migrate", str(path)], "named on the command line"), (["migrate", "--store", str(path)], "named by --store")):
        assert main(words) == 5
        assert f"there is no store here ({named})" in " ".join(capsys.readouterr().err.split())
    assert not path.exists()
    open_store(path).close()
    capsys.readouterr()
    assert main(["migrate", str(path)]) == 0
    assert capsys.readouterr().out.startswith("nothing to do: sqlite:///")
    assert migrating.migrated(str(path), dry_run=True).version == "format 2"


def test_a_user_who_may_not_change_tables_can_run_agents_on_them(
    url: str, postgres_url: str, admin: psycopg.Connection[Any], schema: str
) -> None:
    """With what the page grants, and no more."""
    page = (HERE.parent / "docs" / "stores.md").read_text()
    grants = "".join(line for line in page.splitlines(keepends=True) if line.startswith("GRANT "))
    role = f"r_{schema}"
    migrating.migrated(url, dry_run=False)
    admin.execute(f"CREATE ROLE {role} LOGIN; {grants.replace('the_user', role).replace('SCHEMA holdfast', f'SCHEMA {schema}')}".encode())

    @hf.step
    def look() -> int:
        return 7

    @hf.agent
    def looking() -> int:
        hf.emit("looking")
        return look()

    with hf.Holdfast(url.replace("postgres@", f"{role}@")) as app:
        assert app.run(looking, run_id="r") == 7
        assert app.show("r").status == "done"
        assert [verdict.good for verdict in app.check()] == [True]
    assert main(["migrate", url.replace("postgres@", f"{role}@")]) == 0


def test_the_store_is_named_once(url: str) -> None:
    assert main(["migrate", url, "--store", url]) == 2


def test_migrations_are_numbered_without_a_gap() -> None:
    numbers = [int(path.stem.rpartition("_")[2]) for path in _postgres_schema.FILES]
    assert numbers == list(range(1, len(numbers) + 1))


def together(url: str, file: Path, processes: int, how: str = "") -> subprocess.Popen[str]:
    """Processes that know one migration more, at the start."""
    command = [sys.executable, "-c", MIGRATE, url, str(file), how, str(processes)]
    crew = starting.Popen[str](command, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert crew.stdout is not None
    assert crew.stdout.readline() == "ready\n"
    return crew


def next_file(tmp_path: Path, sql: str) -> Path:
    file = tmp_path / f"postgres_{len(_postgres_schema.FILES) + 1}.sql"
    file.write_text(sql)
    return file


@pytest.mark.parametrize(("how", "once"), [("", True), ("unlocked", False)])
def test_the_next_file_is_applied_once_by_many_at_the_same_time(
    url: str, admin: psycopg.Connection[Any], schema: str, tmp_path: Path, how: str, *, once: bool
) -> None:
    """And without the lock, the negative control, by more than one, who are undone by each other."""
    migrating.migrated(url, dry_run=False)
    file = next_file(tmp_path, "SELECT pg_sleep(0.2); CREATE TABLE added (n int); INSERT INTO added VALUES (1)")
    with together(url, file, PROCESSES, how) as crew:
        out, _ = crew.communicate("go\n", timeout=60)
    codes = json.loads(out)
    assert (codes == [0] * (PROCESSES - 1) + [1]) is once
    assert admin.execute(f"SELECT n FROM {schema}.added".encode()).fetchall() == [(1,)]
    assert version(admin, schema) == str(len(_postgres_schema.FILES) + 1)


def test_one_who_is_killed_in_the_middle_leaves_nothing_and_the_next_does_all(
    url: str, admin: psycopg.Connection[Any], schema: str, tmp_path: Path
) -> None:
    migrating.migrated(url, dry_run=False)
    before, key = tables(admin, schema), secrets.randbits(60)
    file = next_file(tmp_path, f"CREATE TABLE first (n int); SELECT pg_advisory_xact_lock({key}); CREATE TABLE last (n int)")
    admin.execute("SELECT pg_advisory_lock(%s)", (key,))
    with together(url, file, 1) as crew:
        assert crew.stdin is not None
        crew.stdin.write("go\n")
        crew.stdin.flush()
        for _ in range(1000):
            if admin.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND objid = (%s::bigint & 4294967295)::oid", (key,)).fetchall():
                break
            threading.Event().wait(0.01)
        os.killpg(crew.pid, signal.SIGKILL)
    admin.execute("SELECT pg_advisory_unlock(%s)", (key,))
    assert tables(admin, schema) == before
    with together(url, file, 1) as crew:
        assert json.loads(crew.communicate("go\n", timeout=60)[0]) == [1]
    assert tables(admin, schema) == before | {"first", "last"}
