"""Archived tasks over HTTP and in the console: marked, and for those alone who may read them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jinja2", reason="needs the gateway extra")

from pydantic import SecretStr

from redis_state import RedisStateStore
from redis_state.archive import Archive
from redis_state.errors import ArchiveUnavailable, InvalidField, PayloadLost
from redis_state.gateway import create_gateway
from tests.support.browser.console import Browser, keys_for
from tests.support.commands import Ran, cli
from tests.support.http.gateway import at, code_of
from tests.support.http.http_gateway import OverHttp, over_http
from tests.support.processes.pools import SESSION, queue_of
from tests.support.tasks.archived.archives import archive_and_expire

pytestmark = [pytest.mark.worker, pytest.mark.exhaustive]

AWAY = "postgresql://ann:secret@127.0.0.1:1/d"


async def left(over: OverHttp, archive: Archive, *, handler: str = "fail") -> str:
    """Have a task end, be archived, and expire."""
    task = await over.direct.submit(handler, "in", session_id=SESSION, attributes={"n": 1})
    await over.direct.wait(SESSION, task, timeout_s=60)
    await archive_and_expire(over.served.store, archive, task)
    return task


async def test_both_clients_read_the_same_of_archived_tasks(
    live: RedisStateStore, archive: Archive
) -> None:
    async with over_http(live, handlers=("fail", "echo")) as over:
        task = await left(over, archive)
        await over.direct.submit("echo", 1, session_id=SESSION, task_id="stays")
        await over.direct.wait(SESSION, "stays", timeout_s=60)
        direct = await over.direct.inspect(SESSION, task)
        assert direct is not None
        assert direct.archived
        for client in (over.direct, over.http):
            assert await client.get(SESSION, task) is None
            view = await client.inspect(SESSION, task)
            assert view is not None
            assert (view.archived, view.state.error) == (True, direct.state.error)
            assert [step.step for step in await client.snapshots(SESSION, task)] == ["before#1"]
            step = await client.snapshot(SESSION, task, 1)
            assert step is not None
            assert step.step == "before#1"
            first = await client.find(limit=1, archived="also")
            assert [found.task_id for found in first.tasks] == ["stays"]
            rest = await client.find(limit=5, archived="also", after=first.cursor)
            assert [(found.task_id, found.archived) for found in rest.tasks] == [(task, True)]
            assert rest.tasks[0].attributes == {"n": 1}
            assert [t.task_id for t in (await client.find()).tasks] == ["stays"]
        timeline = await over.http.timeline(SESSION, task)
        assert timeline is not None
        assert timeline.task.archived
        assert [step.step for step in timeline.steps] == ["before#1"]
        statuses = [entry.value.content.get("status") for entry in timeline.updates]
        assert [each for each in statuses if each] == ["PENDING", "RUNNING", "FAILED"]
        assert timeline.missed is None
        first_page = await over.http.timeline(SESSION, task, limit=1)
        assert first_page is not None
        second = await over.http.timeline(SESSION, task, after=first_page.cursor)
        assert second is not None
        assert [*first_page.updates, *second.updates] == list(timeline.updates)
        for client in (over.direct, over.http):
            for made in (await client.rerun(SESSION, task), await client.fork(SESSION, task)):
                assert (await over.direct.wait(SESSION, made, timeout_s=60)).status == "FAILED"


async def test_a_tree_has_archived_children_and_what_is_lost_is_named(
    live: RedisStateStore, archive: Archive, tmp_path: Path
) -> None:
    folder = tmp_path / "claims"
    claiming = live.settings.model_copy(
        update={"claim_check_bytes": 10_000, "claim_check_url": folder.as_uri()}
    )
    async with (
        RedisStateStore(claiming) as store,
        over_http(store, handlers=("parent", "echo")) as over,
    ):
        top = await over.direct.submit("parent", session_id=SESSION)
        await over.direct.wait(SESSION, top, timeout_s=60)
        (child,) = await over.direct.children(SESSION, top)
        large = await over.direct.submit("echo", "x" * 50_000, session_id=SESSION)
        await over.direct.wait(SESSION, large, timeout_s=60)
        await archive_and_expire(store, archive, top, child.task_id, large)
        for path in folder.rglob("*"):
            if path.is_file():
                path.unlink()
        async with over.served.caller("ann", "read:*") as ann:
            tree = (await ann.get(at(SESSION, top, "tree"))).json()
            assert [each["task_id"] for each in tree["children"]] == [child.task_id]
            gone = await ann.get(at(SESSION, large))
            assert (gone.status_code, code_of(gone)) == (410, "payload_lost")
            assert str(folder) not in gone.text
        for client in (over.direct, over.http):
            for call in (client.inspect, client.rerun):
                with pytest.raises(PayloadLost) as lost:
                    await call(SESSION, large)
                assert lost.value.of == f"task {large!r}"


async def test_the_tree_of_a_live_task_has_its_archived_children(
    live: RedisStateStore, archive: Archive, archive_url: str
) -> None:
    pytest.importorskip("typer", reason="needs the cli extra")

    async def cli_tree(*task: str, url: str = archive_url) -> Ran:
        return await cli(
            live.settings, "tree", SESSION, *task, "--json", REDIS_STATE_ARCHIVE_URL=url
        )

    async with over_http(live, handlers=("parent", "echo")) as over:
        top = await over.direct.submit("parent", session_id=SESSION)
        await over.direct.wait(SESSION, top, timeout_s=60)
        (child,) = await over.direct.children(SESSION, top)
        await archive_and_expire(live, archive, child.task_id)
        async with over.served.caller("ann", "read:*") as ann:
            tree = (await ann.get(at(SESSION, top, "tree"))).json()
            trees = (await ann.get(f"/v1/sessions/{SESSION}/tree")).json()
        assert (tree["task_id"], tree["status"], tree["incomplete"]) == (top, "COMPLETE", False)
        assert [each["task_id"] for each in tree["children"]] == [child.task_id]
        assert [each["task_id"] for each in trees["trees"]] == [top]
        assert [each["task_id"] for each in trees["trees"][0]["children"]] == [child.task_id]
        assert trees["incomplete"] is False
        for arguments in ((), (top,)):
            (branch,) = (await cli_tree(*arguments)).document
            assert branch["task_id"] == top
            assert [each["task_id"] for each in branch["children"]] == [child.task_id]
        assert (await cli_tree("none")).status == 3
        ran = await cli_tree(url=AWAY)
        assert (ran.status, "could not be read" in ran.err) == (0, True)
        assert [each["children"] for each in ran.document] == [[]]
    away = live.settings.model_copy(update={"archive_url": SecretStr(AWAY)})
    async with RedisStateStore(away) as store, over_http(store) as over:
        async with over.served.caller("ann", "read:*") as ann:
            tree = await ann.get(at(SESSION, top, "tree"))
            trees = (await ann.get(f"/v1/sessions/{SESSION}/tree")).json()
        # What Redis has is shown without the archive.
        assert (tree.status_code, tree.json()["children"]) == (200, [])
        assert tree.json()["incomplete"] is True
        assert ([each["children"] for each in trees["trees"]], trees["incomplete"]) == ([[]], True)
        auth, keys = keys_for(ann="read:*")
        app = create_gateway(store, auth=auth, console=True)
        browser = Browser(app)
        await browser.log_in(keys["ann"])
        for path, more in (("/task", {"task": top}), ("/session", {})):
            page = await browser.get(path, session=SESSION, **more)
            assert (page.status, "could not be read" in page.text) == (200, True)
        await app.aclose()


async def test_who_may_not_read_a_session_learns_nothing_of_its_archived_tasks(
    live: RedisStateStore, archive: Archive
) -> None:
    async with over_http(live, handlers=("fail",)) as over:
        task = await left(over, archive)
        own, other = "read:session:s", "read:session:other"
        async with over.served.caller("sam", own) as sam:
            assert (await sam.get(at(SESSION, task))).json()["archived"] is True
            for query in ("?archived=also", f"?archived=only&session_id={SESSION}"):
                (found,) = (await sam.get(f"/v1/tasks{query}")).json()["tasks"]
                assert (found["task_id"], found["archived"]) == (task, True)
            # To copy it needs another right.
            assert (await sam.post(at(SESSION, task, "rerun"), json={})).status_code == 403
        async with over.served.caller("eve", other, "submit:session:other") as eve:
            there = await eve.get(at(SESSION, task))
            none = await eve.get(at(SESSION, "none"))
            assert (there.status_code, there.content) == (none.status_code, none.content)
            for rest in ("timeline", "tree", "snapshots", "snapshots/1"):
                refused = await eve.get(at(SESSION, task, *rest.split("/")))
                assert refused.status_code in (403, 404)
                assert "before#1" not in refused.text
            refused = await eve.get(f"/v1/tasks?archived=also&session_id={SESSION}")
            assert refused.status_code == 403
            found = await eve.get("/v1/tasks?archived=also")
            assert (found.status_code, found.json()["tasks"]) == (200, [])
            for rest in ("rerun", "fork"):
                body = {"new_session_id": "other"} if rest == "rerun" else {}
                assert (await eve.post(at(SESSION, task, rest), json=body)).status_code == 403


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_a_gateway_without_its_archive_answers_what_redis_has(
    live: RedisStateStore, archive: Archive
) -> None:
    url = SecretStr(AWAY)
    away = live.settings.model_copy(update={"archive_url": url})
    async with RedisStateStore(away) as store, over_http(store, handlers=("echo",)) as over:
        task = await over.direct.submit("echo", 1, session_id=SESSION)
        await over.direct.wait(SESSION, task, timeout_s=60)
        page = await over.http.find(archived="also")
        assert ([found.task_id for found in page.tasks], page.incomplete) == ([task], True)
        view = await over.http.inspect(SESSION, task)
        assert view is not None
        assert not view.archived
        with pytest.raises(ArchiveUnavailable):
            await over.http.find(archived="only")
        with pytest.raises(ArchiveUnavailable):
            await over.http.inspect(SESSION, "none")
        with pytest.raises(ArchiveUnavailable):
            await over.http.rerun(SESSION, "none")
        async with over.served.caller("ann", "read:*") as ann:
            answer = await ann.get(at(SESSION, "none"))
            assert (answer.status_code, code_of(answer)) == (503, "archive_unavailable")
            assert "secret" not in answer.text


async def test_a_gateway_without_an_archive_says_so(store: RedisStateStore) -> None:
    async with over_http(store, handlers=("echo",)) as over:
        with pytest.raises(InvalidField, match="archived"):
            await over.http.find(archived="also")
        assert await over.http.inspect(SESSION, "none") is None


async def test_the_console_shows_archived_tasks(live: RedisStateStore, archive: Archive) -> None:
    auth, keys = keys_for(ann="admin:*", sam="read:session:other")
    async with over_http(live, handlers=("fail",)) as over:
        task = await left(over, archive)
    app = create_gateway(live, auth=auth, queue=queue_of(live.settings), console=True)
    ann, sam = Browser(app), Browser(app)
    await ann.log_in(keys["ann"])
    await sam.log_in(keys["sam"])
    found = await ann.get("/find")
    assert task in found.text
    assert "archived" in found.text
    assert task not in (await ann.get("/find", archived="no")).text
    only = await ann.get("/find", archived="only")
    assert (task in only.text, "all that match" in only.text) == (True, False)
    assert "all that match in Redis" in found.text
    every = await ann.send(only.form("/find/change"), action="rerun", all="1")
    assert (every.status, "one by one" in every.text) == (422, True)
    assert task not in (await sam.get("/find")).text
    assert (await sam.get("/task", session=SESSION, task=task)).status == 404
    page = await ann.get("/task", session=SESSION, task=task)
    assert page.status == 200
    assert "archived" in page.text
    assert "before#1" in page.text
    assert "the handler's own reason" in page.text
    assert not [form for form in page.forms if "/task/retry" in form.action]
    made = await ann.send(page.form("/task/rerun"))
    assert (made.status, task in made.text) == (200, True)
    await app.aclose()
    url = SecretStr("postgresql://ann:secret@127.0.0.1:1/d")
    away = live.settings.model_copy(update={"archive_url": url})
    async with RedisStateStore(away) as store:
        app = create_gateway(store, auth=auth, console=True)
        ann = Browser(app)
        await ann.log_in(keys["ann"])
        page = await ann.get("/find")
        assert (page.status, "could not be read" in page.text) == (200, True)
        page = await ann.get("/task", session=SESSION, task=task)
        assert (page.status, "archive cannot answer" in page.text) == (503, True)
        await app.aclose()
