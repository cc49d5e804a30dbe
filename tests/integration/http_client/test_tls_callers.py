"""Requests, bursts, rates, keys and backfills by many callers at once, over TLS."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import KeyReused, RedisStateStore
from redis_state.http_client import HttpTaskClient
from redis_state.worker import Rate, Schedule, TaskContext
from tests.support.http import gateway
from tests.support.http.gateway import tokens
from tests.support.http.http_gateway import EVERYTHING, over_http
from tests.support.servers.faults import Proxy, certificate, tls_server_context

CALLERS = 40
SOON, LATER = timedelta(milliseconds=50), timedelta(hours=6)
SPAN = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)


async def answers(ctx: TaskContext) -> Any:
    """Answer requests with who has sent them, until there are enough."""
    for _ in range(CALLERS):
        request = await ctx.receive_request("who", hold_s=60)
        await request.reply([request.sender, request.payload])


async def call(client: HttpTaskClient, caller: str, number: int) -> None:
    """Call all of it, each call twice, with names as nobody would choose them."""
    odd = f"{caller}/ü {{x}}%25:\x7f{'x' * 50}"
    value = {"caller": number, "text": "x" * 3_000}
    for _ in range(2):
        reply = await client.request("s", "answers", "who", value, idempotency_key="k")
        assert reply == [caller, value]
    group: dict[str, Any] = {"session_id": odd, "group": odd}
    put_off = [await client.debounce("echo", n, wait=LATER, **group) for n in (1, 2)]
    assert len(set(put_off)) == 1
    ids = {await client.batch("echo", n, after=SOON, item_id=f"i{n}", **group) for n in (0, 1, 0)}
    with pytest.raises(KeyReused):
        await client.batch("echo", 7, after=SOON, item_id="i0", **group)
    await client.rates.set(odd, Rate(number + 1, timedelta(minutes=1)))
    assert (await client.rates.list())[odd] == Rate(number + 1, timedelta(minutes=1))
    daily = Schedule(
        schedule_id=odd, handler="echo", session_id=caller, queue=odd, cron="0 3 * * *"
    )
    await client.schedules.save(daily)
    made = [await client.schedules.backfill(odd, *SPAN, limit_key=odd) for _ in range(2)]
    assert [[each.state for each in some] for some in made] == [["submitted"] * 2, ["exists"] * 2]
    keys = await client.queues.keys(odd)
    assert [(each.limit_key, each.waiting) for each in keys] == [(odd, 2)]
    items = [item for each in ids for item in await client.result(odd, each, timeout_s=60)]
    assert sorted(items) == [0, 1]


async def test_40_callers_over_tls_get_what_is_theirs(
    store: RedisStateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gateway.HANDLERS, "answers", answers)
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(cert))
    async with (
        over_http(store, handlers=["answers", "echo"]) as over,
        Proxy(f"redis://127.0.0.1:{over.proxy.port}", tls=tls_server_context(cert, key)) as proxy,
    ):
        proxy.dribble(4_000)
        await over.direct.submit("answers", session_id="s", task_id="answers")

        async def caller(number: int) -> None:
            name = f"caller {number}"
            token = tokens.mint(name, EVERYTHING)
            address = f"https://127.0.0.1:{proxy.port}"
            async with HttpTaskClient(address, token, tls=trusting) as client:
                await call(client, name, number)

        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        ended = await over.direct.wait("s", "answers", timeout_s=60)
    assert ended.error is None
