"""A model's answer, its usage, and the configuration of the call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, cast

from pydantic import Field

from redis_state.agents.state.ids import new_id
from redis_state.agents.state.messages import ToolCall
from redis_state.agents.state.wire.frozen import EMPTY, FrozenMap
from redis_state.agents.state.wire.kinds import (
    anything,
    boolean,
    instance,
    integer,
    many,
    mapping,
    model,
    moment,
    text,
)
from redis_state.agents.state.wire.wire import Kind, Slot, Wire, now
from redis_state.errors import InvalidField

REDACTED = "[redacted]"
_SECRET = re.compile(
    r"key[-_]?\d*$|token[-_]?\d*$|secret|^sig$|signature|passw|^pass$|passphrase|passcode|^pwd$|^pin$"
    r"|otp$|^code$|^auth|jwt|bearer|credential|cookie|assertion|ticket|^sas$|^pat$",
    re.IGNORECASE,
)


class Usage(Wire):
    """Tokens used, in five kinds."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("input", "input", integer, int),
        Slot("output", "output", integer, int),
        Slot("cache_write", "cacheWrite", integer, int),
        Slot("cache_read", "cacheRead", integer, int),
        Slot("reasoning", "reasoning", integer, int),
    )

    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_read: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """All five together."""
        return sum(getattr(self, slot.field) for slot in self.slots)

    def __add__(self, other: Usage) -> Usage:
        names = [slot.field for slot in self.slots]
        # Of what was checked; a sum is not stored.
        return Usage.model_construct(
            **{name: getattr(self, name) + getattr(other, name) for name in names}
        )


class ResponseData(Wire):
    """The answer as it came over the network."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("status_code", "statusCode", integer, int),
        Slot("body", "body", anything, str),
        Slot("headers", "headers", mapping, lambda: EMPTY),
        Slot("is_streamed", "isStreamed", boolean, bool),
    )

    status_code: int = 0
    body: Any = ""
    headers: FrozenMap = EMPTY
    is_streamed: bool = False


def _write_call(call: ToolCall) -> dict[str, Any]:
    """Write a call as an answer holds it: without an id, its id is null."""
    written = call.wire()
    return written if call.id else written | {"id": None}


_many_calls = many(model(ToolCall))
_calls = Kind(
    _many_calls.read, lambda calls: [_write_call(call) for call in calls], _many_calls.check
)


class InferenceResponse(Wire):
    """What a model answered: text, or tools that it asks for, or both."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("content", "content", text, str),
        Slot("finish_reason", "finishReason", text, str),
        Slot("tool_calls", "toolCalls", _calls, tuple),
        Slot("reasoning_content", "reasoningContent", text, str),
        Slot("usage", "usage", model(Usage), Usage),
        Slot("response_data", "responseData", model(ResponseData), ResponseData),
        Slot("is_partial", "isPartial", boolean, bool),
        Slot("id", "id", text, new_id),
        Slot("created_at", "createdAt", moment, now),
        Slot("updated_at", "updatedAt", moment, now),
    )

    content: str = ""
    finish_reason: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_content: str = ""
    usage: Usage = Usage()
    response_data: ResponseData = ResponseData()
    is_partial: bool = False
    id: str = Field(default_factory=new_id)
    created_at: datetime = Field(default_factory=now)
    updated_at: datetime = Field(default_factory=now)


_LLM_KEYS = {
    "api_url": "apiUrl",
    "api_key": "apiKey",
    "endpoint": "endpoint",
    "query_params": "queryParams",
    "metadata": "metadata",
    "model": "model",
    "max_tokens": "maxTokens",
    "context_length": "contextLength",
    "max_output_length": "maxOutputLength",
    "driver": "driver",
    "options": "options",
    "pricing": "pricing",
}
_LLM_MAPS = ("query_params", "metadata", "options", "pricing")
_LLM_NUMBERS = ("max_tokens", "context_length", "max_output_length")


def _llm_slot(field: str, key: str) -> Slot:
    if field in _LLM_MAPS:
        return Slot(field, key, mapping, lambda: EMPTY)
    if field in _LLM_NUMBERS:
        return Slot(field, key, integer, int)
    return Slot(field, key, text, str)


def is_secret(name: str) -> bool:
    """Return whether a parameter of an address is a secret, by its name."""
    return _SECRET.search(name) is not None


class LlmConfig(Wire):
    """The configuration of a model. ``repr`` never shows ``api_key`` and ``query_params``."""

    slots: ClassVar[tuple[Slot, ...]] = tuple(_llm_slot(*pair) for pair in _LLM_KEYS.items())

    api_url: str = ""
    api_key: str = Field(default="", repr=False)
    endpoint: str = ""
    query_params: FrozenMap = Field(default=EMPTY, repr=False)
    metadata: FrozenMap = EMPTY
    model: str = ""
    max_tokens: int = 0
    context_length: int = 0
    max_output_length: int = 0
    driver: str = ""
    options: FrozenMap = EMPTY
    pricing: FrozenMap = EMPTY

    def redacted(self) -> LlmConfig:
        """Return it without its key, and without those among the parameters of its address."""
        params = {n: REDACTED if v and is_secret(n) else v for n, v in self.query_params.items()}
        api_key = REDACTED if self.api_key else ""
        if (api_key, params) == (self.api_key, self.query_params):
            return self
        return self.replaced(api_key=api_key, query_params=FrozenMap(params))

    def with_keys_of(self, other: LlmConfig) -> LlmConfig:
        """Return it with another's keys where its own are redacted. Not for another address."""
        if (self.api_url, self.endpoint) != (other.api_url, other.endpoint):
            return self
        params = {
            name: other.query_params.get(name, value) if value == REDACTED else value
            for name, value in self.query_params.items()
        }
        api_key = other.api_key if self.api_key == REDACTED else self.api_key
        return self.changed(api_key=api_key, query_params=FrozenMap(params))

    @property
    def secrets(self) -> list[str]:
        """Its keys that are there: not empty, and not redacted."""
        params = [str(v) for n, v in self.query_params.items() if v and is_secret(n)]
        return [key for key in (self.api_key, *params) if key and key != REDACTED]


class ResponseFormat(Wire):
    """The form that an answer must have. Nothing set is ``[]`` on the wire."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("type", "type", text, str, optional=True),
        Slot("schema_", "schema", mapping, lambda: EMPTY, optional=True),
        Slot("name", "name", text, str, optional=True),
        Slot("strict", "strict", boolean, bool, optional=True),
    )

    type: str = ""
    schema_: FrozenMap = EMPTY
    name: str = ""
    strict: bool = False


def _read_format(value: Any, place: str) -> ResponseFormat:
    if isinstance(value, list) and not value:
        return ResponseFormat()
    if not isinstance(value, Mapping):
        raise InvalidField(place, "an object is needed")
    return ResponseFormat.of_wire(cast("Mapping[str, Any]", value), place=place)


response_format: Kind = Kind(
    _read_format, lambda value: value.wire() or [], instance(ResponseFormat)
)
