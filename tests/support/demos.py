"""The demonstrations as their user runs them: processes that start workers themselves."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis_state import RedisStateStore
from redis_state.testing import eventually
from tests.support.processes import children, forkserver
from tests.support.processes.forkserver import ForkedProcess
from tests.support.servers.faults import PROCESSES, importing
from tests.support.servers.sets.nodes import keys_like


@dataclass
class Ran:
    """What a demonstration printed and how it ended."""

    status: int
    out: str
    err: str

    @property
    def outcome(self) -> dict[str, Any]:
        """What ``--json`` printed."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def workers(self) -> list[int]:
        """The ids of its workers."""
        return workers_in(self.err)


def workers_in(stated: str) -> list[int]:
    """List the ids of the workers that a demonstration names."""
    return [int(pid) for pid in re.findall(r":(\d+)(?=,|\n| in its)", stated)]


async def start(
    folder: Path,
    module: str,
    *arguments: str,
    stdin: bool = False,
    workers_forked: bool = True,
    **environment: str,
) -> ForkedProcess:
    """Start a demonstration, which starts its workers: forked, or as it does for its user."""
    hidden = {"REDIS_STATE_URL", "REDIS_STATE_QUEUE_URL"}
    kept = {name: value for name, value in importing().items() if name not in hidden}
    command = (PROCESSES / "forking.py", module) if workers_forked else ("-m", module)
    return await forkserver.start(
        *(*command, *arguments), environment={**kept, **environment}, folder=folder, stdin=stdin
    )


async def end(process: ForkedProcess, answers: str = "") -> Ran:
    """Give a demonstration its answers and wait for its end."""
    async with asyncio.timeout(60):
        out, err = await process.communicate(answers.encode())
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


async def stated_until(process: ForkedProcess, word: str) -> str:
    """Read what a demonstration states until a word comes."""
    stated = ""
    async with asyncio.timeout(60):
        while word not in stated:
            stated += (await process.stderr.readline()).decode()
    return stated


async def stopped(process: ForkedProcess, how: signal.Signals, stated: str) -> None:
    """Send a signal; check that the demonstration ends quietly, and all its workers with it."""
    process.send_signal(how)
    async with asyncio.timeout(60):
        await process.wait()
        stated += (await process.stderr.read()).decode()
    await are_gone(workers_in(stated))
    assert process.returncode == (-9 if how is signal.SIGKILL else 130)
    assert "Traceback" not in stated
    await children.end(process)


async def are_gone(pids: list[int]) -> None:
    """Wait until none of the processes is left."""
    await eventually(lambda: not any(map(_alive, pids)), f"{pids} are gone", timeout_s=60)


async def without_lifetime(store: RedisStateStore) -> set[str]:
    """List the keys on a store's server that never expire."""
    send = store.transport.sender.send
    keys = await keys_like(store.transport, "*")
    lives = [await send("PTTL", key, repeatable=True) for key in keys]
    return {key.decode() for key, life in zip(keys, lives, strict=True) if life == -1}


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
