"""Every script on a server in cluster mode, which refuses keys of two slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from redis_state import Settings
from redis_state.errors import CommandRefused
from redis_state.scripts import Reply, Scripts
from redis_state.transport.keys import Keys
from redis_state.transport.transport import Transport
from tests.support.script_calls import CALLS
from tests.support.scripts.logs import append, rows_of
from tests.support.scripts.replies import ask
from tests.support.servers.sets.clusters import running_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Scripts]:
    """Give the scripts on the one node of a cluster, by a client that knows of no slots."""
    async with running_cluster(primaries=1) as made:
        transport = Transport(Settings(url=SecretStr(f"redis://127.0.0.1:{made.ports[0]}/0")))
        yield Scripts(transport)
        await transport.aclose()


async def test_the_keys_of_each_script_are_of_one_slot_and_others_are_refused(
    cluster: Scripts,
) -> None:
    keys = Keys()
    assert await ask(cluster, "CLUSTER", "KEYSLOT", keys.memory("a")) != await ask(
        cluster, "CLUSTER", "KEYSLOT", keys.memory("b")
    )
    with pytest.raises(CommandRefused, match=r"CROSSSLOT|same slot"):
        await cluster.delete_record(
            keys.memory("a"), index=keys.memory("b"), member="m", only_if_gone=False
        )
    refused: dict[str, str] = {}
    for name, call in CALLS.items():
        try:
            assert isinstance(await call(cluster, keys), Reply), name
        except CommandRefused as error:
            refused[name] = str(error)
    assert refused == {}


async def test_a_log_works_there_and_calls_of_several_sessions_share_no_command(
    cluster: Scripts,
) -> None:
    """It is asked once, before anything is shared; the order is kept from the first call on."""
    await ask(cluster, "CONFIG", "RESETSTAT")
    log = Keys().updates("works")
    await cluster.clear_log(log)
    assert (await append(cluster, log, "a", topic="t", announce=True)).facts[0] == 1
    logs = [Keys().updates(f"shares-{number}") for number in range(10)]
    for log in logs:
        await cluster.clear_log(log)
    for turn in range(3):
        rows = [f"{turn}-{number}" for number in range(5)]
        await asyncio.gather(*(append(cluster, log, row) for row in rows for log in logs))
    for log in logs:
        found = [row_id for _, row_id in await rows_of(cluster, log)]
        assert found == [f"{turn}-{number}" for turn in range(3) for number in range(5)]
    errors = await ask(cluster, "INFO", "errorstats")
    assert errors.count(b"errorstat_CROSSSLOT:count=1") == errors.count(b"errorstat_CROSSSLOT")
