from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import CursorGap, InvalidField, RedisStateStore, Settings
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from tests.support.samples import STORED_STRANGE, changed, strange, update
from tests.support.servers.faults import Proxy, run_processes, sender_to
from tests.support.servers.monitor import monitored


def _fire(store: RedisStateStore, count: int) -> list[asyncio.Task[None]]:
    """Save updates as hosts do: each in a task of its own that nobody awaits."""
    return [
        asyncio.create_task(store.save_update(update(f"u{number}", number)))
        for number in range(count)
    ]


async def _contents(store: RedisStateStore, **query: Any) -> list[Any]:
    return [each.content for each in await store.list_updates("session", **query)]


@pytest.mark.parametrize("run", range(3))
async def test_120_unawaited_updates_come_back_in_call_order(
    store: RedisStateStore, run: int
) -> None:
    assert await store.list_updates("session") == []  # the store is connected
    _fire(store, 120)
    await store.drain()
    assert await _contents(store) == list(range(120))


@pytest.mark.parametrize("run", range(3))
async def test_120_unawaited_updates_of_a_fresh_store_come_back_in_call_order(
    settings: Settings, store: RedisStateStore, run: int
) -> None:
    async with RedisStateStore(settings) as fresh:
        _fire(fresh, 120)
    assert await _contents(store) == list(range(120))


@pytest.mark.parametrize("answers_lost", [False, True])
@pytest.mark.parametrize("run", range(3))
async def test_120_unawaited_updates_come_back_in_call_order_although_the_connection_is_cut(
    settings: Settings, store: RedisStateStore, run: int, *, answers_lost: bool
) -> None:
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=SecretStr(proxy.url)) as cut,
    ):
        assert await cut.list_updates("session") == []
        proxy.silence(silent=answers_lost)
        tasks = _fire(cut, 120)

        async def stored() -> bool:
            return not answers_lost or len(await store.list_updates("session")) == 120

        await eventually(stored, "the updates are stored, whoever hears of it")
        proxy.cut()
        proxy.silence(silent=False)
        await asyncio.gather(*tasks)
        assert proxy.cuts == 1
    assert await _contents(store) == list(range(120))


@pytest.mark.slow
async def test_one_update_saved_by_16_callers_in_4_processes_stands_once(
    settings: Settings, store: RedisStateStore
) -> None:
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "callers": 4,
    }
    arguments = [{**argument, "name": name} for name in "abcd"]
    assert sum(await run_processes("save_same_update", arguments)) == 1
    (stands,) = await store.list_updates("session")
    assert stands.update_id == "the-same"


async def test_the_first_of_two_updates_with_one_id_stands(store: RedisStateStore) -> None:
    assert await store.updates.save(update("same", "first")) is True
    assert await store.updates.save(update("same", "second")) is False
    assert await _contents(store) == ["first"]


async def test_an_id_is_taken_in_its_session_only(store: RedisStateStore) -> None:
    await store.save_update(update("same", 1))
    await store.save_update(update("same", 2, session_id="other"))
    assert await _contents(store) == [1]
    assert [each.content for each in await store.list_updates("other")] == [2]


async def test_the_newest_updates_after_cursor_and_filter_come_oldest_first(
    store: RedisStateStore,
) -> None:
    for number in range(10):
        await store.save_update(update(f"u{number}", number, task_id=("even", "odd")[number % 2]))
    assert await _contents(store, limit=3) == [7, 8, 9]
    assert await _contents(store, task_id="odd") == [1, 3, 5, 7, 9]
    assert await _contents(store, task_id="odd", limit=2) == [7, 9]
    # The cursor is looked up in the whole session, then the filter applies.
    assert await _contents(store, task_id="odd", since_id="u4") == [5, 7, 9]
    assert await _contents(store, task_id="odd", since_id="u4", limit=1) == [9]
    assert await _contents(store, since_id="u9") == []
    assert await _contents(store, since_id="u2", limit=2) == [8, 9]
    assert await _contents(store, limit=0) == []
    assert await _contents(store, limit=-1) == []
    assert await _contents(store, task_id="unknown") == []


async def test_a_cursor_that_is_not_of_the_session_is_no_cursor(store: RedisStateStore) -> None:
    await store.save_update(update("u1", 1))
    await store.save_update(update("foreign", 2, session_id="other"))
    for since_id in ("", "unknown", "foreign", "%~", "x" * 10_000):
        assert await _contents(store, since_id=since_id) == [1]


async def test_a_cursor_that_was_trimmed_is_no_cursor(settings: Settings) -> None:
    async with changed(settings, max_updates_per_session=5) as store:
        for number in range(20):
            await store.save_update(update(f"u{number}", number))
        assert await _contents(store) == [15, 16, 17, 18, 19]
        assert await _contents(store, since_id="u3") == [15, 16, 17, 18, 19]
        assert await _contents(store, since_id="u17") == [18, 19]
        assert await _contents(store, task_id="task") == [15, 16, 17, 18, 19]


@pytest.mark.parametrize("content", [0, "", [], {}, False, None, 0.0, {"a": []}])
async def test_falsy_content_comes_back_as_it_is(store: RedisStateStore, content: Any) -> None:
    await store.save_update(update("u", content))
    (loaded,) = await store.list_updates("session")
    assert loaded.content == content
    assert type(loaded.content) is type(content)


async def test_what_json_cannot_hold_is_stored_as_its_nearest_form_and_told(
    store: RedisStateStore,
) -> None:
    await store.save_update(update("u", strange()))
    assert await _contents(store) == [STORED_STRANGE]
    reported = {change.path: change.kind for change in store.changes_of({"a": {1}, "b": [b"x"]})}
    assert reported == {"$.a": "set", "$.b[0]": "bytes"}
    assert store.changes_of({"plain": [1, None]}) == []


async def test_every_field_of_an_update_comes_back_rebuilt(store: RedisStateStore) -> None:
    whole = update(
        "u",
        {"deep": [1]},
        trace_id="trace",
        update_type=UpdateType.CHECKPOINT,
        step_index=0,
        total_steps=3,
    )
    await store.save_update(whole)
    (loaded,) = await store.list_updates("session")
    assert loaded == whole
    assert type(loaded) is StateUpdate
    assert loaded.update_type is UpdateType.CHECKPOINT
    assert loaded.content is not whole.content


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC),
        datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
        datetime(1890, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=53, seconds=28))),
        datetime(2024, 2, 29, 12, 30),  # noqa: DTZ001 - naive stays naive
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ],
)
async def test_a_time_keeps_its_instant_and_its_awareness(
    store: RedisStateStore, moment: datetime
) -> None:
    await store.save_update(update("u", created_at=moment))
    (loaded,) = await store.list_updates("session")
    assert loaded.created_at == moment
    assert (loaded.created_at.tzinfo is None) == (moment.tzinfo is None)


async def test_forward_pages_skip_nothing(store: RedisStateStore) -> None:
    _fire(store, 25)
    await store.drain()
    read: list[Any] = []
    cursor: str | None = None
    at_end = False
    while not at_end:
        page = await store.read_updates("session", after=cursor, limit=10)
        read += [each.content for each in page.values]
        cursor, at_end = page.cursor, page.at_end
        assert len(page.entries) <= 10
    assert read == list(range(25))
    assert (await store.read_updates("session", after=cursor)).values == []
    await store.save_update(update("later", "later"))
    later = await store.read_updates("session", after=cursor)
    assert [each.content for each in later.values] == ["later"]


async def test_the_first_page_and_a_poll_without_news_are_a_request_each(own_url: str) -> None:
    settings = Settings(url=SecretStr(own_url), namespace="t")
    async with sender_to(own_url) as admin, RedisStateStore(settings) as store:
        await store.save_update(update("a"))
        cursor = (await store.read_updates("session")).cursor
        for after, found, command in ((None, 1, "EVALSHA"), (cursor, 0, "HGET")):
            async with monitored(own_url.removeprefix("unix://"), admin) as requests:
                assert len((await store.read_updates("session", after=after)).values) == found
            # What the connections send by themselves has no key.
            asked = [each.name for each in requests if any(b"{session}" in w for w in each.words)]
            assert asked == [command]


async def test_an_entrys_cursor_reads_on_after_it(store: RedisStateStore) -> None:
    _fire(store, 5)
    await store.drain()
    page = await store.read_updates("session")
    for number, entry in enumerate(page.entries):
        rest = await store.read_updates("session", after=entry.cursor)
        assert [each.content for each in rest.values] == list(range(number + 1, 5))
        assert await store.update_cursor("session", f"u{number}") == entry.cursor
    assert await store.update_cursor("session") == page.cursor
    assert await store.update_cursor("session", "unknown") is None


async def test_pages_of_one_task_hold_its_updates_only(store: RedisStateStore) -> None:
    for number in range(10):
        await store.save_update(update(f"u{number}", number, task_id=f"t{number % 3}"))
    first = await store.read_updates("session", task_id="t1", limit=2)
    assert [each.content for each in first.values] == [1, 4]
    rest = await store.read_updates("session", task_id="t1", after=first.cursor)
    assert [each.content for each in rest.values] == [7]
    assert rest.at_end


async def test_a_page_after_a_trimmed_cursor_tells_the_gap(settings: Settings) -> None:
    async with changed(settings, max_updates_per_session=5) as store:
        await store.save_update(update("u0", 0))
        cursor = await store.update_cursor("session", "u0")
        for number in range(1, 20):
            await store.save_update(update(f"u{number}", number))
        with pytest.raises(CursorGap) as caught:
            await store.read_updates("session", after=cursor)
        gap = caught.value
        assert (gap.reason, gap.missed, gap.cursor) == ("trimmed", 14, cursor)
        rest = await store.read_updates("session", after=gap.resume_after)
        assert [each.content for each in rest.values] == [15, 16, 17, 18, 19]


@pytest.mark.parametrize("cursor", ["", "nonsense", "1", "1-1", "-", "0x1-1", "9" * 40 + "-1"])
async def test_a_foreign_cursor_is_a_typed_gap(store: RedisStateStore, cursor: str) -> None:
    await store.save_update(update("u0", 0))
    await store.save_update(update("u1", 1))
    with pytest.raises(CursorGap) as caught:
        await store.read_updates("session", after=cursor)
    assert caught.value.reason == "foreign"
    rest = await store.read_updates("session", after=caught.value.resume_after)
    assert [each.content for each in rest.values] == [0, 1]


async def test_a_cursor_beyond_the_end_is_a_typed_gap(store: RedisStateStore) -> None:
    await store.save_update(update("u0", 0))
    with pytest.raises(CursorGap) as caught:
        await store.read_updates("session", after=f"1000-{10**14}")
    assert caught.value.reason == "ahead"
    assert caught.value.resume_after == await store.update_cursor("session")


@pytest.mark.parametrize("limit", [0, -1, True, 2.5, None])
async def test_a_page_of_no_rows_is_refused_by_name(store: RedisStateStore, limit: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.read_updates("session", limit=limit)
    assert caught.value.field == "limit"


async def test_updates_live_as_long_as_they_are_set_to(settings: Settings) -> None:
    async with changed(settings, updates_ttl="PT0.1S") as store:
        await store.save_update(update("u0", 0))

        async def gone() -> bool:
            return await store.list_updates("session") == []

        await eventually(gone, "the updates expire")


async def test_a_save_that_was_begun_is_carried_out_though_its_caller_is_cancelled(
    store: RedisStateStore,
) -> None:
    saving = asyncio.create_task(store.save_update(update("1")))
    await asyncio.sleep(0)  # begun, and not sent: there is no connection yet
    assert saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert [row.update_id for row in await store.list_updates("session")] == ["1"]


async def test_a_pause_is_not_consumed_for_a_caller_who_is_cancelled_before_it_is_sent(
    store: RedisStateStore, settings: Settings
) -> None:
    await store.save_planner_state("token", {"a": 1})
    async with RedisStateStore(settings) as other:
        loading = asyncio.create_task(other.load_planner_state("token"))
        await asyncio.sleep(0)
        assert loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert await other.load_planner_state("token") == {"a": 1}
