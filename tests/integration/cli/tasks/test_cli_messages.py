"""The commands that talk to a running task, against a worker in a process of its own."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from tests.support.commands import begin, cli, end
from tests.support.processes.pools import SESSION, becomes, client_of
from tests.support.processes.worker_processes import worker_process


async def test_a_task_is_signalled_asked_and_its_values_are_read(
    store: RedisStateStore, settings: Settings
) -> None:
    options = {"program": "message_worker", "dies_at": 0, "dies_after": False}
    async with worker_process(settings, "w1", **options), client_of(store) as client:
        sink = await client.submit("collect", 2, session_id="sink")
        relay = await client.submit("relay", ["sink", sink, 2], session_id=SESSION)
        for number, payload in enumerate((["a"], {"b": "é"})):
            sent = await end(
                await begin(
                    settings,
                    *("signal", SESSION, relay, "item", json.dumps(payload), "--json"),
                    *("--idempotency-key", f"k{number}"),
                )
            )
            assert sent.document == {"message_id": f"k{number}"}
        ran = await cli(settings, "value", SESSION, relay, "at", "--wait", "60")
        assert ran.document in (1, 2)
        assert await client.result(SESSION, relay, timeout_s=60) == [["a"], {"b": "é"}]
        (listed,) = (await cli(settings, "value", SESSION, relay, "--json")).document
        assert (listed["key"], listed["value"]) == ("at", 2)
        assert "at" in (await cli(settings, "value", SESSION, relay)).out
        assert (await cli(settings, "value", "sink", sink)).out.strip() == "No values."

        counting = await client.submit("count_up", 2, session_id=SESSION)
        ran = await cli(settings, "request", SESSION, counting, "add", "3")
        assert (ran.status, ran.document) == (0, [3, 3])
        for arguments, status, text in (
            (("request", SESSION, counting, "add", '"x"'), 1, "refused"),
            (("request", SESSION, counting, "none", "--timeout", "0.1"), 1, "has not called"),
            (("signal", SESSION, counting, "add", "not JSON"), 2, "not JSON"),
            (("signal", SESSION, counting, ""), 2, "name"),
            (("signal", SESSION, "no such task", "x"), 3, "no task"),
            (("signal", SESSION, relay, "x"), 4, "COMPLETE"),
            (("request", SESSION, relay, "x"), 1, "COMPLETE"),
            (("value", SESSION, relay, "none"), 3, "no value"),
            (("value", SESSION, "no such task", "x"), 3, "no task"),
        ):
            ran = await cli(settings, *arguments)
            assert ran.status == status, (arguments, ran.err)
            assert text in ran.err
        signal, key = ("signal", SESSION, relay, "item"), ("--idempotency-key", "k0")
        again = await cli(settings, *signal, '["a"]', *key)
        assert (again.status, again.out.strip()) == (0, "sent k0")
        other = await cli(settings, *signal, '["b"]', *key)
        assert other.status == 4
        assert "used before, with another content" in other.err
        await becomes(client, counting, TaskStatus.PAUSED)
