"""Forms: who sees them, who may send them, and what each has to carry."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.console.app import PAGES
from redis_state.gateway.console.rendering import write_query
from redis_state.worker import Schedule
from tests.integration.gateway.console.conftest import LogIn
from tests.support.browser.console import Browser, Form, Page, keys_for
from tests.support.http.gateway import Served, ends, gateway_of, paused

# What a form names, and what a person fills in. A page that is new fails the tests below.
_TASK = {"session": "s", "task": "t"}
_FILLED: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "/logout": ({}, {}),
    "/task/steer": (_TASK, {"type": "USER_MESSAGE", "text": "x"}),
    "/task/cancel": (_TASK, {"reason": "x"}),
    "/task/retry": (_TASK, {}),
    "/task/rerun": (_TASK, {}),
    "/task/fork": (_TASK, {}),
    "/dead/change": ({}, {"action": "retry", "chosen": write_query(_TASK), "confirmed": "1"}),
    "/find/change": ({}, {"action": "cancel", "chosen": write_query(_TASK), "confirmed": "1"}),
    "/queues/pause": ({"queue": "q"}, {}),
    "/queues/resume": ({"queue": "q"}, {}),
    "/schedules/pause": ({"schedule": "daily"}, {}),
    "/schedules/resume": ({"schedule": "daily"}, {}),
    "/schedules/trigger": ({"schedule": "daily"}, {}),
    "/pause/decide": ({}, {"decision": "approve"}),
    "/pause/delegate": ({}, {"to": "x"}),
}
# Rights, and over what, that a form needs. `admin` is every right. A copy needs two.
# What becomes of each chosen task is in the answer.
_LISTS = ("/find/change", "/dead/change")
_SESSION, _ALL, _PAUSE = {"session", "*"}, {"*"}, {"session", "tag", "*"}
_NEEDS: dict[str, tuple[set[Right], set[str]]] = {
    "/logout": (set(Right), {"session", "tag", "*", "other"}),
    **dict.fromkeys(("/task/rerun", "/task/fork"), (set(), _SESSION)),
    **dict.fromkeys(("/task/steer", "/task/cancel", "/task/retry"), ({Right.STEER}, _SESSION)),
    **dict.fromkeys(_LISTS, ({Right.STEER}, _SESSION)),
    **dict.fromkeys(("/queues/pause", "/queues/resume"), (set(), _ALL)),
    **dict.fromkeys(("/schedules/pause", "/schedules/resume"), (set(), _ALL)),
    "/schedules/trigger": ({Right.SUBMIT}, _ALL),
    **dict.fromkeys(("/pause/decide", "/pause/delegate"), ({Right.RESOLVE}, _PAUSE)),
}
_MARK = "mark-of-the-session"
_FORMS = [each.path for each in PAGES if each.method == "POST" and not each.public]


async def _planted(console: Served) -> str:
    """Submit a task that waits, one that has failed, and a schedule; return the pause's id."""
    for handler, task in (("ask", "t"), ("fail", "f")):
        about: dict[str, Any] = {"session_id": "s", "task_id": task, "description": _MARK}
        await console.client.submit(handler, **about)
    await console.client.schedules.save(
        Schedule(schedule_id="daily", handler="echo", session_id="s", cron="0 3 * * *")
    )
    await ends(console, "s", "f")
    return await paused(console, "s", "t")


def _form(path: str, pause_id: str, **carried: str) -> Form:
    place, fields = _FILLED[path]
    if path.startswith("/pause"):
        place = {"pause": pause_id}
    return Form(f"/console{path}?{write_query(place)}", "post", fields | carried)


async def _changed(console: Served, pause_id: str) -> list[str]:
    """Name what is not as it was planted."""
    client = console.client
    found = [] if await client.pause(pause_id) is not None else ["pause"]
    found += [each.name for each in await client.queues.list() if each.paused]
    found += [view.schedule.schedule_id for view in await client.schedules.list() if view.paused]
    tasks = {each.task_id: each.status.value for each in (await client.find()).tasks}
    return found + ([] if tasks == {"t": "PAUSED", "f": "FAILED"} else [*tasks])


async def test_who_may_read_only_sees_no_form_that_changes_something(
    console: Served, log_in: LogIn
) -> None:
    pause_id = await _planted(console)
    rita, ann = await log_in("rita"), await log_in("ann")
    seen: dict[str, set[str]] = {}
    for browser in (rita, ann):
        for page in await _all_pages(browser, pause_id):
            assert page.status == 200, page.url
            found = {each.action.partition("?")[0] for each in page.forms if each.method == "post"}
            seen.setdefault("rita" if browser is rita else "ann", set()).update(found)
    assert seen["rita"] == {"/console/logout"}
    # The pages were those that have the forms.
    assert {f"/console{path}" for path in _FORMS} - seen["ann"] <= {
        "/console/pause/delegate",
        "/console/queues/resume",
        "/console/schedules/resume",
    }


async def test_who_may_read_only_is_refused_by_every_form(console: Served, log_in: LogIn) -> None:
    pause_id = await _planted(console)
    rita = await log_in("rita")
    carried = {**(await rita.get()).form("/logout").fields, "form_key": "k"}
    for path in _FORMS:
        if path != "/logout":
            page = await rita.send(_form(path, pause_id, **carried))
            assert page.status == 403, path
    assert await _changed(console, pause_id) == []


@pytest.mark.parametrize("made_up", ["", "0" * 64, "é"])
async def test_every_form_needs_the_token_of_its_login(
    console: Served, log_in: LogIn, made_up: str
) -> None:
    pause_id = await _planted(console)
    ann, bob = await log_in("ann"), await log_in("bob")
    own = (await ann.get()).form("/logout").fields["form_token"]
    others = (await bob.get()).form("/logout").fields["form_token"]
    assert own != others
    for path in _FORMS:
        for token in (made_up, own[:-1], others):
            form = _form(path, pause_id, form_key="k", form_token=token)
            page = await ann.send(form)
            assert (page.status, "another login" in page.text) == (403, True), path
        form = _form(path, pause_id, form_key="k", form_token=own)
        for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.test"}):
            answered = await ann.http.post(form.action, data=form.fields, headers=headers)
            assert answered.status_code == 403, path
    assert await _changed(console, pause_id) == []
    assert "Log in" not in (await ann.get()).text


@pytest.mark.parametrize("right", list(Right))
async def test_each_right_alone_sends_the_forms_that_it_is_for_and_no_other(
    store: RedisStateStore, right: Right
) -> None:
    """Each right alone, over the session, a tag of it and everything: every form, every page."""
    overs = ("session:s", "tag:finance", "*", "session:other")
    auth, keys = keys_for(**{over: f"{right}:{over}" for over in overs})
    async with gateway_of(store, auth=auth, console=True) as console:
        pause_id = await _planted(console)
        for over in overs:
            browser = Browser(console.app)
            assert (await browser.log_in(keys[over])).status == 200
            carried = (await browser.get()).form("/logout").fields | {"form_key": "k"}
            kind = over.partition(":")[0] if over != "session:other" else "other"
            for path in _FORMS:
                needed, kinds = _NEEDS[path]
                if right in needed | {Right.ADMIN} and kind in kinds:
                    continue
                page = await browser.send(_form(path, pause_id, **carried))
                refused = (200, 403) if path in _LISTS else (403, 404)
                assert page.status in refused, (over, path)
                assert await _changed(console, pause_id) == [], (over, path)
            if not (right in (Right.READ, Right.ADMIN) and kind in ("session", "*")):
                for page in await _all_pages(browser, pause_id):
                    assert _MARK not in page.source, (over, page.url)
            await browser.http.aclose()


async def test_a_dry_run_promises_only_what_the_person_may_do(
    console: Served, log_in: LogIn
) -> None:
    for session in ("s", "other"):
        await console.client.submit("ask", session_id=session, task_id="t")
        await paused(console, session, "t")
    sam = await log_in("sam")
    page = await sam.get("/find", session_id="s")
    assert "all that match" not in page.text
    form = page.form("/find/change")
    would = await sam.send(form, action="cancel", chosen=write_query(_TASK))
    assert "1 would" in would.text
    hidden = await sam.send(form, action="cancel", chosen="session=other&task=t")
    assert "would" not in hidden.text.partition("Dry run")[2]
    assert "no such thing" in hidden.text
    assert (await sam.send(form, action="cancel", all="1")).status == 403


async def _all_pages(browser: Browser, pause_id: str) -> list[Page]:
    plain = ["", "/inbox", "/find", "/dead", "/sessions", "/workers", "/queues", "/schedules"]
    return [
        *[await browser.get(each) for each in plain],
        await browser.get("/session", session="s"),
        await browser.get("/task", session="s", task="t"),
        await browser.get("/task", session="s", task="f"),
        await browser.get("/pause", pause=pause_id),
    ]
