"""What is read from the URL of a PostgreSQL store, what is shown of it, and how a server's words become ours."""

from __future__ import annotations

import traceback

import psycopg
import pytest

from holdfast.errors import StoreBusy, StoreDamaged, StoreError, StoreFailed, StoreFull, StoreReadOnly
from holdfast.stores._postgres_address import DEFAULTS, address_of
from holdfast.stores._postgres_errors import ended, from_postgres, passes

URL = "postgresql://ann:s%40cret@db.example:5433/bank?schema=agents&sslmode=require&connect_timeout=3"


def test_a_url_is_read_whole() -> None:
    address = address_of(URL)
    wanted = {"user": "ann", "password": "s@cret", "host": "db.example", "port": "5433", "dbname": "bank", "sslmode": "require"}
    assert address.options == DEFAULTS | wanted | {"connect_timeout": "3"}
    assert address.schema == "agents"


@pytest.mark.parametrize("url", [URL, "postgres://ann@db.example:5433/bank?schema=agents&password=s%40cret&sslpassword=s%40crett"])
def test_no_secret_is_shown(url: str) -> None:
    address = address_of(url)
    assert address.shown == "postgresql://ann@db.example:5433/bank?schema=agents"
    assert "s@cret" not in address.without_secrets("it is s@cret")


WRITTEN = ["my@s3cret", "s3cret@", "s3cret/x", "s3cret#x", "s3cret?x", "s3cret?connect_timeout=1", "12/s3cret", "%s3cret"]


@pytest.mark.parametrize("password", WRITTEN)
def test_a_password_that_is_written_as_it_is_does_not_become_a_host_that_is_shown(password: str) -> None:
    with pytest.raises(StoreError) as told:
        address_of(f"postgresql://ann:{password}@db.example:5433/bank?schema=agents")
    assert "s3cret" not in str(told.value)
    assert "%40 for @" in str(told.value)


@pytest.mark.parametrize(
    ("url", "host"),
    [("postgresql://ann:x@[::1]:5433/bank", "::1"), ("postgresql://a:1,b:2/bank", "a,b"), ("postgresql://ann:x@%2Frun/bank", "/run")],
)
def test_hosts_of_every_form_are_read(url: str, host: str) -> None:
    assert address_of(url).options["host"] == host


@pytest.mark.parametrize(
    "url",
    [
        "ann:p@s3cret/w:rd@127.0.0.1/bank", "ann:s3cret#x@127.0.0.1/bank", "ann:s3@s3cret@127.0.0.1/bank", "ann:s3cret/x@127.0.0.1/bank",
        "ann:x?s3cret=y@127.0.0.1/bank", "ann:s3cret/bank", "ann@127.0.0.1:s3cret/bank", "ann:x[s3cret@127.0.0.1/bank?unheard=of",
        "127.0.0.1/bank?password=x&s3cret=y", "127.0.0.1/bank?password=x#s3cret", "ann:\u2100s3cret@h@127.0.0.1/bank",
    ],
)  # fmt: skip
def test_of_a_url_that_can_be_read_in_two_ways_nothing_is_shown(url: str) -> None:
    with pytest.raises(StoreError, match="%40 for @") as caught:
        address_of(f"postgresql://{url}")
    assert caught.value.store == "postgresql://..."
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_what_a_password_may_hold_as_it_is() -> None:
    assert address_of("postgresql://ann:a:b$[c]*!@h/bank").options["password"] == "a:b$[c]*!"
    assert address_of("postgresql://ann@h1:5432,h2:5433/bank").options["port"] == "5432,5433"
    assert address_of("postgresql://ann@h1,h2:5433/bank").options["port"] == ",5433"


def test_a_short_password_does_not_garble_what_is_said() -> None:
    address = address_of("postgresql://ann:a@h/bank")
    assert address.without_secrets("failed to resolve a host: 'a'") == "failed to resolve *** host: '***'"


LIBPQ = """connection failed: connection to server at "::1", port 1 failed: Connection refused
\tIs the server running on that host and accepting TCP/IP connections?"""


def test_the_lines_of_libpq_become_sentences() -> None:
    said = 'connection failed: connection to server at "::1", port 1 failed: Connection refused'
    address = address_of("postgresql://h/db")
    assert address.without_secrets(LIBPQ) == said
    assert address.without_secrets(f"{LIBPQ}\nMultiple connection attempts failed. All were:\n- {LIBPQ}\n- two") == f"{said}; two"


def test_a_word_that_is_not_known_is_named() -> None:
    with pytest.raises(StoreError, match=r"'shema' behind the \? is not known \(did you mean schema\?\)"):
        address_of("postgresql://ann@h/bank?shema=x")


def test_a_socket_folder_is_shown() -> None:
    address = address_of("postgresql:///bank?host=/run/pg")
    assert address.shown == "postgresql://%2Frun%2Fpg/bank?schema=holdfast"
    assert address_of(address.shown) == address


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("25006", StoreReadOnly), ("53100", StoreFull), ("53300", StoreBusy), ("55P03", StoreBusy), ("40P01", StoreBusy),
        ("40001", StoreBusy), ("57014", StoreBusy), ("XX001", StoreDamaged), ("42501", StoreError), ("28P01", StoreError),
        ("XX000", StoreFailed),
    ],
)  # fmt: skip
def test_what_a_server_says_becomes_an_error_of_ours(state: str, kind: type[StoreError]) -> None:
    error = psycopg.errors.lookup(state)("for s@cret reasons")
    assert type(from_postgres(error, address_of(URL))) is kind
    assert "for *** reasons" in str(from_postgres(error, address_of(URL)))


def test_only_a_server_that_is_out_of_reach_is_said_to_be() -> None:
    told = {state: str(from_postgres(psycopg.errors.lookup(state)("x"), address_of(URL))) for state in ("57P01", "58030", "53400")}
    assert [state for state, words in told.items() if "cannot be reached" in words] == ["57P01"]


def test_what_may_pass_is_told_from_what_lasts() -> None:
    assert passes(psycopg.OperationalError("connection refused"))
    assert passes(psycopg.errors.CannotConnectNow("starting up"))
    assert not passes(psycopg.OperationalError('FATAL: password authentication failed for user "ann"'))
    assert ended(psycopg.errors.AdminShutdown())
    assert not ended(psycopg.errors.DeadlockDetected())
