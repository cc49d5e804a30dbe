"""What an append to a stream is given, and what it did."""

from __future__ import annotations

from typing import Any, cast

from redis_state import limits
from redis_state.errors import (
    InvalidField,
    ProducerRefused,
    RedisStateError,
    StreamDeleted,
    StreamRefused,
    StreamUnknown,
)
from redis_state.models.streams import ProducerBatch, StreamAppended, offset_of
from redis_state.scripts import Reply, ReplyCode, raw

_LONGEST_TEXT = 1_000
_MOST_NUMBER = 2**53 - 1
_OF_THE_STREAM = {
    ReplyCode.HELD: "closed",
    ReplyCode.TAKEN: "type",
    ReplyCode.STALE: "sequence",
}
_OF_THE_PRODUCER = {
    ReplyCode.LOST: "stale",
    ReplyCode.REFUSED: "epoch",
    ReplyCode.GAP: "gap",
    ReplyCode.FULL: "many",
}


def check_batch(batch: ProducerBatch | None) -> ProducerBatch | None:
    """Check which batch of a producer something is. Errors: InvalidField."""
    if batch is None:
        return None
    if not check_text("producer", batch.producer):
        raise InvalidField("producer", "must not be empty")
    for name, value in (("epoch", batch.epoch), ("number", batch.number)):
        if limits.count(name, value, least=0) > _MOST_NUMBER:
            raise InvalidField(name, f"must be at most {_MOST_NUMBER}")
    return batch


def check_text(field: str, given: str | None) -> str:
    """Check a text that a script compares; none is empty. Errors: InvalidField."""
    value = cast("Any", given)
    if value is None:
        return ""
    if not isinstance(value, str) or len(raw(value)) > _LONGEST_TEXT:
        raise InvalidField(field, f"must be text of at most {_LONGEST_TEXT} bytes")
    return value


def read_appended(path: str, reply: Reply, batch: ProducerBatch | None) -> StreamAppended:
    """Read the reply to an append. Errors: StreamUnknown, StreamRefused, ProducerRefused."""
    if reply.word is ReplyCode.OK:
        number = None if batch is None else batch.number
        return StreamAppended(offset_of(reply.facts[0]), reply.facts[1] == 1, number=number)
    if reply.word is ReplyCode.COUNTED:
        offset, closed = offset_of(reply.facts[0]), reply.facts[1] == 1
        return StreamAppended(offset, closed, repeated=True, number=int(reply.facts[2]))
    raise _refusal(path, reply)


def _refusal(path: str, reply: Reply) -> RedisStateError:
    word, facts = reply.word, reply.facts
    if word is ReplyCode.DENIED:
        return StreamDeleted(path)
    if word in _OF_THE_STREAM:
        offset = offset_of(facts[0]) if word is ReplyCode.HELD else None
        return StreamRefused(path, _OF_THE_STREAM[word], offset=offset)
    if word in _OF_THE_PRODUCER:
        return ProducerRefused(
            _OF_THE_PRODUCER[word],
            epoch=int(facts[0]) if word is ReplyCode.LOST else None,
            expected=int(facts[1]) if word is ReplyCode.GAP else None,
        )
    return StreamUnknown(path)
