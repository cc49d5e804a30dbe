"""One call of every script of logs, streams and traces."""

from __future__ import annotations

from redis_state.scripts import (
    Fence,
    LaneState,
    LogLimits,
)
from tests.support.script_calls.names import MARK, SESSION, Call
from tests.support.scripts.keys import (
    saying,
    task_keys,
    trace_keys,
)
from tests.support.scripts.logs import add_row, append, make_stream
from tests.support.scripts.replies import HOUR

CALLS: dict[str, Call] = {
    "append_log": lambda scripts, keys: append(
        scripts,
        keys.updates(SESSION),
        "a",
        "b",
        topic="t",
        announce=True,
        fence=Fence(keys.lease(SESSION, "t"), 1, "o"),
    ),
    "hold_steering": lambda scripts, keys: scripts.hold_steering(
        keys.steering(SESSION), task=keys.task(SESSION, "t"), spare_ms=HOUR
    ),
    "settle_steering": lambda scripts, keys: scripts.settle_steering(
        keys.steering(SESSION), tasks=keys.tasks(SESSION)
    ),
    "change_log": lambda scripts, keys: scripts.change_log(
        keys.conversation(SESSION),
        LogLimits(9, HOUR, announce=False),
        changes=keys.conversation_changes(SESSION),
        name="\ud800",
        most=9,
        clears=True,
        rows_in=[b"a", b"row"],
        fence=Fence(keys.conversation_lease(SESSION), 1, "o"),
    ),
    "pack_log": lambda scripts, keys: scripts.pack_log(keys.updates(SESSION)),
    "leave_trace": lambda scripts, keys: scripts.leave_trace(
        trace_keys(keys, SESSION),
        session="\ud800",
        keeps=False,
        own=1,
        bindings=[(keys.binding(SESSION, "b"), "b", b"w"), (keys.binding(SESSION, "c"), "c", b"")],
    ),
    "clear_log": lambda scripts, keys: scripts.clear_log(keys.updates(SESSION)),
    "find_row": lambda scripts, keys: scripts.find_row(keys.updates(SESSION), row_id=b"a"),
    "emit_update": lambda scripts, keys: scripts.emit_update(
        task_keys(keys, SESSION),
        saying(keys, "emitted", session=SESSION),
        mark=MARK,
        lane=LaneState("lane:\ud800", b"[]"),
    ),
    "read_log": lambda scripts, keys: scripts.read_log(
        keys.updates(SESSION), after=1, after_ms=0, count=10, topic="t", most_bytes=9
    ),
    "set_aside": lambda scripts, keys: scripts.set_aside(
        keys.unreadable(SESSION), place="row \ud800", note=b"{}", most=1, ttl_ms=HOUR
    ),
    "tail_log": lambda scripts, keys: scripts.tail_log(
        keys.updates(SESSION), after_id=b"a", before=9, count=10, topic="t", most_bytes=9
    ),
    "create_stream": lambda scripts, keys: make_stream(scripts, keys, SESSION),
    "append_stream": lambda scripts, keys: add_row(scripts, keys, path=SESSION, producer="\ud800"),
    "read_stream": lambda scripts, keys: scripts.read_stream(
        keys.stream(SESSION), after="", most_rows=9, most_bytes=9, renew=True
    ),
    "delete_stream": lambda scripts, keys: scripts.delete_stream(
        keys.stream(SESSION), stream_id="id", forks=b"", keep=False
    ),
    "copy_stream": lambda scripts, keys: scripts.copy_stream(
        keys.stream(SESSION),
        stream_id="id",
        hold_ms=HOUR,
        opening=True,
        part=b"",
        data=b"",
        copied=[b"1-1", b"p"],
    ),
    "add_fork": lambda scripts, keys: scripts.add_fork(
        keys.stream(SESSION).info, stream_id="id", fork=b"f \xed\xa0\x80", most=9
    ),
    "claim_stream": lambda scripts, keys: scripts.claim_stream(
        keys.streams_of(SESSION), path="\ud800", ttl_ms=HOUR, most=9, keep_ms=HOUR
    ),
    "release_stream": lambda scripts, keys: scripts.release_stream(
        keys.streams_of(SESSION), path="\ud800", mark="1"
    ),
}
