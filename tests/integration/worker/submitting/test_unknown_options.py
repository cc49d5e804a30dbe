"""An option whose name is written wrong is refused: it would do nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import InvalidField, RedisStateStore
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION, client_of
from tests.support.tasks.runs import make, run_once


async def test_a_handlers_calls_refuse_options_that_they_do_not_have(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> list[str]:
        found: list[str] = []
        calls: list[tuple[Any, dict[str, Any]]] = [
            (ctx.open_pause, {"aprovals": 2, "of": ("ann", "ben")}),
            (ctx.pause, {"time_out": timedelta(hours=1)}),
            # What hides a pause is an option of `open_pause` alone.
            (ctx.approval, {"reveal": False}),
            (ctx.spawn, {"isolated": True}),
        ]
        for call, options in calls:
            with pytest.raises(InvalidField, match="is no option") as refused:
                await call("q", **options)
            found.append(refused.value.field)
        return found

    await make(store)
    assert (await run_once(store, handler)).result == [
        "aprovals",
        "time_out",
        "reveal",
        "isolated",
    ]


async def test_debounce_and_batch_refuse_options_that_they_do_not_have(
    store: RedisStateStore,
) -> None:
    second, wrong = timedelta(seconds=1), {"atributes": {"tenant": "acme"}}
    async with client_of(store) as client:
        options: Any = wrong
        with pytest.raises(InvalidField, match="atributes: is no option: attributes"):
            await client.debounce("h", 1, session_id=SESSION, wait=second, **options)
        with pytest.raises(InvalidField, match="atributes: is no option: attributes"):
            await client.batch("h", 1, session_id=SESSION, after=second, **options)
        assert not (await client.find(session_id=SESSION)).tasks
