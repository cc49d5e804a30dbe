"""Serializers of a user's own: what they return is kept exactly, or refused by its place."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint

from redis_state import InvalidField, RedisStateStore
from redis_state.integrations.langgraph import RedisSaver

CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


class Bytes(bytes):
    """Bytes of a class of the user's own."""


class Pickled:
    """Give what pickle writes, in a form of its own."""

    def __init__(self, form: Callable[[Any], Any]) -> None:
        self.form = form

    def dumps_typed(self, obj: Any) -> Any:
        """Return the kind and the bytes, in that form."""
        return self.form(pickle.dumps(obj))

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Read them."""
        assert type(data[1]) is bytes
        return pickle.loads(data[1])  # noqa: S301 - of this test's own


def _checkpoint(value: Any) -> Any:
    checkpoint: Any = {**empty_checkpoint(), "channel_values": {"x": value}}
    return {**checkpoint, "channel_versions": {"x": "1"}}


@pytest.mark.parametrize("kind", [Bytes, bytearray, memoryview])
async def test_whatever_holds_the_bytes_is_read_as_bytes(
    store: RedisStateStore, kind: Callable[[bytes], Any]
) -> None:
    saver = RedisSaver(store, serde=Pickled(lambda data: ("\rü", kind(data))))
    value = {("a", 1): {2.5, b"\xff"}}
    config = await saver.aput(CONFIG, _checkpoint(value), {"step": 0}, {"x": "1"})
    await saver.aput_writes(config, [("x", value)], task_id="w")
    found = await saver.aget_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": value}
    assert found.pending_writes == [("w", "x", value)]
    assert found.metadata.get("step") == 0


BROKEN: dict[str, Callable[[Any], Any]] = {
    "text": lambda _: ("json", json.dumps(1)),
    "three": lambda data: ("a", data, 1),
    "surrogate": lambda data: ("\ud800", data),
    "number": lambda _: ("a", 5),
    "none": lambda _: None,
}


@pytest.mark.parametrize("form", BROKEN.values(), ids=BROKEN)
async def test_what_is_no_kind_with_bytes_is_refused_and_nothing_is_written(
    store: RedisStateStore, form: Callable[[Any], Any]
) -> None:
    saver = RedisSaver(store, serde=Pickled(lambda data: ("pickle", data)))
    broken = RedisSaver(store, serde=Pickled(form))
    with pytest.raises(InvalidField, match=r"^checkpoint: the serializer"):
        await broken.aput(CONFIG, _checkpoint(1), {"step": 0}, {"x": "1"})
    assert [each async for each in saver.alist(CONFIG)] == []
    config = await saver.aput(CONFIG, _checkpoint(1), {"step": 0}, {"x": "1"})
    with pytest.raises(InvalidField, match=r"^writes\.x: the serializer"):
        await broken.aput_writes(config, [("x", 1)], task_id="w")
    found = await saver.aget_tuple(config)
    assert found is not None
    assert not found.pending_writes
