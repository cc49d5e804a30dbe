"""What is packed once is what would be packed each time."""

from __future__ import annotations

import asyncio
from itertools import product
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest

from redis_state.errors import CallerError
from redis_state.scripts import SCRIPTS, Fence, LogLimits, Scripts, TaskKeys, topic_bytes
from redis_state.transport.keys import Keys
from redis_state.transport.sending.batch import Call, packed
from redis_state.transport.wire.resp import (
    PreparedScript,
    bulks,
    head_of_digest,
    packed_command,
    prepare,
)

SCRIPT = SCRIPTS["append_log"]


def read(packed: bytes) -> Any:
    reader: Any = hiredis.Reader()
    reader.feed(packed)
    found = reader.gets()
    assert reader.gets() is False
    return found


class Packing:
    """Stands where the sender stands, and packs as it does."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []

    def run(self, prepared: PreparedScript, more: Any, **_: Any) -> asyncio.Future[Any]:
        keys, arguments = len(prepared.keys), len(prepared.arguments) + len(more)
        packed = prepared.packed_keys + prepared.packed_arguments + bulks(more)
        command = read(head_of_digest(prepared.script.digest, keys, arguments) + packed)
        assert command == read_all(*prepared.command(*more))
        self.sent.append(command)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result([b"OK", 1])
        return future


def read_all(*arguments: str | bytes | int) -> list[bytes]:
    return [part if isinstance(part, bytes) else str(part).encode() for part in arguments]


def packing() -> tuple[Packing, Scripts]:
    sender = Packing()
    transport: Any = SimpleNamespace(sender=sender)
    return sender, Scripts(transport)


async def test_appends_that_differ_in_anything_share_nothing() -> None:
    sender, scripts = packing()
    topics = [None, "", "a", "1", "é", "\ud800", "x" * 1000]
    fences = [
        None,
        *(Fence("{s}:lease", epoch, owner) for epoch in (1, 2) for owner in ("o", "p")),
        Fence("{s}:other", 1, "o"),
    ]
    numbers = [(0, 1, True), (1, 1, True), (1, 2, True), (1, 1, False)]
    cases = [*product(["s", "t"], topics, fences, numbers)]
    row = (b"id", b"row")
    for session, topic, fence, (max_rows, ttl_ms, announce) in (*cases, *reversed(cases)):
        log = Keys().updates(session)
        await scripts.append_log(
            log,
            row,
            LogLimits(max_rows, ttl_ms, announce),
            topic=topic,
            fence=fence,
        )
        lease, mark = (fence.lease, fence.mark) if fence else (log.rows, b"")
        keys = (log.rows, log.ids, lease)
        given = (log.channel, mark, topic_bytes(topic), max_rows, ttl_ms, int(announce), *row)
        assert sender.sent[-1][3:] == read_all(*keys, *given)


async def test_saves_that_differ_in_anything_share_nothing() -> None:
    sender, scripts = packing()
    tasks = [
        TaskKeys(name, f"{{s}}:{name[:9]}", "{s}:t", "", "") for name in ("a", "b", "x" * 1000)
    ]
    cases = [*product(tasks, [1, 2], [True, False])]
    values = [b"value-%d" % number for number in range(7)]
    for keys, ttl_ms, finished in (*cases, *reversed(cases)):
        await scripts.save_task(
            keys, values, write="w", ttl_ms=ttl_ms, finished=finished, updated_at_us=5
        )
        given = read_all(keys.task_id, ttl_ms, int(finished), "w", 5)
        assert sender.sent[-1][3:] == [keys.task.encode(), keys.tasks.encode(), *given, *values]


async def test_several_rows_are_written_one_after_the_other() -> None:
    sender, scripts = packing()
    rows = (b"a", b"1", b"b", b"2")
    log = Keys().updates("s")
    await scripts.append_log(log, rows, LogLimits(0, 1, announce=True), topic="t")
    assert sender.sent[-1][-4:] == [b"a", b"1", b"b", b"2"]


@pytest.mark.parametrize("wrong", ["\ud800", None, object()])
def test_what_cannot_be_packed_is_the_caller_s_error(wrong: Any) -> None:
    with pytest.raises(CallerError, match=r"append_log cannot be sent"):
        prepare(SCRIPT, ("key",), (wrong,))


def test_a_question_is_packed_whole() -> None:
    requested = packed_command("HMGET", "key", "a", "é")
    assert requested.command == ("HMGET", "key", "a", "é")
    assert read(requested.packed) == [b"HMGET", b"key", b"a", "é".encode()]


async def test_no_shared_command_has_more_arguments_than_serverless_offers_take() -> None:
    loop, form = asyncio.get_running_loop(), (SCRIPT, 3, 10, None)
    keys, arguments = bulks(("k",) * 3), bulks(("a",) * 10)
    # As many as one confirmation serves.
    calls = [Call(loop, form, keys, arguments, True, False, 1.0) for _ in range(1024)]  # noqa: FBT003
    parts, shares = packed(calls, set(), sharing=True)
    assert sum(shares) == 1024
    reader: Any = hiredis.Reader()
    reader.feed(b"".join(parts))
    sent = [reader.gets() for _ in shares]
    assert [len(each) for each in sent] == [3 + 13 * share for share in shares]
    assert 3_000 < max(map(len, sent)) <= 3_999
