"""Found tasks and dead letters as pages: filters, and changes of many after a dry run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.gateway.console.rendering import write_query
from redis_state.gateway.console.views import find
from redis_state.models.attributes import AttributeValue
from tests.integration.gateway.console.conftest import LogIn
from tests.support.http.gateway import Served, ends, paused
from tests.support.processes.pools import queue_of
from tests.support.tasks.crash_states import given_up


async def test_found_tasks_are_changed_after_a_dry_run(console: Served, log_in: LogIn) -> None:
    ann = await log_in("ann")
    for task_id in ("1", "2", "3"):
        await console.client.submit("fail", session_id="s", task_id=task_id)
        await ends(console, "s", task_id)
    await console.client.submit("echo", session_id="s", task_id="e")
    await ends(console, "s", "e")
    page = await ann.get("/find", status="FAILED", session_id="s")
    boxes = [named["value"] for _, named in page.elements if named.get("name") == "chosen"]
    assert len(boxes) == 3
    assert "echo" not in page.text.replace("handlers", "")
    would = await ann.send(page.form("/find/change"), action="rerun", chosen=boxes[0])
    assert "Dry run: rerun" in would.text
    assert "1 would" in would.text
    count = len((await console.client.find(session_id="s")).tasks)
    done = await ann.send(would.form("/find/change"))
    assert "1 done" in done.text
    assert len((await console.client.find(session_id="s")).tasks) == count + 1
    everything = await ann.send(page.form("/find/change"), action="retry", all="1")
    assert "would" in everything.text
    await console.client.submit("fail", session_id="s", task_id="later")
    await ends(console, "s", "later")
    ended = await ann.send(everything.form("/find/change"))
    assert "done" in ended.text
    assert ended.status == 200
    retried = {each.task_id: each.retries for each in (await console.client.find()).tasks}
    assert (retried["1"], retried["later"]) == (1, 0)
    for bad in ({"action": "eat"}, {"action": "retry"}, {"action": "retry", "chosen": "nonsense"}):
        assert (await ann.send(page.form("/find/change"), **bad)).status == 422
    assert (await ann.get("/find", created_after="soon")).status == 422
    assert (await ann.get("/find", after="nonsense")).status == 400


async def test_a_change_is_of_those_that_its_dry_run_promised(
    console: Served, log_in: LogIn
) -> None:
    ann = await log_in("ann")
    await console.client.submit("fail", session_id="s", task_id="f")
    await ends(console, "s", "f")
    await console.client.submit("ask", session_id="s", task_id="a")
    await paused(console, "s", "a")
    form = (await ann.get("/find", session_id="s")).form("/find/change")
    form.add("chosen", "session=s&task=f")
    form.add("chosen", "session=s&task=a")
    would = await ann.send(form, action="retry")
    assert "1 would" in would.text
    assert "1 refused" in would.text
    # Meanwhile the change applies to the other one too.
    assert await console.client.cancel("s", "a")
    done = await ann.send(would.form("/find/change"))
    assert "1 done" in done.text
    view = await console.client.inspect("s", "a")
    assert view is not None
    assert (view.state.status.value, view.retries) == ("CANCELLED", 0)


async def test_a_change_of_many_tasks_with_long_ids_is_confirmed(
    log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = await log_in("ann")
    items = [
        find._item({"session": "s" * 200, "task": f"{at:0200}"}) | {"outcome": "would"}
        for at in range(500)
    ]
    changed = list[str]()

    async def would(*_: Any) -> dict[str, Any]:
        return {"items": items, "counts": {"would": 500}, "more": False}

    async def change(_call: Any, _action: Any, path: dict[str, str], _key: Any) -> dict[str, Any]:
        changed.append(path["task"])
        return find._item(path) | {"outcome": "done"}

    monkeypatch.setattr(find, "_all", would)
    monkeypatch.setattr(find, "_do", change)
    page = await ann.get("/find")
    shown = await ann.send(page.form("/find/change"), action="rerun", all="1")
    done = await ann.send(shown.form("/find/change"))
    assert (done.status, changed) == (200, [each["task_id"] for each in items])
    # Another form is no longer than any body.
    large = await ann.send(page.form("/logout"), more="x" * 70_000)
    assert large.status == 413


async def test_dead_letters_are_shown_and_changed_page_by_page(
    console: Served, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.gateway.console.views.find.MOST_IN_BULK", 2)
    ann = await log_in("ann")
    await console.client.queues.pause(queue_of(console.store.settings))
    dead = [await given_up(console.store, handler="echo") for _ in range(3)]
    page = await ann.get("/dead")
    assert [task in page.text for task in dead] == [False, True, True]
    (following,) = [link for link in page.links("/dead") if "after=" in link]
    last = await ann.follow(following)
    assert [task in last.text for task in dead] == [True, False, False]
    # What is done to all of these is done to those of this page.
    would = await ann.send(last.form("/dead/change"), action="retry", all="1")
    assert "1 would" in would.text
    assert "1 done" in (await ann.send(would.form("/dead/change"))).text
    assert [each.task_id for each in await console.client.dead()] == [dead[2], dead[1]]
    assert (await ann.get("/dead", after="nonsense")).status == 400


async def test_dead_letters_are_listed_and_changed_after_a_dry_run(
    console: Served, log_in: LogIn
) -> None:
    ann, rita, sam = await log_in("ann"), await log_in("rita"), await log_in("sam")
    assert "No task is given up." in (await ann.get("/dead")).text
    # What is retried waits.
    await console.client.queues.pause(queue_of(console.store.settings))
    dead = [await given_up(console.store, handler="echo") for _ in range(3)]
    await console.client.submit("echo", session_id="s", task_id="alive")
    page = await ann.get("/dead")
    boxes = [named["value"] for _, named in page.elements if named.get("name") == "chosen"]
    assert boxes == [write_query({"session": "s", "task": task}) for task in reversed(dead)]
    assert "alive" not in page.text
    assert "workers in a row died" in page.text
    would = await ann.send(page.form("/dead/change"), action="retry", chosen=boxes[0])
    assert "1 would" in would.text
    done = await ann.send(would.form("/dead/change"))
    assert "1 done" in done.text
    assert [each.task_id for each in await console.client.dead()] == [dead[1], dead[0]]
    back = await ann.follow(done.links("/dead")[-1])
    every = await ann.send(back.form("/dead/change"), action="retry", all="1")
    assert "2 would" in every.text
    assert "2 done" in (await ann.send(every.form("/dead/change"))).text
    assert await console.client.dead() == []
    assert {each.retries for each in (await console.client.find()).tasks} == {0, 1}
    refused = await ann.send(page.form("/dead/change"), action="retry", chosen=boxes[0])
    assert "retry does not apply to it" in refused.text
    assert not [form for form in (await rita.get("/dead")).forms if "dead" in form.action]
    assert (await sam.get("/dead")).status == 403


async def test_a_time_of_a_filter_is_utc_unless_it_has_a_zone(log_in: LogIn) -> None:
    ann = await log_in("ann")
    for given, understood in (
        ("2026-11-24", "2026-11-24T00:00Z"),
        ("2026-11-24 07:30", "2026-11-24T07:30Z"),
        ("2026-11-24T07:30:15.5", "2026-11-24T07:30:15.5Z"),
        ("2026-11-24T07:30-05:00", "2026-11-24T07:30-05:00"),
        ("2026-11-24T07:30+05:00", "2026-11-24T07:30+05:00"),
    ):
        page = await ann.get("/find", created_after=given)
        assert page.status == 200, given
        field = next(named for _, named in page.elements if named.get("id") == "created_after")
        assert field["value"] == understood


async def test_tasks_are_found_and_retried_by_the_times_of_their_ends(
    console: Served, log_in: LogIn
) -> None:
    ann = await log_in("ann")
    for name in ("late", "early", "waits"):
        await console.client.submit("fail", session_id="s", task_id=name, delay=timedelta(days=1))
    for name in ("early", "late"):
        await console.client.cancel("s", name)

    def names(page: Any) -> list[str]:
        return [link.rpartition("=")[2] for link in page.links("/task?")]

    page = await ann.get("/find")
    assert (names(page), "last that ended" in page.text) == (["waits", "early", "late"], False)
    page = await ann.get("/find", ended_after="2020-01-01", status="CANCELLED")
    assert (names(page), "last that ended" in page.text) == (["late", "early"], True)
    field = next(named for _, named in page.elements if named.get("id") == "ended_after")
    assert field["value"] == "2020-01-01T00:00Z"
    assert names(await ann.get("/find", ended_before="2020-01-01")) == []
    refused = await ann.get("/find", ended_after="2020-01-01", status="PENDING")
    assert (refused.status, names(refused)) == (422, [])
    shown = await ann.send(page.form("/find/change"), action="retry", all="1")
    assert "2 would" in shown.text
    assert "2 done" in (await ann.send(shown.form("/find/change"))).text


async def test_an_attribute_whose_value_has_commas_is_found(console: Served, log_in: LogIn) -> None:
    about: dict[str, AttributeValue] = {"note": "a,b, c", "n": 1}
    await console.client.submit("echo", session_id="s", task_id="t", attributes=about)
    await console.client.submit("echo", session_id="s", task_id="u", attributes={"n": 1})
    page = await (await log_in("ann")).get("/find", attribute="note=a,b, c, n=1")
    assert [link.rpartition("=")[2] for link in page.links("/task?")] == ["t"]
