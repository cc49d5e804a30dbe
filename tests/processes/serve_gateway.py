"""A server, a pool and a gateway for tests in another language.

It prints one line of JSON: where the gateway is, and tokens. Then it reads commands, a line each,
and answers each with a line: ``cut`` aborts all connections, ``down`` refuses new ones as well,
``up`` takes them again, ``rows N SESSION`` publishes N updates of a session and its task t. The
answer to ``token`` has one that expires in two seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

from redis_state import Settings
from redis_state.gateway import create_gateway
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing.pool import Pool
from redis_state.worker import AgentWorker
from tests.support.http.asgi_servers import serving_asgi
from tests.support.http.gateway import HANDLERS, tokens
from tests.support.http.http_gateway import EVERYTHING, url_of
from tests.support.servers.faults import Proxy

# A row beyond these is gone: a client that comes late hears of it.
_MOST_ROWS = 40
_SHORT = timedelta(seconds=2)


async def main() -> None:
    """Serve until there are no more commands."""
    worker = AgentWorker(HANDLERS, settings=Settings(max_updates_per_session=_MOST_ROWS))
    async with Pool(worker) as pool:
        app = create_gateway(pool.store, auth=tokens)
        async with (
            serving_asgi(app, stop=app.end_streams) as port,
            Proxy(f"redis://127.0.0.1:{port}") as proxy,
        ):
            _say(
                url=url_of(proxy),
                token=tokens.mint("root", EVERYTHING),
                ann=tokens.mint("ann", ["resolve:tag:finance"]),
            )
            published: Counter[str] = Counter()
            async for command in _commands():
                name, *more = command.split(" ")
                if name == "rows":
                    count, session = int(more[0]), more[1]
                    for number in range(published[session], published[session] + count):
                        await pool.store.save_update(_update(session, number))
                    published[session] += count
                elif name != "token":
                    proxy.refuse(refusing=name == "down")
                    if name != "up":
                        proxy.cut()
                _say(done=command, token=tokens.mint("root", EVERYTHING, ttl=_SHORT))
        await app.aclose()


def _update(session_id: str, number: int) -> StateUpdate:
    return StateUpdate(
        session_id=session_id,
        task_id="t",
        update_type=UpdateType.PROGRESS,
        content={"n": number, "text": "é\N{SNOWMAN}"},
    )


async def _commands() -> AsyncIterator[str]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.strip()


def _say(**facts: str) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
