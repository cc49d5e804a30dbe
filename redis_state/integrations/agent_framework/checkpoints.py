"""Agent Framework's `CheckpointStorage`: a record for each checkpoint, an index for each workflow.

What it takes and gives is typed `Any` here: its package is not in the environment in which types
are checked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from datetime import datetime
from importlib import import_module
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.primitives.record import new_write_id
from redis_state.scripts import raw
from redis_state.serialization.fields import text
from redis_state.stores.base import ms

_PAGE = 100
_NAMES = ("workflow", "timestamp", "entry")

_theirs: Any = import_module("agent_framework")
_encoding: Any = import_module("agent_framework._workflows._checkpoint_encoding")
_errors: Any = import_module("agent_framework.exceptions")


class RedisStateCheckpointStorage:
    """The checkpoints of workflows, shared by all processes of a namespace.

    A checkpoint lives `snapshots_ttl` after its save, encrypted with the store's `payload_keys`. As
    Agent Framework's own storages do, it unpickles only types that the framework allows and those
    in ``allowed_checkpoint_types``, each as ``module:name``. Ids and names may be any text.
    """

    def __init__(
        self, store: RedisStateStore, *, allowed_checkpoint_types: Iterable[str] = ()
    ) -> None:
        self._of = store.base
        self._ttl_ms = ms(store.settings.snapshots_ttl)
        self._allowed = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: Any) -> str:
        """Save a checkpoint, whole, in place of one with its id, and return its id.

        Each save has its own entry in the list, which comes first and is named by what is saved. So
        what is loaded is listed, and what is listed is loaded, though another deletes it meanwhile
        and wherever this call ends.
        Errors: WorkflowCheckpointException for a type that could not be loaded; nothing was saved
        then.
        """
        given = text("checkpoint_id", checkpoint.checkpoint_id)
        workflow = text("workflow_name", checkpoint.workflow_name)
        try:
            stamp = repr(datetime.fromisoformat(checkpoint.timestamp).timestamp())
        except (TypeError, ValueError):
            raise InvalidField("timestamp", "an ISO 8601 time is needed") from None
        encoded = _encoding.encode_checkpoint_value(checkpoint.to_dict())
        _encoding.decode_checkpoint_value(encoded, allowed_types=self._allowed)
        index, entry = self._of.keys.framework_checkpoints(workflow), new_write_id()
        fields = {
            "workflow": workflow.encode("utf-8", "surrogatepass"),
            "timestamp": stamp.encode(),
            "document": self._of.payloads.write(encoded, field="checkpoint"),
            "entry": entry.encode(),
        }
        key = self._of.keys.framework_checkpoint(given)
        before = self._of.fetch(key, ("workflow", "entry"))
        listed = self._of.record_first(index, f"{entry} {given}", ttl_ms=self._ttl_ms)
        await self._of.records.save(key, fields, ttl_ms=self._ttl_ms)
        await listed
        of, named = await before
        # A read whose reply was lost is asked again, and finds this save then. The entry of an
        # earlier one stays, and lists leave it out.
        if named != fields["entry"]:
            await self._unlist(given, of, named)
        return given

    async def load(self, checkpoint_id: str) -> Any:
        """Return a checkpoint. Errors: WorkflowCheckpointException if there is none."""
        found = await self._read(text("checkpoint_id", checkpoint_id))
        if found is None:
            reason = f"No checkpoint found with ID {checkpoint_id}"
            raise _errors.WorkflowCheckpointException(reason)
        return found

    async def list_checkpoints(self, *, workflow_name: str) -> list[Any]:
        """List a workflow's checkpoints in the order of their last save, read in pages of 100."""
        found: list[Any] = []
        async for names in self._pages(workflow_name):
            read = [await self._read(name) for name in names]
            found += [each for each in read if each is not None]
        return found

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """List the ids of a workflow's checkpoints in the order of their last save."""
        return [name async for names in self._pages(workflow_name) for name in names]

    async def get_latest(self, *, workflow_name: str) -> Any:
        """Return the checkpoint with the latest timestamp, or None.

        It reads the timestamps of all, in pages of 100, and one checkpoint.
        """
        while True:
            latest: tuple[float, str] | None = None
            async for stamped in self._stamped(workflow_name):
                # Of equal ones the first, as in Agent Framework's own storages.
                latest = stamped if latest is None or stamped[0] > latest[0] else latest
            if latest is None:
                return None
            found = await self._read(latest[1])
            # It may be deleted by now, while others are there.
            if found is not None:
                return found

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return whether there was one.

        One that is saved meanwhile stays and is listed, wherever either call ends.
        """
        key = self._of.keys.framework_checkpoint(text("checkpoint_id", checkpoint_id))
        before = await self._of.fetch(key, ("workflow", "entry"))
        deleted = await self._of.records.delete(key)
        # Last: a crash leaves an entry that no checkpoint names. Lists leave it out.
        await self._unlist(checkpoint_id, *before)
        return deleted

    async def _unlist(
        self, checkpoint_id: str, workflow: bytes | None, entry: bytes | None
    ) -> None:
        """Remove the entry of a save that another one replaced, or that is deleted."""
        if workflow is None or entry is None:
            return
        index = self._of.keys.framework_checkpoints(workflow.decode("utf-8", "surrogatepass"))
        member = f"{entry.decode()} {checkpoint_id}"
        expiry = await self._of.scripts.transport.commands.zscore(index, raw(member))
        if expiry is not None:
            await self._of.scripts.unlist_member(index, member=member, expiry=expiry)

    async def _read(self, checkpoint_id: str) -> Any:
        found = await self._of.records.load(self._of.keys.framework_checkpoint(checkpoint_id))
        if found is None:
            return None
        of = f"checkpoint {checkpoint_id!r}"
        data = self._of.payloads.open(found.fields["document"], of=of, field="checkpoint")
        decode = _encoding.decode_checkpoint_value
        value = decode(self._of.payloads.decode(data), allowed_types=self._allowed)
        return _theirs.WorkflowCheckpoint.from_dict(value)

    async def _pages(self, workflow_name: str) -> AsyncGenerator[list[str]]:
        """Yield the ids of checkpoints that are there and are of this workflow, each once."""
        seen: set[str] = set()
        async for page in self._stamped_pages(workflow_name):
            yield [name for _, name in page if name not in seen]
            seen.update(name for _, name in page)

    async def _stamped(self, workflow_name: str) -> AsyncGenerator[tuple[float, str]]:
        async for page in self._stamped_pages(workflow_name):
            for stamped in page:
                yield stamped

    async def _stamped_pages(self, workflow_name: str) -> AsyncGenerator[list[tuple[float, str]]]:
        index = self._of.keys.framework_checkpoints(text("workflow_name", workflow_name))
        name_of = workflow_name.encode("utf-8", "surrogatepass")
        listed: set[str] = set()
        # Those with an entry of a later save: it may be listed behind the last page.
        elsewhere: dict[str, float] = {}
        async for members in self._of.records.pages(index, size=_PAGE):
            entries = [member.partition(" ") for member in members]
            keys = [self._of.keys.framework_checkpoint(name) for _, _, name in entries]
            asked = [self._of.fetch(key, _NAMES) for key in keys]
            found = [(each, await flat) for each, flat in zip(entries, asked, strict=True)]
            page: list[tuple[float, str]] = []
            for (entry, _, name), (of, stamp, named) in found:
                if of != name_of:
                    continue
                if named == entry.encode():
                    page.append((float(stamp), name))
                    listed.add(name)
                else:
                    elsewhere[name] = float(stamp)
            yield page
        yield [(stamp, name) for name, stamp in elsewhere.items() if name not in listed]
