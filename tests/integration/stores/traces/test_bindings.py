from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_state import InvalidField, RedisStateStore
from redis_state.models import RemoteBinding
from tests.support.samples import binding


async def test_a_binding_saved_again_is_replaced_and_keeps_its_place(
    store: RedisStateStore,
) -> None:
    await store.save_remote_binding(binding("first"))
    await store.save_remote_binding(binding("second"))
    renewed = binding("first", agent_url="http://moved", is_terminal=True, metadata={"a": [1]})
    await store.save_remote_binding(renewed)
    assert await store.list_remote_bindings("trace") == [renewed, binding("second")]


async def test_no_context_and_an_empty_context_are_two_bindings(store: RedisStateStore) -> None:
    saved = [binding(context_id=context) for context in (None, "", "-", "=", "a:b")]
    for each in saved:
        await store.save_remote_binding(each)
    assert await store.list_remote_bindings("trace") == saved


async def test_every_field_of_a_binding_comes_back(store: RedisStateStore) -> None:
    whole = RemoteBinding(
        trace_id="trace",
        context_id=None,
        task_id="remote",
        agent_url="http://agent",
        router_session_id="router",
        remote_skill="skill",
        tenant_id="tenant",
        user_id="user",
        last_remote_task_id="last",
        is_terminal=True,
        metadata={"key": {"deep": [1, None]}},
    )
    await store.save_remote_binding(whole)
    assert await store.list_remote_bindings("trace") == [whole]


async def test_a_trace_without_bindings_has_an_empty_list(store: RedisStateStore) -> None:
    assert await store.list_remote_bindings("unknown") == []


@pytest.mark.parametrize("field", ["trace_id", "context_id", "task_id"])
async def test_an_id_that_is_not_text_is_refused_by_name(
    store: RedisStateStore, field: str
) -> None:
    bad: dict[str, Any] = {field: 5}
    with pytest.raises(InvalidField) as caught:
        await store.save_remote_binding(binding(**bad))
    assert caught.value.field == field


async def test_a_row_without_a_later_field_takes_its_default(store: RedisStateStore) -> None:
    await store.save_remote_binding(binding())
    (key,) = [
        store.base.keys.binding("trace", member)
        for member in await store.base.records.members(store.base.keys.bindings("trace"))
    ]
    old = b'{"trace_id":"trace","context_id":"context","task_id":"remote","agent_url":"u"}'
    await store.transport.sender.send("HSET", key, "document", old, repeatable=True)
    assert await store.list_remote_bindings("trace") == [binding(agent_url="u")]


@pytest.mark.parametrize("retired_last", [True, False])
async def test_unawaited_saves_and_retirements_take_effect_in_call_order(
    store: RedisStateStore, *, retired_last: bool
) -> None:
    conversation = {"router_session_id": "session", "remote_skill": "search"}

    def save() -> asyncio.Task[None]:
        return asyncio.create_task(store.save_remote_binding(binding(**conversation)))

    def retire() -> asyncio.Task[None]:
        return asyncio.create_task(
            store.mark_binding_terminal(trace_id="trace", context_id="context", task_id="remote")
        )

    calls = (
        [save(), retire(), save(), retire()]
        if retired_last
        else [retire(), save(), retire(), save()]
    )
    await asyncio.gather(*calls)
    found = await store.find_binding(agent_url="http://agent", **conversation)
    assert (found is None) == retired_last
