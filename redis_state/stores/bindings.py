"""The bindings of a trace to remote agents."""

from __future__ import annotations

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
        await self._base.records.save(
            keys.binding(binding.trace_id, member),
            {"document": codec.encode(document)},
            ttl_ms=ms(self._base.settings.bindings_ttl),
            place=Place(keys.bindings(binding.trace_id), member),
        )

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

    async def clear(self, trace_id: str) -> None:
        """Delete a trace's bindings."""
        index = self._base.keys.bindings(trace_id)
        for member in await self._base.records.members(index):
            key = self._base.keys.binding(trace_id, member)
            await self._base.records.delete(key, place=Place(index, member))

    def _read(self, record: Stored) -> tuple[int, RemoteBinding]:
        document = as_object(record.fields["document"])
        # A field that the writer's version did not have takes its default.
        known = {name: document[name] for name in self._names if name in document}
        return record.order, self._type(**known)
