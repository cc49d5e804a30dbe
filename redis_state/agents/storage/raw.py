"""A session as it is stored, readable or not: the basis for repairing a damaged one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from redis_state.agents.state.agent_state import AgentState
from redis_state.agents.state.inference import REDACTED, is_secret
from redis_state.agents.state.session import AgentDefinition
from redis_state.agents.state.wire.lazy_parts import decoded
from redis_state.agents.storage.session_encoding import part_kind, read_header
from redis_state.errors import InvalidField
from redis_state.serialization import codec


@dataclass(frozen=True, slots=True)
class RawSession:
    """The fields of a session's hash, as they stand. ``problems`` says what cannot be read."""

    session_id: str
    fields: Mapping[str, bytes] = field(repr=False)

    @property
    def version(self) -> int:
        """The version that the store has of it."""
        return int(self.fields.get("version", b"0"))

    @property
    def born(self) -> datetime:
        """The creation time in its header, to the second: a save must have the same."""
        return datetime.fromtimestamp(int(self.fields.get("born", b"0")), UTC)

    @property
    def problems(self) -> tuple[str, ...]:
        """What cannot be read: each place, and why. None if the session can be read."""
        return tuple(self._problems())

    def to_dict(self, *, with_keys: bool = False) -> dict[str, Any]:
        """Return it in the wire form of a session, as far as possible, without checking anything.

        What is no JSON stands in its place as text. Steps and messages without a place stand under
        ``parts``, by the names of their fields. Keys of models are redacted unless ``with_keys``,
        and so is text that is no JSON in the place of such a key.
        """
        names = ("header", "definition", "head")
        header, definition, state = (self._value(name) for name in names)
        if not with_keys:
            definition, state = _redacted(definition), _redacted(state)
        parts = {name: self._value(name) for name in self.fields if ":" in name}
        placed: dict[str, Any] = {"header": header, "definition": definition}
        placed["state"] = _with_parts(state, parts)
        return placed | ({"parts": parts} if parts else {})

    def _value(self, name: str) -> Any:
        data = self.fields.get(name)
        try:
            return None if data is None else codec.decode(data)
        except codec.DecodeError:
            return cast("bytes", data).decode("utf-8", "backslashreplace")

    def _problems(self) -> Iterator[str]:
        yield from self._problem("header", read_header)
        yield from self._problem("definition", _read(AgentDefinition, "definition"))
        yield from self._problem("head", _read(AgentState, "state"))
        counts = self._value("parts")
        if not isinstance(counts, dict):
            yield "parts: an object is needed"
            return
        for name, count in cast("dict[str, Any]", counts).items():
            kind, place = part_kind(name)
            for at in range(count if isinstance(count, int) else 0):
                yield from self._problem(f"{name}:{at}", _read(kind, f"{place}[{at}]"))

    def _problem(self, name: str, read: Callable[[bytes], object]) -> Iterator[str]:
        data = self.fields.get(name)
        if data is None:
            yield f"{name} is missing"
            return
        try:
            read(data)
        except (InvalidField, codec.DecodeError) as error:
            yield str(error)


def _read(kind: Any, place: str) -> Callable[[bytes], object]:
    return lambda data: kind.of_wire(decoded(data, place), place=place)


def _with_parts(state: Any, parts: dict[str, Any]) -> Any:
    """Put steps and messages in their places; those that have one leave ``parts``."""
    found = _at(state, "context", "messageStore", "sections")
    sections: list[Any] = found if codec.kind_of(found) is list else []
    for k, section in enumerate(sections):
        if isinstance(section, dict):
            section["messages"] = _taken(parts, f"m{k}")
    execution = _at(state, "execution")
    if isinstance(execution, dict):
        execution["stepExecutions"] = _taken(parts, "s")
    return state


def _taken(parts: dict[str, Any], name: str) -> list[Any]:
    numbers = sorted(
        int(number)
        for kind, _, number in (each.partition(":") for each in parts)
        if kind == name and number.isdecimal()
    )
    return [parts.pop(f"{name}:{number}") for number in numbers]


def _at(value: Any, *names: str) -> Any:
    found: Any = value
    for name in names:
        found = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
    return found


def _redacted(data: Any) -> Any:
    """Take keys of models out of what may have any shape."""
    config = _at(data, "llmConfig")
    if data is None or (isinstance(data, dict) and (config is None or isinstance(config, str))):
        return cast("Any", data)
    if not isinstance(data, dict):
        return REDACTED
    return {**cast("dict[str, Any]", data), "llmConfig": _without_keys(config)}


def _without_keys(config: Any) -> Any:
    if not isinstance(config, dict):
        return REDACTED
    values = cast("dict[str, Any]", config)
    params = values.get("queryParams")
    hidden: dict[str, Any] = {"apiKey": REDACTED} if values.get("apiKey") else {}
    if isinstance(params, dict):
        named = cast("dict[str, Any]", params).items()
        hidden["queryParams"] = {n: REDACTED if v and is_secret(n) else v for n, v in named}
    elif params:
        hidden["queryParams"] = REDACTED
    return values | hidden
