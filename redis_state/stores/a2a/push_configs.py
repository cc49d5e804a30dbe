"""Push configurations of A2A tasks: each scope reads its own, a dispatcher reads all.

They share the slot of their task, so what changes the task changes their lifetime in the same step.
A dispatcher knows the task's id alone: an index by id names the scopes. A scope is written there
before its first configuration, because a name without a configuration is harmless.
"""

from __future__ import annotations

import asyncio
import builtins

from redis_state.errors import InvalidField, InvalidTransition
from redis_state.scripts import ReplyCode
from redis_state.stores.base import Base
from redis_state.transport.keys import a2a_keys


class PushConfigs:
    """Opaque configurations by task, scope and name. One scope's of a task share a key."""

    def __init__(self, base: Base, *, most: int, ttl_ms: int) -> None:
        self._base = base
        self._most = most
        self._ttl_ms = ttl_ms

    async def put(self, scope: str, task_id: str, name: str, config: bytes) -> None:
        """Keep a configuration that a dispatcher finds, also before there is a task.

        One of the same name is replaced. Errors: InvalidField when the task has as many as it may;
        InvalidTransition for a task that was deleted.
        """
        await self._index(scope, task_id)
        if not await self._put(scope, task_id, name, config, self._ttl_ms):
            raise InvalidTransition(task_id, current="-", wanted="configured")

    async def put_on_task(self, scope: str, task_id: str, name: str, config: bytes) -> bool:
        """Keep a configuration of a task that is there; return False if it is not."""
        return await self._put(scope, task_id, name, config, 0)

    async def _put(self, scope: str, task_id: str, name: str, config: bytes, ttl_ms: int) -> bool:
        reply = await self._base.scripts.put_a2a_config(
            a2a_keys(self._base.keys, scope, task_id),
            name=name,
            config=config,
            most=self._most,
            ttl_ms=ttl_ms,
        )
        if reply.word is ReplyCode.DENIED:
            raise InvalidField("push configuration", f"a task may have {self._most}")
        return reply.word is ReplyCode.OK

    async def list(self, scope: str, task_id: str) -> dict[str, bytes]:
        """Return a scope's configurations of a task by name, in the order they were put."""
        flat = await self._base.fetch(self._base.keys.a2a_configs(scope, task_id))
        found: builtins.list[tuple[int, str, bytes]] = []
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            if name:
                number, _, config = value.partition(b" ")
                found.append((int(number), name.decode("utf-8", "surrogatepass"), config))
        return {name: config for _, name, config in sorted(found)}

    async def list_all(self, task_id: str) -> builtins.list[bytes]:
        """Return all scopes' configurations of a task, each scope's in the order they were put.

        Scopes that have any stay listed for longer: a dispatch is of a task that still changes.
        """
        commands = self._base.scripts.transport.commands
        index = self._base.keys.a2a_config_scopes(task_id)
        names: builtins.list[bytes] = await commands.zrange(index, 0, -1)
        scopes = [name.decode("utf-8", "surrogatepass") for name in names]
        found = await asyncio.gather(*(self.list(scope, task_id) for scope in scopes))
        having = [scope for scope, configs in zip(scopes, found, strict=True) if configs]
        await asyncio.gather(*(self._index(scope, task_id) for scope in having))
        return [config for configs in found for config in configs.values()]

    async def drop(self, scope: str, task_id: str, name: str | None) -> bool:
        """Delete one of a scope's configurations of a task, or all; return whether any was."""
        reply = await self._base.scripts.drop_a2a_configs(
            a2a_keys(self._base.keys, scope, task_id), name=name or ""
        )
        return int(reply.facts[0]) > 0

    async def _index(self, scope: str, task_id: str) -> None:
        await self._base.scripts.add_member(
            self._base.keys.a2a_config_scopes(task_id), member=scope, ttl_ms=self._ttl_ms
        )
