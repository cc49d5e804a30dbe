"""The form of a pause: a JSON schema that a value must satisfy before it can approve.

The schema is stored with the pause, so that every client validates and every console can show a
form. A handler gives a JSON schema (draft 2020-12, a dict) or a type that pydantic understands. It
then gets the value as that type. No error quotes a value, nor a name that only the value has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time
from functools import lru_cache
from importlib import import_module
from inspect import isroutine
from ipaddress import IPv4Address, IPv6Address
from itertools import islice
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from redis_state.errors import ConfigError, InvalidDecision, InvalidField
from redis_state.serialization import codec
from redis_state.serialization.typed import read_as

MAX_SCHEMA_BYTES = 65_536

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_MOST_ERRORS = 10
_LONGEST_RULE = 60
# Keywords below which there are no schemas, and those below which each name has one.
_DATA = frozenset({"const", "default", "enum", "examples"})
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_REFERENCES = ("$ref", "$dynamicRef")
# A schema that refers to itself without end shows it on one of them.
_SAMPLES: Sequence[Any] = (None, True, 0, "", [], {})

_Rule = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PauseForm:
    """What a pause's value must be: the JSON schema, and the type that the handler gets."""

    schema: Mapping[str, Any] = field(repr=False)
    adapter: TypeAdapter[Any] | None = field(default=None, repr=False)

    @classmethod
    def read(cls, given: Any) -> PauseForm:
        """Read what a handler gives as a schema.

        Errors: InvalidField if it cannot be used; ConfigError if a dict is given and `jsonschema`
        is not installed.
        """
        if not isinstance(given, Mapping):
            return _form_of_type(given) if _has_hash(given) else _read_type(given)
        # In its own order, in which a console shows the fields.
        data = codec.encode(cast("Any", given))
        _check_size(data)
        _check_schema(data)
        return cls(codec.decode(data))

    def typed(self, value: Any) -> Any:
        """Return an approval's value as the handler's type. Errors: InvalidDecision.

        A type may have rules that no schema says. The value is checked by them here.
        """
        if self.adapter is None:
            check_value(self.schema, value)
            return value
        try:
            return read_as(self.adapter, value)
        except ValidationError as error:
            known = _names(self.schema)
            found = error.errors(include_url=False, include_context=False, include_input=False)
            broken = [(_path(each["loc"], known), each["type"]) for each in found[:_MOST_ERRORS]]
        # Outside of the handler: pydantic's error holds the value.
        raise InvalidDecision(broken)


def form_value(value: Any) -> Any:
    """Return a decision's value as it is stored. A pydantic model has its aliases as names."""
    if isinstance(value, BaseModel):
        with suppress(ValueError):  # it holds what JSON has no form of
            return codec.plain(value.model_dump(mode="json", by_alias=True))
    return codec.plain(value)


def check_value(schema: Mapping[str, Any], value: Any) -> None:
    """Check what is stored of a value by a stored schema: of NaN its name, of a tuple a list.

    Errors: InvalidDecision names the paths and the rules; ConfigError if `jsonschema` is not
    installed.
    """
    data = codec.canonical(schema)
    _jsonschema()
    try:
        broken = _broken(_validator(data), codec.plain(value), _names(schema))
    except Exception:  # noqa: BLE001 - what cannot be checked is refused, whatever it raises
        broken = [("$", "cannot be checked")]
    if broken:
        raise InvalidDecision(broken)


def _read_type(given: Any) -> PauseForm:
    # A function is a type to pydantic: of its arguments.
    if isinstance(given, str | bytes | bool | int | float) or isroutine(given):
        raise InvalidField(
            "schema", f"a JSON schema or a type is needed, not {type(given).__name__}"
        )
    problem = ""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(given)
        schema = adapter.json_schema()
    except PydanticInvalidForJsonSchema:
        problem = "the type has no JSON schema"
    except (PydanticUserError, TypeError, NameError, AttributeError) as error:
        problem = f"pydantic cannot use it as a type ({type(error).__name__})"
    else:
        _check_size(codec.canonical(schema))
        _check_patterns(schema)
        return PauseForm(schema, adapter)
    raise InvalidField("schema", problem)


_form_of_type = lru_cache(maxsize=256)(_read_type)


def _has_hash(given: Any) -> bool:
    # An annotated type has none if its annotations have none.
    try:
        hash(given)
    except TypeError:
        return False
    return True


def _check_size(data: bytes) -> None:
    if len(data) > MAX_SCHEMA_BYTES:
        raise InvalidField("schema", f"has {len(data)} bytes of at most {MAX_SCHEMA_BYTES}")


def _check_patterns(schema: Any) -> None:
    for each in _schemas(schema):
        named = cast("Any", each.get("patternProperties"))
        patterns: list[Any] = [each.get("pattern"), *(named if isinstance(named, dict) else ())]
        for pattern in patterns:
            if isinstance(pattern, str) and not _reads(re.compile, pattern):
                raise InvalidField("schema", "has a pattern that Python cannot read")


@lru_cache(maxsize=256)
def _check_schema(data: bytes) -> None:
    """Errors: InvalidField says what is wrong with a JSON schema."""
    schema: Any = codec.decode(data)
    draft = _jsonschema().Draft202012Validator
    problem = ""
    try:
        wrong = next(draft(draft.META_SCHEMA).iter_errors(schema), None)
    except RecursionError:
        problem = "is nested too deeply"
    else:
        if wrong is not None:
            place = "/".join(str(part) for part in wrong.absolute_path)
            problem = f"is no JSON schema: {place or 'it'} breaks the rule {wrong.validator!r}"
    if problem:
        raise InvalidField("schema", problem)
    if schema.get("$schema", _DRAFT).rstrip("#") != _DRAFT:
        raise InvalidField("schema", "only the draft 2020-12 is read")
    _check_patterns(schema)
    references = _check_references(schema)
    validator = _validator(data)
    try:
        for part in (validator, *(validator.evolve(schema={"$ref": each}) for each in references)):
            for sample in _SAMPLES:
                part.is_valid(sample)
    except RecursionError:
        problem = "refers to itself without end"
    if problem:
        raise InvalidField("schema", problem)


def _check_references(schema: Any) -> set[str]:
    """Refuse what does not stand in the schema itself: nothing is ever fetched. Return the rest.

    What is referred to is a schema too, wherever it stands: otherwise no value could be checked.
    """
    referencing: Any = import_module("referencing")
    draft, places = _jsonschema().Draft202012Validator, {id(each) for each in _schemas(schema)}
    references: set[str] = set()
    resource = import_module("referencing.jsonschema").DRAFT202012.create_resource(schema)
    resolver = referencing.Registry().with_resource("", resource).resolver()
    for each in _schemas(schema):
        if each is not schema and "$id" in each:
            raise InvalidField("schema", "only its root may have an $id")
        named = [each[name] for name in _REFERENCES if name in each]
        # Another one stands where nothing is read: the draft's own rules have passed it.
        for reference in (name for name in named if isinstance(name, str)):
            try:
                found = reference.startswith("#") and resolver.lookup(reference)
            except (referencing.exceptions.Unresolvable, ValueError):
                found = None
            if not found:
                raise InvalidField("schema", "refers to something outside of itself")
            target = found.contents
            is_part = isinstance(target, bool) or id(target) in places
            if not is_part or not draft(draft.META_SCHEMA).is_valid(target):
                raise InvalidField("schema", "refers to what is no schema")
            references.add(reference)
    return references


@lru_cache(maxsize=64)
def _validator(data: bytes) -> Any:
    jsonschema = _jsonschema()
    checker = jsonschema.FormatChecker(formats=())
    for name, reads in _FORMATS.items():
        checker.checks(name)(reads)
    # An empty registry: without one the library fetches what a schema refers to.
    registry = import_module("referencing").Registry()
    return jsonschema.Draft202012Validator(
        codec.decode(data), registry=registry, format_checker=checker
    )


def _jsonschema() -> Any:
    try:
        return import_module("jsonschema")
    except ImportError:
        problem = "a pause has a form, and checking it needs jsonschema"
        raise ConfigError(f"{problem}: pip install 'redis_state[forms]'") from None


def _broken(validator: Any, value: Any, known: frozenset[str]) -> list[_Rule]:
    best_match = import_module("jsonschema.exceptions").best_match
    found = islice(validator.iter_errors(value), _MOST_ERRORS)
    return [rule for error in found for rule in _rules(best_match([error]), known)][:_MOST_ERRORS]


def _rules(error: Any, known: frozenset[str]) -> list[_Rule]:
    """Return where an error is, and which rule is broken, from what the schema says alone."""
    rule, wanted = str(error.validator or False), error.validator_value
    place = list(error.absolute_path)
    if rule == "required":
        # One error for each missing name, all alike but for the text.
        missing = [name for name in wanted if error.message.startswith(f"{name!r} is")]
        return [(_path([*place, name], known), rule) for name in missing] or [
            (_path(place, known), rule)
        ]
    named = isinstance(wanted, str | int | float) and not isinstance(wanted, bool)
    text = f"{rule} {wanted}" if named and rule != "const" else rule
    text = text if len(text) <= _LONGEST_RULE else rule
    return [(_path(place, known), text)]


def _path(place: Sequence[Any], known: frozenset[str]) -> str:
    """Write a place in a value. A name that the schema does not have is the value's: ``*``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_name(part, known)}" for part in place)
    return "$" + "".join(parts)


def _name(part: Any, known: frozenset[str]) -> str:
    return part if part in known else "*"


def _names(schema: Mapping[str, Any]) -> frozenset[str]:
    """List the names of properties that a schema mentions."""
    names: list[Any] = []
    for each in _schemas(schema):
        for named in (each.get("properties"), each.get("required")):
            names.extend(cast("list[Any]", named) if isinstance(named, dict | list) else ())
    return frozenset(name for name in names if isinstance(name, str))


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it."""
    pending: list[Any] = [schema]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending.extend(cast("Any", each))
        elif isinstance(each, dict):
            found = cast("dict[str, Any]", each)
            yield found
            for keyword, below in found.items():
                if keyword in _NAMED and isinstance(below, dict):
                    pending.extend(cast("dict[str, Any]", below).values())
                elif keyword not in _DATA:
                    pending.append(below)


def _reads(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except (ValueError, re.error, RecursionError, OverflowError):
        return False
    return True


def _format(
    read: Callable[[str], object] | None = None, shape: str = ""
) -> Callable[[object], bool]:
    """Make a check of texts: of their shape, and by what reads them."""
    pattern = re.compile(shape, re.ASCII)

    def checks(value: object) -> bool:
        if not isinstance(value, str):
            return True
        return bool(pattern.match(value)) and (read is None or _reads(read, value))

    return checks


# The same in every process, whatever else is installed.
_FORMATS: Mapping[str, Callable[[object], bool]] = {
    "date": _format(date.fromisoformat, r"\d{4}-\d\d-\d\d\Z"),
    "date-time": _format(
        lambda text: datetime.fromisoformat(text.upper()), r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d"
    ),
    "time": _format(lambda text: time.fromisoformat(text.upper()), r"\d\d:\d\d"),
    "duration": _format(
        None,
        r"[-+]?P(?=[\dT])(?:\d+W|(?:\d+Y)?(?:\d+M)?(?:\d+D)?"
        r"(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?)\Z",
    ),
    "email": _format(None, r"[^@\s]+@[^@\s]+\Z"),
    "ipv4": _format(IPv4Address),
    "ipv6": _format(IPv6Address),
    "uuid": _format(UUID),
    "uri": _format(urlsplit, r"[A-Za-z][A-Za-z0-9+.-]*:[^\s]+\Z"),
    "regex": _format(re.compile),
}
