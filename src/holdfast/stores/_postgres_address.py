"""Where a PostgreSQL store is: from the URL that a user writes to what libpq is told, and to what may be shown of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

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
EACH = "- "
"""How a line begins where several hosts were tried: what stands above them says no more."""
GUESS = "Is the server running"
"""How libpq goes on in its next line where nobody answers."""
SHORT = 4
"""A secret of fewer characters is hidden only where it stands by itself, since it is part of many words."""
WRITE_IT = (
    "Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME, and in names and passwords %40 for @, %2F for /, %3A for :, "
    "%23 for #, %3F for ?, %26 for &, %25 for %"
)
PORTS = re.compile(r"(\d{1,5}(,|$)|,)*")


class Address(NamedTuple):
    """What libpq is told, the schema, and how the store is called in messages: without a password."""

    options: dict[str, str]
    schema: str
    shown: str

    def __repr__(self) -> str:
        return f"Address({self.shown})"

    def without_secrets(self, text: str) -> str:
        """What the server or libpq says, in one line, should it ever hold a password; what libpq guesses at, we ask by ourselves."""
        for name in SECRETS:
            secret = re.escape(self.options.get(name, ""))
            if secret:
                text = re.sub(secret if len(self.options[name]) >= SHORT else rf"(?<!\w){secret}(?!\w)", "***", text)
        lines = [" ".join(line.split()).rstrip(".") for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith(GUESS)]
        each = [line.removeprefix(EACH) for line in lines if line.startswith(EACH)]
        return "; ".join(each or lines)


def address_of(url: str) -> Address:
    """Read `postgresql://user:password@host:port/database?schema=holdfast`; everything else behind the `?` is libpq's."""
    scheme, _, rest = url.partition("://")
    place, _, words = rest.partition("?")
    _refuse_ambiguous(scheme, place, words)
    query = parse_qsl(words, keep_blank_values=True)
    schema = next((value for name, value in query if name == "schema"), SCHEMA)
    others = [pair for pair in query if pair[0] != "schema"]
    try:
        found = conninfo_to_dict(f"{scheme}://{place}?{urlencode(others, quote_via=quote)}")
    except psycopg.ProgrammingError:
        raise _unreadable(scheme, f"this URL cannot be read{_not_known(others)}") from None
    if PORTS.fullmatch(str(found.get("port") or "")) is None:
        raise _unreadable(scheme, "the port is not a number, or what stands there is part of a password")
    if SCHEMA_NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise StoreError(_shown(found, SCHEMA), f"{schema!r} cannot be the name of its schema: use small letters, digits and _")
    options = DEFAULTS | {name: str(value) for name, value in found.items() if value is not None}
    return Address(options, schema, _shown(options, schema))


def _refuse_ambiguous(scheme: str, place: str, words: str) -> None:
    """Where a password may have been written as it is, nobody knows where it ends: what libpq took for a host would be shown."""
    authority, _, path = place.partition("/")
    if authority.count("@") > 1 or "@" in path + words or "#" in place + words:
        raise _unreadable(scheme, "it cannot be told where the user name and the password in this URL end")


def _unreadable(scheme: str, reason: str) -> StoreError:
    return StoreError(f"{scheme}://...", f"{reason}; nothing was opened. {WRITE_IT}")


def _not_known(query: Sequence[tuple[str, str]]) -> str:
    """The words behind the `?` that are none, unless they may be part of a password that stands there."""
    known = {each.keyword.decode() for each in Conninfo.get_defaults()}
    strange = [name for name, _ in query if name not in known]
    if not strange or any(name in SECRETS for name, _ in query):
        return ""
    likely = difflib.get_close_matches(strange[0], ["schema", *known], n=1)
    return f": {strange[0]!r} behind the ? is not known" + (f" (did you mean {likely[0]}?)" if likely else "")


def _shown(options: Mapping[str, object], schema: str) -> str:
    user, host, port = (str(options.get(name) or "") for name in ("user", "host", "port"))
    place = (f"{quote(user)}@" if user else "") + quote(host, safe=":") + (f":{port}" if port else "")
    return f"postgresql://{place}/{quote(str(options.get('dbname') or ''))}?schema={schema}"
