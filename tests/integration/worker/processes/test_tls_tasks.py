"""Tasks with sealed payloads over TLS, by many callers, on links that die without a word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from redis_state import RedisStateStore, Settings, TokenResolved, TokenUnknown
from redis_state.testing import eventually
from redis_state.worker import Handler, OpenPause, Rate, TaskClient, TaskContext
from tests.support.payloads import KEYS
from tests.support.processes.pools import SESSION, pool, queue_of
from tests.support.servers.faults import Proxy, certificate, tls_server_context
from tests.support.tasks.schedules import hourly

CALLERS = 40
_SOON = timedelta(milliseconds=50)


async def echo(ctx: TaskContext) -> Any:
    """Return the input, once a step has recorded it."""
    return await ctx.step("keep", lambda: ctx.input)


async def call(client: TaskClient, number: int) -> None:
    session = f"s {number} {{}}*:%\u00e9"
    value = {"caller": number, "text": "x" * 3_000}
    # All callers share a tenant.
    both: Any = {"limit_key": "t;k: {}*:%\u00e9\0", "in_turn": True, "session_id": session}
    queue = queue_of(client.store.settings)
    await client.queues.limit_key(queue, both["limit_key"], running=3)
    task = await client.submit("echo", value, on_busy="enqueue", **both)
    ids = {
        await client.batch("echo", [number, n], after=_SOON, item_id=f"i{n}", **both)
        for n in (0, 1, 0)
    }
    last = await client.debounce("echo", value, wait=_SOON, **both)
    assert await client.result(session, task, timeout_s=60) == value
    assert await client.result(session, last, timeout_s=60) == value
    items = [item for each in ids for item in await client.result(session, each, timeout_s=60)]
    assert sorted(items) == [[number, 0], [number, 1]]


async def family(ctx: TaskContext) -> Any:
    """Take from a rate, ask a person, and hand the answer to a child with a limit of its own."""
    name = ctx.input["name"]
    await ctx.take(name, Rate(1, timedelta(days=1)), cost=1)
    answer = (await ctx.pause("ask", name=name)).value
    child = await ctx.spawn("echo", answer, limit_key=name)
    return await ctx.join(child)


async def ask(client: TaskClient, number: int) -> None:
    odd = f"k {number} {{}}*:%\u00e9\n\0{'x' * 300}"
    session, task = f"s {odd}", f"t {odd}"
    await client.rates.set(odd, Rate(7, timedelta(minutes=1)))
    await client.submit("family", {"name": odd}, session_id=session, task_id=task, limit_key=odd)
    found: list[OpenPause] = await eventually(
        lambda: client.pauses(session), "it asks", timeout_s=60
    )
    token = str(found[0].token)
    with pytest.raises(TokenUnknown):
        await client.approve(token, "another's", session_id=f"{session} ", task_id=task)
    for _ in range(2):  # the same call, repeated
        await client.approve(
            token, number, session_id=session, task_id=task, idempotency_key="once", actor=odd
        )
    with pytest.raises(TokenResolved) as lost:
        await client.approve(token, "late", session_id=session)
    assert lost.value.actor == odd
    assert await client.result(session, task, timeout_s=60) == number
    assert Rate(7, timedelta(minutes=1)) in (await client.rates.list()).values()


class Away(Exception):
    """What a model says that is not there."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


async def fallback(ctx: TaskContext) -> Any:
    """Ask two models of which the first is away in the first run alone, then a person."""

    def first() -> str:
        if ctx.attempt == 1:
            raise Away(503)
        return "first"

    try:
        found = await ctx.keyed_step("ask", "a {}*:\u00e9", first)
    except Away as away:
        found = [await ctx.keyed_step("ask", "b", lambda: ctx.input), away.status]
    return [found, (await ctx.pause("ask")).value]


async def fall_back(client: TaskClient, number: int) -> None:
    session = f"s {number} {{}}*:%\u00e9"
    task = await client.submit("fallback", f"second {number}", session_id=session)
    found: list[OpenPause] = await eventually(
        lambda: client.pauses(session), "it asks", timeout_s=60
    )
    await client.approve(str(found[0].token), number, session_id=session, idempotency_key="once")
    assert await client.result(session, task, timeout_s=60) == [
        [f"second {number}", 503],
        number,
    ]


async def trigger(client: TaskClient, number: int) -> None:
    """Trigger the schedule of all callers, twice under one key."""
    if number == 0:
        await client.schedules.save(hourly("of all", handler="echo"))
    await eventually(client.schedules.list, "it is saved", timeout_s=60)
    made = {
        (await client.schedules.trigger("of all", idempotency_key=f"k {number}")).task_id
        for _ in range(2)
    }
    assert len(made) == 1
    assert await client.result(SESSION, made.pop(), timeout_s=60) is None


HANDLERS: dict[str, Handler] = {"echo": echo, "family": family, "fallback": fallback}


@pytest.mark.parametrize("do", [call, ask, fall_back, trigger])
async def test_40_callers_get_their_own_values_though_their_links_die(
    settings: Settings, tmp_path: Path, do: Callable[[TaskClient, int], Awaitable[None]]
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    tls = tls_server_context(cert, key)
    async with Proxy(settings.url.get_secret_value(), tls=tls) as proxy:
        proxy.dribble(700)
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        # Three dead links may come one after the other, each found by its own deadline.
        changed: dict[str, Any] = {"url": SecretStr(url), "payload_keys": SecretStr(KEYS[0])}
        changed["call_timeout_s"] = 20.0
        async with (
            RedisStateStore(settings.model_copy(update=changed)) as store,
            pool(store, HANDLERS, max_tasks=20) as client,
        ):
            # Before it is connected, calls have the shorter deadline of connecting.
            assert await store.load_memory_state("first") is None
            callers = [asyncio.ensure_future(do(client, number)) for number in range(CALLERS)]
            cut = 0
            while cut < 4 and not all(each.done() for each in callers):
                await asyncio.wait(callers, timeout=0.1)
                cut += proxy.half_open()
            await asyncio.gather(*callers)

            async def nothing_is_held() -> bool:
                return not await client.queues.keys(queue_of(store.settings))

            await eventually(nothing_is_held, "no permit is held", timeout_s=60)
        assert cut
