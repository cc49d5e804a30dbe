"""A server that is out of memory: what is held stays held, and can be given back."""

from __future__ import annotations

from redis_state import RedisStateStore
from redis_state.primitives.lease import Leases
from tests.support.scripts.replies import ask, clock_ms
from tests.support.servers.faults import run_server, short_directory

LEASE = "{x}lease"


async def test_a_lease_is_read_renewed_and_given_back_on_a_full_server() -> None:
    with short_directory() as directory, run_server(directory) as url:
        async with RedisStateStore.from_url(url) as store:
            scripts = store.base.scripts
            leases = Leases(scripts, keep_ms=10_000)
            held = await leases.acquire(LEASE, duration_ms=2_000)
            assert held is not None
            # As if the clock had been set back by an hour since.
            ends = await clock_ms(scripts) + 3_600_000
            await ask(scripts, "HSET", LEASE, "expires", ends)
            await ask(scripts, "CONFIG", "SET", "maxmemory", 1)
            assert await leases.is_held(LEASE)
            assert int(await ask(scripts, "HGET", LEASE, "expires")) < ends
            await leases.renew(held, duration_ms=2_000)
            await leases.release(held)
            assert not await leases.is_held(LEASE)
