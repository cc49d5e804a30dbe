"""Do one process's part of many mixed operations, then try every pause; print those won."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from tests.processes.stores.use_primitives import meet
from tests.support.hosts import open_host
from tests.support.operations import draw, perform

AT_ONCE = 64
LATEST_S = 240.0  # others may be busy on this machine


async def main(argument: dict[str, Any]) -> list[int]:
    """Do what is drawn for ``argument["worker"]``, so many calls at once, in call order."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    drawn = draw(argument["seed"], **argument["size"])
    mine = [each for each in drawn if each.worker == argument["worker"]]
    async with open_host(argument["kind"], settings) as host:
        scripts, keys = host.store.base.scripts, host.store.base.keys
        processes = argument["size"]["workers"]
        await meet(scripts, keys, processes, timeout_s=LATEST_S)
        try:
            for start in range(0, len(mine), AT_ONCE):
                calls = (perform(host, each) for each in mine[start : start + AT_ONCE])
                await asyncio.gather(*calls)
        finally:
            # Also if it failed, so that the others need not wait for it.
            await meet(scripts, keys, 2 * processes, timeout_s=LATEST_S)
        won: list[int] = []
        for each in drawn:
            if each.kind == "pause":
                state = await host.store.load_planner_state(f"token {each.n}")
                if state is not None:
                    assert state == {"n": each.n}
                    won.append(each.n)
        return won


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
