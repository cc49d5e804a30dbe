"""Forms made from a JSON schema: its fields, and the value that was filled in.

A field is named by its place, never by the schema. What has no field is entered as JSON.
The value is checked against the schema where it is decided, as everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any, cast

from redis_state.gateway.answers import HttpProblem
from redis_state.serialization import codec

_MOST_FIELDS = 60
_LONG_TEXT = 200
_SCALARS = ("string", "integer", "number", "boolean")
_REFERENCES = "#/$defs/"


@dataclass(frozen=True, slots=True)
class FormField:
    """A field. ``kind`` is text, long, integer, number, boolean, choice or json."""

    place: str
    name: str | None
    kind: str
    label: str
    help: str = ""
    required: bool = True
    choices: tuple[Any, ...] = field(default=())
    value: str = ""


def fields_of(schema: Any) -> list[FormField]:
    """Return the fields of a form: those of an object, or one."""
    form = _object(schema)
    properties = _object(form.get("properties"))
    plain = form.get("type") == "object" and properties and len(properties) <= _MOST_FIELDS
    if not plain:
        return [_field("value", None, form, form, required=True)]
    required = form.get("required")
    needed: list[Any] = cast("Any", required) if isinstance(required, list) else []
    return [
        _field(f"f{at}", name, _object(each), form, required=name in needed)
        for at, (name, each) in enumerate(properties.items())
    ]


def read_value(schema: Any, given: dict[str, str]) -> Any:
    """Return the value that was filled in. Errors: HttpProblem, 422, names the field."""
    fields = fields_of(schema)
    if len(fields) == 1 and fields[0].name is None:
        return _read(fields[0], given.get(fields[0].place, ""))
    value: dict[str, Any] = {}
    for each in fields:
        text = given.get(each.place, "")
        if text != "" or (each.required and each.kind in ("text", "long")):
            value[str(each.name)] = _read(each, text)
    return value


def _field(place: str, name: str | None, each: Any, root: Any, *, required: bool) -> FormField:
    schema = _followed(each, root)
    label = schema.get("title") or name or "Value"
    choices = schema.get("enum")
    listed = tuple(cast("Any", choices)) if isinstance(choices, list) else ()
    kind = "choice" if listed else _kind(schema)
    default = schema.get("default")
    return FormField(
        place,
        name,
        kind,
        str(label),
        str(schema.get("description") or ""),
        required,
        listed,
        _written(kind, default, listed) if "default" in schema else "",
    )


def _kind(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    if kind not in _SCALARS:
        return "json"
    if kind != "string":
        return str(kind)
    longest = schema.get("maxLength")
    return "long" if isinstance(longest, int) and longest > _LONG_TEXT else "text"


def _followed(schema: Any, root: Any) -> dict[str, Any]:
    """Return a schema, or the definition that it refers to. One of several is JSON."""
    found = _object(schema)
    reference = found.get("$ref")
    if isinstance(reference, str) and reference.startswith(_REFERENCES):
        target = _object(_object(_object(root).get("$defs")).get(reference[len(_REFERENCES) :]))
        return target | {name: each for name, each in found.items() if name != "$ref"}
    return found


def _written(kind: str, value: Any, choices: tuple[Any, ...]) -> str:
    if kind == "choice":
        return str(choices.index(value)) if value in choices else ""
    if kind == "boolean":
        return {True: "yes", False: "no"}.get(value, "") if isinstance(value, bool) else ""
    if isinstance(value, str) and kind in ("text", "long"):
        return value
    return codec.encode(value).decode("utf-8", "replace")


def _read(field: FormField, text: str) -> Any:
    try:
        match field.kind:
            case "text" | "long":
                return text.replace("\r\n", "\n")
            case "integer":
                return int(text)
            case "number":
                return _number(text)
            case "boolean":
                return {"yes": True, "no": False}[text]
            case "choice":
                return field.choices[_place(text)]
            case _:
                return codec.decode(text.encode("utf-8", "surrogatepass"))
    except (ValueError, KeyError, IndexError, codec.DecodeError):
        kind = {"json": "JSON", "choice": "one of the choices"}.get(field.kind, f"of {field.kind}")
        raise HttpProblem(422, "invalid", f"{field.label}: is to be {kind}") from None


def _number(text: str) -> float:
    if text.strip().lstrip("+-").isdecimal():
        return int(text)
    number = float(text)
    if not isfinite(number):
        # JSON has none of them, and no bound of a schema holds for what is no number.
        raise ValueError
    return number


def _place(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError
    return int(text)


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
