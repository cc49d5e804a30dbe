"""Forms that are sent after their login has ended: what was written is given back."""

from __future__ import annotations

import html
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.gateway import GatewayLimits, create_gateway
from redis_state.gateway.console.rendering import write_query
from tests.integration.gateway.console.conftest import AUTH, KEYS, LogIn
from tests.support.browser.console import Browser, Page
from tests.support.http.gateway import Served, ends, paused

WRITTEN = '  two lines\nof "text" & <b>é</b> \N{GRINNING FACE}'
_TASK = {"session": "s", "task": "t"}


async def _asked(console: Served, handler: str = "ask") -> str:
    await console.client.submit(handler, session_id="s", task_id="t")
    return await paused(console, "s", "t")


def _kept(page: Page) -> bool:
    """Whether a page shows what was written, as a browser reads it."""
    return f'<pre tabindex="0">\n{html.escape(WRITTEN)}</pre>' in page.source.replace(
        "&#34;", "&quot;"
    )


def _filled(page: Page, name: str) -> bool:
    """Whether a text area of a page has what was written."""
    area = page.source.replace("&#34;", "&quot;").partition(f'name="{name}"')[2]
    return area.partition(">\n")[2].startswith(f"{html.escape(WRITTEN)}</textarea>")


async def test_a_decision_is_kept_over_a_login_and_given_back(
    console: Served, log_in: LogIn
) -> None:
    pause_id = await _asked(console)
    bob = await log_in("bob")
    form = (await bob.get("/inbox", tag="finance")).form("/decide")
    bob.http.cookies.clear()
    asked = await bob.send(form, decision="approve", value='"5" <b>', reason="")
    assert (asked.status, "your login has ended" in asked.text) == (401, True)
    assert "What you wrote" in asked.text
    assert form.fields["form_token"] not in asked.source
    wrong = await bob.send(asked.form("/login"), credential="nonsense")
    assert (wrong.status, "not known" in wrong.text) == (401, True)
    back = await bob.send(wrong.form("/login"), credential=KEYS["bob"])
    assert (back.status, "This was not sent" in back.text) == (200, True)
    assert KEYS["bob"] not in back.source
    assert await console.client.pause(pause_id) is not None
    again = back.form("/decide")
    assert again.fields["value"] == '"5" <b>'
    done = await bob.send(again, decision="approve")
    assert (done.status, "Approved." in done.text) == (200, True)
    assert done.url.endswith("/console/inbox?tag=finance&said=approved")
    result: Any = (await ends(console, "s", "t")).result
    assert result == {"approved": True, "value": '"5" <b>', "by": "bob"}


async def test_a_form_of_a_schema_is_given_back_with_its_fields(
    console: Served, log_in: LogIn
) -> None:
    await _asked(console, "fill_in")
    bob = await log_in("bob")
    form = (await bob.get("/inbox")).form("/decide")
    bob.http.cookies.clear()
    asked = await bob.send(form, decision="approve", f0="500", reason="r")
    back = await bob.send(asked.form("/login"), credential=KEYS["bob"])
    again = back.form("/decide")
    assert (again.fields["f0"], again.fields["reason"]) == ("500", "r")
    await bob.send(again, decision="approve")
    assert (await ends(console, "s", "t")).result == {"limit": 500}


async def test_steering_is_given_back_and_sent_once(console: Served, log_in: LogIn) -> None:
    pause_id = await _asked(console)
    ann = await log_in("ann")
    form = (await ann.get("/task", **_TASK)).form("/steer")
    sent = await ann.send(form, type="USER_MESSAGE", text=WRITTEN)
    assert "The event was sent." in sent.text
    # A browser that repeats it, as the answer was lost, has no login by then.
    ann.http.cookies.clear()
    asked = await ann.send(form, type="USER_MESSAGE", text=WRITTEN)
    assert _kept(asked)
    back = await ann.send(asked.form("/login"), credential=KEYS["ann"])
    assert _filled(back, "text")
    assert back.form("/steer").fields["form_key"] == form.fields["form_key"]
    await ann.send(back.form("/steer"), type="USER_MESSAGE", text=WRITTEN)
    rows = await console.store.list_steering("s", task_id="t")
    assert len(rows) == 1
    await console.client.approve(pause_id, actor="zoe")


async def test_what_was_written_is_shown_where_its_form_is_no_more(
    console: Served, log_in: LogIn
) -> None:
    pause_id = await _asked(console)
    ann = await log_in("ann")
    steering = (await ann.get("/task", **_TASK)).form("/steer")
    deciding = (await ann.get("/pause", pause=pause_id)).form("/decide")
    await console.client.approve(pause_id, actor="zoe")
    await ends(console, "s", "t")
    for form, name in ((steering, "text"), (deciding, "value")):
        ann.http.cookies.clear()
        asked = await ann.send(form, **{name: WRITTEN, "decision": "approve"})
        back = await ann.send(asked.form("/login"), credential=KEYS["ann"])
        assert back.status == 200
        assert _kept(back), form.action
    # One who came too late is shown it too.
    form = back.form("/logout")
    late = await ann.send(deciding, form_token=form.fields["form_token"], value=WRITTEN)
    assert _kept(late)


async def test_another_person_gets_the_text_and_not_the_page(
    console: Served, log_in: LogIn
) -> None:
    await _asked(console)
    ann = await log_in("ann")
    form = (await ann.get("/task", **_TASK)).form("/steer")
    ann.http.cookies.clear()
    asked = await ann.send(form, type="USER_MESSAGE", text=WRITTEN)
    refused = await ann.send(asked.form("/login"), credential=KEYS["fin"])
    assert refused.status in (403, 404)
    assert _kept(refused)
    assert "refund?" not in refused.source
    assert "fin" in (await ann.get("/inbox")).text


async def test_a_form_of_an_earlier_login_is_given_back_as_one_of_this(
    console: Served, log_in: LogIn
) -> None:
    await _asked(console)
    ann = await log_in("ann")
    form = (await ann.get("/task", **_TASK)).form("/steer")
    # In another tab.
    ann.http.cookies.clear()
    await ann.log_in(KEYS["ann"])
    back = await ann.send(form, type="USER_MESSAGE", text=WRITTEN)
    assert (back.status, "another login" in back.text) == (403, True)
    assert _filled(back, "text")
    assert await console.store.list_steering("s", task_id="t") == []
    await ann.send(back.form("/steer"), type="USER_MESSAGE", text=WRITTEN)
    assert len(await console.store.list_steering("s", task_id="t")) == 1


async def test_a_change_of_many_is_shown_again_and_not_done(console: Served, log_in: LogIn) -> None:
    await _asked(console)
    ann = await log_in("ann")
    form = (await ann.get("/find")).form("/find/change")
    chosen = write_query(_TASK)
    would = await ann.send(form, action="cancel", chosen=chosen, reason=WRITTEN)
    ann.http.cookies.clear()
    asked = await ann.send(would.form("/find/change"))
    back = await ann.send(asked.form("/login"), credential=KEYS["ann"])
    assert "Dry run: cancel" in back.text
    state = await console.client.get("s", "t")
    assert state is not None
    assert state.status.value == "PAUSED"
    again = back.form("/find/change")
    assert again.fields["reason"] == WRITTEN
    assert "1 done" in (await ann.send(again)).text


@pytest.mark.parametrize(
    "form", ["/task/steer", "/nothing", "//evil.test/task/steer", "/logout", "/login", "/inbox"]
)
async def test_a_login_for_what_is_no_form_leads_to_the_console(console: Served, form: str) -> None:
    browser = Browser(console.app)
    page = (await browser.get("/login")).form("/login")
    page.action += f"?{write_query({'form': form})}"
    done = await browser.send(page, credential=KEYS["ann"], text="x", decision="approve")
    # A form that names no task is one that is not there.
    assert done.status == (404 if form == "/task/steer" else 200)
    assert "Log in" not in (await browser.get()).text


async def test_too_many_requests_lose_no_text(console: Served) -> None:
    few = GatewayLimits(requests_per_s=0.001, burst=2)
    app = create_gateway(console.store, auth=AUTH, console=True, limits=few)
    await _asked(console)
    ann = Browser(app)
    await ann.log_in(KEYS["ann"])
    form = (await ann.get("/task", **_TASK)).form("/steer")
    refused = await ann.send(form, type="USER_MESSAGE", text=WRITTEN)
    assert refused.status == 429
    assert _kept(refused)
    await ann.http.aclose()
    await app.aclose()
