"""What an answer must look like: told by the type that the code asks for, kept with the question, and checked without the code.

Whoever answers has no code, so the question carries a description in plain JSON. What it cannot say (a rule inside a model) is found by
the run itself, which then puts the question anew.
"""

from __future__ import annotations

import enum
import json
import typing
from typing import Any

from pydantic import TypeAdapter

from holdfast.codec.values import UNTYPED

Wants = dict[str, Any]

NUMBERS = {"integer": int, "number": (int, float)}
PLAIN: dict[str, Any] = {**NUMBERS, "string": str, "boolean": bool, "array": list, "object": dict}
"""The types of JSON by the names that a schema has for them."""

SHOWN = 60
"""Characters of an answer or a choice that a message shows."""


def wants_of(kind: Any) -> Wants:
    """The description of a type: yes or no, one of some choices, a text, a number, or JSON with a schema."""
    if kind is bool:
        return {"kind": "yes or no"}
    if typing.get_origin(kind) is typing.Literal:
        return {"kind": "choice", "choices": list(typing.get_args(kind))}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"kind": "choice", "choices": [member.value for member in kind]}
    schema = TypeAdapter(kind).json_schema(by_alias=False)  # values are written by field name, never by alias
    named = {"string": "text", "integer": "integer", "number": "number"}.get(str(schema.get("type")), "json")
    return {"kind": named} if named != "json" else {"kind": "json", "schema": schema}


def wants_of_result(annotation: Any) -> Wants:
    """The description of what an effect returns; empty where that is anything, or cannot be described."""
    try:
        wants: Wants = {} if annotation in UNTYPED else json.loads(json.dumps(wants_of(annotation)))
    except Exception:  # noqa: BLE001 (pydantic and the type's own code may raise anything; whoever goes on with the run judges it then)
        return {}
    return wants


def shown(wants: Wants) -> str:
    """What a person is told to give."""
    match wants.get("kind"):
        case "json" if wants["schema"].get("type") == "null":
            return "null"
        case "choice":
            return " | ".join(json.dumps(choice)[:SHOWN] for choice in wants["choices"])
        case "json":
            schema = wants["schema"]
            fields = ", ".join(schema.get("properties", ()))
            return f"JSON: {schema.get('title', schema.get('type', 'a value'))}{' with ' + fields if fields else ''}"
    return str(wants.get("kind") or "yes or no")


def misfit(wants: Wants, value: object, *, by_person: bool = False) -> str:
    """Why a value cannot be the answer, or nothing; what a person says has no field that nobody would read: it may be mistyped."""
    match wants.get("kind"):
        case "yes or no" | None:
            fits = isinstance(value, bool)
        case "choice":
            fits = any(type(choice) is type(value) and choice == value for choice in wants["choices"])
        case "text":
            fits = isinstance(value, str)
        case "integer" | "number":
            fits = isinstance(value, NUMBERS[wants["kind"]]) and not isinstance(value, bool)  # type: ignore[arg-type]
        case _:
            return _misfit_of(wants["schema"], value, by_person=by_person)
    return "" if fits else f"{json.dumps(value)[:SHOWN]} is not what is asked for: {shown(wants)}"


def _misfit_of(schema: dict[str, Any], value: object, *, by_person: bool) -> str:
    """What can be seen at the outside: the fields that are missing, and a value that is no object."""
    if schema.get("type") == "null" and value is not None:
        return f"{json.dumps(value)[:SHOWN]} is not null, and nothing else is returned"
    if schema.get("type") == "object":
        if not isinstance(value, dict):
            fields = ", ".join(schema.get("properties", ()))
            return f"{json.dumps(value)[:SHOWN]} is not an object{' with ' + fields if fields else ''}"
        return _other_fields(schema, value, by_person=by_person) or _wrong_field(schema.get("properties", {}), value)
    if schema.get("type") == "array" and not isinstance(value, list):
        return f"{json.dumps(value)[:SHOWN]} is not a list"
    return ""


def _other_fields(schema: dict[str, Any], value: dict[str, Any], *, by_person: bool) -> str:
    """The field that is missing, with those that there are instead; where no others are allowed, these alone."""
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    unknown = [name for name in value if name not in fields] if fields and not others else []
    missing = [name for name in schema.get("required", ()) if name not in value]
    if not missing and not (unknown and (by_person or others is False)):
        return ""
    problems = [f"has no {missing[0]!r}"] if missing else []
    problems += [f"has {', '.join(map(repr, unknown))[:SHOWN]}, which is not asked for"] if unknown else []
    title = f"{schema['title']} has" if "title" in schema else "there are"
    return f"{json.dumps(value, ensure_ascii=False)[:SHOWN]} {' and '.join(problems)}; {title} the fields {', '.join(fields)}"


def _wrong_field(fields: dict[str, Any], value: dict[str, Any]) -> str:
    """The first field that is plainly of another type than the schema says."""
    for name, given in value.items():
        wanted = fields.get(name, {}).get("type")
        kinds = PLAIN.get(wanted, object) if isinstance(wanted, str) else object
        if not isinstance(given, kinds) or (isinstance(given, bool) and wanted in NUMBERS):
            return f"{name!r} must be of type {wanted}, not {json.dumps(given)[:SHOWN]}"
    return ""


def read(wants: Wants, said: str) -> object:
    """What a person typed, as the value that is wanted: yes and no, a choice or a text as it stands, anything else as JSON."""
    words = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
    match wants.get("kind"):
        case "yes or no" | None:
            return words.get(said.strip().lower(), said)
        case "text":
            return said
        case "choice" if said in wants["choices"]:
            return said
    try:
        return json.loads(said)
    except ValueError:
        return said


def harmless(text: str) -> str:
    """Text of an agent's or a model's, escaped so that it cannot command the terminal on which it is shown."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
