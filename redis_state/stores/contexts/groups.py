"""Groups of a session's tasks: joined while open, sealed once, ended by exactly one caller."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from redis_state import limits
from redis_state.errors import InvalidField, VersionConflict
from redis_state.models.hosts.task_groups import (
    GroupReportStrategy,
    GroupStatus,
    TaskGroup,
    new_group_id,
)
from redis_state.models.session_context import MergeStrategy
from redis_state.primitives.record import Stored, new_write_id
from redis_state.scripts import GroupKeys, Reply, ReplyCode
from redis_state.serialization import codec
from redis_state.serialization.fields import choice, optional_text, text
from redis_state.serialization.rows import as_object
from redis_state.stores.base import Base, ms
from redis_state.stores.optimistic import retry_on_conflict

_REPORTS = ("all", "any", "none")


@dataclass(frozen=True, slots=True)
class GroupStep:
    """How a group stands after a step. ``completed``: this very call, and no other, ended it."""

    status: GroupStatus
    completed: bool


class GroupStore:
    """Open, join, seal and end groups."""

    def __init__(self, base: Base, *, group_type: type[Any] = TaskGroup) -> None:
        self._base = base
        self._type = group_type

    async def open(
        self,
        session_id: str,
        *,
        name: str | None = None,
        turn_id: str | None = None,
        merge_strategy: MergeStrategy = MergeStrategy.APPEND,
        report_strategy: GroupReportStrategy = "all",
        retain_turn: bool = False,
    ) -> TaskGroup:
        """Return the open group of a name and turn, making it if there is none.

        However many processes ask at once, they get one. Without a name it is a new one.
        """
        name = text("name", name if name is not None else f"group_{secrets.token_hex(4)}")
        if report_strategy not in _REPORTS:
            raise InvalidField("report_strategy", f"must be one of {', '.join(_REPORTS)}")
        document = {
            "name": name,
            "merge_strategy": choice("merge_strategy", merge_strategy, MergeStrategy),
            "retain_turn": bool(retain_turn),
            "turn_id": optional_text("turn_id", turn_id),
            "created_at": datetime.now(UTC).isoformat(),
        }
        fields = {
            "status": b"open",
            "report": report_strategy.encode(),
            "document": codec.encode(document),
        }
        known: list[str] = []

        async def attempt() -> TaskGroup:
            keys = self._keys(session_id, new_group_id())
            reply = await self._base.scripts.create_group(
                keys,
                fields,
                alias=_alias(name, turn_id),
                instead_of=known[-1] if known else None,
                write=new_write_id(),
                ttl_ms=ms(self._base.settings.active_task_ttl),
            )
            group = await self.load(session_id, reply.text(0))
            if group is None or group.status != "open":
                # It expired, or was closed just now: its name is free.
                known.append(reply.text(0))
                raise VersionConflict(keys.names, expected="an open group", actual=reply.text(0))
            return group

        return await retry_on_conflict(attempt, timeout_s=self._base.settings.call_timeout_s)

    async def load(self, session_id: str, group_id: str) -> TaskGroup | None:
        """Return a group, or None."""
        flat = self._base.fetch(self._base.keys.group(session_id, group_id))
        read = partial(self._build, session_id, group_id)
        return await self._base.read_record(session_id, f"group {group_id}", flat, read)

    async def list(
        self, session_id: str, *, status: GroupStatus | None = None
    ) -> Sequence[TaskGroup]:
        """Return a session's groups, or those of one status, in the order they were made."""
        keys = self._base.keys
        groups = await self._base.list_ordered(
            session_id,
            "group",
            keys.groups(session_id),
            key_of=partial(keys.group, session_id),
            read=partial(self._build, session_id),
        )
        return [group for group in groups if status is None or group.status == status]

    async def join(self, session_id: str, group_id: str, task_id: str) -> bool:
        """Make a task a member; False if the group is no longer open, or there is none."""
        reply = await self._base.scripts.join_group(
            self._keys(session_id, group_id),
            task_id=text("task_id", task_id),
            write=new_write_id(),
            ttl_ms=ms(self._base.settings.active_task_ttl),
        )
        return reply.word is ReplyCode.OK

    async def seal(
        self, session_id: str, group_id: str, *, idempotency_key: str | None = None
    ) -> GroupStep | None:
        """Close a group to new members; None if it was not open, or does not exist.

        A group whose members have all ended, or that has none, ends at once. The same
        ``idempotency_key`` repeated gets the same answer: name one if you will ask again after a
        crash.
        """
        return await self._close(session_id, group_id, "sealed", idempotency_key)

    async def seal_turn(self, session_id: str, turn_id: str | None) -> dict[str, GroupStep]:
        """Seal the open groups of a turn; return those that this call sealed."""
        sealed: dict[str, GroupStep] = {}
        for group in await self.list(session_id, status="open"):
            if group.turn_id == turn_id:
                step = await self.seal(session_id, group.group_id)
                if step is not None:
                    sealed[group.group_id] = step
        return sealed

    async def finish(
        self,
        session_id: str,
        group_id: str,
        task_id: str,
        *,
        success: bool,
        patch_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> GroupStep | None:
        """Record a member's end, once; the last of a sealed group ends it. None without a group.

        One step: of all callers exactly one learns that it completed the group, and the same
        ``idempotency_key`` repeated learns it again. A group with a failed member fails. Errors:
        InvalidField if the task is no member.
        """
        settings = self._base.settings
        reply = await self._base.scripts.finish_member(
            self._keys(session_id, group_id),
            task_id=text("task_id", task_id),
            outcome="complete" if success else "failed",
            patch_id=optional_text("patch_id", patch_id),
            call=limits.own_id("idempotency_key", idempotency_key) or new_write_id(),
            ttl_ms=ms(settings.active_task_ttl),
            ended_ttl_ms=ms(settings.finished_task_ttl),
        )
        if reply.word is ReplyCode.DENIED:
            raise InvalidField("task_id", "is no member of the group")
        return _step(reply)

    async def cancel(
        self, session_id: str, group_id: str, *, idempotency_key: str | None = None
    ) -> GroupStep | None:
        """End a group as failed; None if it had ended or does not exist. Its tasks continue."""
        return await self._close(session_id, group_id, "failed", idempotency_key)

    async def clear(self, session_id: str) -> None:
        """Delete a session's groups."""
        keys, unlink = self._base.keys, self._base.scripts.unlink
        for group_id in await self._base.records.members(keys.groups(session_id)):
            await unlink(keys.group(session_id, group_id))
        for key in (keys.groups(session_id), keys.group_names(session_id)):
            await unlink(key)

    async def _close(
        self, session_id: str, group_id: str, target: str, idempotency_key: str | None
    ) -> GroupStep | None:
        group = await self.load(session_id, group_id)
        if group is None:
            return None
        settings = self._base.settings
        reply = await self._base.scripts.close_group(
            self._keys(session_id, group_id),
            target=target,
            alias=_alias(group.name, group.turn_id),
            call=limits.own_id("idempotency_key", idempotency_key) or new_write_id(),
            ttl_ms=ms(settings.active_task_ttl),
            ended_ttl_ms=ms(settings.finished_task_ttl),
        )
        return _step(reply)

    def _keys(self, session_id: str, group_id: str) -> GroupKeys:
        keys = self._base.keys
        return GroupKeys(
            group_id=group_id,
            group=keys.group(session_id, group_id),
            groups=keys.groups(session_id),
            names=keys.group_names(session_id),
        )

    def _build(self, session_id: str, group_id: str, record: Stored) -> TaskGroup:
        fields = record.fields
        document = as_object(fields["document"])
        members = [
            (name[1:], *value.decode().split(" "))
            for name, value in fields.items()
            if name.startswith("=")
        ]
        ended = sorted(members, key=lambda member: int(member[3]))
        patches = sorted(
            (int(place), name[1:]) for name, place in fields.items() if name.startswith("+")
        )
        group: TaskGroup = self._type.model_validate(
            {
                **document,
                "created_at": datetime.fromisoformat(document["created_at"]),
                "group_id": group_id,
                "session_id": session_id,
                "status": fields["status"].decode(),
                "report_strategy": fields["report"].decode(),
                "task_ids": [each[0] for each in sorted(members, key=lambda each: int(each[1]))],
                "completed_task_ids": [each[0] for each in ended if each[2] == "complete"],
                "failed_task_ids": [each[0] for each in ended if each[2] == "failed"],
                "sealed_at": _moment(fields.get("sealed")),
                "completed_at": _moment(fields.get("ended")),
                "patches": [patch_id for _, patch_id in patches],
                "report_queued": "reported" in fields,
            }
        )
        return group


def _alias(name: str, turn_id: str | None) -> bytes:
    return codec.canonical([turn_id, name])


def _moment(at_ms: bytes | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(int(at_ms) / 1000, UTC)


def _step(reply: Reply) -> GroupStep | None:
    if reply.word is not ReplyCode.OK:
        return None
    status: Any = reply.text(0)
    return GroupStep(status, completed=bool(reply.facts[1]))
