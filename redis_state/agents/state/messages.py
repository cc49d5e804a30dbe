"""The conversation: messages, in named sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, Field

from redis_state.agents.state.ids import new_id, uuid_kind
from redis_state.agents.state.wire.frozen import EMPTY, FrozenMap, frozen, read_frozen, thawed
from redis_state.agents.state.wire.kinds import (
    boolean,
    instance,
    many,
    mapping,
    model,
    moment,
    optional,
    text,
    text_or_none,
)
from redis_state.agents.state.wire.lazy_parts import LazySequence
from redis_state.agents.state.wire.wire import Kind, Slot, Wire, now
from redis_state.errors import InvalidField

MESSAGES = "messages"
# The order in which sections are put before a model; others are not.
COMPILED = ("summary", "buffer", MESSAGES)


_call_id = Kind(lambda value, place: text.read(value or "", place), str, text.check)


class ToolCall(Wire):
    """A tool that a model asks for. ``id`` is empty where the call has none."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("id", "id", _call_id, str),
        Slot("name", "name", text, str),
        Slot("arguments", "arguments", mapping, lambda: EMPTY, legacy=("args",)),
    )

    id: str = ""
    name: str
    arguments: FrozenMap = EMPTY

    @classmethod
    def older(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Find what a call of another dialect holds under ``function``."""
        function = data.get("function")
        return cast("Mapping[str, Any]", function) if isinstance(function, Mapping) else EMPTY


class ToolResult(Wire):
    """The result of a tool, as the model receives it."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("content", "content", text, str),
        Slot("call_id", "call_id", optional(text), lambda: None),
        Slot("tool_name", "tool_name", optional(text), lambda: None),
        Slot("is_error", "is_error", boolean, bool),
    )

    content: str
    call_id: str | None = None
    tool_name: str | None = None
    is_error: bool = False


def _read_content(value: Any, place: str) -> str | tuple[Any, ...]:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return tuple(read_frozen(value, place))
    raise InvalidField(place, "text or a list of parts is needed")


def _check_content(value: Any, place: str) -> str | tuple[Any, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(frozen(value, place))
    return cast("str", text.check(value, place))


_content = Kind(_read_content, thawed, _check_content)


def _part_text(part: Any) -> str:
    text_of_it = cast("Mapping[str, Any]", part).get("text") if isinstance(part, Mapping) else None
    return text_of_it if isinstance(text_of_it, str) else ""


class Message(Wire):
    """One message. ``content`` is text, or parts when there are several or other than text."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("id", "id", uuid_kind, new_id),
        Slot("created_at", "createdAt", moment, now),
        Slot("parent_id", "parentId", text_or_none, lambda: None, optional=True),
        Slot("role", "role", text, lambda: "user"),
        Slot("name", "name", text_or_none, lambda: None, optional=True),
        Slot("content", "content", _content, str),
        Slot("metadata", "_metadata", mapping, lambda: EMPTY, optional=True, legacy=("metadata",)),
        Slot("tool_calls", "tool_calls", many(model(ToolCall)), tuple, optional=True),
        Slot(
            "tool_result", "tool_result", optional(model(ToolResult)), lambda: None, optional=True
        ),
    )

    id: str = Field(default_factory=new_id)
    created_at: datetime = Field(default_factory=now)
    parent_id: str | None = None
    role: str = "user"
    name: str | None = None
    content: str | tuple[Any, ...] = ""
    metadata: FrozenMap = EMPTY
    tool_calls: tuple[ToolCall, ...] = ()
    tool_result: ToolResult | None = None

    @classmethod
    def older(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Find the tool calls that were once kept in the metadata."""
        kept = data.get("_metadata", data.get("metadata"))
        held = cast("Mapping[str, Any]", kept) if isinstance(kept, Mapping) else EMPTY
        calls = held.get("tool_calls")
        return EMPTY if calls is None else {"tool_calls": calls}

    @property
    def text(self) -> str:
        """The text of the message, that of its parts one after the other."""
        if isinstance(self.content, str):
            return self.content
        return "".join(_part_text(part) for part in self.content)

    @property
    def is_trace(self) -> bool:
        """Whether it belongs to the work before an answer."""
        return bool(self.metadata.get("is_trace"))

    def with_metadata(self, **values: Any) -> Message:
        """Return it with more metadata. What is there under another name stays."""
        return self.changed(metadata=self.metadata | values)


def text_of(messages: Iterable[Message]) -> str:
    """Put the texts of messages one below the other; those without text are left out."""
    return "".join(f"{message.text}\n" for message in messages if message.text)


class Messages(LazySequence[Message]):
    """Messages in order. Those of a stored session are decoded when they are used."""

    kind: ClassVar[type[Any]] = Message

    __slots__ = ()


_many_messages = many(model(Message))
_messages = Kind(
    lambda value, place: Messages(_many_messages.read(value, place), place=place),
    lambda value: value.wire(),
    lambda value, place: instance(Messages)(_as_messages(value, place), place),
)


def _as_messages(value: Any, place: str = "") -> Any:
    if isinstance(value, (list, tuple)):
        return Messages(_many_messages.check(value, place), place=place)
    return value


class Section(Wire):
    """Messages under a name."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("name", "name", text, lambda: MESSAGES),
        Slot("messages", "messages", _messages, Messages),
    )

    name: str = MESSAGES
    messages: Annotated[Messages, BeforeValidator(_as_messages)] = Field(default_factory=Messages)


_many_sections = many(model(Section))


def _read_sections(value: Any, place: str) -> tuple[Section, ...]:
    return _merged(_many_sections.read(value, place), place)


def _check_sections(value: Any, place: str) -> tuple[Section, ...]:
    return _merged(_many_sections.check(value, place), place)


def _merged(sections: Iterable[Section], place: str) -> tuple[Section, ...]:
    """Join what stands under one name: a section is stored under its place."""
    merged: dict[str, Section] = {}
    for section in sections:
        known = merged.get(text.check(section.name, f"{place}.name"))
        both = (
            section
            if known is None
            else known.changed(messages=known.messages.with_added(section.messages))
        )
        merged[section.name] = both
    return tuple(merged.values())


_sections = Kind(_read_sections, _many_sections.write, _check_sections)


class MessageStore(Wire):
    """All sections of a conversation, and parameters beside them."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("sections", "sections", _sections, tuple),
        Slot("parameters", "parameters", mapping, lambda: EMPTY),
    )

    sections: tuple[Section, ...] = ()
    parameters: FrozenMap = EMPTY

    def section(self, name: str) -> tuple[Message, ...]:
        """Return a section's messages; none if there is no such section."""
        return tuple(self._parts(name))

    @property
    def compiled(self) -> tuple[Message, ...]:
        """What is put before a model: the summary, what is buffered, and the messages."""
        return tuple(message for name in COMPILED for message in self.section(name))

    def with_added(self, messages: Iterable[Message], *, section: str = MESSAGES) -> MessageStore:
        """Return it with messages at the end of a section, which is made if need be."""
        return self._with(section, self._parts(section).with_added(messages))

    def with_section(self, name: str, messages: Iterable[Message]) -> MessageStore:
        """Return it with other messages in a section, which is made if need be."""
        return self._with(name, Messages(messages))

    def _parts(self, name: str) -> Messages:
        return next((each.messages for each in self.sections if each.name == name), Messages())

    def _with(self, name: str, made: Messages) -> MessageStore:
        if all(each.name != name for each in self.sections):
            return self.changed(sections=(*self.sections, Section(name=name, messages=made)))
        return self.changed(
            sections=tuple(
                each.changed(messages=made) if each.name == name else each for each in self.sections
            )
        )
