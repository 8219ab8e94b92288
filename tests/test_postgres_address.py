"""What is read from the URL of a PostgreSQL store, what is shown of it, and how a server's words become ours."""

from __future__ import annotations

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


WRITTEN = ["my@s3cret", "s3cret@", "s3cret/x", "s3cret#x", "s3cret?x", "s3cret?connect_timeout=1", "12/s3cret", "s3cret[", "%s3cret"]


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


def test_a_socket_folder_is_shown() -> None:
    address = address_of("postgresql:///bank?host=/run/pg")
    assert address.shown == "postgresql://%2Frun%2Fpg/bank?schema=holdfast"
    assert address_of(address.shown) == address


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("25006", StoreReadOnly), ("53100", StoreFull), ("53300", StoreBusy), ("55P03", StoreBusy), ("40P01", StoreBusy),
        ("40001", StoreBusy), ("XX001", StoreDamaged), ("42501", StoreError), ("28P01", StoreError), ("XX000", StoreFailed),
    ],
)  # fmt: skip
def test_what_a_server_says_becomes_an_error_of_ours(state: str, kind: type[StoreError]) -> None:
    error = psycopg.errors.lookup(state)("for s@cret reasons")
    assert type(from_postgres(error, address_of(URL))) is kind
    assert "for *** reasons" in str(from_postgres(error, address_of(URL)))


def test_what_may_pass_is_told_from_what_lasts() -> None:
    assert passes(psycopg.OperationalError("connection refused"))
    assert passes(psycopg.errors.CannotConnectNow("starting up"))
    assert not passes(psycopg.OperationalError('FATAL: password authentication failed for user "ann"'))
    assert ended(psycopg.errors.AdminShutdown())
    assert not ended(psycopg.errors.DeadlockDetected())
