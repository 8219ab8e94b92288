"""Where an object store is: from the URL that a user writes to the client that speaks to it, and to what may be shown of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.errors import StoreError

Client = S3Store | GCSStore | AzureStore

OPTIONS: dict[str, dict[str, str]] = {
    "s3": {"endpoint": "endpoint", "region": "region"},
    "gs": {"endpoint": "base_url"},
    "az": {"endpoint": "endpoint", "account": "account_name"},
}
"""What may stand behind the `?`, and what obstore calls it. Everything else, and every secret, comes from the environment."""
NAME = re.compile(r"(?!\.\.?$)[\w.=+-]{1,200}", re.ASCII)
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
NAMED = "The name of one has 3 characters or more, letters, digits, ., - and _, and begins with a letter or a digit"
WRITE_IT = {
    "s3": "s3://BUCKET/PREFIX?region=REGION&endpoint=URL",
    "gs": "gs://BUCKET/PREFIX",
    "az": "az://CONTAINER/PREFIX?account=NAME",
}
QUIET_S = 10
"""How long a server may say nothing to a small request."""
LONGEST_S = 300
"""How long a large one may take."""


class Address(NamedTuple):
    """A bucket, the prefix of all names in it, what obstore is told, and how the store is called in messages: without a secret."""

    scheme: str
    bucket: str
    prefix: str
    options: Mapping[str, str]
    shown: str

    def client(self, *, large: bool = False) -> Client:
        """A client; one for large objects is patient with a server that takes long to answer. It tries nothing twice by itself."""
        web: dict[str, Any] = {"timeout": timedelta(seconds=LONGEST_S), "connect_timeout": timedelta(seconds=QUIET_S)}
        web |= {} if large else {"read_timeout": timedelta(seconds=QUIET_S)}
        web |= {"allow_http": True} if self._plain_http() else {}
        given: dict[str, Any] = {"prefix": self.prefix or None, "client_options": web, "retry_config": {"max_retries": 0}, **self.options}
        try:
            return KINDS[self.scheme](self.bucket, **given)
        except (BaseError, ValueError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise StoreError(self.shown, f"{reason}. {NEEDS[self.scheme]}. Nothing was opened") from None

    def _plain_http(self) -> bool:
        given = [self.options.get(name) for name in ("endpoint", "base_url")]
        around = [os.environ.get(name) for name in ENDPOINTS.get(self.scheme, ())]
        return next(filter(None, given + around), "").lower().startswith("http://")


KINDS: dict[str, Callable[..., Client]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
ENDPOINTS = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")}
NEEDS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives them, and AWS_REGION",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account, or run where an account is given",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY, or run where an identity is given",
}


def address_of(url: str) -> Address:
    """Read `s3://bucket/prefix?endpoint=http://host:9000&region=eu-central-1`, and the like for `gs://` and `az://`."""
    scheme, _, rest = url.partition("://")
    where, _, query = rest.partition("?")
    bucket, _, prefix = where.partition("/")
    if "@" in bucket:
        raise StoreError(f"{scheme}://...", f"credentials do not belong into a URL; nothing was opened. {NEEDS[scheme]}")
    if bucket and BUCKET.fullmatch(bucket) is None:
        raise StoreError(f"{scheme}://...", f"no bucket can have this name; nothing was opened. {NAMED}")
    if not bucket:
        raise StoreError(f"{scheme}://...", f"this URL names no bucket; nothing was opened. Write {WRITE_IT[scheme]}")
    names = [unquote(name) for name in prefix.split("/") if name]
    shown = f"{scheme}://{bucket}" + "".join(f"/{quote(name)}" for name in names)
    if not all(map(NAME.fullmatch, names)):
        raise StoreError(shown, "no name can begin like that; nothing was opened. Use letters, digits, - and _ behind the bucket")
    given = _options(scheme, query, shown)
    shown += "?" + "&".join(f"{name}={quote(value, safe=':/')}" for name, value in given.items()) if given else ""
    return Address(scheme, bucket, "/".join(names), {OPTIONS[scheme][name]: value for name, value in given.items()}, shown)


def _options(scheme: str, query: str, shown: str) -> dict[str, str]:
    """What stands behind the `?`; what is not known there may be a secret, and is not shown."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    if not all(name in OPTIONS[scheme] and value for name, value in given.items()):
        known = " and ".join(OPTIONS[scheme])
        raise StoreError(shown, f"only {known} can stand behind the ?, each with a value; nothing was opened. {NEEDS[scheme]}")
    if any("@" in urlsplit(value).netloc for value in given.values()):
        raise StoreError(shown, f"credentials do not belong into the endpoint; nothing was opened. {NEEDS[scheme]}")
    return given
