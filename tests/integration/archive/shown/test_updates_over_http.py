"""A session's updates over HTTP, in the console and by a command, from the archive to Redis."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jinja2", reason="needs the gateway extra")
pytest.importorskip("typer", reason="needs the cli extra")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import Archive
from redis_state.errors import CommandRefused, CursorGap, InvalidField
from redis_state.models import StateUpdate, UpdateType
from redis_state.transport.keys import token_scopes
from tests.integration.archive.copying.test_without_tasks import look
from tests.integration.archive.reading.test_live_task_timelines import expire, trim
from tests.integration.archive.shown.test_archived_sessions import PATH, serving_gateway
from tests.support.commands import Ran, cli
from tests.support.http.gateway import code_of
from tests.support.http.http_gateway import OverHttp, over_http
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import tell

pytestmark = pytest.mark.worker

UPDATES = f"{PATH}/updates"
AWAY = "postgresql://ann:secret@127.0.0.1:1/d"


async def archived_alone(live: RedisStateStore, archive: Archive, count: int = 3) -> list[str]:
    """Have a session of which the archive has updates, and nobody anything else; return the ids."""
    await tell(live, count)
    await look(live, archive)
    ids = [each.update_id for each in await live.list_updates(SESSION)]
    await expire(live)
    return ids


async def read_all(over: OverHttp, after: str | None = None, **options: Any) -> list[str]:
    found: list[str] = []
    at_end = False
    while not at_end:
        page = await over.http.read_updates(SESSION, after=after, **options)
        found += [each.value.update_id for each in page.entries]
        after, at_end = page.cursor, page.at_end
    return found


async def test_a_session_that_never_had_a_task_is_read_and_opened(
    live: RedisStateStore, archive: Archive
) -> None:
    async with serving_gateway(live) as gateway:
        ids = await archived_alone(live, archive)
        for who in ("ann", "sam"):
            found = (await gateway.get(PATH, who=who)).json()
            assert (found["archived"], sum(found["counts"].values())) == (True, 0)
            assert (await gateway.get(f"{PATH}/tree", who=who)).json()["trees"] == []
            page = (await gateway.get(UPDATES, who=who)).json()
            assert ([row["update_id"] for row in page["rows"]], page["gap"]) == (ids, None)
            shown = await (await gateway.browser(who)).get("/session", session=SESSION)
            assert (shown.status, shown.source.count("<span>PROGRESS</span>")) == (200, 3)
            assert ("updates alone" in shown.text, "archived" in shown.text) == (True, True)
        for path in ("", "/tree", "/updates"):
            hidden = await gateway.get(f"{PATH}{path}", who="eve")
            none = await gateway.get(f"/v1/sessions/none{path}", who="eve")
            assert (hidden.status_code, hidden.content) == (404, none.content)
        assert (await (await gateway.browser("eve")).get("/session", session=SESSION)).status == 404
        # A stream of it can begin, and so can a page.
        empty = await gateway.get("/v1/sessions/none/updates")
        assert (empty.status_code, empty.json()["rows"], empty.json()["at_end"]) == (200, [], True)
        await tell(live, 1)
        found = (await gateway.get(PATH)).json()
        assert (found["archived"], sum(found["counts"].values())) == (False, 0)


async def test_a_command_lists_the_updates_of_a_session_without_tasks(
    live: RedisStateStore, archive: Archive, settings: Settings, archive_url: str
) -> None:
    async def run(*arguments: str) -> Ran:
        return await cli(
            settings, "archive", "updates", *arguments, REDIS_STATE_ARCHIVE_URL=archive_url
        )

    await tell(live, 3)
    await look(live, archive)
    # Two are lost before they are archived, one is not archived.
    await tell(live, 2)
    await trim(live, 1, task="t")
    found = (await run(SESSION, "--json")).document
    assert [each["content"] for each in found["updates"]] == [*({"n": n} for n in range(3)), "late"]
    assert (found["missed"], found["more"]) == (2, False)
    two = (await run(SESSION, "--limit", "2", "--json")).document
    assert (len(two["updates"]), two["missed"], two["more"]) == (2, 0, True)
    rest = (await run(SESSION, "--after", two["cursor"], "--json")).document
    assert two["updates"] + rest["updates"] == found["updates"]
    ran = await run(SESSION, "--limit", "2")
    assert f"more follow: --after {two['cursor']}" in ran.out
    assert "2 updates of the session are missing" in (await run(SESSION)).out
    assert (await run("none")).out.strip() == "no updates"


async def test_a_cursor_goes_from_the_archive_to_the_live_stream(
    live: RedisStateStore, archive: Archive
) -> None:
    ids = await archived_alone(live, archive, 4)
    await tell(live, 2)
    ids += [each.update_id for each in await live.list_updates(SESSION)]
    async with over_http(live) as over:
        for limit in (1, 100):
            assert await read_all(over, limit=limit) == ids
            assert await read_all(over, limit=limit, task_id="t") == ids
        assert await read_all(over, task_id="other") == []
        first = await over.http.read_updates(SESSION, limit=1)
        # The stream has these rows no more, and says so. The pages have them.
        with pytest.raises(CursorGap):
            async with aclosing(over.http.watch_updates(SESSION, after=first.cursor)) as stream:
                await anext(stream)
        assert await read_all(over, after=first.cursor) == ids[1:]
        page = await over.http.read_updates(SESSION, after=first.cursor)
        while not page.at_end:
            page = await over.http.read_updates(SESSION, after=page.cursor)
        async with aclosing(over.http.watch_updates(SESSION, after=page.cursor)) as stream:
            await tell(live, 1)
            new = await anext(stream)
        assert await read_all(over, after=page.cursor) == [new.value.update_id]
        assert await read_all(over, after=new.cursor) == []


async def test_what_neither_has_is_a_gap_behind_which_the_page_goes_on(
    live: RedisStateStore, archive: Archive
) -> None:
    await tell(live, 3)
    await look(live, archive)
    await tell(live, 2)
    kept = await trim(live, 1, task="t")
    async with over_http(live) as over:
        page = await over.http.read_updates(SESSION)
        assert len(page.entries) == 3
        with pytest.raises(CursorGap) as gap:
            await over.http.read_updates(SESSION, after=page.cursor)
        assert (gap.value.missed, gap.value.reason) == (2, "trimmed")
        assert await read_all(over, after=gap.value.resume_after) == [kept]
        async with over.served.caller("ann", "read:*") as ann:
            answer = await ann.get(UPDATES, params={"after": page.cursor})
            assert answer.json()["gap"]["missed"] == 2
            assert [row["update_id"] for row in answer.json()["rows"]] == [kept]


async def test_rows_are_cut_and_hidden_like_those_of_the_stream(
    live: RedisStateStore, archive: Archive
) -> None:
    token = f"{token_scopes(SESSION)[0]}.{'aB' * 16}"
    for content in ({"link": f"/pauses/{token}"}, {"secret": True}):
        update = StateUpdate(
            session_id=SESSION, task_id="t", update_type=UpdateType.RESULT, content=content
        )
        await live.save_update(update)
    await look(live, archive)
    await expire(live)

    def visible(_: object, update: StateUpdate) -> StateUpdate | None:
        return None if "secret" in update.content else update

    async with over_http(live, visible=visible) as over:
        async with over.served.caller("ann", "read:*") as ann:
            answer = await ann.get(UPDATES)
            assert [row["content"] for row in answer.json()["rows"]] == [
                {"link": "/pauses/[token]"}
            ]
            assert (token in answer.text, "secret" in answer.text) == (False, False)
        other = over.caller("eve", "read:session:other")
        async with other:
            with pytest.raises(CommandRefused):
                await other.read_updates(SESSION)


async def test_a_wrong_cursor_is_refused_and_all_is_read_from_0(
    live: RedisStateStore, archive: Archive
) -> None:
    ids = await archived_alone(live, archive)
    async with over_http(live) as over:
        assert await read_all(over, after="0") == ids
        for wrong in ("$", "x", "1-2-3"):
            with pytest.raises(InvalidField):
                await over.http.read_updates(SESSION, after=wrong)


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_without_the_archive_it_reads_what_redis_has(
    live: RedisStateStore, archive: Archive, store: RedisStateStore
) -> None:
    await tell(live, 3)
    first = (await live.read_updates(SESSION, limit=1)).cursor
    async with over_http(store) as over:
        assert len(await read_all(over)) == 3
    away = live.settings.model_copy(update={"archive_url": SecretStr(AWAY)})
    async with RedisStateStore(away) as other, serving_gateway(other) as gateway:
        answer = await gateway.get(f"{UPDATES}?after={first}")
        assert (answer.status_code, len(answer.json()["rows"])) == (200, 2)
        answer = await gateway.get(UPDATES)
        assert (answer.status_code, code_of(answer)) == (503, "archive_unavailable")
        assert "secret" not in answer.text
