"""The client over HTTP returns what the direct client returns, and raises what it raises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import methodcaller
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore, errors
from redis_state.models import SteeringEventType, TaskState, TaskStatus
from redis_state.models.attributes import AttributeValue
from redis_state.stores.sessions.task_fields import NO_CONTEXT
from redis_state.testing import eventually
from redis_state.worker import KeyLimits, OpenPause, Rate, Schedule
from tests.support.http.gateway import paused
from tests.support.http.http_gateway import OverHttp, over_http
from tests.support.processes.pools import queue_of
from tests.support.tasks.crash_states import given_up, send

HALF = "\ud800"
Call = Callable[[Any], Awaitable[Any]]


async def _both(over: OverHttp, call: Call) -> Any:
    """Return what both clients return."""
    direct, http = await call(over.direct), await call(over.http)
    assert http == direct
    return http


async def _refused(over: OverHttp, call: Call, kind: type[Exception]) -> Exception:
    """Return what both clients raise."""
    raised: list[Exception] = []
    for client in (over.direct, over.http):
        with pytest.raises(kind) as caught:
            await call(client)
        raised.append(caught.value)
    direct, http = raised
    assert (type(http), str(http), vars(http)) == (type(direct), str(direct), vars(direct))
    return http


async def _children(client: Any, task_id: str) -> list[TaskState]:
    """Return what a task has spawned, with what every client knows of the context: the parent."""
    children = await client.children("s", task_id)
    for child in children:
        assert child.context_snapshot.spawned_from_task_id == task_id
        child.context_snapshot = NO_CONTEXT
    return list(children)


async def test_what_is_read_of_tasks_is_the_same(over: OverHttp) -> None:
    about: dict[str, AttributeValue] = {"tenant": 'a "b"', "size": 5, "text": "5", "paid": True}
    made = await over.http.submit(
        *("parent", {"n": [1.5, None, "é\ud800"]}),
        session_id="s",
        task_id="t",
        priority=3,
        description="the parent",
        trace_id="trace",
        attributes=about,
    )
    assert made == "t"
    assert await over.http.result("s", "t", timeout_s=30) == "of the child"
    await over.http.submit("fail", session_id="s", task_id="failed")
    assert (await over.http.wait("s", "failed")).status is TaskStatus.FAILED
    view = await _both(over, lambda client: client.inspect("s", "t"))
    assert (view.handler, dict(view.attributes), view.state.trace_id) == ("parent", about, "trace")
    for task_id in ("t", "failed", "none"):
        for method in ("get", "snapshots", "compensations", "last_checkpoint"):
            await _both(over, methodcaller(method, "s", task_id))
        await _both(over, partial(_children, task_id=task_id))
    await _both(over, lambda client: client.inspect("s", "none"))
    step = await _both(over, lambda client: client.snapshot("s", "failed", 1))
    assert step.step == "before#1"
    await _both(over, lambda client: client.snapshot("s", "failed", 9))
    counts = await _both(over, lambda client: client.count(session_id="s"))
    assert counts[TaskStatus.COMPLETE] == 2
    await _both(over, lambda client: client.count(session_id="empty"))
    await _both(over, lambda client: client.sessions())
    for failing in (over.direct, over.http):
        with pytest.raises(errors.TaskFailed, match="the handler's own reason"):
            await failing.result("s", "failed")


async def _dead(client: Any, **options: Any) -> list[TaskState]:
    dead = await client.dead(**options)
    for state in dead:
        state.context_snapshot = NO_CONTEXT
    return list(dead)


async def _dead_page(client: Any, **options: Any) -> tuple[list[TaskState], str | None]:
    page = await client.list_dead(**options)
    for state in page.tasks:
        state.context_snapshot = NO_CONTEXT
    return list(page.tasks), page.cursor


async def test_dead_letters_are_the_same(over: OverHttp) -> None:
    await over.direct.queues.pause(queue_of(over.served.store.settings))
    dead = [await given_up(over.served.store, handler="echo") for _ in range(2)]
    found = await _both(over, _dead)
    assert [state.task_id for state in found] == dead[::-1]
    assert [state.task_id for state in await _both(over, partial(_dead, limit=1))] == dead[1:]
    assert await _both(over, partial(_dead, limit=0)) == []
    await _refused(over, partial(_dead, limit=-1), errors.InvalidField)
    first, cursor = await _both(over, partial(_dead_page, limit=1))
    assert [state.task_id for state in first] == dead[1:]
    rest, end = await _both(over, partial(_dead_page, limit=1, after=cursor))
    assert ([state.task_id for state in rest], end) == (dead[:1], None)
    await _refused(over, partial(_dead_page, after="nonsense"), errors.InvalidField)
    # A record that is damaged takes no other from the list.
    keys = over.served.store.tasks.keys(found[0].session_id, dead[1])
    await send(over.served.store, "HSET", keys.task, "job", "x")
    assert [state.task_id for state in await over.http.dead()] == dead[:1]
    session, damaged = found[0].session_id, dead[1]
    for client in (over.direct, over.http):
        with pytest.raises(errors.CorruptState):
            await client.inspect(session, damaged)
    async with over.caller("sam", "read:session:s") as sam:
        with pytest.raises(errors.CommandRefused):
            await sam.dead()


async def test_tasks_are_found_by_the_same_filters_page_by_page(over: OverHttp) -> None:
    for number in range(5):
        await over.http.submit("echo", session_id=f"s{number % 2}", attributes={"n": number})
    for client in (over.direct, over.http):
        names: list[str] = []
        after: str | None = None
        while True:
            page = await client.find(newest_first=False, limit=2, after=after, handler="echo")
            names += [task.task_id for task in page.tasks]
            after = page.cursor
            if after is None:
                break
        assert len(set(names)) == 5
    for session_id in ("s0", "s1"):
        for task in (await over.direct.find(session_id=session_id)).tasks:
            await over.direct.wait(session_id, task.task_id, timeout_s=30)
    everything: list[dict[str, Any]] = [
        {"status": "COMPLETE"},
        {"status": [TaskStatus.FAILED, "CANCELLED"]},
        {"attributes": {"n": 3}, "session_id": "s1"},
        {"created_after": datetime(2020, 1, 1, tzinfo=UTC), "created_before": datetime.now(UTC)},
        {"created_after": datetime(2020, 1, 1)},  # noqa: DTZ001 - it is taken as UTC
        {"ended_after": datetime(2020, 1, 1, tzinfo=UTC), "ended_before": datetime.now(UTC)},
        {"ended_after": datetime(2020, 1, 1), "status": "COMPLETE"},  # noqa: DTZ001 - likewise
        {"ended_before": datetime(2020, 1, 1, tzinfo=UTC)},
    ]
    for filters in everything:
        await _both(over, methodcaller("find", **filters))
    assert [len(branch.children) for branch in await over.http.tree("s1")] == [0, 0]
    assert await over.http.tree("none") == []
    wrong: list[dict[str, Any]] = [
        *({"status": "ODD"}, {"limit": 0}, {"limit": 1001}, {"after": "garbage"}, {"odd": 1}),
        *({"attributes": {"a:b": 1}}, {"session_id": 5}, {"created_after": "x"}),
        *({"ended_after": "x"}, {"ended_after": datetime.now(UTC), "status": "PENDING"}),
    ]
    for filters in wrong:
        error = None
        for client in (over.direct, over.http):
            with pytest.raises(errors.InvalidField) as caught:
                await client.find(**filters)
            assert error in (None, caught.value.field)
            error = caught.value.field


async def test_what_cannot_be_changed_is_refused_with_the_same_facts(over: OverHttp) -> None:
    await over.http.submit("echo", session_id="s", task_id="done")
    await over.http.wait("s", "done")
    unknown, invalid = errors.TaskUnknown, errors.InvalidTransition
    kind = SteeringEventType.USER_MESSAGE
    await _refused(over, lambda client: client.retry("s", "done"), invalid)
    await _refused(over, lambda client: client.retry("s", "none"), unknown)
    await _refused(over, lambda client: client.wait("s", "none"), unknown)
    await _refused(over, lambda client: client.result("s", "none"), unknown)
    for key in ("", "x" * 201, 7):
        await _refused(
            over, methodcaller("retry", "s", "done", idempotency_key=key), errors.InvalidField
        )
    for key in ("", 7):
        await _refused(
            over, methodcaller("cancel", "s", "none", idempotency_key=key), errors.InvalidField
        )
    await _refused(over, lambda client: client.rerun("s", "none"), unknown)
    await _refused(over, lambda client: client.fork("s", "none"), unknown)
    await _refused(over, lambda c: c.fork("s", "done", before="odd"), errors.InvalidField)
    await _refused(over, lambda client: client.steer("s", "none", kind, {"text": "x"}), unknown)
    await _refused(over, lambda client: client.steer("s", "done", kind, {"text": "x"}), invalid)
    await _refused(
        over, lambda client: client.steer("s", "done", kind, {}), errors.SteeringValidationError
    )
    wrong = errors.InvalidField
    await _refused(over, lambda client: client.submit("", session_id="s"), wrong)
    await _refused(over, lambda client: client.submit("echo", session_id=5), wrong)
    later: Any = {"on_busy": "interrupt", "delay": timedelta(seconds=1)}
    await _refused(over, lambda c: c.submit("echo", session_id="s", **later), wrong)
    for client in (over.direct, over.http):
        assert await client.cancel("s", "done") is False
        assert await client.cancel("s", "none") is False
        await client.submit("hidden", session_id="s", task_id="waits")
        with pytest.raises(TimeoutError):
            await client.wait("s", "waits", timeout_s=0.01)
        wrongly: list[dict[str, Any]] = [
            *({"delay": 5}, {"at": datetime(2030, 1, 1)}, {"delay": timedelta(-1)}),  # noqa: DTZ001
        ]
        for options in wrongly:
            with pytest.raises(errors.InvalidField) as caught:
                await client.submit("echo", session_id="s", **options)
            assert caught.value.field in options


async def test_tasks_are_operated_as_by_the_direct_client(over: OverHttp) -> None:
    http = over.http
    await http.submit("fail", session_id="s", task_id="t", attributes={"a": 1})
    await http.wait("s", "t")
    reopened = await http.retry("s", "t", idempotency_key="once")
    assert reopened.task_id == "t"
    await http.wait("s", "t", timeout_s=30)
    await http.retry("s", "t", idempotency_key="once")
    view = await http.inspect("s", "t")
    assert view is not None
    assert view.retries == 1
    again = await http.rerun("s", "t", new_task_id="again", new_session_id="s2", attributes={})
    forked = await http.fork("s", "t", before="before", new_task_id="forked", queue=view.queue)
    assert (again, forked) == ("again", "forked")
    other = await http.inspect("s", "forked")
    assert other is not None
    assert other.forked_from is not None
    assert (other.forked_from.task_id, other.forked_from.before) == ("t", "step:before#1")
    await http.wait("s", "forked")

    async def planned(client: Any) -> tuple[Any, Any]:
        report = await client.bulk("retry", dry_run=True, session_id="s")
        return sorted(report.items, key=lambda item: item.task_id), report.counts

    items, _ = await _both(over, planned)
    assert [item.task_id for item in items] == ["forked", "t"]
    report = await http.bulk("retry", session_id="s", status="FAILED", idempotency_key="k", limit=1)
    assert ([item.outcome.value for item in report.items], report.more) == (["done"], True)
    with pytest.raises(errors.InvalidField, match="action"):
        await http.bulk("odd")
    await _refused(over, lambda c: c.bulk("retry", status="COMPLETE"), errors.InvalidField)
    await http.submit("ask", session_id="s3", task_id="waits")
    await paused(over.served, "s3", "waits")
    assert await http.cancel("s3", "waits", reason="enough")
    with pytest.raises(errors.TaskWasCancelled, match="enough"):
        await http.result("s3", "waits")


async def test_a_task_is_submitted_once_under_its_id_and_steered_once_under_a_key(
    over: OverHttp,
) -> None:
    odd = "k\u2028 \x00" + "x" * 300
    for _ in range(2):
        assert await over.http.submit("ask", session_id="s", task_id=odd) == odd
    await paused(over.served, "s", odd)
    kind = SteeringEventType.USER_MESSAGE
    sent = [await over.http.steer("s", odd, kind, {"text": "x"}, event_id=odd) for _ in range(2)]
    assert sent[0].event_id == sent[1].event_id
    assert (sent[0].source, sent[0].payload) == ("root", {"text": "x"})
    events = await over.served.store.list_steering("s", task_id=odd)
    assert [event.source for event in events] == ["root"]
    made = await over.http.submit(
        "echo", session_id="s", delay=timedelta(hours=1), limit_key="tenant", priority=1
    )
    assert (await over.direct.get("s", made)) == (await over.http.get("s", made))
    await over.http.submit("ask", session_id="busy", in_turn=True, task_id="first")
    with pytest.raises(errors.TaskInProgress) as refused:
        await over.http.submit("ask", session_id="busy", on_busy="reject")
    assert (refused.value.session_id, refused.value.task_id) == ("busy", "first")


async def test_who_submits_learns_whether_the_task_is_new(over: OverHttp) -> None:
    clients: list[Any] = [over.direct, over.http]
    for number, client in enumerate(clients):
        task_id = f"t{number}"
        for is_new in (True, False):
            found = await client.submit_or_find(
                "echo", number, session_id="s", task_id=task_id, priority=2, attributes={"a": 1}
            )
            assert (found.task_id, found.is_new) == (task_id, is_new)
        for handler, given in (("echo", "another"), ("ask", number)):
            with pytest.raises(errors.KeyReused) as reused:
                await client.submit(handler, given, session_id="s", task_id=task_id)
            assert (reused.value.what, reused.value.key) == ("task", task_id)
        assert (await client.submit_or_find("echo", session_id="s")).is_new
        state = await client.get("s", task_id)
        assert state is not None
        assert state.priority == 2
    await _refused(over, lambda c: c.submit_or_find("echo", session_id=5), errors.InvalidField)
    await _refused(
        over, lambda c: c.submit_or_find("echo", session_id="s", odd=1), errors.InvalidField
    )
    of_hosts: list[dict[str, Any]] = [{"context": None}, {"task_type": None}, {"sent": None}]
    for options in of_hosts:
        with pytest.raises(errors.InvalidField, match="cannot be given over HTTP"):
            await over.http.submit_or_find("echo", session_id="s", **options)


async def test_a_pause_is_decided_once_and_the_loser_learns_all_about_it(over: OverHttp) -> None:
    await over.http.submit("fill_in", session_id="s", task_id="t")
    pause_id = await paused(over.served, "s", "t")

    def public(pause: OpenPause | None) -> OpenPause | None:
        return pause and replace(pause, token=None, default=None)

    (direct,) = await over.direct.pauses("s", tag="limits")
    assert await over.http.pauses("s", tag="limits") == [public(direct)]
    assert await over.http.pauses(mine=True) == [public(direct)]
    assert await over.http.pause(pause_id) == public(await over.direct.pause(pause_id))
    assert direct.schema is not None
    value = {"limit": 5000}
    await _refused(over, lambda c: c.approve(pause_id, value), errors.InvalidDecision)
    unknown = errors.TokenUnknown
    await _refused(over, lambda c: c.approve(pause_id, {"limit": 7}, session_id="other"), unknown)
    await _refused(over, lambda c: c.reject(pause_id, session_id="s", task_id="other"), unknown)
    async with over.caller("ann", "resolve:tag:limits") as ann:
        assert await ann.approve(pause_id, {"limit": 7}, idempotency_key="k") is None
        again = await ann.approve(
            pause_id, {"limit": 7}, session_id="s", task_id="t", idempotency_key="k"
        )
        assert again is None
    lost = await _refused(over, lambda client: client.reject(pause_id), errors.TokenResolved)
    assert isinstance(lost, errors.TokenResolved)
    assert (lost.actor, lost.decision["value"]) == ("ann", {"limit": 7})
    assert await over.http.result("s", "t") == {"limit": 7}
    assert await over.http.pause(pause_id) is None
    await _refused(over, lambda c: c.approve(pause_id[:-40] + "0" * 40), errors.TokenUnknown)
    with pytest.raises(errors.InvalidField, match="public id") as caught:
        await over.http.approve(str(direct.token))
    assert str(direct.token) not in str(caught.value)


async def test_a_vote_is_handed_on_and_who_has_none_is_told_so(over: OverHttp) -> None:
    await over.http.submit("vote", session_id="s", task_id="t")
    pause_id = await paused(over.served, "s", "t")
    direct, http = await over.direct.pause(pause_id), await over.http.pause(pause_id)
    assert direct is not None
    assert http == replace(direct, token=None)
    with pytest.raises(errors.NotADecider) as lost:
        await over.http.approve(pause_id)
    assert (lost.value.actor, lost.value.delegated_to) == ("root", None)
    async with over.caller("ann", "resolve:*") as ann, over.caller("bob", "resolve:*") as bob:
        await ann.delegate(pause_id, "bob")
        with pytest.raises(errors.NotADecider, match="delegated to 'bob'"):
            await ann.reject(pause_id)
        with pytest.raises(errors.DelegationRefused):
            await bob.delegate(pause_id, "ann")
        assert await bob.approve(pause_id) is None
    assert await over.http.result("s", "t") == "bob"


async def test_queues_workers_and_schedules_are_the_same(over: OverHttp) -> None:
    queue = over.direct.queues
    (worker,) = await eventually(over.direct.workers, "the worker is listed")
    name = worker.queues[0]
    await queue.limit(name, running=3, per_key=2, rate=Rate(5, timedelta(seconds=2)))
    await queue.limit_key(name, "a/b", running=1)
    await over.http.queues.pause(name)
    assert (await queue.get(name)).paused
    await over.http.queues.resume(name)
    await _both(over, lambda client: client.queues.get(name))
    await _both(over, lambda client: client.queues.list())
    await _refused(over, lambda client: client.queues.get(""), errors.InvalidField)
    (mine,), (theirs,) = await over.http.workers(), await over.direct.workers()
    same: dict[str, Any] = {
        "silent_s": 0.0,
        "unpolled_s": None,
        "last_poll_ms": None,
        "counters": {},
    }
    assert replace(mine, **same, last_seen_ms=0) == replace(theirs, **same, last_seen_ms=0)

    anchor = datetime(2026, 1, 1, tzinfo=UTC)
    schedule = Schedule(
        schedule_id="a/b",
        handler="echo",
        session_id="s-{date}",
        input={"secret": 1},
        every=timedelta(hours=1),
        anchor=anchor,
        missed="latest",
        max_missed=7,
        grace=timedelta(seconds=11),
        queue=name,
        attributes={"tenant": "acme", "paid": True},
        on_busy="replace",
    )
    saved = await over.http.schedules.save(schedule, paused=True)
    shown = replace(saved, schedule=replace(saved.schedule, input={"secret": 1}))
    assert shown == await over.direct.schedules.get("a/b")
    assert saved.schedule == replace(schedule, input=None)
    with pytest.raises(errors.VersionConflict) as lost:
        await over.http.schedules.save(replace(schedule, priority=2), expected="odd")
    assert (lost.value.expected, lost.value.actual) == ("odd", saved.revision)
    assert not (await over.http.schedules.resume("a/b")).paused
    assert (await over.http.schedules.pause("a/b")).paused
    first = await over.http.schedules.trigger("a/b", idempotency_key="k")
    assert await over.http.schedules.trigger("a/b", idempotency_key="k") == first
    assert await over.direct.result(first.session_id, first.task_id) == {"secret": 1}
    seen = await over.http.schedules.get("a/b")
    listed = await over.http.schedules.list()
    assert [each.schedule.schedule_id for each in listed] == ["a/b"]
    assert seen.schedule == listed[0].schedule
    assert await over.http.schedules.delete("a/b")
    assert not await over.http.schedules.delete("a/b")
    unknown = errors.ScheduleUnknown
    await _refused(over, lambda client: client.schedules.get("a/b"), unknown)
    await _refused(over, lambda client: client.schedules.pause("a/b"), unknown)
    await _refused(over, lambda client: client.schedules.save(schedule, expected="x"), unknown)


async def test_limits_are_set_by_who_may_do_everything(over: OverHttp) -> None:
    rate = Rate(5, timedelta(seconds=2))

    async def is_limited(client: Any) -> Any:
        await client.queues.limit("q", running=3, per_key=2, rate=rate)
        await client.queues.limit("q", per_key=None)
        await client.queues.limit("q")
        await client.queues.limit_key("q", "a/b", running=1, rate=rate)
        await client.queues.limit_key("q", "a/b", rate=None)
        return await client.queues.get("q")

    found = await is_limited(over.http)
    assert (found.limit, found.per_key, found.rate) == (3, None, rate)
    assert found.keys == {"a/b": KeyLimits(1)}
    await over.direct.queues.limit("q", running=None, rate=None)
    await over.direct.queues.limit_key("q", "a/b", running=None)
    assert await is_limited(over.direct) == found
    wrong: list[dict[str, Any]] = [{"running": 0}, {"per_key": "x"}, {"rate": 5}]
    for limits in wrong:
        await _refused(over, lambda c: c.queues.limit("q", **limits), errors.InvalidField)  # noqa: B023
    await _refused(over, lambda c: c.queues.limit_key("q", "", running=1), errors.InvalidField)
    async with over.caller("ann", "read:*", "steer:*", "submit:*") as ann:
        with pytest.raises(errors.CommandRefused, match="may not do this"):
            await ann.queues.limit("q", running=1)


async def test_updates_are_the_same_with_their_cursors_and_runs(over: OverHttp) -> None:
    await over.http.submit("parent", session_id="s", task_id="t", trace_id="tr")
    await over.http.wait("s", "t")

    async def watched(client: Any, after: str | None = None) -> list[Any]:
        async with aclosing(client.watch("s", "t", after=after)) as updates:
            return [(entry, entry.run) async for entry in updates]

    found = await _both(over, watched)
    assert len(found) >= 3
    middle = found[1][0].cursor
    assert await watched(over.http, middle) == found[2:]
    await _both(over, lambda client: watched(client, middle))
    await _refused(over, lambda client: watched(client, "1-1-deadbeef"), errors.CursorGap)
    timeline = await over.http.timeline("s", "t", limit=2)
    assert timeline is not None
    assert [(entry, entry.run) for entry in timeline.updates] == found[:2]
    assert (timeline.at_end, timeline.cursor) == (False, middle)
    rest = await over.http.timeline("s", "t", after=middle)
    assert rest is not None
    assert rest.at_end
    assert list(rest.updates) == [entry for entry, _ in found[2:]]
    assert timeline.task == await over.direct.inspect("s", "t")
    assert await over.http.timeline("s", "none") is None
    # The direct client calls it foreign; over HTTP it may be a mistake of the caller's.
    no_cursors: tuple[Any, ...] = ("garbage", "1-1-é", "1-1\n", 0)
    for wrong in no_cursors:
        with pytest.raises(errors.InvalidField, match="after"):
            await watched(over.http, wrong)
    for client in (over.direct, over.http):
        with pytest.raises(errors.TaskUnknown, match="none"):
            async with aclosing(client.watch("s", "none")) as updates:
                await anext(updates)


async def test_any_id_is_the_one_that_was_given(over: OverHttp) -> None:
    for odd in ("a/b", "..", "", "a%2Fb ?#\u0085é", HALF):
        task_id = odd or "t"
        assert await over.http.submit("echo", odd, session_id=odd, task_id=task_id) == task_id
        assert await over.http.result(odd, task_id, timeout_s=30) == odd
        found = await over.http.find(session_id=odd, handler="echo")
        assert [(task.session_id, task.task_id) for task in found.tasks] == [(odd, task_id)]
        async with aclosing(over.http.watch(odd, task_id)) as updates:
            assert {entry.value.session_id async for entry in updates} == {odd}


async def test_forty_callers_wait_for_their_own_tasks_at_once(over: OverHttp) -> None:
    async def one(number: int) -> Any:
        task_id = await over.http.submit("echo", number, session_id=f"s{number % 7}")
        return await over.http.result(f"s{number % 7}", task_id, timeout_s=60)

    assert await asyncio.gather(*map(one, range(40))) == list(range(40))


async def test_a_caller_of_one_session_lists_it_and_may_do_no_more(store: RedisStateStore) -> None:
    async with over_http(store, handlers=["echo"]) as over:
        await over.http.submit("echo", session_id="s", task_id="t")
        await over.http.submit("echo", session_id="other", task_id="t")
        await over.http.wait("s", "t")
        async with over.caller("ann", "read:session:s") as ann:
            (mine,) = (await ann.sessions()).sessions
            theirs = (await over.direct.sessions()).sessions
            assert mine in theirs
            assert await ann.get("other", "t") is None
            with pytest.raises(errors.CommandRefused, match="may not do this"):
                await ann.submit("echo", session_id="s")
            with pytest.raises(errors.CommandRefused):
                await ann.cancel("s", "t")
            for read in (ann.queues.get("q"), ann.queues.keys("q"), ann.queues.list()):
                with pytest.raises(errors.CommandRefused):
                    await read


async def test_a_retry_by_who_may_not_read_the_task_does_nothing(over: OverHttp) -> None:
    await over.direct.submit("echo", session_id="s", task_id="t", delay=timedelta(hours=1))
    assert await over.direct.cancel("s", "t")
    async with over.caller("steerer", "steer:session:s") as steerer:
        for task_id in ("t", "none"):
            with pytest.raises(errors.TaskUnknown):
                await steerer.retry("s", task_id)
    view = await over.direct.inspect("s", "t")
    assert view is not None
    assert (view.state.status, view.retries) == (TaskStatus.CANCELLED, 0)
    async with over.caller("ann", "steer:session:s", "read:session:s") as ann:
        assert (await ann.retry("s", "t")).task_id == "t"
