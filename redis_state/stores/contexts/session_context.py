"""A session's context: what it knows, which version that is, and what tasks brought into it.

Each part is a field of one hash, and so is each task's result: a result comes in without a look at
the others, and one read gives them all as they were at one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from redis_state import limits
from redis_state.errors import InvalidField, VersionConflict
from redis_state.models.session_context import (
    BackgroundTaskResult,
    ContextPatch,
    MergeStrategy,
    PendingContextPatch,
    SessionContext,
    extract_results,
    hash_context,
    read_result,
)
from redis_state.models.version import Version
from redis_state.primitives.record import Stored, new_write_id, read_version
from redis_state.scripts import ReplyCode, raw
from redis_state.serialization import codec
from redis_state.serialization.fields import expected, mapping, text
from redis_state.stores.base import Base, ms
from redis_state.stores.contexts.context_patches import ContextPatches
from redis_state.stores.sessions.updates import UpdateStore

_PARTS = ("llm_context", "tool_context", "memory", "artifacts")


@dataclass(frozen=True, slots=True)
class ContextTypes:
    """The classes a host wants back."""

    session_context: type[Any] = SessionContext
    background_task_result: type[Any] = BackgroundTaskResult
    context_patch: type[Any] = ContextPatch
    pending_context_patch: type[Any] = PendingContextPatch
    merge_strategy: type[Any] = MergeStrategy


class ContextStore(ContextPatches):
    """Load, update and save contexts; apply patches to them, at once or after a decision.

    A context's ``version`` counts its updates, as PenguiFlow's does: a patch does not change it,
    so tasks that started from one version do not make each other diverge. It is a `Version`: the
    number, and the update that gave it.
    """

    def __init__(
        self, base: Base, updates: UpdateStore, *, types: ContextTypes | None = None, decider: str
    ) -> None:
        types = types or ContextTypes()
        super().__init__(
            base,
            updates,
            patch_type=types.context_patch,
            pending_type=types.pending_context_patch,
            strategy_type=types.merge_strategy,
            decider=decider,
        )
        self._types = types

    async def load(self, session_id: str) -> SessionContext | None:
        """Return a session's context and the results in it, all of one moment, or None."""
        found = await self.load_with_writes(session_id)
        return None if found is None else found[0]

    async def load_with_writes(
        self, session_id: str
    ) -> tuple[SessionContext, dict[str, str]] | None:
        """Return a session's context, and by each part's name the write that the part is from.

        A part whose write is the same is the same. The context's ``version`` is of all parts.
        """
        flat = self._base.fetch(self._base.keys.context(session_id))
        return await self._base.read_record(session_id, "context", flat, self._read)

    async def update_context(
        self,
        session_id: str,
        *,
        llm_context: dict[str, Any] | None = None,
        tool_context: dict[str, Any] | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Version, str | None]:
        """Replace one part or both; return the new version and hash. None leaves a part as it is.

        One step. Results that stand in ``llm_context`` are taken out of it and kept as such.
        ``idempotency_key`` is an id of this update: a repeated call does nothing until another
        update comes. Errors: VersionConflict if a version was expected (0: no context, or none
        updated yet). The version of a loaded context is compared with the update that gave it, a
        plain int alone.
        """
        given = {"llm_context": llm_context, "tool_context": tool_context}
        parts = {name: part for name, part in given.items() if part is not None}
        return await self._write(session_id, parts, {}, expected_version, idempotency_key)

    async def save(
        self, session_id: str, context: SessionContext, *, expected_version: int | None = None
    ) -> tuple[Version, str | None]:
        """Replace all parts; return the new version and hash.

        The context's own ``version`` and hash are not looked at: the version is the stored one's
        next, the hash is computed. Results are added to those that are there: one that another
        process brought meanwhile stays. Errors: VersionConflict if a version was expected.
        """
        parts = {name: getattr(context, name) for name in _PARTS}
        results = _checked_results(context.background_results)
        return await self._write(session_id, parts, results, expected_version)

    async def mark_background_consumed(self, session_id: str, *, task_ids: Iterable[str]) -> int:
        """Take tasks' results out of the context; return how many were there."""
        fields = [b"=" + raw(task_id) for task_id in dict.fromkeys(task_ids)]
        if not fields:
            return 0
        context = self._base.keys.context(session_id)
        reply = await self._base.scripts.hdel(context, *fields)
        return int(reply.facts[0])

    async def clear(self, session_id: str) -> None:
        """Delete a session's context and its patches, those that wait or were decided too.

        A call that repeats an earlier patch finds no outcome then: it applies the patch.
        """
        keys, unlink = self._base.keys, self._base.scripts.unlink
        # Of patches that an earlier release has made only those that wait are listed.
        indexes = keys.patches(session_id), keys.kept_patches(session_id)
        listed = [await self._base.records.members(index) for index in indexes]
        for patch_id in dict.fromkeys(chain.from_iterable(listed)):
            await unlink(keys.patch(session_id, patch_id))
        for key in (*indexes, keys.context(session_id)):
            await unlink(key)

    async def _write(
        self,
        session_id: str,
        parts: Mapping[str, Any],
        results: Mapping[str, Any],
        expected_version: int | None,
        idempotency_key: str | None = None,
    ) -> tuple[Version, str | None]:
        wanted = expected("expected_version", expected_version)
        write = limits.own_id("idempotency_key", idempotency_key) or new_write_id()
        content, found = _checked(parts)
        results = {**results, **found}
        # PenguiFlow hashes the empty context too, as soon as anything of it was updated.
        hashed = hash_context(content.get("llm_context", {}))
        reply = await self._base.scripts.update_context(
            self._base.keys.context(session_id),
            {
                **{name: codec.encode(part) for name, part in content.items()},
                **{_write_of(name): raw(write) for name in content},
            },
            results=[
                (raw(text("background_results", task_id)), codec.encode(each))
                for task_id, each in results.items()
            ],
            content_hash=hashed or "",
            hashed="llm_context" in content,
            expected=wanted,
            call=write,
            ttl_ms=ms(self._base.settings.contexts_ttl),
        )
        if reply.word is ReplyCode.STALE:
            key = self._base.keys.context(session_id)
            raise VersionConflict(key, expected=wanted or 0, actual=reply.version)
        return Version(reply.facts[0], write), reply.text(1) or None

    def _read(self, record: Stored) -> tuple[SessionContext, dict[str, str]]:
        fields = record.fields
        results = [(name, value) for name, value in fields.items() if name.startswith("=")]
        ordered = sorted((int(value.split(b" ", 1)[0]), name, value) for name, value in results)
        parts = {name: codec.decode(fields[name]) for name in _PARTS if name in fields}
        context: SessionContext = self._types.session_context(
            **parts,
            background_results={
                name[1:]: self._types.background_task_result(
                    **codec.decode(value.split(b" ", 1)[1])
                )
                for _, name, value in ordered
            },
            version=read_version(fields.get("number"), fields.get("call")),
            context_hash=fields.get("hash", b"").decode() or None,
        )
        # A part that an earlier release wrote has no write: then it is as old as the context.
        last = fields.get("number", b"0")
        writes = {name: fields.get(_write_of(name), last) for name in _PARTS}
        return context, {
            name: write.decode("utf-8", "surrogatepass") for name, write in writes.items()
        }


def _write_of(part: str) -> str:
    """Return the field that holds a part's write id."""
    return f"{part}:write"


def _checked_results(results: Any) -> dict[str, BackgroundTaskResult]:
    """Check the results: nobody could read a context with another thing among them."""
    checked: dict[str, BackgroundTaskResult] = {}
    for task_id, each in mapping("background_results", results).items():
        result = read_result(each)
        if result is None:
            raise InvalidField("background_results", "each must be a BackgroundTaskResult")
        checked[task_id] = result
    return checked


def _checked(parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, BackgroundTaskResult]]:
    """Check the parts and take results out of the ``llm_context``."""
    content: dict[str, Any] = {}
    results: dict[str, BackgroundTaskResult] = {}
    for name, part in parts.items():
        if name == "artifacts":
            if not isinstance(part, list):
                raise InvalidField(name, f"a list is needed, not {type(part).__name__}")
            content[name] = part
            continue
        content[name] = mapping(name, part)
        if name == "llm_context":
            content[name], results = extract_results(content[name])
    return content, results
