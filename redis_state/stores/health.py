"""The health of a store: what its servers say of themselves, and what this process has met."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from redis_state.errors import CommandRefused, RedisStateError
from redis_state.stores.base import Base
from redis_state.transport.transport import Transport


@dataclass(frozen=True, slots=True)
class Health:
    """What the store found out about its server, and about itself in this process.

    ``problem`` is why the server cannot be reached, ``problems`` are settings of it that endanger
    what is stored; ``ok`` is True without either. ``details`` and ``problems`` are empty where the
    user may not run INFO: then the settings are unknown.
    """

    ok: bool
    address: str
    round_trip_ms: float | None
    problem: str | None
    pending_calls: int
    unreadable_rows: int
    stale_task_saves: int
    details: dict[str, str] = field(default_factory=dict[str, str])
    problems: tuple[str, ...] = ()


async def check_health(base: Base, transport: Transport) -> Health:
    """Ask every primary. Does not raise if one is unreachable."""
    started = time.perf_counter()
    problem: str | None = None
    details: dict[str, str] = {}
    problems: list[str] = []
    try:
        for server in await transport.each_primary():
            info: bytes = await server.info()
            stated = _read_info(info.decode("utf-8", "replace"))
            problems += [each for each in _problems_of(stated) if each not in problems]
            details = details or stated
    except CommandRefused:
        pass  # the server replies; this user may not read INFO
    except RedisStateError as error:
        problem = str(error)
    took_ms = round((time.perf_counter() - started) * 1000, 3)
    counters = base.counters
    return Health(
        ok=problem is None and not problems,
        address=str(transport.address),
        round_trip_ms=None if problem else took_ms,
        problem=problem,
        pending_calls=transport.sender.pending,
        unreadable_rows=counters.unreadable_rows,
        stale_task_saves=counters.stale_task_saves,
        details=details,
        problems=tuple(problems),
    )


_INFO = {
    "redis_version",
    "valkey_version",
    "server_name",
    "redis_mode",
    "role",
    "used_memory",
    "maxmemory",
    "maxmemory_policy",
    "aof_enabled",
    "aof_last_write_status",
    "connected_clients",
    "uptime_in_seconds",
}


def _read_info(text: str) -> dict[str, str]:
    pairs = (line.partition(":")[::2] for line in text.splitlines() if ":" in line)
    return {name: value for name, value in pairs if name in _INFO}


def _problems_of(details: Mapping[str, str]) -> tuple[str, ...]:
    """Return the server settings that endanger stored data."""
    policy = details.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ()
    effect = "once memory is full, the server evicts tasks and state without an error"
    return (f"maxmemory-policy is {policy}: {effect}; set it to noeviction",)
