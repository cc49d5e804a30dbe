"""Use one primitive from a process of its own, while others do; print what came of it."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.errors import LeaseLost, LostRace, VersionConflict
from redis_state.primitives.lease import Leases
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.record import Records
from redis_state.primitives.token import Tokens
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from redis_state.transport.transport import Transport

HOUR = 3_600_000
BOUNDS = Bounds(0, HOUR)


async def append(scripts: Scripts, keys: Keys, argument: dict[str, Any]) -> int:
    """Append every row, as all the others do; count those that were new."""
    log = Log(scripts, keys.updates("s"), BOUNDS, announce=True)
    writer = argument["writer"]
    calls = [
        log.append([(row_id.encode(), writer.encode())], topic=row_id[-1])
        for row_id in argument["ids"]
    ]
    return sum(appended.new for appended in await asyncio.gather(*calls))


async def follow(scripts: Scripts, keys: Keys, argument: dict[str, Any]) -> list[str]:
    """Follow the log until its last row; list what was seen."""
    log = Log(scripts, keys.updates("s"), BOUNDS, announce=True)
    seen: list[str] = []
    await log.append([(argument["writer"].encode(), b"")], topic="ready")
    async with aclosing(log.follow(topic=argument["topic"])) as rows:
        async for row in rows:
            if row.id == b"last":
                return seen
            seen.append(row.id.decode())
    raise AssertionError


async def meet(scripts: Scripts, keys: Keys, processes: int, *, timeout_s: float = 30.0) -> None:
    """Wait until so many processes are here, so that they really race."""
    sender, key = scripts.transport.sender, f"{keys.namespace}:v1:{{start}}:start"
    await sender.send("HINCRBY", key, "here", 1, repeatable=False)
    await sender.send("PEXPIRE", key, 3_600_000, repeatable=True)

    async def all_here() -> bool:
        return int(await sender.send("HGET", key, "here", repeatable=True)) >= processes

    await eventually(all_here, "all processes have begun", timeout_s=timeout_s)


async def count(scripts: Scripts, keys: Keys, argument: dict[str, Any]) -> int:
    """Add to one number, so often, against all the others; tell how often a race was lost."""
    await meet(scripts, keys, argument["processes"])
    records = Records(scripts)
    key = keys.memory("counter")
    lost = 0
    for _ in range(argument["times"]):
        while True:
            found = await records.load(key)
            version = found.version if found else 0
            value = int(found.fields["value"]) if found else 0
            fields = {"value": str(value + 1).encode()}
            try:
                await records.save(key, fields, ttl_ms=HOUR, expected=version)
                break
            except VersionConflict:
                lost += 1
    return lost


async def consume(scripts: Scripts, keys: Keys, argument: dict[str, Any]) -> list[str]:
    """Try to consume every token with several claims; list those that were won."""
    tokens = Tokens(scripts, keep_ms=HOUR)
    won: list[str] = []

    async def one(token: str) -> None:
        try:
            assert await tokens.consume(keys.pause(token), actor="me") == token.encode()
        except LostRace:
            return
        won.append(token)

    for token in argument["tokens"]:
        await asyncio.gather(*(one(token) for _ in range(3)))
    return won


async def own(scripts: Scripts, keys: Keys, argument: dict[str, Any]) -> list[int]:
    """Take the lease again and again, write under it, sometimes too late; list the epochs."""
    leases = Leases(scripts, keep_ms=HOUR)
    log = Log(scripts, keys.updates("s"), BOUNDS)
    epochs: list[int] = []
    while len(epochs) < argument["times"]:
        lazy = len(epochs) % 5 == 0
        held = await leases.acquire(keys.lease("s", "t"), duration_ms=1 if lazy else HOUR)
        if held is None:
            continue
        epochs.append(held.epoch)
        for part in range(3):
            row = (f"{held.epoch}-{part}".encode(), b"")
            try:
                await log.append([row], fence=held.fence)
            except LeaseLost:
                break
        await leases.release(held)
    return epochs


async def sweep(scripts: Scripts, keys: Keys, argument: dict[str, Any]) -> list[str]:
    """Claim what is due until nothing is; list it."""
    watch = WatchList(scripts, keys)
    claimed: list[str] = []
    while due := await watch.claim_due(limit=argument["limit"], hold_ms=HOUR):
        claimed += [claim.entry.decode() for claim in due]
    return claimed


async def main(argument: dict[str, Any]) -> Any:
    """Do what the argument says."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    transport = Transport(settings)
    does = {f.__name__: f for f in (append, follow, count, consume, own, sweep)}
    try:
        return await does[argument["does"]](Scripts(transport), Keys(settings.namespace), argument)
    finally:
        await transport.aclose()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
