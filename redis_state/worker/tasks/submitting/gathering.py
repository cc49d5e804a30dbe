"""Debounce and batch: a task whose input is open until it begins.

    the first item     writes the task, which is due after a while, and opens its input
    a later item       is added to the input in one step, as long as the task has not begun
    the task's start   closes the input: an item is added to a PENDING task only
    an item after it   writes the next task

What is open is in the session's slot, like the task. So an item is in one task, or in none if the
call failed. A batch that is full is due at once. With debounce the task has only the last item, and
each item puts the task off, up to a longest wait. The queue learns of the time in a call behind it:
after a crash in between the task begins at the time that was set before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.models import TaskStatus
from redis_state.models.tasks import new_id
from redis_state.primitives.sent import SentContent
from redis_state.scripts import GatheringKeys, Reply, ReplyCode, topic_text
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.worker.queue.jobs.job import seniority_ms
from redis_state.worker.tasks.new_tasks import NewTask
from redis_state.worker.tasks.recorded.inputs import Gathers

MOST_ITEMS = 1_000
# Of one item, and of all items of a task.
MOST_ITEM_BYTES = 1 << 20
MOST_BYTES = 4 << 20
_LONGEST_WAIT = timedelta(days=1)
_LONGEST_ID = 200
# How often longer than its wait a debounced task is put off at most, unless that is given.
_AT_MOST = 10


@dataclass(slots=True)
class Gathered:
    """An item, and the task whose input it becomes a part of.

    ``task_id`` is known once it is added, and when that task is due.
    """

    store: RedisStateStore
    kind: Gathers
    session_id: str
    handler: str
    group: str
    item: bytes = field(repr=False)
    item_id: str
    sent: SentContent | None
    wait_ms: int
    latest_ms: int
    most: int | None
    priority: int = 0
    in_turn: bool = False
    task_id: str | None = None
    due_ms: int = 0
    full: bool = False
    closed: str = ""

    @property
    def name(self) -> str:
        """Return the name of what is gathered: items of the same name go into one task."""
        return self.kind.value + codec.fingerprint(self.handler, self.group)

    @property
    def keys(self) -> GatheringKeys:
        """Return the keys of what the session gathers."""
        return GatheringKeys(self.store.base.keys.gathering(self.session_id))

    @property
    def keep_ms(self) -> int:
        """Return how long an item is remembered."""
        return self.store.tasks.ttl_ms(TaskStatus.PENDING.value) + self.latest_ms

    @property
    def kept(self) -> bytes:
        """Return what is kept of an item whose id its caller has chosen."""
        return b"" if self.sent is None else self.sent.kept

    async def add(self) -> bool:
        """Add the item to the task whose input is open; return whether it is in one now."""
        while True:
            found: bytes | None = await self.store.transport.commands.hget(
                self.keys.gathering, self.name
            )
            if found is None:
                self.closed = ""
                return False
            self.closed = topic_text(found) or ""
            reply = await self.store.base.scripts.add_item(
                self.keys,
                task=self.store.base.keys.task(self.session_id, self.closed),
                task_id=self.closed,
                name=self.name,
                item_id=self.item_id,
                item=self.item,
                sent=self.kept,
                most=self.most,
                most_bytes=MOST_BYTES,
                after_ms=self.wait_ms,
                keep_ms=self.keep_ms,
            )
            if reply.word is not ReplyCode.AGAIN:
                return self._added(reply)

    async def __call__(self, new: NewTask, before_ms: int) -> Reply:
        """Write a task with the item, if no other one was opened meanwhile."""
        base = self.store.base
        reply = await base.scripts.open_gathering(
            new.keys,
            new.fields,
            of=self.keys,
            steering=self.store.steering.keys(new.session_id),
            announcement=new.announcement,
            children=base.keys.children(new.session_id, new.keys.task_id),
            write=new.write,
            ttl_ms=new.ttl_ms,
            before=before_ms,
            name=self.name,
            closed=self.closed,
            item_id=self.item_id,
            item=self.item,
            sent=self.kept,
            after_ms=0 if self.most == 1 else self.wait_ms,
            latest_ms=self.latest_ms,
            keep_ms=self.keep_ms,
            in_turn=self.in_turn,
            earlier_ms=seniority_ms(self.priority),
            turn=base.keys.turn(new.session_id) if self.in_turn else None,
        )
        if reply.word is ReplyCode.OK:
            self.task_id, self.due_ms = new.keys.task_id, int(reply.facts[1])
        elif reply.word is ReplyCode.HELD:
            self._found(reply)
        return reply

    def _found(self, reply: Reply) -> None:
        if self.sent is not None:
            self.sent.check_kept(reply.facts[1])
        self.task_id = topic_text(reply.facts[0])

    def _added(self, reply: Reply) -> bool:
        match reply.word:
            case ReplyCode.OK:
                self.task_id = self.closed
                self.due_ms, self.full = int(reply.facts[0]), bool(reply.facts[1])
            case ReplyCode.HELD:
                self._found(reply)
            case ReplyCode.FULL:
                self.due_ms, self.full = int(reply.facts[0]), True
            case _:
                self.due_ms, self.full = 0, False
        return self.task_id is not None


def batched(
    store: RedisStateStore,
    handler: str,
    item: Any,
    *,
    session_id: str,
    group: str,
    after: timedelta,
    most: int,
    item_id: str | None,
    **options: Any,
) -> Gathered:
    """Check what a caller gave of an item of a batch. Errors: InvalidField."""
    after_ms = _wait_ms("after", after)
    if limits.count("most", most) > MOST_ITEMS:
        raise InvalidField("most", f"is above {MOST_ITEMS}")
    return Gathered(
        store,
        Gathers.BATCH,
        session_id,
        limits.name("handler", handler),
        _group(group),
        _item(store, "item", item),
        new_id() if item_id is None else _item_id(item_id),
        None if item_id is None else SentContent.of(store.base.payloads, "item", item),
        after_ms,
        after_ms,
        most,
        **options,
    )


def debounced(
    store: RedisStateStore,
    handler: str,
    task_input: Any,
    *,
    session_id: str,
    group: str,
    wait: timedelta,
    at_most: timedelta | None,
    **options: Any,
) -> Gathered:
    """Check what a caller gave of a debounced task. Errors: InvalidField."""
    wait_ms = _wait_ms("wait", wait)
    latest_ms = _wait_ms(
        "at_most", min(_AT_MOST * wait, _LONGEST_WAIT) if at_most is None else at_most
    )
    if latest_ms < wait_ms:
        raise InvalidField("at_most", "is shorter than the wait")
    return Gathered(
        store,
        Gathers.DEBOUNCE,
        session_id,
        limits.name("handler", handler),
        _group(group),
        _item(store, "task_input", task_input),
        "",
        None,
        wait_ms,
        latest_ms,
        None,
        **options,
    )


def _wait_ms(name: str, value: Any) -> int:
    if not isinstance(value, timedelta) or not timedelta(milliseconds=1) <= value <= _LONGEST_WAIT:
        raise InvalidField(name, "needs a timedelta from a millisecond to a day")
    return ms(value)


def _group(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidField("group", f"text is needed, not {type(value).__name__}")
    return value


def _item_id(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_ID:
        raise InvalidField("item_id", f"text of 1 to {_LONGEST_ID} signs is needed")
    return value


def _item(store: RedisStateStore, name: str, value: Any) -> bytes:
    written = codec.encode(value)
    if len(written) > MOST_ITEM_BYTES:
        raise InvalidField(name, f"has {len(written)} bytes, {MOST_ITEM_BYTES} are allowed")
    store.base.payloads.check_size(name, len(written))
    return store.base.payloads.seal(written)
