"""A replay changes nothing that anybody can see: each update once, steering where it was taken."""

from __future__ import annotations

import asyncio
import json
import os
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import InvalidTransition, TaskUnknown, TokenResolved, TokenUnknown
from redis_state.models import SteeringEvent, SteeringEventType, TaskState, TaskStatus, UpdateType
from redis_state.stores.sessions.job_parts import job_of
from redis_state.testing import eventually
from redis_state.transport.keys import pause_id_of
from redis_state.worker import RetryPolicy, TaskClient, TaskContext, retried
from redis_state.worker.handler.calls import TaskPaused
from redis_state.worker.tasks.waitpoints.pause_model import token_of
from tests.support.processes.pools import SESSION, client_of
from tests.support.tasks.runs import TASK, begin_again, make, run_once

# More of them under make fuzz. A number makes one program: all processes collect the same tests.
PROGRAMS = int(os.environ.get("REDIS_STATE_EXAMPLES", "40"))


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as opened:
        yield opened


async def emitted(store: RedisStateStore) -> list[Any]:
    """Give what the handler has published, without the task's changes of state."""
    reported = await store.list_updates(SESSION, task_id=TASK, limit=10_000)
    kinds = (UpdateType.STATUS_CHANGE, UpdateType.NOTIFICATION)
    return [update.content for update in reported if update.update_type not in kinds]


async def say(store: RedisStateStore, ctx: TaskContext | None, text: str) -> None:
    """Steer the task; wait until a run that is there has heard it."""
    event = SteeringEvent(
        session_id=SESSION,
        task_id=TASK,
        event_type=SteeringEventType.USER_MESSAGE,
        payload={"text": text},
    )
    await store.save_steering(event)
    if ctx is not None:
        heard = ctx.inbox._waiting
        await eventually(lambda: event.event_id in {one.event_id for one in heard}, "it is heard")


def texts(events: list[SteeringEvent]) -> list[str]:
    return [event.payload["text"] for event in events]


async def test_an_approval_after_steering_repeats_nothing_and_invents_nothing(
    store: RedisStateStore, client: TaskClient
) -> None:
    calls: list[str] = []

    async def handler(ctx: TaskContext) -> None:
        topic = "otters"
        for number in range(4):
            if number == 2 and ctx.attempt == 1:
                await say(store, ctx, "beavers")
            for text in texts(ctx.inbox.take()):
                topic = text
            await ctx.thinking(f"{number}: {topic}")
            found = await ctx.step("search", search, topic)
            await ctx.tool_call("search", topic, found)
        await ctx.approval("publish?")
        await ctx.result("published")

    def search(topic: str) -> str:
        calls.append(topic)
        return f"search({topic})"

    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.PAUSED
    before = await emitted(store)
    (pause,) = await client.pauses(SESSION)
    assert pause.token is not None
    await client.approve(pause.token)
    assert (await run_once(store, handler)).status is TaskStatus.COMPLETE
    assert await emitted(store) == [*before, "published"]
    assert calls == ["otters", "otters", "beavers", "beavers"]
    found: list[dict[str, Any]] = [row for row in before if isinstance(row, dict) and "tool" in row]
    assert [(row["arguments"], row["result"]) for row in found] == [
        (topic, f"search({topic})") for topic in calls
    ]


async def test_what_differs_by_a_time_or_a_random_id_is_no_second_row(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> None:
        for number in range(3):
            await ctx.progress("working", id=uuid.uuid4().hex, number=number)
        if ctx.attempt < 3:
            begin_again()
        await ctx.progress("done", id=uuid.uuid4().hex, number=3)

    await make(store)
    first = None
    for _ in range(3):
        await run_once(store, handler)
        first = first or await emitted(store)
    assert first is not None
    rows = await emitted(store)
    assert rows[:3] == first
    assert [row["number"] for row in rows] == [0, 1, 2, 3]


async def test_parallel_parts_may_emit_in_another_order(store: RedisStateStore) -> None:
    async def part(ctx: TaskContext, name: str, turns: int, rows: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        for number in range(rows):
            await ctx.progress(f"{name}{number}")

    async def handler(ctx: TaskContext) -> None:
        first = ctx.attempt == 1
        names = ["a", "b", "c"] if first else ["a", "b", "c", "d"]
        # Later parts emit first in a replay, and get further than before.
        turns = {name: 50 * (len(names) - n if not first else n) for n, name in enumerate(names)}
        rows = {"a": 1, "b": 3, "c": 2} if first else dict.fromkeys(names, 4)
        await asyncio.gather(*(part(ctx, name, turns[name], rows[name]) for name in names))
        if first:
            begin_again()

    await make(store)
    await run_once(store, handler)
    before = await emitted(store)
    assert len(before) == 6
    await run_once(store, handler)
    rows = [row["message"] for row in await emitted(store)]
    assert rows[:6] == [row["message"] for row in before]
    assert sorted(rows) == sorted(f"{name}{number}" for name in "abcd" for number in range(4))
    for name in "abcd":
        assert [row for row in rows if row[0] == name] == [f"{name}{n}" for n in range(4)]


async def test_parallel_branches_may_begin_with_a_time(store: RedisStateStore) -> None:
    async def part(ctx: TaskContext, name: str, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await ctx.progress("begun", id=uuid.uuid4().hex, name=name)
        await ctx.progress("end", name=name)

    async def handler(ctx: TaskContext) -> None:
        order = ["a", "b"] if ctx.attempt == 1 else ["b", "a"]
        await asyncio.gather(
            *(part(ctx.branch(name), name, 50 * order.index(name)) for name in ["a", "b"])
        )
        if ctx.attempt == 1:
            begin_again()
        await ctx.progress("all", name="")

    await make(store)
    for _ in range(2):
        await run_once(store, handler)
    rows = [(row["message"], row["name"]) for row in await emitted(store)]
    ends = [("begun", "a"), ("end", "a"), ("begun", "b"), ("end", "b"), ("all", "")]
    assert sorted(rows) == sorted(ends)


async def test_what_retention_has_dropped_is_not_brought_back(settings: Settings) -> None:
    short = settings.model_copy(update={"max_updates_per_session": 5})

    async def handler(ctx: TaskContext) -> None:
        for number in range(100):
            await ctx.progress(f"{number}")
        if ctx.attempt == 1:
            begin_again()
        await ctx.result("done")

    async with RedisStateStore(short) as store:
        await make(store)
        await run_once(store, handler)
        cursor = await store.update_cursor(SESSION)
        await run_once(store, handler)
        page = await store.read_updates(SESSION, after=cursor, task_id=TASK)
        reported = [update.content for update in page.values]
    assert [content for content in reported if "status" not in content] == ["done"]


async def test_an_update_inside_of_a_step_is_published_once_whatever_attempt_it_is_of(
    store: RedisStateStore,
) -> None:
    tries: list[int] = []

    async def work(ctx: TaskContext) -> str:
        await ctx.progress("trying")
        tries.append(ctx.attempt)
        if len(tries) < 3:
            raise OSError
        if len(tries) == 3:
            begin_again()
        await ctx.progress("worked")
        return "ok"

    async def handler(ctx: TaskContext) -> None:
        policy = RetryPolicy(attempts=4, wait_initial_s=0.001, on=(OSError,))
        await ctx.step("work", retried(work, policy), ctx)
        await ctx.emit(UpdateType.NOTIFICATION, "noticed")

    await make(store)
    for _ in range(2):
        await run_once(store, handler)
    rows = [row["message"] for row in await emitted(store)]
    assert rows == ["trying", "trying", "trying", "worked"]
    reported = await store.list_updates(SESSION, task_id=TASK, limit=100)
    notices = [one.content for one in reported if one.update_type is UpdateType.NOTIFICATION]
    # Both failed attempts, once each; and what the handler itself noticed is not taken for one.
    assert [notice if isinstance(notice, str) else notice["attempt"] for notice in notices] == [
        1,
        2,
        "noticed",
    ]


async def test_a_handler_that_resumes_from_a_state_of_its_own_names_its_updates(
    store: RedisStateStore,
) -> None:
    done = 0

    async def handler(ctx: TaskContext) -> None:
        nonlocal done
        for number in range(max(0, done - 1), 6):
            await ctx.emit(UpdateType.PROGRESS, {"item": number}, key=f"item {number}")
            done = number + 1
            if done in (2, 4) and ctx.attempt < 3:
                begin_again()

    await make(store)
    for _ in range(3):
        await run_once(store, handler)
    assert [row["item"] for row in await emitted(store)] == list(range(6))


async def test_steering_is_taken_in_a_replay_where_it_was_taken_first(
    store: RedisStateStore,
) -> None:
    runs: list[list[list[str]]] = []

    async def handler(ctx: TaskContext) -> None:
        taken: list[list[str]] = []
        runs.append(taken)
        for number in range(4):
            if (ctx.attempt, number) in {(1, 1), (1, 3), (2, 3)}:
                await say(store, ctx, f"{ctx.attempt}.{number}")
            taken.append(texts(ctx.inbox.take()))
            await ctx.step(f"s{number}", int)
            if (ctx.attempt, number) in {(1, 2), (2, 3)}:
                begin_again()

    await make(store)
    await run_once(store, handler)
    await say(store, None, "between")
    await run_once(store, handler)
    await run_once(store, handler)
    assert runs == [
        [[], ["1.1"], []],
        [[], ["1.1"], [], ["between", "2.3"]],
        [[], ["1.1"], [], ["between", "2.3"]],
    ]


async def test_nothing_new_is_taken_before_the_point_that_earlier_runs_have_passed(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> None:
        topic = "otters"
        for text in texts(ctx.inbox.take()):
            topic = text
        await ctx.progress(topic, part="A")
        if ctx.attempt == 1:
            begin_again()
        await ctx.progress(topic, part="B")
        for text in texts(ctx.inbox.take()):
            topic = text
        await ctx.progress(topic, part="C")

    await make(store)
    await run_once(store, handler)
    await say(store, None, "beavers")
    await run_once(store, handler)
    rows = [(row["part"], row["message"]) for row in await emitted(store)]
    assert rows == [("A", "otters"), ("B", "otters"), ("C", "beavers")]


async def test_a_wait_for_steering_is_not_waited_again(store: RedisStateStore) -> None:
    waited: list[tuple[int, list[str]]] = []

    async def handler(ctx: TaskContext) -> None:
        for _ in range(2):
            waited.append((ctx.attempt, texts(await ctx.inbox.wait(0.05))))
            await ctx.progress("waited")
        if ctx.attempt == 1:
            await say(store, ctx, "go")
        waited.append((ctx.attempt, texts(await ctx.inbox.wait())))
        if ctx.attempt == 1:
            begin_again()

    await make(store)
    for _ in range(2):
        await run_once(store, handler)
    assert waited == [(1, []), (1, []), (1, ["go"]), (2, []), (2, []), (2, ["go"])]


async def test_a_handler_that_does_not_repeat_itself_is_steered_all_the_same(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.worker.tasks.recorded.lanes._PATIENCE_S", 0.05)

    async def handler(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            for number in range(5):
                await ctx.progress(f"{number}")
            begin_again()

        async def reported() -> list[str]:
            return texts(ctx.inbox.take())

        return (await eventually(reported, "it is steered"))[0]

    await make(store)
    await run_once(store, handler)
    await say(store, None, "stop that")
    assert (await run_once(store, handler)).result == "stop that"


async def test_steering_that_its_log_has_dropped_is_taken_again_in_a_replay(
    settings: Settings,
) -> None:
    short = settings.model_copy(update={"max_steering_events_per_session": 1})
    taken: list[list[str]] = []

    async def handler(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            await say(store, ctx, "first")
        taken.append(texts(ctx.inbox.take()))
        await ctx.step("s", int)
        if ctx.attempt == 1:
            for number in range(100):
                event = SteeringEvent(
                    session_id=SESSION,
                    task_id="another",
                    event_type=SteeringEventType.USER_MESSAGE,
                    payload={"text": f"{number}"},
                )
                await store.save_steering(event)
            begin_again()

    async with RedisStateStore(short) as store:
        await make(store)
        for _ in range(2):
            await run_once(store, handler)
    assert taken == [["first"], ["first"]]


class Disturbed(Exception):
    """This run ends here, as it would with its worker."""


class Program:
    """A random handler: steps, updates, pauses, steering, branches, and parts that run at once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.body = self._block(2)
        # What happens only once, whichever run comes there first.
        self.happened: set[int] = set()
        self.emitted: list[tuple[str, str]] = []

    def _block(self, depth: int) -> list[tuple[Any, ...]]:
        kinds = ["emit"] * 4 + ["step", "keyed", "take", "take", "say", "disturb", "pause", "stall"]
        kinds += ["parallel", "branches"] * (depth > 0)
        made: list[tuple[Any, ...]] = []
        for _ in range(self.random.randint(3, 8)):
            kind = self.random.choice(kinds)
            number = self.random.getrandbits(40)
            several = kind in ("parallel", "branches")
            made.append((kind, number, [self._part(depth) for _ in range(2 * several)]))
        return made

    def _part(self, depth: int) -> list[tuple[Any, ...]]:
        # A part is steered, paused and disturbed by what is around it.
        allowed = {"emit", "step", "keyed", "disturb"}
        return [
            (f"{kind}", number, []) for kind, number, _ in self._block(depth - 1) if kind in allowed
        ]

    async def run(self, ctx: TaskContext) -> str:
        self.emitted = []
        return await self._play(ctx, self.body, "none", "")

    async def _play(  # noqa: C901, PLR0912 - one case for each kind of deed
        self, ctx: TaskContext, block: list[tuple[Any, ...]], topic: str, place: str
    ) -> str:
        for position, (kind, number, parts) in enumerate(block):
            here = f"{place}/{position}"
            first = number not in self.happened
            match kind:
                case "emit":
                    noise = uuid.uuid4().hex if number % 3 else None
                    self.emitted.append((here, topic))
                    await ctx.progress(topic, place=here, noise=noise)
                case "step":
                    topic = await ctx.step(f"step {here}", "{}{}".format, topic, number % 7)
                case "keyed":
                    await ctx.keyed_step("keyed", here, int)
                case "take":
                    for text in texts(ctx.inbox.take()):
                        topic = text
                case "say":
                    if first:
                        self.happened.add(number)
                        await say(ctx.store, ctx, f"said {number % 1000}")
                case "disturb" | "stall":
                    if first and number % 2:
                        self.happened.add(number)
                        raise Disturbed(kind)
                case "pause":
                    if number % 3 == 0:
                        await ctx.pause(f"pause {here}")
                case "parallel":
                    await self._at_once([(ctx, part) for part in parts], topic, here, number)
                case _:
                    at_once = [(ctx.branch(f"b{n}"), part) for n, part in enumerate(parts)]
                    await self._at_once(at_once, topic, here, number)
        return topic

    async def _at_once(
        self, parts: list[tuple[TaskContext, Any]], topic: str, place: str, number: int
    ) -> None:
        async def part(n: int, ctx: TaskContext, block: Any) -> None:
            # In another order in each run.
            for _ in range(random.Random(f"{number} {n} {ctx.attempt}").randint(0, 20)):
                await asyncio.sleep(0)
            await self._play(ctx, block, topic, f"{place}.{n}")

        results = await asyncio.gather(
            *(part(n, *given) for n, given in enumerate(parts)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result


async def disturbed(store: RedisStateStore, client: TaskClient, program: Program) -> TaskState:
    """Run a program to its end, however often that is disturbed."""

    async def handler(ctx: TaskContext) -> str:
        try:
            return await program.run(ctx)
        except Disturbed as how:
            if str(how) == "stall":
                # Its worker stalls past its lease: another takes the task over.
                key = ctx.fence.lease
                await store.transport.sender.send("HSET", key, "expires", 0, repeatable=True)
                with suppress(Exception):
                    await run_once(store, handler)
                with suppress(Exception, TaskPaused):
                    await ctx.progress("a zombie's")
            begin_again()

    await make(store)
    for _ in range(60):
        state = await run_once(store, handler)
        if state.status.is_terminal:
            return state
        for pause in await client.pauses(SESSION):
            assert pause.token is not None
            await client.approve(pause.token)
    raise AssertionError("it is never over")


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(PROGRAMS))
async def test_the_stream_of_a_disturbed_run_is_that_of_an_undisturbed_one(
    store: RedisStateStore, client: TaskClient, seed: int
) -> None:
    program = Program(seed)
    state = await disturbed(store, client, program)
    assert (state.status, state.error) == (TaskStatus.COMPLETE, None)
    published = [row for row in await emitted(store) if "place" in row]
    rows = [(row["place"], row["message"]) for row in published]
    # The last run went from the start to the end, with the same steering at the same places: what
    # it came by is what an undisturbed run publishes.
    assert Counter(rows) == Counter(program.emitted)
    for lane in {place.rpartition("/")[0] for place, _ in rows}:
        mine = [row for row in rows if row[0].rpartition("/")[0] == lane]
        assert mine == [row for row in program.emitted if row[0].rpartition("/")[0] == lane]


async def test_each_row_tells_which_run_published_it(
    store: RedisStateStore, client: TaskClient
) -> None:
    epochs: list[int] = []

    async def handler(ctx: TaskContext) -> None:
        epochs.append(ctx.epoch)
        await ctx.progress("first")
        await ctx.approval("go on?")
        await ctx.progress("second")

    await make(store)
    await run_once(store, handler)
    (pause,) = await client.pauses(SESSION)
    assert pause.token is not None
    await client.approve(pause.token)
    await run_once(store, handler)
    page = await store.read_updates(SESSION, task_id=TASK)
    found = [(one.run, one.value.content) for one in page.entries]
    runs = [
        (run, content.get("message") or content.get("status") or content["pause"])
        for run, content in found
    ]
    one, two = epochs
    assert one < two
    assert runs == [
        (None, "PENDING"),
        (one, "RUNNING"),
        (one, "first"),
        (one, "await_approval"),
        (one, "PAUSED"),
        (None, "PENDING"),
        (two, "RUNNING"),
        (two, "second"),
        (two, "COMPLETE"),
    ]
    watched = store.watch_updates(SESSION, task_id=TASK)
    assert [(await anext(watched)).run for _ in runs] == [run for run, _ in runs]
    await watched.aclose()


async def test_steering_a_task_that_is_unknown_or_over_is_refused(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def handler(_: TaskContext) -> None:
        pass

    with pytest.raises(TaskUnknown):
        await client.steer(SESSION, TASK, SteeringEventType.USER_MESSAGE, {"text": "hello"})
    await make(store)
    reported = {"text": "hello"}
    kind = SteeringEventType.USER_MESSAGE
    await client.steer(SESSION, TASK, kind, reported, event_id="mine")
    await run_once(store, handler)
    with pytest.raises(InvalidTransition):
        await client.steer(SESSION, TASK, kind, reported)
    # A repeated call is the same event, also after the end.
    await client.steer(SESSION, TASK, kind, reported, event_id="mine")
    assert len(await store.list_steering(SESSION, task_id=TASK)) == 1


async def test_who_reads_the_updates_learns_a_pauses_id_and_not_its_token(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        first = await ctx.open_pause("one")
        shown = (first.pause_id, first.token)
        kept = await ctx.open_pause("two", reveal=False)
        stated = [(await ctx.wait_for(first)).value, (await ctx.wait_for(kept)).value]
        return [*stated, *shown, kept.pause_id, kept.token]

    await make(store)
    await run_once(store, handler)
    reported = [one.content for one in await store.list_updates(SESSION, task_id=TASK)]
    (shown,) = [content["pause_id"] for content in reported if "pause_id" in content]
    assert await client.approve(shown, "by its id") is not None
    with pytest.raises(TokenResolved):
        await client.approve(shown, "again")
    await run_once(store, handler)
    unseen = pause_id_of(token_of_pause(await store.tasks.load_fields(SESSION, TASK), "two"))
    assert unseen is not None
    with pytest.raises(TokenUnknown):
        await client.approve(unseen)
    token = token_of_pause(await store.tasks.load_fields(SESSION, TASK), "two")
    await client.approve(token, "by its token")
    result: Any = (await run_once(store, handler)).result
    assert result[:3] == ["by its id", "by its token", shown]
    for row in await store.list_updates(SESSION, task_id=TASK, limit=100):
        if row.update_type is UpdateType.CHECKPOINT:
            assert result[3] not in str(row.content)
            assert result[5] not in str(row.content)


def token_of_pause(record: Any, name: str) -> str:
    secret = json.loads(job_of(record.fields))["secret"]
    return token_of(SESSION, secret, f"pause:{name}#1")
