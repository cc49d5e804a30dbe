"""Lists of A2A tasks: the SDK's own store as the model, and what its database store gets wrong."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.server.tasks import InMemoryTaskStore
from a2a.types.a2a_pb2 import ListTasksRequest, Task, TaskState
from a2a.utils.errors import InvalidParamsError
from hypothesis import strategies as st

from redis_state import Settings
from redis_state.integrations.a2a import A2ABackend, RedisTaskStore, create_task_store
from redis_state.scripts import Scripts
from tests.support.a2a.tasks import SUBMITTED, WORKING, caller, needs_rules_of_1_2, server_on, task
from tests.support.scripts.models import explore
from tests.support.scripts.replies import ask

ME = caller()


@pytest.fixture
async def backend(settings: Settings) -> AsyncIterator[A2ABackend]:
    async with server_on(settings) as made:
        yield made


@pytest.fixture
def tasks(backend: A2ABackend) -> RedisTaskStore:
    return create_task_store(backend)


def asking(**more: Any) -> ListTasksRequest:
    since = more.pop("since_ns", None)
    request = ListTasksRequest(**more)
    if since is not None:
        request.status_timestamp_after.FromNanoseconds(since)
    return request


async def pages(tasks: Any, context: Any = ME, **more: Any) -> list[list[str]]:
    """Read all pages; give the ids of each."""
    found: list[list[str]] = []
    token = ""
    while True:
        page = await tasks.list(asking(page_token=token, **more), context)
        found.append([one.id for one in page.tasks])
        token = page.next_page_token
        if not token:
            return found


async def ids(tasks: Any, context: Any = ME, **more: Any) -> list[str]:
    return [one for page in await pages(tasks, context, **more) for one in page]


NAMES = st.sampled_from(
    ["a", "b", "B", "ab", "a b", "ä", "漢", "*", "|", "1", "10", "~", "\U0001f600"]
)
TIMES = st.none() | st.sampled_from([0, 1, 2, 10**9, 10**9 + 1, 1_700_000_000_123_456_789])
MADE = st.builds(
    task,
    NAMES,
    st.sampled_from([SUBMITTED, WORKING]),
    context=st.sampled_from(["", "c", "d", "*", "| *"]),
    ns=TIMES,
)
STEPS = st.lists(st.tuples(st.sampled_from(["save"] * 5 + ["delete"]), MADE), max_size=25)


_ASKED: list[dict[str, Any]] = [
    {},
    {"page_size": 1},
    {"page_size": 3},
    {"context_id": "c"},
    {"context_id": "*", "page_size": 2},
    {"context_id": "| *"},
    {"status": WORKING, "page_size": 2},
    {"context_id": "d", "status": SUBMITTED},
    {"since_ns": 0},
    {"since_ns": 1},
    {"since_ns": 10**9 + 1, "page_size": 1},
    {"since_ns": 10**18, "context_id": "c", "status": WORKING},
    {"status": TaskState.TASK_STATE_AUTH_REQUIRED},
]


@pytest.mark.fuzz
@needs_rules_of_1_2
def test_every_list_is_that_of_the_sdks_own_store(settings: Settings) -> None:
    async def play(_: Scripts, steps: list[tuple[str, Task]]) -> list[str]:
        me = caller(secrets.token_hex(8))
        async with server_on(settings) as backend:
            model, ours = InMemoryTaskStore(), create_task_store(backend)
            await _play(model, ours, steps, me)
            return await _compare(model, ours, me)

    wanted = {"many pages", "empty", "timeless", "same moment"}
    explore(settings, STEPS, play, wanted=wanted)


async def _play(
    model: InMemoryTaskStore, ours: RedisTaskStore, steps: list[tuple[str, Task]], me: Any
) -> None:
    deleted: set[str] = set()
    for what, made in steps:
        # The one difference that is meant: what was deleted stays deleted.
        if made.id in deleted:
            continue
        if what == "delete" and await model.get(made.id, me) is not None:
            deleted.add(made.id)
        for store in (model, ours):
            await (store.save(made, me) if what == "save" else store.delete(made.id, me))


async def _compare(model: InMemoryTaskStore, ours: RedisTaskStore, me: Any) -> list[str]:
    happened: list[str] = []
    for requested in _ASKED:
        there = await model.list(asking(**requested), me)
        here = await ours.list(asking(**requested), me)
        assert list(here.tasks) == list(there.tasks)
        assert (here.total_size, here.page_size) == (there.total_size, there.page_size)
        paged = await pages(ours, me, **requested)
        assert paged == await pages(model, me, **requested)
        happened.append("many pages" if len(paged) > 2 else "one page")
        happened += ["empty"] * (here.total_size == 0)
    everything = (await ours.list(asking(page_size=100), me)).tasks
    times = [one.status.timestamp.ToNanoseconds() for one in everything]
    happened += ["same moment"] * (len(set(times)) < len(times))
    timed = [one.status.HasField("timestamp") for one in everything]
    happened += ["timeless"] * (not all(timed) and any(timed))
    return happened


async def test_the_order_is_by_nanoseconds(tasks: RedisTaskStore) -> None:
    moment = 1_700_000_000_123_456_000
    offsets = [7, 3, 999, 0, 1, 500, 42]
    for offset in offsets:
        await tasks.save(task(f"t{offset}", ns=moment + offset), ME)
    newest = [f"t{offset}" for offset in sorted(offsets, reverse=True)]
    assert await ids(tasks, page_size=2) == newest
    # All within one microsecond, and the bound is exact as well.
    assert await ids(tasks, since_ns=moment + 42) == newest[:3]


async def test_times_of_every_age_are_in_order(tasks: RedisTaskStore) -> None:
    first, last = -62_135_596_800 * 10**9, 253_402_300_799_999_999_999
    moments = [last, 10**18, 1, 0, -1, -(10**18), first, None]
    for number, moment in enumerate(moments):
        await tasks.save(task(f"t{number}", ns=moment), ME)
    assert await ids(tasks, page_size=3) == [f"t{number}" for number in range(len(moments))]


async def test_a_token_survives_what_happens_to_the_task_at_its_place(
    tasks: RedisTaskStore,
) -> None:
    for number in range(9):
        await tasks.save(task(f"t{number}", ns=number), ME)
    first = await tasks.list(asking(page_size=3), ME)
    assert [one.id for one in first.tasks] == ["t8", "t7", "t6"]

    async def following() -> list[str]:
        page = await tasks.list(asking(page_size=3, page_token=first.next_page_token), ME)
        return [one.id for one in page.tasks]

    assert await following() == ["t5", "t4", "t3"]
    await tasks.save(task("t6", ns=100), ME)
    assert await following() == ["t5", "t4", "t3"]
    for gone in ("t6", "t5", "t7"):
        await tasks.delete(gone, ME)
    assert await following() == ["t4", "t3", "t2"]
    await tasks.save(task("new", ns=5), ME)
    assert await following() == ["new", "t4", "t3"]


async def test_a_token_leads_on_in_its_own_list_only(
    settings: Settings, tasks: RedisTaskStore
) -> None:
    others = [caller("bob"), caller("ann", tenant="x")]
    for who in (ME, *others):
        for number in range(4):
            await tasks.save(task(f"t{number}", ns=number), who)
    token = (await tasks.list(asking(page_size=2), ME)).next_page_token
    nothing: dict[str, Any] = {}
    other_lists: list[dict[str, Any]] = [{"context_id": "c"}, {"status": WORKING}, {"since_ns": 1}]
    for who, more in [*((one, nothing) for one in others), *((ME, one) for one in other_lists)]:
        with pytest.raises(InvalidParamsError, match="page_token"):
            await tasks.list(asking(page_token=token, **more), who)
    async with server_on(settings) as another:
        page = await create_task_store(another).list(asking(page_token=token), ME)
        assert [one.id for one in page.tasks] == ["t1", "t0"]


async def test_a_forged_token_is_refused(tasks: RedisTaskStore) -> None:
    for number in range(3):
        await tasks.save(task(f"t{number}", ns=number), ME)
    token = (await tasks.list(asking(page_size=1), ME)).next_page_token
    sealed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    forged = [
        base64.urlsafe_b64encode(bytes([*sealed[:place], sealed[place] ^ 1, *sealed[place + 1 :]]))
        for place in range(len(sealed))
    ]
    texts = [one.decode().rstrip("=") for one in forged]
    # Those of the SDK's stores too: a task's id, in the clear.
    plain = base64.b64encode(b"t1").decode()
    for text in [
        *texts,
        plain,
        token[:-1],
        token[:20],
        "x",
        "=",
        "ü",
        "\0",
        " " + token,
        "A" * 9999,
    ]:
        with pytest.raises(InvalidParamsError, match="page_token"):
            await tasks.list(asking(page_token=text), ME)


async def test_the_longest_id_can_be_paged_over_and_no_longer_token_is_opened(
    settings: Settings,
) -> None:
    async with server_on(settings) as backend:
        tasks = create_task_store(backend)
        for first in "ab":
            await tasks.save(task(first + 2_047 * "x"), ME)
        page = await tasks.list(asking(page_size=1), ME)
        rest = await tasks.list(asking(page_size=1, page_token=page.next_page_token), ME)
        assert [found.id[0] for found in (*page.tasks, *rest.tasks)] == ["b", "a"]
        with pytest.raises(InvalidParamsError, match="id is too long"):
            await tasks.save(task(2_049 * "x"), ME)
        with pytest.raises(InvalidParamsError, match="page_token"):
            await tasks.list(asking(page_token=page.next_page_token + 4_096 * "="), ME)


async def test_a_token_of_a_secret_that_is_gone_is_refused(
    tasks: RedisTaskStore, scripts: Scripts
) -> None:
    for number in range(3):
        await tasks.save(task(f"t{number}", ns=number), ME)
    token = (await tasks.list(asking(page_size=1), ME)).next_page_token
    await ask(scripts, "DEL", tasks.backend.store.base.keys.a2a_page_secret())
    with pytest.raises(InvalidParamsError, match="too old"):
        await tasks.list(asking(page_token=token), ME)


async def test_a_page_size_that_cannot_be_is_refused(tasks: RedisTaskStore) -> None:
    for size in (-1, 101, 1 << 30):
        with pytest.raises(InvalidParamsError):
            await tasks.list(asking(page_size=size), ME)


async def test_a_page_that_was_read_is_a_copy(tasks: RedisTaskStore) -> None:
    await tasks.save(task(text="kept"), ME)
    page = await tasks.list(asking(), ME)
    page.tasks[0].ClearField("artifacts")
    assert (await tasks.list(asking(), ME)).tasks[0] == task(text="kept")


async def test_every_task_is_in_one_page_while_others_are_written(tasks: RedisTaskStore) -> None:
    still = [f"still{number}" for number in range(40)]
    for number, name in enumerate(still):
        await tasks.save(task(name, ns=number), ME)
    stop = asyncio.Event()
    writes = 0

    async def write() -> None:
        nonlocal writes
        while not stop.is_set():
            await tasks.save(task(f"moving{writes % 20}", ns=writes), ME)
            writes += 1

    writing = asyncio.create_task(write())
    try:
        for _ in range(10):
            before = writes
            found = [name for name in await ids(tasks, page_size=7) if name in set(still)]
            assert sorted(found) == sorted(still)
            assert writes > before
    finally:
        stop.set()
        await writing


async def test_a_list_is_read_while_tasks_are_made_all_the_time(tasks: RedisTaskStore) -> None:
    for number in range(5):
        await tasks.save(task(f"old{number}", ns=number), ME)
    stop = asyncio.Event()
    made = 0

    async def make(who: int) -> None:
        nonlocal made
        while not stop.is_set():
            made += 1
            await tasks.save(task(f"new{who}-{made}", ns=10 + made), ME)

    making = [asyncio.create_task(make(who)) for who in range(4)]
    try:
        for _ in range(20):
            before = made
            page = await tasks.list(asking(page_size=10), ME)
            assert len(page.tasks) >= 5
            found = [one.status.timestamp.ToNanoseconds() for one in page.tasks]
            assert found == sorted(found, reverse=True)
            assert made > before
    finally:
        stop.set()
        await asyncio.gather(*making)


async def test_what_has_expired_is_in_no_list(settings: Settings, scripts: Scripts) -> None:
    async with server_on(settings) as backend:
        tasks = create_task_store(backend)
        for name in ("lives", "gone"):
            await tasks.save(task(name), ME)
        await ask(scripts, "DEL", backend.tasks.keys(backend.ref("gone", ME)).task)
        page = await tasks.list(asking(), ME)
        assert [one.id for one in page.tasks] == ["lives"]
        assert page.total_size == 1
