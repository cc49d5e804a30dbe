"""The bindings of a trace to remote agents, and of a session to conversations with them.

A binding stands with its trace; the session that began it has an index of such bindings in its own
slot. The index is written first and only ever names candidates: what the binding itself says
decides, so a name without a binding, or one that has moved, is harmless.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

from redis_state import codec
from redis_state.models import RemoteBinding
from redis_state.primitives.record import Place, Stored
from redis_state.stores.base import Base, as_object, ms
from redis_state.transport.keys import binding_member


class BindingStore:
    """Save and list remote bindings. One is named by its trace, context and task."""

    def __init__(self, base: Base, binding_type: type[Any] = RemoteBinding) -> None:
        self._base = base
        self._type = binding_type
        self._names = [field.name for field in fields(binding_type)]

    async def save(self, binding: RemoteBinding) -> None:
        """Save a binding; one of the same name is replaced."""
        keys = self._base.keys
        document = {name: getattr(binding, name) for name in self._names}
        member = binding_member(binding.context_id, binding.task_id)
        ttl_ms = ms(self._base.settings.bindings_ttl)
        noted: asyncio.Future[Any] | None = None
        if binding.router_session_id is not None:
            # Not awaited yet: the binding itself must be on its way when this call is made, for
            # calls to take effect in their order. Noted first, it is never there and not found.
            noted = self._base.scripts.begin_note_member(
                keys.conversations(binding.router_session_id),
                member=codec.encode([binding.trace_id, member]).decode(),
                ttl_ms=ttl_ms,
            )
            noted.add_done_callback(_look_at)
        await self._base.records.save(
            keys.binding(binding.trace_id, member),
            {"document": codec.encode(document), "retired": b"%d" % binding.is_terminal},
            ttl_ms=ttl_ms,
            place=Place(keys.bindings(binding.trace_id), member),
        )
        if noted is not None:
            await noted

    async def list_session(self, router_session_id: str) -> list[RemoteBinding]:
        """Return the bindings of a session's conversations, terminal ones too, by first save."""
        base, keys = self._base, self._base.keys
        noted = await base.records.members(keys.conversations(router_session_id))
        pending = [
            (trace_id, member, base.fetch(keys.binding(trace_id, member)))
            for trace_id, member in map(codec.decode, noted)
        ]
        found: list[tuple[int, RemoteBinding]] = []
        for trace_id, member, flat in pending:
            ordered = await base.read_record(trace_id, f"binding {member}", flat, self._read)
            if ordered is not None and ordered[1].router_session_id == router_session_id:
                found.append(ordered)
        return [binding for _, binding in sorted(found, key=lambda pair: pair[0])]

    async def find(
        self,
        router_session_id: str,
        *,
        agent_url: str,
        remote_skill: str,
        tenant_id: str | None,
        user_id: str | None,
    ) -> RemoteBinding | None:
        """Return the newest live binding of these very coordinates; None matches only None.

        The newest is the one first saved last: saving a binding again does not renew it.
        """
        wanted = (agent_url, remote_skill, tenant_id, user_id)
        for binding in reversed(await self.list_session(router_session_id)):
            it = (binding.agent_url, binding.remote_skill, binding.tenant_id, binding.user_id)
            if it == wanted and not binding.is_terminal:
                return binding
        return None

    async def retire(self, trace_id: str, context_id: str | None, task_id: str) -> None:
        """Mark a binding terminal, so that it is never found again. An unknown one is let be."""
        key = self._base.keys.binding(trace_id, binding_member(context_id, task_id))
        ttl_ms = ms(self._base.settings.bindings_ttl)
        await self._base.records.amend(key, {"retired": b"1"}, ttl_ms=ttl_ms)

    async def clear(self, trace_id: str) -> None:
        """Delete a trace's bindings."""
        index = self._base.keys.bindings(trace_id)
        for member in await self._base.records.members(index):
            key = self._base.keys.binding(trace_id, member)
            await self._base.records.delete(key, place=Place(index, member))

    async def list(self, trace_id: str) -> list[RemoteBinding]:
        """Return a trace's bindings in the order of their first save."""
        base, keys = self._base, self._base.keys
        members = await base.records.members(keys.bindings(trace_id))
        pending = [(name, base.fetch(keys.binding(trace_id, name))) for name in members]
        found: list[tuple[int, RemoteBinding]] = []
        for name, flat in pending:
            ordered = await base.read_record(trace_id, f"binding {name}", flat, self._read)
            if ordered is not None:
                found.append(ordered)
        return [binding for _, binding in sorted(found, key=lambda pair: pair[0])]

    def _read(self, record: Stored) -> tuple[int, RemoteBinding]:
        document = as_object(record.fields["document"])
        # A field that the writer's version did not have takes its default.
        known = {name: document[name] for name in self._names if name in document}
        known["is_terminal"] = record.fields.get("retired") == b"1"
        return record.order, self._type(**known)


def _look_at(noted: asyncio.Future[Any]) -> None:
    """Look at what became of it, though the save beside it may have failed first."""
    if not noted.cancelled():
        noted.exception()
