"""The bindings of a trace to remote agents, and of a session to conversations with them.

A binding stands with its trace; the session that began it has an index of such bindings in its own
slot. The index is written first and only ever names candidates: what the binding itself says
decides, so a name without a binding, or one that has moved, is harmless. The trace notes the
session in the same way, see `TraceStore`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from redis_state.models import RemoteBinding
from redis_state.primitives.record import Place, Stored
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object
from redis_state.stores.base import Base, ms
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
        recorded: list[asyncio.Future[Any]] = []
        if binding.router_session_id is not None:
            session_id, of = binding.router_session_id, binding.trace_id
            conversation = codec.encode([of, member]).decode()
            for index, name in (
                (keys.conversations(session_id), conversation),
                (keys.trace_sessions(of), session_id),
            ):
                recorded.append(self._base.record_first(index, name, ttl_ms=ttl_ms))
        await self._base.records.save(
            keys.binding(binding.trace_id, member),
            {"document": codec.encode(document), "retired": b"%d" % binding.is_terminal},
            ttl_ms=ttl_ms,
            place=Place(keys.bindings(binding.trace_id), member),
        )
        for note in recorded:
            await note

    async def list_session(self, router_session_id: str) -> list[RemoteBinding]:
        """Return the bindings of a session's conversations, terminal ones too, by first save."""
        base, keys = self._base, self._base.keys
        pending = [
            (trace_id, member, base.fetch(keys.binding(trace_id, member)))
            for trace_id, member in await self.conversations(router_session_id)
        ]
        found = await base.read_ordered("binding", pending, self._read)
        return [binding for binding in found if binding.router_session_id == router_session_id]

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
        """Mark a binding as terminal, so that it is not found any more. Ignore an unknown one."""
        key = self._base.keys.binding(trace_id, binding_member(context_id, task_id))
        ttl_ms = ms(self._base.settings.bindings_ttl)
        await self._base.records.amend(key, {"retired": b"1"}, ttl_ms=ttl_ms)

    async def conversations(self, router_session_id: str) -> list[tuple[str, str]]:
        """Return the bindings that a session may have used: their traces, and their names there."""
        index = self._base.keys.conversations(router_session_id)
        return [tuple(codec.decode(name)) for name in await self._base.records.members(index)]

    async def forget(self, router_session_id: str, named: Iterable[tuple[str, str]]) -> None:
        """Take bindings out of those that a session may have used."""
        index = self._base.keys.conversations(router_session_id)
        for conversation in named:
            await self._base.scripts.zrem(index, codec.encode(list(conversation)))

    async def own_first(
        self, trace_id: str, router_session_id: str
    ) -> tuple[int, Sequence[tuple[str, str, bytes]]]:
        """Return a trace's bindings by key, name and last write; a session's own first."""
        base, keys = self._base, self._base.keys
        members = await base.records.members(keys.bindings(trace_id))
        pending = [(name, base.fetch(keys.binding(trace_id, name))) for name in members]
        own: list[tuple[str, str, bytes]] = []
        others: list[tuple[str, str, bytes]] = []
        for name, flat in pending:
            found = await base.read_record(trace_id, f"binding {name}", flat, self._owner)
            owner, write = found or (None, b"")
            of = own if owner == router_session_id else others
            of.append((keys.binding(trace_id, name), name, write))
        return len(own), [*own, *others]

    async def list(self, trace_id: str) -> list[RemoteBinding]:
        """Return a trace's bindings in the order of their first save."""
        keys = self._base.keys
        return await self._base.list_ordered(
            trace_id,
            "binding",
            keys.bindings(trace_id),
            key_of=partial(keys.binding, trace_id),
            read=self._read,
        )

    def _owner(self, record: Stored) -> tuple[str | None, bytes]:
        return self._read("", record).router_session_id, record.fields.get("write", b"")

    def _read(self, _: str, record: Stored) -> RemoteBinding:
        document = as_object(record.fields["document"])
        # A field that the writer's version did not have takes its default.
        known = {name: document[name] for name in self._names if name in document}
        known["is_terminal"] = record.fields.get("retired") == b"1"
        binding: RemoteBinding = self._type(**known)
        return binding
