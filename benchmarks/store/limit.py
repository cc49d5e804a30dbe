"""What the server can do at most with the very script of the store."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.measure import Measured
from benchmarks.peers.ours import update
from benchmarks.samples import update_name
from benchmarks.server import BenchServer
from benchmarks.store.prepared import Captured, capture, pump
from redis_state import RedisStateStore
from redis_state.scripts import SCRIPTS

_CLIENTS = 50
_PIPELINE = 16
_RATE = re.compile(rb"([0-9.]+) requests per second")
_OWN = update_name(4_000_000_000).encode()


@dataclass(frozen=True)
class Tool:
    """What drives the server."""

    name: str
    path: str | None


def find_tool() -> Tool:
    """Find the server's own benchmark; the embedded wheel has none, then sockets must do."""
    for name in ("redis-benchmark", "valkey-benchmark"):
        path = shutil.which(name)
        if path is not None:
            return Tool(name, path)
    return Tool("prepared bytes over 8 sockets", None)


def append_command() -> Captured:
    """Return the command that saving an update sends."""

    async def save(store: RedisStateStore) -> None:
        await store.save_update(update(4_000_000_000, "one-session"))

    return capture(save, namespace="limit", reply=[b"OK", 1, 1])


def measure_limit(server: BenchServer, tool: Tool, *, seconds: float) -> Measured:
    """Measure appends, many clients and many commands in each write.

    Errors: RuntimeError if the tool fails.
    """
    count = max(2000, int(seconds * 40_000))
    command = append_command()
    if tool.path is None:
        return pump(server, command, _new_rows(command, count))
    server.redis.script_load(SCRIPTS["append_log"].text)
    # The tool fills in twelve digits, at random: rows that are new, as ours are.
    drawn = [part.replace(_OWN, _OWN[:20] + b"__rand_int__") for part in command.parts]
    how = f"-p {server.port} -c {_CLIENTS} -P {_PIPELINE} -n {count} -r 1000000000 -q"
    ran = subprocess.run(
        [tool.path, *how.split(), *drawn],
        capture_output=True,
        check=False,
    )
    rates: list[bytes] = _RATE.findall(ran.stdout)
    if ran.returncode or not rates:
        raise RuntimeError(f"{tool.name}: {ran.stderr.decode('utf-8', 'replace')[:200]}")
    return Measured(count, count / float(rates[-1]), 0.0, 0.0, 0.0)


def _new_rows(command: Captured, count: int) -> Iterator[bytes]:
    first = time.time_ns()  # no two calls of a run meet the same ids
    for number in range(first, first + count):
        yield command.naming({_OWN: b"%032d" % number})
