"""Whose a session is, and what is kept under a user's name.

No index of its own: tasks are found by an attribute, which the index of tasks and the tasks'
records have. An application sets it when it submits. A host's tasks have none: its sessions are
found by the keys of memories and by the scopes of artifacts, as long as these are kept.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from redis_state.archive.protocol import Archive
from redis_state.erasure.key_owners import long_keys
from redis_state.erasure.memories import delete_memories
from redis_state.erasure.naming import NamedUsers
from redis_state.erasure.walking import FoundKey, KeyWalk, owner_of_memory
from redis_state.errors import StreamUnknown
from redis_state.models.attributes import AttributeValue
from redis_state.models.erasure import ErasureReport
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.index_walk import listed_under
from redis_state.stores.task_index import attribute_list, attributes_of
from redis_state.transport.key_text import escape, is_digest, unescape

_PAGE = 100
_KINDS = ("memory", "oauth-token", "stream", "adk-", "call")
_ADK = ("adk-session", "adk-events", "adk-user", "adk-sessions-of")
_CLASSES = {
    "memory": "memories",
    "oauth-token": "oauth tokens",
    "adk-session": "adk sessions",
    "adk-user": "adk user states",
}


class UserErasure:
    """Find the sessions of one user, and erase what is kept under the user's name."""

    def __init__(self, store: RedisStateStore, user: AttributeValue, attribute: str) -> None:
        self._store = store
        self._user = user
        self._attribute = attribute
        self._name = user if isinstance(user, str) else json.dumps(user)
        # Sessions of the user whose ids nothing says: what stands for each in the names of keys.
        self.unnamed: set[str] = set()
        self._named = NamedUsers(store)

    async def sessions(self, archive: Archive | None) -> Mapping[str, bool]:
        """Return the sessions that are the user's: by a task's attribute, a memory or an artifact.

        Each with whether it is another user's too, as far as the archive, memories and artifacts
        say so: also of a session that Redis alone knows as the user's. Whom a memory or an artifact
        names beside the attribute of a task does not count: a host may say ``anonymous`` there.
        """
        self._named = NamedUsers(self._store)
        await self._named.look()
        if archive is not None:
            await self._named.look_in(archive, self._name)
        listed = await listed_under(
            self._store.base, "a", attribute_list(self._attribute, self._user)
        )
        found = dict.fromkeys((each.session_id for each in listed), False)
        found |= dict.fromkeys(await self._by_records(), False)
        named, others = self._named.of(self._name), self._named.with_others(self._name)
        if archive is not None:
            also = [*found, *named]
            archived = await archive.sessions_of(self._attribute, self._user, also=also)
            # What has another value alone is the user's only by what else names the user.
            found |= archived
        for session_id in named - found.keys():
            found[session_id] = session_id in others
        self.unnamed -= {escape("session_id", each) for each in found}
        return dict(sorted(found.items()))

    async def _by_records(self) -> set[str]:
        """Return the sessions whose tasks' records have the attribute, also what no index lists.

        The name of a key with a long session id is a digest: those the index or the archive names.
        """
        found, commands = set[str](), self._store.transport.commands
        async for page in KeyWalk(self._store).all(["task"]):
            tasks = [each for each in page if each.kind == "task"]
            for start in range(0, len(tasks), _PAGE):
                some = tasks[start : start + _PAGE]
                read = [commands.hget(each.name, "attributes") for each in some]
                for each, data in zip(some, await asyncio.gather(*read), strict=True):
                    with suppress(ValueError):
                        if self._has(attributes_of({"attributes": data or b""})):
                            (self.unnamed if is_digest(each.tag) else found).add(unescape(each.tag))
        return found

    def _has(self, attributes: Mapping[str, object]) -> bool:
        value = attributes.get(self._attribute)
        return (type(value), value) == (type(self._user), self._user)

    async def mixed(self, sessions: Mapping[str, bool]) -> set[str]:
        """Return those of the sessions that have a task with another value of the attribute."""
        found = {each for each, has_other in sessions.items() if has_other}
        for session_id in sessions.keys() - found:
            for task_id in await self._store.tasks.ids(session_id):
                if await self._is_other(session_id, task_id):
                    found.add(session_id)
                    break
        return found

    async def _is_other(self, session_id: str, task_id: str) -> bool:
        record = await self._store.tasks.load_fields(session_id, task_id)
        if record is None:
            return False
        value = attributes_of(record.fields).get(self._attribute, self._user)
        return (type(value), value) != (type(self._user), self._user)

    async def erase(self, report: ErasureReport, *, dry_run: bool) -> None:
        """Erase what is kept under the user's name."""
        if alone := self._named.without_session.get(self._name):
            report.kept["artifacts without a session"] = (
                f"{len(alone)} artifacts name the user and no session: delete them by their ids"
            )
        own = escape("user_id", self._name)
        seen: set[str] = set()
        its: list[FoundKey] = []
        unknown = 0
        async for page in KeyWalk(self._store).all(_KINDS):
            fresh = {key.name: key for key in page if key.name not in seen}
            seen |= fresh.keys()
            await self._erase_streams(await self._created(fresh.values()), report, dry_run=dry_run)
            for key in fresh.values():
                unknown += key.kind == "memory" and is_digest(key.tag)
                if key.kind == "adk-sessions" and not dry_run:
                    await self._leave_adk(key, own)
                if key.kind == "streams-of" and key.tag == own:
                    await self._erase_streams(await self._listed(key), report, dry_run=dry_run)
                    its.append(key)
                elif self._is_own(key, own) and not self._is_counted(key, report):
                    if what := _CLASSES.get(key.kind):
                        report.count(what)
                    its.append(key)
        await self._delete([] if dry_run else its)
        if unknown:
            report.kept |= long_keys(unknown)

    async def _delete(self, keys: Sequence[FoundKey]) -> None:
        await delete_memories(self._store, [key for key in keys if key.kind == "memory"])
        for key in keys:
            await self._store.transport.commands.unlink(key.name)

    def _is_own(self, key: FoundKey, own: str) -> bool:
        if key.kind == "memory":
            owner = owner_of_memory(key.tag)
            return owner is not None and bool(owner.user_id) and owner.user_id == self._name
        if key.kind in ("oauth-token", "call"):
            return key.tag == own
        return key.kind in _ADK and key.rest.partition(":")[0] == own

    def _is_counted(self, key: FoundKey, report: ErasureReport) -> bool:
        """Return whether a memory is of a session that the report counts. It goes with it."""
        owner = owner_of_memory(key.tag) if key.kind == "memory" and report.dry_run else None
        return owner is not None and owner.session_id in report.sessions

    async def _leave_adk(self, index: FoundKey, own: str) -> None:
        members: list[bytes] = await self._store.transport.commands.zrange(index.name, 0, -1)
        its = [member for member in members if member.startswith(f"{own}:".encode())]
        if its:
            await self._store.base.scripts.zrem(index.name, *its)

    async def _created(self, keys: Iterable[FoundKey]) -> dict[str, str]:
        """Return the durable streams that say that the user has created them: path -> id."""
        names = [key.name for key in keys if key.kind == "stream" and not key.rest]
        found: dict[str, str] = {}
        for creator, stream_id in await self._kept_streams(names):
            with suppress(ValueError):
                match codec.decode(creator or b"null"):
                    case [self._name, str(path)]:
                        found[path] = (stream_id or b"").decode()
                    case _:
                        pass
        return found

    async def _listed(self, index: FoundKey) -> dict[str, str]:
        """Return those on the user's list that do not say so: of an earlier version.

        Of the others another user may have created the one that is there now.
        """
        written: list[bytes] = await self._store.transport.commands.zrange(index.name, 0, -1)
        paths = [each.decode("utf-8", "surrogatepass") for each in written]
        keys = self._store.base.keys
        kept = await self._kept_streams([keys.stream(path).info for path in paths])
        return {
            path: stream_id.decode()
            for path, (creator, stream_id) in zip(paths, kept, strict=True)
            if creator is None and stream_id is not None
        }

    async def _kept_streams(self, names: Sequence[str]) -> list[tuple[bytes | None, bytes | None]]:
        """Return of each durable stream its creator and its id; None of one that is no more."""
        found: list[tuple[bytes | None, bytes | None]] = []
        for start in range(0, len(names), _PAGE):
            some = names[start : start + _PAGE]
            read = [
                self._store.transport.commands.hmget(each, "creator", "id", "state")
                for each in some
            ]
            for creator, stream_id, state in await asyncio.gather(*read):
                # A deleted one with forks is a mark without content.
                found.append((None, None) if state == b"deleted" else (creator, stream_id))
        return found

    async def _erase_streams(
        self, ids: Mapping[str, str], report: ErasureReport, *, dry_run: bool
    ) -> None:
        report.count("durable streams", len(ids))
        for path, stream_id in () if dry_run else ids.items():
            # Another user may have made one there meanwhile.
            with suppress(StreamUnknown):
                await self._store.streams.delete(path, stream_id=stream_id)
