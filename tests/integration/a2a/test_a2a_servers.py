"""Real A2A servers, as many processes as a test needs, on one Redis."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("a2a.server.cluster", reason="needs a2a-sdk 1.2")

from redis_state import Settings
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from tests.support.a2a.servers import (
    WAIT_S,
    Listener,
    Replica,
    RpcError,
    command,
    ended_within,
    hook,
    message,
    pieces,
    replica,
    state_of,
)
from tests.support.scripts.replies import clock_ms

LEASE_S = 3.0
WORKING = "WORKING"


@pytest.fixture
async def pair(settings: Settings) -> AsyncIterator[tuple[Replica, Replica]]:
    """Give two replicas."""
    async with replica(settings) as a, replica(settings) as b:
        yield a, b


async def test_a_stream_begun_on_one_server_goes_on_at_another(
    pair: tuple[Replica, Replica],
) -> None:
    a, b = pair
    first = Listener(a.stream("SendStreamingMessage", message=message("count 40 0.02")))
    task = (await first.hears(lambda event: "task" in event))["task"]
    taken_over: list[Listener] = []
    for number in ("3", "9", "20"):
        await first.hears_piece(number)
        taken_over.append(Listener(b.stream("SubscribeToTask", id=task["id"])))
    for listener in taken_over:
        events = await listener.ends()
        # The task as it was read, and then what came: together each piece once and in order.
        assert pieces(events) == [str(n) for n in range(40)]
        assert state_of(events[-1]) == "COMPLETED"
    assert pieces(await first.ends()) == [str(n) for n in range(40)]
    assert await b.state(task["id"]) == "COMPLETED"


async def test_a_cancel_on_one_server_stops_the_idle_agent_of_another(
    pair: tuple[Replica, Replica],
) -> None:
    a, b = pair
    first = Listener(a.stream("SendStreamingMessage", message=message("wait")))
    task = (await first.hears(lambda event: "task" in event))["task"]
    await first.hears(lambda event: state_of(event) == WORKING)
    third = Listener(b.stream("SubscribeToTask", id=task["id"]))
    await third.hears(lambda event: "task" in event)
    cancelled = await b.call("CancelTask", id=task["id"])
    assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
    await a.says(f"stopped: {task['id']}")
    assert state_of((await first.ends())[-1]) == "CANCELED"
    assert state_of((await third.ends())[-1]) == "CANCELED"
    assert [await one.state(task["id"]) for one in pair] == ["CANCELED", "CANCELED"]
    with pytest.raises(RpcError, match="cannot be canceled") as refused:
        await a.call("CancelTask", id=task["id"])
    assert refused.value.code == -32002


async def test_subscribers_of_a_killed_server_meet_the_end(
    settings: Settings, scripts: Scripts
) -> None:
    async with replica(settings, lease_s=LEASE_S) as b, replica(settings, lease_s=LEASE_S) as a:
        task = await a.say("wait")
        listeners = [Listener(b.stream("SubscribeToTask", id=task["id"])) for _ in range(3)]
        for listener in listeners:
            await listener.hears(lambda event: "task" in event)
        killed_ms = await clock_ms(scripts)
        await a.kill()
        ended = [await listener.ends() for listener in listeners]
        await ended_within(settings, task["id"], killed_ms, LEASE_S + 2)
        assert [state_of(events[-1]) for events in ended] == ["FAILED"] * 3
        # It was told once, and what was told is what is read.
        reported = {
            events[-1]["statusUpdate"]["status"]["message"]["messageId"] for events in ended
        }
        found = await b.call("GetTask", id=task["id"])
        assert reported == {found["status"]["message"]["messageId"]}


async def test_a_task_of_a_killed_server_is_ended_though_nobody_watches(
    settings: Settings, scripts: Scripts
) -> None:
    async with replica(settings, lease_s=LEASE_S) as b, replica(settings, lease_s=LEASE_S) as a:
        task = await a.say("wait")
        killed_ms = await clock_ms(scripts)
        await a.kill()

        async def listed() -> bool:
            # A list looks at no task: what it shows was done by the other server's sweep.
            failed = await b.call("ListTasks", status="TASK_STATE_FAILED")
            return [found["id"] for found in failed["tasks"]] == [task["id"]]

        await eventually(listed, "the task is ended", timeout_s=WAIT_S)
        await ended_within(settings, task["id"], killed_ms, LEASE_S + 2)


async def test_a_server_that_was_told_to_stop_ends_its_tasks_at_once(settings: Settings) -> None:
    async with replica(settings, lease_s=600) as b, replica(settings, lease_s=600) as a:
        task = await a.say("wait")
        listener = Listener(b.stream("SubscribeToTask", id=task["id"]))
        await listener.hears(lambda event: "task" in event)
        a.process.terminate()
        assert state_of((await listener.ends())[-1]) == "FAILED"


async def test_a_server_that_hung_finds_its_task_ended(settings: Settings) -> None:
    async with replica(settings, lease_s=LEASE_S) as b, replica(settings, lease_s=LEASE_S) as a:
        first = Listener(a.stream("SendStreamingMessage", message=message("count 100000 0.05")))
        task = (await first.hears(lambda event: "task" in event))["task"]
        await first.hears_piece("1")
        second = Listener(b.stream("SubscribeToTask", id=task["id"]))
        await second.hears(lambda event: "task" in event)
        a.process.send_signal(signal.SIGSTOP)
        reported = await second.ends()
        assert state_of(reported[-1]) == "FAILED"
        ended = await b.call("GetTask", id=task["id"])
        a.process.send_signal(signal.SIGCONT)
        await a.says(f"stopped: {task['id']}")
        assert state_of((await first.ends())[-1]) == "FAILED"
        # Nothing was written after the end.
        assert await b.call("GetTask", id=task["id"]) == ended


async def test_a_question_of_one_server_is_answered_at_another(
    pair: tuple[Replica, Replica],
) -> None:
    a, b = pair
    requested = await a.call("SendMessage", message=message("ask"))
    task = requested["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    answer = message("thank you", taskId=task["id"], contextId=task["contextId"])
    answered = await b.call("SendMessage", message=answer)
    assert answered["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    stated = [part["text"] for one in answered["task"]["history"] for part in one["parts"]]
    assert stated == ["ask", "What next?", "thank you"]
    assert await a.state(task["id"]) == "COMPLETED"
    with pytest.raises(RpcError, match="terminal state"):
        await a.call("SendMessage", message=answer)


async def test_a_question_that_waits_outlives_the_server_that_asked_it(
    settings: Settings,
) -> None:
    async with replica(settings, lease_s=LEASE_S) as b, replica(settings, lease_s=LEASE_S) as a:
        task = (await a.call("SendMessage", message=message("ask")))["task"]
        dead = await a.say("wait")
        await a.kill()

        async def ended() -> bool:
            return await b.state(dead["id"]) == "FAILED"

        await eventually(ended, "the other task is ended", timeout_s=WAIT_S)
        assert await b.state(task["id"]) == "INPUT_REQUIRED"
        answer = message("thanks", taskId=task["id"], contextId=task["contextId"])
        answered = await b.call("SendMessage", message=answer)
        assert answered["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_other_users_find_nothing_on_any_server(pair: tuple[Replica, Replica]) -> None:
    a, b = pair
    task = await a.say("wait")
    there = {"id": task["id"]}
    for server in pair:
        for method, requested in (
            ("GetTask", there),
            ("CancelTask", there),
            ("SendMessage", {"message": message("mine now", taskId=task["id"])}),
            ("GetTask", {**there, "tenant": "another", "user": "ann"}),
        ):
            with pytest.raises(RpcError) as refused:
                await server.call(method, **{"user": "bob", **requested})
            assert refused.value.code == -32001
        with pytest.raises(RpcError) as refused:
            await Listener(server.stream("SubscribeToTask", user="bob", id=task["id"])).ends()
        assert refused.value.code == -32001
        listed = await server.call("ListTasks", user="bob")
        assert listed.get("tasks", []) == []
    assert await b.state(task["id"]) == WORKING
    await b.call("CancelTask", id=task["id"])


async def test_each_event_reaches_every_one_of_many_subscribers(
    pair: tuple[Replica, Replica],
) -> None:
    a, b = pair
    first = Listener(a.stream("SendStreamingMessage", message=message("count 30 0.03")))
    task = (await first.hears(lambda event: "task" in event))["task"]
    # On A itself the SDK tells what happens while it reads the task both with the task and after.
    listeners = [Listener(b.stream("SubscribeToTask", id=task["id"])) for _ in range(12)]
    for listener in listeners:
        assert pieces(await listener.ends()) == [str(n) for n in range(30)]


async def test_two_users_whose_calls_have_one_id_hear_their_own_tasks_only(
    pair: tuple[Replica, Replica],
) -> None:
    a, _ = pair
    streams = {
        user: Listener(
            a.stream("SendStreamingMessage", user=user, message=message(f"count {count} 0.02"))
        )
        for user, count in (("ann", 20), ("bob", 30))
    }
    for user, count in (("ann", 20), ("bob", 30)):
        heard = await streams[user].ends()
        assert pieces(heard) == [str(number) for number in range(count)]
        assert state_of(heard[-1]) == "COMPLETED"
        found = await a.call("ListTasks", user=user)
        assert [task["id"] for task in found["tasks"]] == [heard[0]["task"]["id"]]


async def test_push_configurations_are_the_same_on_all_servers(
    pair: tuple[Replica, Replica],
) -> None:
    a, b = pair
    task = await a.say("wait")
    made = await a.call(
        "CreateTaskPushNotificationConfig",
        taskId=task["id"],
        id="c",
        url="https://hook.example/",
    )
    listed = await b.call("ListTaskPushNotificationConfigs", taskId=task["id"])
    assert listed["configs"] == [made]
    await b.call("DeleteTaskPushNotificationConfig", taskId=task["id"], id="c")
    with pytest.raises(RpcError):
        await a.call("GetTaskPushNotificationConfig", taskId=task["id"], id="c")
    await b.call("CancelTask", id=task["id"])


async def test_what_happens_is_pushed_also_the_end_of_a_killed_servers_task(
    settings: Settings,
) -> None:
    async with (
        hook() as pushed,
        replica(settings, lease_s=LEASE_S) as b,
        replica(settings, lease_s=LEASE_S) as a,
    ):
        for server, after in ((b, "CANCELED"), (a, "FAILED")):
            task = await server.say("wait")
            await server.call(
                "CreateTaskPushNotificationConfig", taskId=task["id"], url=pushed.url, token=after
            )
            if after == "CANCELED":
                await server.call("CancelTask", id=task["id"])
            else:
                await server.kill()
            await pushed.hears(after)
        ends = [(token, state_of(event)) for token, event in pushed.heard]
        # Each end is told once, and to who asked for it.
        assert [one for one in ends if one[1] in {"CANCELED", "FAILED"}] == [
            ("CANCELED", "CANCELED"),
            ("FAILED", "FAILED"),
        ]


# The command that starts replicas


async def test_a_replica_that_cannot_start_ends_the_command_with_its_error(
    settings: Settings,
) -> None:
    async with command(settings, "--lease", "0.01") as running, asyncio.timeout(WAIT_S):
        _, stated = await running.communicate()
        assert running.returncode == 1
        assert "lease_s must be a number of seconds from 0.1" in stated.decode()


async def test_a_replica_that_does_not_stop_is_killed(settings: Settings) -> None:
    async with command(settings) as running, asyncio.timeout(WAIT_S):
        assert running.stdout is not None
        lines = [(await running.stdout.readline()).decode() for _ in range(2)]
        pids = [int(line.partition("pid ")[2].partition(")")[0]) for line in lines]
        os.kill(pids[0], signal.SIGSTOP)
        running.terminate()
        assert await running.wait() == 0
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
