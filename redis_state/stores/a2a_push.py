"""Push configurations of A2A tasks: each owner reads its own, who dispatches reads all.

They stand in their owner's slot, so what changes the task changes their life in the same step. Who
dispatches knows the task's id alone: an index by id names the owners. An owner is written there
before its first configuration, for a name without one is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet

from redis_state.errors import InvalidField, InvalidTransition
from redis_state.scripts import ReplyCode
from redis_state.stores.base import Base, ms


class A2AConfigs:
    """Opaque configurations by task, owner's scope and name. One owner's of a task share a key."""

    def __init__(self, base: Base, *, most: int) -> None:
        self._base = base
        self._most = most
        self._ttl_ms = ms(base.settings.active_task_ttl)

    async def put(self, scope: str, task_id: str, name: str, config: bytes) -> None:
        """Keep a configuration; one of the same name is replaced.

        Errors: InvalidField when the task has as many as it may; InvalidTransition for a task that
        was deleted.
        """
        await self._note(scope, task_id)
        keys = self._base.keys
        reply = await self._base.scripts.put_a2a_config(
            keys.a2a_version_configs(scope, task_id),
            keys.a2a_version(scope, task_id),
            name=name,
            config=config,
            most=self._most,
            ttl_ms=self._ttl_ms,
        )
        if reply.word is ReplyCode.DENIED:
            raise InvalidField("push configuration", f"a task may have {self._most}")
        if reply.word is ReplyCode.MISSING:
            raise InvalidTransition(task_id, current="-", wanted="configured")

    async def of_owner(self, scope: str, task_id: str) -> list[bytes]:
        """Return an owner's configurations of a task, in the order they were put."""
        flat = await self._base.fetch(self._base.keys.a2a_version_configs(scope, task_id))
        found: list[tuple[int, bytes]] = []
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            if name:
                number, _, config = value.partition(b" ")
                found.append((int(number), config))
        return [config for _, config in sorted(found)]

    async def of_all(self, task_id: str, *, working: AbstractSet[str]) -> list[bytes]:
        """Return all owners' configurations of a task, each owner's in the order they were put.

        The owners in ``working``, whose task of this id is worked on here, are named for longer.
        """
        commands = self._base.scripts.transport.commands
        index = self._base.keys.a2a_config_scopes(task_id)
        names: list[bytes] = await commands.zrange(index, 0, -1)
        scopes = [name.decode("utf-8", "surrogatepass") for name in names]
        noting = [self._note(scope, task_id) for scope in scopes if scope in working]
        found = await asyncio.gather(*(self.of_owner(scope, task_id) for scope in scopes))
        await asyncio.gather(*noting)
        return [config for configs in found for config in configs]

    async def drop(self, scope: str, task_id: str, name: str | None) -> bool:
        """Delete one of an owner's configurations of a task, or all; return whether any was."""
        reply = await self._base.scripts.drop_a2a_configs(
            self._base.keys.a2a_version_configs(scope, task_id), name=name or ""
        )
        return int(reply.facts[0]) > 0

    async def _note(self, scope: str, task_id: str) -> None:
        await self._base.scripts.note_member(
            self._base.keys.a2a_config_scopes(task_id), member=scope, ttl_ms=self._ttl_ms
        )
