"""Push configurations of A2A tasks: each owner reads its own, who dispatches reads all.

They are in a slot of their own, since who dispatches knows the task's id alone. So their life
follows the task's a step later: whoever writes the task sees to it.
"""

from __future__ import annotations

from redis_state.errors import InvalidField
from redis_state.stores.base import Base, ms
from redis_state.transport.scripts import Word, raw


class A2AConfigs:
    """Opaque configurations by task, owner's scope and name. One task's share a key."""

    def __init__(self, base: Base, *, most: int) -> None:
        self._base = base
        self._most = most
        self._ttl_ms = ms(base.settings.active_task_ttl)

    async def put(self, scope: str, task_id: str, name: str, config: bytes) -> None:
        """Keep a configuration; one of the same name is replaced.

        Errors: InvalidField when the task has as many as it may.
        """
        reply = await self._base.scripts.put_a2a_config(
            self._base.keys.a2a_configs(task_id),
            name=_name(scope, name),
            config=config,
            most=self._most,
            ttl_ms=self._ttl_ms,
        )
        if reply.word is Word.DENIED:
            raise InvalidField("push configuration", f"a task may have {self._most}")

    async def of_owner(self, scope: str, task_id: str) -> list[bytes]:
        """Return an owner's configurations of a task, in the order they were put."""
        return await self._read(task_id, _name(scope, ""))

    async def of_all(self, task_id: str, *, working: bool) -> list[bytes]:
        """Return all owners' configurations of a task; keep those of one in work longer."""
        if working:
            await self.live(task_id, self._ttl_ms)
        return await self._read(task_id, b"")

    async def live(self, task_id: str, ttl_ms: int) -> None:
        """Let a task's configurations live so long from now."""
        key = self._base.keys.a2a_configs(task_id)
        sender = self._base.scripts.transport.sender
        await sender.send("PEXPIRE", key, ttl_ms, repeatable=True)

    async def drop(self, scope: str, task_id: str, name: str | None) -> bool:
        """Delete one of an owner's configurations of a task, or all; tell whether there was any."""
        reply = await self._base.scripts.drop_a2a_configs(
            self._base.keys.a2a_configs(task_id),
            owner=_name(scope, ""),
            name=b"" if name is None else _name(scope, name),
        )
        return int(reply.facts[0]) > 0

    async def _read(self, task_id: str, begin: bytes) -> list[bytes]:
        flat = await self._base.fetch(self._base.keys.a2a_configs(task_id))
        found: list[tuple[int, bytes]] = []
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            if name and name.startswith(begin):
                number, _, config = value.partition(b" ")
                found.append((int(number), config))
        return [config for _, config in sorted(found)]


def _name(scope: str, name: str) -> bytes:
    # A scope holds no space, so no owner's names begin with another's.
    return f"{scope} ".encode() + raw(name)
