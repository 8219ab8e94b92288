"""Names of runs, steps and owners as parts of a path that every file system and bucket takes, one for each, and never two alike.

Small letters, digits, `-` and `_` stay as they are, so does a dot inside a name. A capital becomes `^` and its small letter, since some
file systems do not tell them apart; everything else the bytes of its UTF-8 as `%xx`, since some change how accents are spelled. What
would be too long is cut and ends in `~` and a digest of the whole: `~` stands nowhere else.
"""

from __future__ import annotations

import hashlib
import re

LONGEST = 120
"""Characters of a safe name at the most; a file system takes 255 bytes, and what is put behind a name needs some."""
KEPT, DIGEST_CHARS = 80, 32
LABEL = 60
"""Characters of a step's name that are shown in the name of a file."""

_PLAIN = re.compile(r"[a-z0-9_-](?:[a-z0-9_.-]*[a-z0-9_-])?")
_CODED = re.compile(r"%([0-9a-f]{2})|\^([a-z])|([a-z0-9_.-])")


def safe(text: str) -> str:
    """The name as a part of a path."""
    if len(text) <= LONGEST and _PLAIN.fullmatch(text):
        return text
    coded = "".join(map(_coded, text))
    coded = "%2e" + coded[1:] if coded.startswith(".") else coded
    coded = coded[:-1] + "%2e" if coded.endswith(".") else coded
    if 0 < len(coded) <= LONGEST:
        return coded
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
    return f"{coded[:KEPT].rstrip('.')}~{digest}"


def unsafe(name: str) -> str | None:
    """The text that has this safe name; None where it was cut, or is none of ours."""
    parts = _CODED.findall(name)
    if not parts or sum(3 * bool(byte) + 2 * bool(capital) + bool(plain) for byte, capital, plain in parts) != len(name):
        return None
    data = b"".join(bytes([int(byte, 16)]) if byte else (capital.upper() or plain).encode() for byte, capital, plain in parts)
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None


def label(text: str) -> str:
    """What a file is called by after its number: for people, so that it need not be told from others, nor be turned back."""
    return re.sub(r"[^a-z0-9_.-]+", "-", text.lower())[:LABEL].strip("-.") or "x"


def _coded(character: str) -> str:
    if character.isascii() and (character.islower() or character.isdigit() or character in "-_."):
        return character
    if character.isascii() and character.isupper():
        return f"^{character.lower()}"
    return "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
