"""What serverless offers demand: few arguments in a request, and every key declared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from redis_state.transport.sending.sender import Sender
from redis_state.transport.transport import Transport
from tests.support.samples import event
from tests.support.samples import task as make_task
from tests.support.samples import update as make_update
from tests.support.script_calls import CALLS
from tests.support.servers.faults import sender_to
from tests.support.servers.monitor import monitored, undeclared

# Of ElastiCache Serverless.
MOST_ARGUMENTS = 3_999
# More than that.
MANY = 4_100


@pytest.fixture
async def admin(own_url: str) -> AsyncIterator[Sender]:
    async with sender_to(own_url) as opened:
        await opened.send("PING", repeatable=True)
        yield opened


@pytest.fixture
async def scripts(own_url: str) -> AsyncIterator[Scripts]:
    transport = Transport(Settings(url=SecretStr(own_url)))
    yield Scripts(transport)
    await transport.aclose()


async def test_every_script_declares_every_key_that_it_uses(
    own_url: str, admin: Sender, scripts: Scripts
) -> None:
    async with monitored(own_url.removeprefix("unix://"), admin) as requests:
        for call in CALLS.values():
            await call(scripts, Keys())
        # Again: what is there by now is used in other ways.
        for call in CALLS.values():
            await call(scripts, Keys())
    ran = [each for each in requests if each.name in {"EVAL", "EVALSHA"}]
    assert len(ran) >= 2 * len(CALLS)
    assert sum(len(each.called) for each in ran) > 5 * len(CALLS)
    for request in ran:
        assert await undeclared(request, admin) == [], request.called
    # Else it would show nothing: a key that is made of another is found.
    async with monitored(own_url.removeprefix("unix://"), admin) as requests:
        made = "return redis.call('SET', KEYS[1] .. 'x', 1)"
        await admin.send("EVAL", made, 1, "t:a", repeatable=False)
    assert await undeclared(requests[0], admin) == [b"t:ax"]


async def test_no_request_of_a_store_has_too_many_arguments(own_url: str, admin: Sender) -> None:
    # So many calls at once may take a busy machine long.
    settings = Settings(url=SecretStr(own_url), namespace="t", call_timeout_s=60)
    async with RedisStateStore(settings) as store:
        await asyncio.gather(*(store.save_task(make_task(f"t{n}")) for n in range(MANY)))
        await asyncio.gather(*(store.save_update(make_update(f"u{n}")) for n in range(MANY)))
        async with monitored(own_url.removeprefix("unix://"), admin) as requests:
            # Neighbours share commands.
            updates = [make_update("u", session_id=f"s{n}") for n in range(200)]
            await asyncio.gather(*map(store.save_update, updates))
            await store.save_events([event(float(n)) for n in range(MANY)])
            assert len(await store.list_tasks("session")) == MANY
            assert await store.list_updates("session", limit=MANY)
            await store.clear_session("session")
            await store.delete_everything()
    assert len(requests) > 100
    longest = max(requests, key=lambda each: len(each.words))
    assert 100 < len(longest.words) <= MOST_ARGUMENTS, longest.words[:5]
