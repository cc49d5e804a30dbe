"""The plain pool: the same store and scripts, with redis-py's pool in the sender's place."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from benchmarks.measure import Operation
from benchmarks.peers import ours
from benchmarks.peers.plain import connect
from redis_state import RedisStateStore, scripts
from redis_state.transport.transport import Transport
from redis_state.transport.wire.resp import Argument, PackedCommand, PreparedScript


class _Pool:
    """Sends each command over a connection of the pool's."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis

    def run(
        self, prepared: PreparedScript, more: tuple[Argument, ...], **options: bool
    ) -> Awaitable[Any]:
        """Do what the sender does, one call of a script at a time."""
        return self.send(*prepared.command(*more), **options)

    def ask(self, question: PackedCommand) -> Awaitable[Any]:
        """Do what the sender does, one command that reads at a time."""
        return self.send(*question.command)

    def send(self, *command: Argument, **_: bool) -> Awaitable[Any]:
        """Do what the sender does, one command at a time."""
        # As redis-py's own helpers parse replies, but without its turning them into other types.
        sent: Awaitable[Any] = self._redis.execute_command(*command, NEVER_DECODE=True)
        return sent


async def prepare(url: str) -> dict[str, Operation]:
    """Give the operations on a store that sends through a pool."""
    redis = connect(url)
    redis.response_callbacks.clear()
    for script in scripts.SCRIPTS.values():
        await redis.script_load(script.text)
    pool = _Pool(redis)
    setattr(Transport, "sender", property(lambda _: pool))  # noqa: B010 - a property
    return ours.operations(RedisStateStore.from_url(url, namespace="pool"))
