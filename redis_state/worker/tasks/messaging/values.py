"""Values that a task publishes under keys, for who watches it or asks for one.

A value stands in the task's journal, so it lives as long as the task. Publishing is one step: the
value, its update, and where the handler stands. A replay passes what an earlier run has published,
by its number among those of its key. The work of a step is not replayed but done again: what it
publishes then stands, whatever an earlier attempt has published.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, TypeVar, cast

from redis_state import limits
from redis_state.errors import BackendError, CorruptState, CursorGap, LimitReached, TaskUnknown
from redis_state.models import StateUpdate, UpdateType
from redis_state.scripts import ReplyCode, TaskKeys, raw
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.timeouts import timeout
from redis_state.worker.tasks.messaging.payloads import check_name, read_payload, write_payload
from redis_state.worker.tasks.move_parts import announcement
from redis_state.worker.tasks.recorded.lanes import Lane
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.views.stream import Updates, put_back

R = TypeVar("R")

MAX_VALUES: Final = 100

_VALUE = "value:"
_CHECK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class PublishedValue:
    """A value of a task: its key, the server's time in ms, and the epoch of the run."""

    key: str
    at_ms: int
    epoch: int
    value: Any = field(repr=False)


class Values:
    """Publish, read and await the values of tasks."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._scripts = store.base.scripts

    async def publish(
        self, started: StartedRun, lane: Lane, key: str, value: Any, *, repeatable: bool
    ) -> None:
        """Publish a value, unless it is one that an earlier run has published.

        ``repeatable`` is for the work of a step, which no replay passes: it is always published.
        Errors: InvalidField; LimitReached; LeaseLost, JournalRewound.
        """
        entry = _VALUE + check_name("key", key)
        data = write_payload("value", value)
        fingerprint = codec.fingerprint(data.decode("utf-8", "replace"))
        repeated = lane.repeats(entry) and not repeatable
        number = lane.emit(entry, fingerprint)
        if repeated or started.replay.rehearsal is not None:
            return
        state = started.state
        run = started.held.epoch if repeatable else 0
        update = StateUpdate(
            session_id=state.session_id,
            task_id=state.task_id,
            trace_id=state.trace_id,
            update_id=codec.fingerprint("value", started.secret, lane.name, entry, number, run),
            update_type=UpdateType.NOTIFICATION,
            content={"notice": "value", "key": key, "value": codec.decode(data)},
        )
        try:
            reply = await self._scripts.publish_value(
                self._keys(state.session_id, state.task_id),
                announcement(self._store, update, run=started.held.epoch),
                mark=started.replay.mark,
                entry=entry,
                value=self._store.base.payloads.seal(data),
                most=MAX_VALUES,
                lane=lane.state(),
            )
        except BackendError:
            lane.failed(entry, fingerprint, number)
            raise
        if reply.word is ReplyCode.FULL:
            lane.refused(entry)
            raise LimitReached("values of the task", limit=MAX_VALUES, code="too many values")
        what = f"task {state.task_id!r}"
        started.replay.learn(reply, 0, f"update:{update.update_id}", what=what)

    async def find(self, session_id: str, task_id: str, key: str) -> PublishedValue | None:
        """Return a value, or None. Errors: InvalidField, CorruptState."""
        entry = raw(_VALUE + check_name("key", key))
        journal = self._keys(session_id, task_id).journal
        found: bytes | None = await self._store.transport.commands.hget(journal, entry)
        return None if found is None else _read(self._store, journal, key, found)

    async def list(self, session_id: str, task_id: str) -> list[PublishedValue]:
        """List the values of a task by key. Errors: CorruptState."""
        keys = self._keys(session_id, task_id)
        flat: list[bytes] = (await self._scripts.list_values(keys)).facts[0]
        named = zip(flat[::2], flat[1::2], strict=True)
        found = [
            _read(
                self._store,
                keys.journal,
                entry.decode("utf-8", "surrogatepass")[len(_VALUE) :],
                value,
            )
            for entry, value in named
        ]
        return sorted(found, key=lambda value: value.key)

    async def value(
        self,
        session_id: str,
        task_id: str,
        key: str,
        *,
        wait: float | None,
        expected: Any,
        default: Any,
    ) -> Any:
        """See `TaskClient.value`."""
        found = await self.find(session_id, task_id, key)
        if found is None and wait is not None:
            find = lambda: self.find(session_id, task_id, key)  # noqa: E731
            wait_s = limits.patience("wait", wait)
            notice = {"notice": "value", "key": key}
            found = await until_found(
                self._store, session_id, task_id, find, notice=notice, wait_s=wait_s
            )
        if found is None:
            return default
        of, field = f"task {task_id!r}", f"value {key!r}"
        self._store.base.payloads.need(found.value, of=of, field=field)
        return read_payload(key, found.value, expected)

    def _keys(self, session_id: str, task_id: str) -> TaskKeys:
        return self._store.tasks.keys(session_id, task_id)


async def until_found(
    store: RedisStateStore,
    session_id: str,
    task_id: str,
    find: Callable[[], Awaitable[R | None]],
    *,
    notice: dict[str, Any],
    wait_s: float,
) -> R | None:
    """Return what ``find`` returns as soon as a task's run has written it.

    None if the task is terminal without it, or after ``wait_s``. It is looked for again after each
    notification that has what ``notice`` has, each change of the task's status, and every few
    seconds. Errors: TaskUnknown, also once the task is deleted.
    """
    ends = monotonic() + wait_s
    while True:
        # The cursor first: what is written after the look then also comes after the cursor.
        cursor = await store.update_cursor(session_id)
        state = await store.tasks.load(session_id, task_id)
        found = await find()
        if found is not None:
            return found
        if state is None:
            raise TaskUnknown(task_id)
        left_s = ends - monotonic()
        if state.status.is_terminal or left_s <= 0:
            return None
        with suppress(CursorGap, TimeoutError):
            async with timeout(min(left_s, _CHECK_EVERY_S)):
                updates = store.watch_updates(session_id, after=cursor, task_id=task_id)
                await _until_announced(updates, notice)
                continue
        await put_back(store, session_id, task_id)


async def _until_announced(updates: Updates, notice: dict[str, Any]) -> None:
    async with aclosing(updates):
        async for entry in updates:
            update = entry.value
            if update.update_type is UpdateType.STATUS_CHANGE:
                return
            announced = update.update_type is UpdateType.NOTIFICATION and _has(
                update.content, notice
            )
            if announced:
                return


def _has(content: Any, parts: Mapping[str, Any]) -> bool:
    return isinstance(content, dict) and parts.items() <= cast("dict[str, Any]", content).items()


def _read(store: RedisStateStore, journal: str, key: str, row: bytes) -> PublishedValue:
    try:
        at_ms, epoch, value = store.base.payloads.unpack(row, 3)
    except ValueError as error:
        raise CorruptState(journal, "a value cannot be read") from error
    return PublishedValue(key, int(at_ms), int(epoch), value)
