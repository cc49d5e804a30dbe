"""One call of every script of tasks and what belongs to them."""

from __future__ import annotations

from collections.abc import Awaitable

from redis_state.scripts import (
    GatheringKeys,
    IndexedTask,
    KnownTask,
    KnownTasks,
    LaneState,
    Reply,
    Scripts,
)
from redis_state.transport.keys import Keys
from tests.support.script_calls.names import MARK, SESSION, Call
from tests.support.scripts.groups import close, finish, make_group
from tests.support.scripts.keys import (
    group_keys,
    saying,
    task_keys,
)
from tests.support.scripts.replies import HOUR
from tests.support.scripts.tasks import (
    join,
    spawn,
    start,
    task_values,
    wake,
)


def _move(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.move_task(
        task_keys(keys, SESSION),
        {"status": b"COMPLETE"},
        mark=MARK,
        from_states=["RUNNING"],
        release=True,
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "moved", session=SESSION),
    )


def _transition(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.transition_task(
        task_keys(keys, SESSION),
        {"result": b"1"},
        mark=MARK,
        from_phases=["RUNNING"],
        status="COMPLETE",
        phase="COMPLETE",
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "transition", session=SESSION),
    )


def _save_task(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.save_task(
        task_keys(keys, SESSION),
        task_values("PENDING"),
        write="w",
        ttl_ms=HOUR,
        finished=False,
        updated_at_us=1,
    )


def _indexed() -> IndexedTask:
    return IndexedTask(
        entry=b"e",
        status="p",
        version=1,
        write="w",
        ttl_ms=HOUR,
        created=1,
        session=SESSION,
        task="\ud800",
        handler="h",
        attributes=[b"a=1"],
    )


def _retry(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.retry_task(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        children=keys.children(SESSION, "t"),
        expected=1,
        key="\ud800",
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "reopened", session=SESSION),
        dropped=["step:\ud800#1"],
    )


def _fork(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.fork_task(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        source=task_keys(keys, SESSION, "source"),
        steering=keys.steering(SESSION),
        updates=keys.updates(SESSION),
        children=keys.children(SESSION, "t"),
        write="w",
        ttl_ms=HOUR,
        before=1,
        order=1,
        copied=["step:\ud800#1"],
        made={b"entries": b"1"},
    )


def _create_in_turn(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    other = task_keys(keys, SESSION, "other")
    known = KnownTask(other, b"u", b"[]")
    return scripts.create_turn_task(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        steering=keys.steering(SESSION),
        announcement=saying(keys, "made", session=SESSION),
        children=keys.children(SESSION, "t"),
        turn=keys.turn(SESSION),
        line=KnownTasks([known]),
        write="w",
        ttl_ms=HOUR,
        before=1,
        policy="replace",
        delay_ms=0,
        earlier_ms=0,
        life_ms=HOUR,
        ended_ms=HOUR,
        cancelled={"status": b"CANCELLED"},
    )


def _open_gathering(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.open_gathering(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        of=GatheringKeys(keys.gathering(SESSION)),
        steering=keys.steering(SESSION),
        announcement=saying(keys, "made", session=SESSION),
        children=keys.children(SESSION, "t"),
        write="w",
        ttl_ms=HOUR,
        before=1,
        name="b",
        closed="",
        item_id="\ud800",
        item=b"1",
        sent=b"digest",
        after_ms=1,
        latest_ms=1,
        keep_ms=HOUR,
        in_turn=True,
        earlier_ms=0,
        turn=keys.turn(SESSION),
    )


CALLS: dict[str, Call] = {
    "open_gathering": _open_gathering,
    "add_item": lambda scripts, keys: scripts.add_item(
        GatheringKeys(keys.gathering(SESSION)),
        task=keys.task(SESSION, "t"),
        task_id="t",
        name="b",
        item_id="\ud800",
        item=b"1",
        sent=b"digest",
        most=2,
        most_bytes=1,
        after_ms=1,
        keep_ms=HOUR,
    ),
    "create_turn_task": _create_in_turn,
    "keep_turn": lambda scripts, keys: scripts.keep_turn(
        task=keys.task(SESSION, "t"),
        turn=keys.turn(SESSION),
        task_id="\ud800",
        place_ms=1,
        life_ms=HOUR,
    ),
    "settle_turn": lambda scripts, keys: scripts.settle_turn(task=keys.task(SESSION, "t"), order=1),
    "retry_task": _retry,
    "fork_task": _fork,
    "set_attributes": lambda scripts, keys: scripts.set_attributes(
        task_keys(keys, SESSION),
        mark=MARK,
        entry="attributes:set#1",
        attributes=b"{}",
        write="w",
        lane=LaneState("lane:\ud800", b"[]"),
    ),
    "record_running": lambda scripts, keys: scripts.record_running(
        task_keys(keys, SESSION), mark=MARK, steps=b"[]"
    ),
    "index_task": lambda scripts, keys: scripts.index_task(
        keys.task_index(0), _indexed(), rule="new", delay_ms=HOUR, stands="given"
    ),
    "unindex_task": lambda scripts, keys: scripts.unindex_task(
        keys.task_index(0), entry=b"e", stamp="1 w p"
    ),
    "find_tasks": lambda scripts, keys: scripts.find_tasks(
        keys.task_index(0),
        kind="s",
        value=b"\x00\xff",
        statuses="pr",
        newest=True,
        low=b"[",
        high=b"(\xff",
        size=10,
        most=20,
        wanted=[b"hh"],
    ),
    "list_sessions": lambda scripts, keys: scripts.list_sessions(
        keys.task_index(0), after=b"", size=10
    ),
    "count_tasks": lambda scripts, keys: scripts.count_tasks(
        keys.task_index(0), kind="s", statuses="pr", values=[b"\x00", b"b"]
    ),
    "count_ended": lambda scripts, keys: scripts.count_ended(
        keys.task_index(0), statuses="fc", low=b"[", high=b"(\xff"
    ),
    "read_ended": lambda scripts, keys: scripts.read_ended(
        task_keys(keys, SESSION), least_ms=HOUR, hold_ms=HOUR, whole=True
    ),
    "know_archive": lambda scripts, keys: scripts.know_archive(
        keys.archive_known(), id="i", instead=False
    ),
    "mark_archived": lambda scripts, keys: scripts.mark_archived(
        task_keys(keys, SESSION), stamp="1 w"
    ),
    "close_group": lambda scripts, keys: close(scripts, group_keys(keys, "\ud800")),
    "create_group": lambda scripts, keys: make_group(
        scripts, group_keys(keys, "\ud800"), instead_of="\ud800"
    ),
    "finish_member": lambda scripts, keys: finish(
        scripts, group_keys(keys), "\ud800", patch_id="\ud800"
    ),
    "join_group": lambda scripts, keys: scripts.join_group(
        group_keys(keys), task_id="\ud800", write="w", ttl_ms=HOUR
    ),
    "clear_task": lambda scripts, keys: scripts.clear_task(
        task_keys(keys, SESSION), children=keys.children(SESSION, "t"), lease_ms=HOUR
    ),
    "look_task": lambda scripts, keys: scripts.look_task(task_keys(keys, SESSION)),
    "prioritize_task": lambda scripts, keys: scripts.prioritize_task(
        task_keys(keys, SESSION), priority=3, write="w", mark=MARK, expected=2
    ),
    "keep_part": lambda scripts, keys: scripts.keep_part(
        task_keys(keys, SESSION), mark=MARK, entry="step:\ud800#1", number=0, data=b"x"
    ),
    "publish_value": lambda scripts, keys: scripts.publish_value(
        task_keys(keys, SESSION),
        saying(keys, "published", session=SESSION),
        mark=MARK,
        entry="value:\ud800",
        value=b"1",
        most=100,
        lane=LaneState("lane:\ud800", b"[]"),
    ),
    "send_message": lambda scripts, keys: scripts.send_message(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        live="live",
        covered=True,
        box="signal:\ud800",
        message_id="m",
        message=b'"m","s",1]',
        sent=b"digest",
        most=10,
        most_bytes=1000,
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "woken", session=SESSION),
    ),
    "take_message": lambda scripts, keys: scripts.take_message(
        task_keys(keys, SESSION),
        mark=MARK,
        entry="signal:\ud800#1",
        box="signal:\ud800",
        timeout_ms=HOUR,
    ),
    "await_message": lambda scripts, keys: scripts.await_message(
        task_keys(keys, SESSION),
        {"status": b"PAUSED"},
        mark=MARK,
        left_ms=HOUR,
        boxes=b"\0signal:a\0",
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "waits", session=SESSION),
    ),
    "wake_receiver": lambda scripts, keys: scripts.wake_receiver(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "wakes", session=SESSION),
    ),
    "list_values": lambda scripts, keys: scripts.list_values(task_keys(keys, SESSION)),
    "record_entry": lambda scripts, keys: scripts.record_entry(
        task_keys(keys, SESSION), mark=MARK, entry="took:\ud800", value=b"[]"
    ),
    "move_task": _move,
    "record_step": lambda scripts, keys: scripts.record_step(
        task_keys(keys, SESSION),
        mark=MARK,
        entry="step:\ud800#1",
        checkpoint=False,
        chunks=0,
        about=b"[1]",
        result=b"1",
    ),
    "read_journal": lambda scripts, keys: scripts.read_journal(
        task_keys(keys, SESSION), names=[], most_bytes=1 << 20
    ),
    "create_task": lambda scripts, keys: scripts.create_task(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        steering=keys.steering(SESSION),
        announcement=saying(keys, "made", session=SESSION),
        children=keys.children(SESSION, "t"),
        write="w",
        ttl_ms=HOUR,
    ),
    "save_task": _save_task,
    "start_task": lambda scripts, keys: start(scripts, keys, task_keys(keys)),
    "transition_task": _transition,
    "spawn_task": lambda scripts, keys: spawn(scripts, keys, task_keys(keys), mark=MARK),
    "join_task": lambda scripts, keys: join(
        scripts, keys, task_keys(keys), task_keys(keys, task="c"), mark=MARK
    ),
    "wake_task": lambda scripts, keys: wake(
        scripts, keys, task_keys(keys), task_keys(keys, task="c")
    ),
}
