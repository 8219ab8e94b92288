"""Opening a PostgreSQL store: what is refused and how that is said, what is made, and what is never printed."""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast.errors import StoreError, StoreForeign, StoreNewer, StoreReadOnly
from holdfast.store import Query
from holdfast.stores import _postgres_schema
from holdfast.stores.opening import open_store
from holdfast.stores.postgres import PostgresStore, migrate
from holdfast.testing.sample import create, head, onward
from postgres_server import HOST, server

SECRET = "s3cr/t@word"
QUOTED = "s3cr%2Ft%40word"


@pytest.fixture
def schema() -> str:
    return "t_" + secrets.token_hex(6)


@pytest.fixture
def url(postgres_url: str, schema: str) -> str:
    return f"{postgres_url}?schema={schema}"


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        yield connection


def refusal(url: str) -> StoreError:
    with pytest.raises(StoreError) as caught:
        open_store(url)
    said = "\n".join(map(str, (caught.value, repr(caught.value), caught.value.__cause__, pickle.loads(pickle.dumps(caught.value)))))
    said += "".join(traceback.format_exception(caught.value))
    assert SECRET not in said
    assert QUOTED not in said
    return caught.value


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_it_is_opened_by_its_url(url: str, schema: str, scheme: str) -> None:
    with closing(open_store(scheme + url.removeprefix("postgresql"))) as store:
        assert isinstance(store, PostgresStore)
        assert store.url.endswith(f"/postgres?schema={schema}")
        assert not store.inline


def test_a_wrong_password_is_said_and_not_printed(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    admin.execute("DO $$ BEGIN CREATE ROLE ann LOGIN PASSWORD 'other'; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    error = refusal(postgres_url.replace("postgres@", f"ann:{QUOTED}@"))
    assert "Check the user name and the password" in str(error)
    assert "ann@" in error.store


def test_a_password_that_is_not_in_the_url_comes_from_the_environment(
    postgres_url: str, admin: psycopg.Connection[Any], schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.execute("DO $$ BEGIN CREATE ROLE ann LOGIN PASSWORD 'other'; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    admin.execute(f"CREATE SCHEMA {schema} AUTHORIZATION ann".encode())
    url = postgres_url.replace("postgres@", "ann@") + f"?schema={schema}"
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    assert "Set PGPASSWORD, or put it into ~/.pgpass" in str(refusal(url))
    monkeypatch.setenv("PGPASSWORD", "other")
    open_store(url).close()


def test_the_right_password_is_not_shown_either(postgres_url: str, admin: psycopg.Connection[Any], schema: str) -> None:
    role = f"r_{schema}"
    admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'; CREATE SCHEMA {schema} AUTHORIZATION {role}".encode())
    with closing(open_store(postgres_url.replace("postgres@", f"{role}:{QUOTED}@") + f"?schema={schema}")) as store:
        assert store.append([create("run")]) == [None]
        assert store.url == f"postgresql://{role}@{postgres_url.partition('@')[2]}?schema={schema}"
        assert SECRET not in f"{store!r} {vars(store)}"


def test_a_user_who_may_not_make_the_schema_is_told_how(postgres_url: str, admin: psycopg.Connection[Any], schema: str) -> None:
    admin.execute(f"CREATE ROLE r_{schema} LOGIN".encode())
    error = refusal(postgres_url.replace("postgres@", f"r_{schema}@") + f"?schema={schema}")
    assert f"CREATE SCHEMA {schema} AUTHORIZATION r_{schema}" in str(error)


@pytest.mark.parametrize("forgotten", ["USAGE ON SCHEMA", "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA"])
def test_forgotten_grants_on_tables_of_ours_are_named(url: str, admin: psycopg.Connection[Any], schema: str, forgotten: str) -> None:
    """Whoever was sent to another schema would begin every run anew there, and pay again."""
    migrate(url)
    role, all_of_them = f"r_{schema}", ["USAGE ON SCHEMA", "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA"]
    admin.execute(f"CREATE ROLE {role} LOGIN".encode())
    for grant in all_of_them:
        if grant != forgotten:
            admin.execute(f"GRANT {grant} {schema} TO {role}".encode())
    error = refusal(url.replace("postgres@", f"{role}@"))
    assert f"GRANT {forgotten} {schema} TO {role}" in str(error)
    assert not isinstance(error, StoreForeign)
    assert "?schema=NAME" not in str(error)
    admin.execute(f"GRANT {forgotten} {schema} TO {role}".encode())
    open_store(url.replace("postgres@", f"{role}@")).close()


def test_a_table_that_may_not_be_written_is_said_with_its_grants(url: str, admin: psycopg.Connection[Any], schema: str) -> None:
    migrate(url)
    role = f"R_{schema}"
    admin.execute(f'CREATE ROLE "{role}" LOGIN; GRANT USAGE ON SCHEMA {schema} TO "{role}"'.encode())
    admin.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO "{role}"'.encode())
    with closing(open_store(url.replace("postgres@", f"{role}@"))) as store, pytest.raises(StoreError, match="denied") as caught:
        store.append([create("run")])
    assert f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO "{role}"' in str(caught.value)


def test_an_unreachable_host_is_said_at_once() -> None:
    with closing(socket.create_server((HOST, 0))) as free:
        port = free.getsockname()[1]
    error = refusal(f"postgresql://ann:{QUOTED}@{HOST}:{port}/bank")
    assert "Check that it runs, and the host and the port" in str(error)


def test_a_missing_database_is_said(postgres_url: str) -> None:
    assert "Create the database" in str(refusal(postgres_url.removesuffix("postgres") + "nowhere"))


def test_a_missing_role_is_not_taken_for_a_missing_database(postgres_url: str) -> None:
    error = refusal(postgres_url.replace("postgres@", "nobody_of_that_name@"))
    assert "Check the user name" in str(error)
    assert "Create the database" not in str(error)


@pytest.mark.parametrize("bad", ["?schema=Robert'); DROP", "?schema=pg_catalog", "?schema=", "?unheard=of", ":port/db"])
def test_a_url_that_cannot_be_read_is_refused(bad: str) -> None:
    refusal(f"postgresql://ann:{QUOTED}@{HOST}{bad}")


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("holdfast.stores.postgres", "holdfast.stores._postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = refusal(f"postgresql://ann:{QUOTED}@{HOST}/bank")
    assert 'pip install "holdfast[postgres]"' in str(error)
    assert "psycopg" in str(error)


def test_an_old_server_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres_schema, "OLDEST", 99)
    assert "Use version 99 or later" in str(refusal(url))


def test_a_database_that_cannot_hold_all_text_is_refused(postgres_url: str, admin: psycopg.Connection[Any], schema: str) -> None:
    admin.execute(f"CREATE DATABASE {schema} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0".encode())
    assert "ENCODING 'UTF8'" in str(refusal(f"{postgres_url.removesuffix('postgres')}{schema}"))


def test_the_tables_are_made_once_however_many_come_at_the_same_time(url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        applied = list(pool.map(lambda _: migrate(url), range(8)))
    assert sorted(applied) == [[]] * 7 + [[path.stem for path in _postgres_schema.FILES]]


def test_tables_of_other_people_are_left_as_they_are(url: str, admin: psycopg.Connection[Any], schema: str) -> None:
    admin.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.runs (a int); CREATE TABLE {schema}.meta (key text)".encode())
    with pytest.raises(StoreForeign, match="meta, runs"):
        open_store(url)
    assert admin.execute("SELECT count(*) FROM pg_tables WHERE schemaname = %s", (schema,)).fetchone() == (2,)


def test_it_lives_beside_the_tables_of_an_application(url: str, admin: psycopg.Connection[Any], schema: str) -> None:
    admin.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.orders (a int); INSERT INTO {schema}.orders VALUES (1)".encode())
    with closing(open_store(url)) as store:
        assert store.append([create("run")]) == [None]
    assert admin.execute(f"SELECT a FROM {schema}.orders".encode()).fetchall() == [(1,)]


def test_a_newer_store_is_refused(url: str, admin: psycopg.Connection[Any], schema: str) -> None:
    migrate(url)
    admin.execute(f"UPDATE {schema}.meta SET value = '99' WHERE key = 'migration'".encode())
    with pytest.raises(StoreNewer):
        open_store(url)


def test_two_schemas_are_two_stores(postgres_url: str, schema: str) -> None:
    with closing(open_store(f"{postgres_url}?schema={schema}a")) as one, closing(open_store(f"{postgres_url}?schema={schema}b")) as two:
        one.append([create("run")])
        assert two.heads(Query()) == []


def test_a_server_that_does_not_wait_for_its_disk_is_told_to(url: str, admin: psycopg.Connection[Any], schema: str) -> None:
    """The role's own setting would give up what was acknowledged last."""
    admin.execute(f"CREATE ROLE r_{schema} LOGIN SUPERUSER; ALTER ROLE r_{schema} SET synchronous_commit = off".encode())
    with closing(PostgresStore(url.replace("postgres@", f"r_{schema}@"))) as store, store._writer.held():
        assert store._writer.session().execute("SHOW synchronous_commit").fetchone() == ("on",)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_text_is_the_same_for_a_user_whose_sessions_are_in_another_encoding(
    url: str, admin: psycopg.Connection[Any], schema: str, encoding: str
) -> None:
    admin.execute(f"CREATE ROLE r_{schema} LOGIN SUPERUSER; ALTER ROLE r_{schema} SET client_encoding = '{encoding}'".encode())
    new = create("run")
    named = new._replace(head=new.head._replace(tags='{"wörd": "€"}', note="waits for gö"))
    with closing(PostgresStore(url)) as store, closing(PostgresStore(url.replace("postgres@", f"r_{schema}@"))) as theirs:
        assert theirs.append([named]) == [None]
        number = theirs.post("run", "gö", b"", 1)
        for one in (store, theirs):
            assert one.load("run") == (named.head, list(named.rows))
            assert one.heads(Query(tags=[("wörd", "€")])) == [named.head]
            assert [(letter.letter_id, letter.kind) for letter in one.letters(["run"])] == [(number, "gö")]


def test_a_server_that_may_write_again_is_found_by_whoever_met_it_when_it_might_not(
    url: str, admin: psycopg.Connection[Any], schema: str
) -> None:
    role = f"r_{schema}"
    admin.execute(f"CREATE ROLE {role} LOGIN SUPERUSER".encode())
    with closing(PostgresStore(url.replace("postgres@", f"{role}@"))) as store:
        admin.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on".encode())
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,))
        with pytest.raises(StoreReadOnly):
            store.append([create("run")])
        with pytest.raises(StoreReadOnly):
            store.post("run", "k", b"", 1)
        admin.execute(f"ALTER ROLE {role} RESET default_transaction_read_only".encode())
        assert store.append([create("run")]) == [None]
        assert store.post("run", "k", b"", 1) > 0


def test_a_closed_store_says_so(url: str) -> None:
    store = open_store(url)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.append([create("run")])
    with pytest.raises(StoreError, match="closed"):
        store.head("run")


def test_a_forked_child_drops_the_store_and_leaves_the_parents_sessions_alone(url: str) -> None:
    with closing(open_store(url)) as store:
        store.append([create("run")])
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                store.head("run")
            except StoreError as error:
                code = 0 if "Open it anew in the child" in str(error) else 2
            finally:
                store.close()
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert store.append([onward("run", 1)]) == [None]
        assert store.head("run") == head("run", 2)


def test_it_works_on_an_older_server() -> None:
    """The oldest that can be had as a package."""
    with server(version=16) as one, closing(open_store(one.url())) as store:
        assert store.append([create("run"), create("other")]) == [None, None]
        assert store.append([onward("run", 1)]) == [None]
        assert store.head("run") == head("run", 2)
