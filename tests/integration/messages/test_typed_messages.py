"""What is sent as a type comes back as it, whatever pydantic needs to read it again."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import InvalidField, RedisStateStore
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION, pool


class Kind(Enum):
    NEW = "new"


class StrictReview(BaseModel):
    """Only JSON's readers take a date from text, and bytes from base64, for it."""

    model_config = ConfigDict(
        strict=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64"
    )
    at: datetime
    kind: Kind
    tags: tuple[str, ...]
    raw: bytes
    score: int = Field(alias="theScore")
    note: str


class Counted(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.number


def _review(note: str) -> StrictReview:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    return StrictReview(
        at=moment, kind=Kind.NEW, tags=("a",), raw=b"\xff\x00", theScore=5, note=note
    )


async def test_a_strict_type_with_aliases_and_bytes_comes_back_on_every_way(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> Any:
        review = await ctx.receive("review", type=StrictReview)
        request = await ctx.receive_request("review", type=StrictReview)
        await request.reply(request.payload)
        await ctx.publish_value("review", review)
        return [review == _review("\N{GRINNING FACE}"), request.payload == _review("2")]

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        await client.signal(SESSION, task, "review", _review("\N{GRINNING FACE}"))
        replied = await client.request(
            SESSION, task, "review", _review("2"), type=StrictReview, timeout_s=60
        )
        assert replied == _review("2")
        assert await client.result(SESSION, task, timeout_s=60) == [True, True]
        value = await client.value(SESSION, task, "review", type=StrictReview)
        assert value == _review("\N{GRINNING FACE}")


async def test_what_is_sent_as_a_type_is_read_as_it(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> Any:
        counted = await ctx.receive("n", type=Counted)
        return [counted.double, await ctx.receive("text", type=str)]

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        await client.signal(SESSION, task, "n", Counted(number=4), type=Counted)
        await client.signal(SESSION, task, "text", "half \ud800")
        assert await client.result(SESSION, task, timeout_s=60) == [8, "half \ud800"]


class Scan(BaseModel):
    """What it holds may be no text, and then JSON has no form of it."""

    raw: bytes


async def test_a_model_that_json_cannot_hold_is_refused_by_name_wherever_it_is_sent(
    store: RedisStateStore,
) -> None:
    scan = Scan(raw=b"\xff")

    async def handler(ctx: TaskContext) -> Any:
        with pytest.raises(InvalidField, match="value"):
            await ctx.publish_value("scan", scan)
        request = await ctx.receive_request("scan")
        with pytest.raises(InvalidField, match="value"):
            await request.reply(scan)
        await request.reply("refused")

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        for expected in (None, Scan):
            with pytest.raises(InvalidField, match="payload"):
                await client.signal(SESSION, task, "scan", scan, type=expected)
        with pytest.raises(InvalidField, match="payload"):
            await client.request(SESSION, task, "scan", scan)
        assert await client.request(SESSION, task, "scan") == "refused"
        assert await client.result(SESSION, task) is None
        assert await client.values(SESSION, task) == []
