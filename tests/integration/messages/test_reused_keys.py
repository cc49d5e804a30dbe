"""One key, another content: refused where a caller chooses the key. The same again is as before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from redis_state import KeyReused, RedisStateStore
from redis_state.models import SteeringEvent, SteeringEventType
from redis_state.serialization import codec
from redis_state.worker import TaskClient
from tests.support.payloads import KEYS, dump, opened
from tests.support.processes.pools import SESSION, client_of
from tests.support.tasks.runs import TASK, make

LATER = timedelta(hours=1)
NOTE = SteeringEventType.USER_MESSAGE

Send = Callable[[TaskClient, Any], Awaitable[Any]]
SENT: dict[str, Send] = {
    "signal": lambda client, content: client.signal(
        SESSION, TASK, "n", content, idempotency_key="k"
    ),
    "event": lambda client, content: client.steer(
        SESSION, TASK, NOTE, {"text": content}, event_id="k"
    ),
    "cancel": lambda client, content: client.cancel(
        SESSION, "other", reason=content, idempotency_key="k"
    ),
    "item": lambda client, content: client.batch(
        "h", content, session_id=SESSION, after=LATER, item_id="k"
    ),
}


@pytest.mark.parametrize("is_sealed", [False, True], ids=["clear", "sealed"])
@pytest.mark.parametrize("what", SENT)
@pytest.mark.role("any", why="it reads the names of all keys")
async def test_another_content_under_a_key_is_refused(
    store: RedisStateStore, what: str, *, is_sealed: bool
) -> None:
    send = SENT[what]
    await make(store)
    await make(store, "other")
    keys = KEYS[: int(is_sealed)]
    async with opened(store.settings, *keys) as first, client_of(first) as client:
        answered = _known(await send(client, "stop, please"))
        before = await dump(store)
        assert _known(await send(client, "stop, please")) == answered
        with pytest.raises(KeyReused) as reused:
            await send(client, "no, go on")
        assert "go on" not in str(reused.value)
        after = await dump(store)
        # Replies are kept for a minute, in case a call is repeated.
        assert {each for each in after.keys() - before.keys() if ":call:" not in each} == set()
        assert b"go on" not in b"".join(after.values())
        # A digest of a short text gives it away if all that it may be are tried.
        digests = [codec.fingerprint(*parts, "stop, please")[:10] for parts in ((), ("signal",))]
        found = [digest for digest in digests if digest.encode() in b"".join(after.values())]
        assert len(found) == (not is_sealed and what in ("signal", "item"))
    if is_sealed:
        # Who cannot read what was sent does not know, and answers as for a repetition.
        async with opened(store.settings, KEYS[1]) as other, client_of(other) as client:
            assert _known(await send(client, "no, go on")) == answered


def _known(answered: Any) -> Any:
    """Return what a repetition answers too: an event has a time of its own."""
    return answered.event_id if isinstance(answered, SteeringEvent) else answered


async def test_what_an_earlier_release_remembered_counts_as_the_same(
    store: RedisStateStore,
) -> None:
    await make(store)
    async with client_of(store) as client:
        for what in ("signal", "item"):
            await SENT[what](client, 1)
        commands, base = store.transport.commands, store.base.keys
        journal = base.journal(SESSION, TASK)
        (mailed,) = [each for each in await commands.hgetall(journal) if each.startswith(b"mailed")]
        send = store.transport.sender.send
        await send("HSET", journal, mailed, b"1", repeatable=True)
        gathering = base.gathering(SESSION)
        (item,) = [each for each in await commands.hgetall(gathering) if each.startswith(b"=")]
        await send("HDEL", gathering, item, repeatable=True)
        for what in ("signal", "item"):
            await SENT[what](client, 2)


async def test_one_event_may_go_to_several_tasks_under_its_id(store: RedisStateStore) -> None:
    await make(store)
    await make(store, "other")
    async with client_of(store) as client:
        for text in ("a", "b"):
            task = TASK if text == "a" else "other"
            for _ in range(2):
                await client.steer(SESSION, task, NOTE, {"text": text}, event_id="e")
        with pytest.raises(KeyReused):
            await client.steer(SESSION, "other", NOTE, {"text": "a"}, event_id="e")
    events = await store.list_steering(SESSION)
    assert [(each.task_id, each.payload["text"]) for each in events] == [
        (TASK, "a"),
        ("other", "b"),
    ]
