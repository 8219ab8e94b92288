"""Compact JSON text from the C encoder, made once: `JSONEncoder.encode` makes a new one for every value."""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as _json
from typing import Any


def encoder(*, sort_keys: bool = False, ensure_ascii: bool = True, default: Callable[[Any], Any] | None = None) -> Callable[[Any], str]:
    """A function from a value to its JSON text; what contains itself raises RecursionError."""
    plain = json.JSONEncoder(sort_keys=sort_keys, ensure_ascii=ensure_ascii, separators=(",", ":"), default=default, check_circular=False)
    make = getattr(_json, "c_make_encoder", None)
    if make is None:
        return plain.encode
    text = _json.encode_basestring_ascii if ensure_ascii else _json.encode_basestring
    chunks = make(None, plain.default, text, None, ":", ",", sort_keys, False, True)
    return lambda value: "".join(chunks(value, 0))
