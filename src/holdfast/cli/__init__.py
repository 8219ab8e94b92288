"""The command line: the words of `Holdfast` as commands, for people and, with --json, for scripts."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from holdfast.cli.document import error_document
from holdfast.cli.exits import Exit, exit_of
from holdfast.cli.screen import complain
from holdfast.errors import HoldfastError, Unwinding
from holdfast.stores.opening import without_password


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command and give its exit code. Our own errors are told in their words; others keep their traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        _never_choke(stream)
    try:
        code = _carried_out(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.REFUSED
    return code


def _never_choke(stream: Any) -> None:
    """A character that the encoding of the stream does not have is shown escaped."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


def _carried_out(words: list[str]) -> int:
    import typer

    from holdfast.cli.commands import commands_for

    usage_error: Any = typer.BadParameter.__base__
    as_json = "--json" in words
    try:
        _refuse_unreadable(words)
        code = commands_for(words[0] if words else "")(words or ["--help"], prog_name="holdfast", standalone_mode=False)
    except (HoldfastError, Unwinding) as error:
        return _told(error, exit_of(error), words, as_json=as_json)
    except usage_error as error:
        return _misunderstood(error, words, as_json=as_json)
    except typer.Abort:
        return Exit.INTERRUPTED
    return int(code or Exit.FINE)


def _refuse_unreadable(words: list[str]) -> None:
    """What is not UTF-8 on the command line cannot be kept or looked for."""
    import typer

    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise typer.BadParameter(f"{word.encode('utf-8', 'surrogateescape')!r} is not UTF-8") from None


def _told(error: BaseException, code: Exit, words: list[str], *, as_json: bool) -> int:
    """What is wrong, on the stream where it is looked for."""
    if as_json:
        print(error_document(error, str(error)))
    else:
        complain(str(error), _store_named(words))
    return code


def _store_named(words: list[str]) -> str:
    """The store of the command line, as it is typed again; nothing where none was named."""
    after = [value for word, value in pairwise(words) if word == "--store"]
    after += [word.removeprefix("--store=") for word in words if word.startswith("--store=")]
    return shlex.quote(without_password(after[-1])) if after else ""


def _misunderstood(error: Any, words: list[str], *, as_json: bool) -> int:
    """What is wrong with the command; one that noticed it by itself, while reading its options, is the first word."""
    if as_json:
        print(error_document(error, error.format_message()))
        return Exit.USAGE
    command = error.ctx.command_path if error.ctx else " ".join(["holdfast", *words[:1]])
    complain(error.format_message())
    complain(f"`{command} --help` tells how it is used")
    return Exit.USAGE
