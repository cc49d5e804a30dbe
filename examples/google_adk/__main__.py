"""Let four clerks serve two conversations at once, kill a fifth, and look at the states."""

from __future__ import annotations

import argparse
import asyncio
import sys

from examples.google_adk.clerk import APP, USER
from redis_state import RedisStateStore
from redis_state.embedded.server import start_embedded
from redis_state.integrations.google_adk import RedisStateSessionService

ITEMS = {"morning": ("tea", "milk"), "evening": ("wine", "bread")}


async def main() -> None:
    """Run the example. Errors: AssertionError if a change of a state was lost."""
    with start_embedded(None) as server:
        async with RedisStateStore.from_url(server.url) as store:
            service = RedisStateSessionService(store)
            for turn in range(2):
                turns = [_turn(server.url, name, of[turn]) for name, of in ITEMS.items()]
                print("; ".join(await asyncio.gather(*turns)))
            await _die(server.url)
            print("a clerk was killed while its model answered")
            print(await _turn(server.url, "morning", "jam"))
            sold = await service.get_user_state(app_name=APP, user_id=USER)
            session = await service.get_session(app_name=APP, user_id=USER, session_id="morning")
            print(f"{len(sold)} things sold to {USER}; {len(session.events)} events this morning")
            if len(sold) != 5 or not {f"app:{name}" for name in sold} <= set(session.state):  # noqa: PLR2004
                raise AssertionError(f"lost: {sold}, {session.state}")


async def _turn(url: str, session_id: str, item: str) -> str:
    process = await _start(url, session_id, item)
    out, _ = await process.communicate()
    if process.returncode:
        raise AssertionError(f"a clerk failed: {process.returncode}")
    return out.decode().strip()


async def _die(url: str) -> None:
    process = await _start(url, "morning", "nothing")
    if process.stdout is not None:
        await process.stdout.readline()
    process.kill()
    await process.wait()


async def _start(url: str, session_id: str, item: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.google_adk.clerk", url, session_id, item),
        stdout=asyncio.subprocess.PIPE,
    )


if __name__ == "__main__":
    argparse.ArgumentParser("python -m examples.google_adk", description=__doc__).parse_args()
    asyncio.run(main())
