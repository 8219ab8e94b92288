"""Where a PostgreSQL store is: from the URL that a user writes to what libpq is told, and to what may be shown of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import StoreError

SCHEMA = "holdfast"
SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
DEFAULTS = {
    "application_name": "holdfast",
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""A peer that is gone is noticed within half a minute instead of hours. What stands in the URL goes before."""
SECRETS = ("password", "sslpassword")


class Address(NamedTuple):
    """What libpq is told, the schema, and how the store is called in messages: without a password."""

    options: dict[str, str]
    schema: str
    shown: str

    def __repr__(self) -> str:
        return f"Address({self.shown})"

    def without_secrets(self, text: str) -> str:
        """What the server or libpq says, should it ever hold a password."""
        for name in SECRETS:
            if self.options.get(name):
                text = text.replace(self.options[name], "***")
        return " ".join(text.split())


def address_of(url: str) -> Address:
    """Read `postgresql://user:password@host:port/database?schema=holdfast`; everything else behind the `?` is libpq's."""
    if not _is_clear(url):
        raise _unreadable(url)
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    schema = next((value for name, value in query if name == "schema"), SCHEMA)
    rest = urlencode([pair for pair in query if pair[0] != "schema"], quote_via=quote)
    try:
        found = conninfo_to_dict(f"{parts.scheme}://{parts.netloc}{parts.path}?{rest}")
    except psycopg.ProgrammingError:
        raise _unreadable(url) from None
    if SCHEMA_NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise StoreError(_shown(found, SCHEMA), f"{schema!r} cannot be the name of its schema: use small letters, digits and _")
    options = DEFAULTS | {name: str(value) for name, value in found.items() if value is not None}
    return Address(options, schema, _shown(options, schema))


def _is_clear(url: str) -> bool:
    """Whether it is clear what is the password in it, if there is one: a character left as it is may make a host or a name of its rest."""
    authority, slash, path = url.partition("://")[2].partition("?")[0].partition("/")
    ports = [host.rpartition(":")[2] for host in authority.rpartition("@")[2].split(",") if ":" in host.rpartition("]")[2]]
    is_plain = authority.count("@") <= 1 and "@" not in slash + path and "#" not in url and authority.count("[") == authority.count("]")
    return is_plain and all(port.isdecimal() or not port for port in ports)


def _unreadable(url: str) -> StoreError:
    return StoreError(
        f"{url.partition('://')[0]}://...", "this URL cannot be read; nothing was opened. Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        "?schema=NAME, and in names and passwords %40 for @, %2F for /, %3A for :, %23 for #, %3F for ?, %25 for %"
    )  # fmt: skip


def _shown(options: Mapping[str, object], schema: str) -> str:
    user, host, port = (str(options.get(name) or "") for name in ("user", "host", "port"))
    place = (f"{quote(user)}@" if user else "") + quote(host, safe=":") + (f":{port}" if port else "")
    return f"postgresql://{place}/{quote(str(options.get('dbname') or ''))}?schema={schema}"
