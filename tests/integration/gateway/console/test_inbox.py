"""The inbox: forms made from schemas, decisions, votes handed on, and who came too late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.console.forms import fields_of, read_value
from redis_state.gateway.console.rendering import render
from tests.integration.gateway.console.conftest import LogIn
from tests.support.http.gateway import Served, ends, paused


async def test_two_approve_in_two_tabs_and_the_later_one_learns_who_and_when(
    console: Served, log_in: LogIn
) -> None:
    await console.client.submit("ask", session_id="s", task_id="t")
    await paused(console, "s", "t")
    ann, bob = await log_in("ann"), await log_in("bob")
    hers, his = await ann.get("/inbox"), await bob.get("/inbox")
    assert "refund?" in hers.text
    assert "<b>bob</b>" in hers.text
    first = await ann.send(hers.form("/decide"), decision="approve", value="fine")
    assert first.status == 200
    assert "Approved." in first.text
    assert (await ends(console, "s", "t")).result == {
        "approved": True,
        "value": "fine",
        "by": "ann",
    }
    late = await bob.send(his.form("/decide"), decision="reject", reason="no")
    assert late.status == 409
    assert "Too late" in late.text
    assert "Approved by ann at 20" in late.text
    assert "fine" in late.text
    # The same form sent again by the one who was first is the same decision.
    again = await ann.send(hers.form("/decide"), decision="approve", value="fine")
    assert again.status == 200


async def test_a_form_has_the_fields_of_the_schema_and_says_what_does_not_fit(
    console: Served, log_in: LogIn
) -> None:
    await console.client.submit("fill_in", session_id="s", task_id="t")
    await paused(console, "s", "t")
    bob = await log_in("bob")
    form = (await bob.get("/inbox")).form("/decide")
    assert "f0" in form.fields
    for text, words in (("", "limit"), ("many", "limit: is to be of integer"), ("5000", "1000")):
        page = await bob.send(form, decision="approve", f0=text)
        assert page.status == 422
        assert words in page.text
        # What was typed is still there.
        assert page.form("/decide").fields["f0"] == text
    assert (await bob.send(form, decision="approve", f0="500")).status == 200
    assert (await ends(console, "s", "t")).result == {"limit": 500}


async def test_a_rejection_has_a_reason(console: Served, log_in: LogIn) -> None:
    await console.client.submit("ask", session_id="s", task_id="t")
    await paused(console, "s", "t")
    bob = await log_in("bob")
    form = (await bob.get("/inbox", tag="finance", mine="1")).form("/decide")
    again = await bob.send(form, decision="maybe", value="fine", reason='too "much"')
    assert again.status == 422
    # What was typed is still there.
    fields = again.form("/decide").fields
    assert (fields["value"], fields["reason"]) == ("fine", 'too "much"')
    await bob.send(form, decision="reject", reason="too much")
    result: Any = (await ends(console, "s", "t")).result
    assert result == {"approved": False, "value": "too much", "by": "bob"}


async def test_a_decision_leaves_the_filter_and_the_page_of_the_inbox(
    console: Served, log_in: LogIn
) -> None:
    for n in range(28):
        await console.client.submit("asks_about", n, session_id="a b&c", task_id=f"t{n}")
        await paused(console, "a b&c", f"t{n}")
    await console.client.submit("ask", session_id="other", task_id="t")
    await paused(console, "other", "t")
    ann = await log_in("ann")
    first = await ann.get("/inbox", session="a b&c", mine="1")
    second = await ann.follow(next(link for link in first.links("/inbox?") if "after=" in link))
    shown = [each for each in second.forms if "/decide" in each.action]
    assert len(shown) == 3
    # Reloading the count, and the page of one pause, are of the same page too.
    ((_, count),) = [each for each in second.elements if "hx-get" in each[1]]
    polled = await ann.follow(count["hx-get"])
    assert "3 open now" in polled.text
    alone = await ann.follow(second.links("/pause?")[0])
    assert alone.links("/inbox?mine=1&session=a%20b%26c&after=")
    bad = await ann.send(alone.form("/decide"), decision="maybe")
    assert bad.status == 422
    for form, left in ((bad.form("/decide"), 2), (shown[1], 1), (shown[2], 0)):
        page = await ann.send(form, decision="reject")
        assert "Rejected." in page.text
        assert len([each for each in page.forms if "/decide" in each.action]) == left
        assert "refund?" not in page.text
        assert "mine=1&session=a%20b%26c&after=" in page.url
    assert "on this page" in page.text
    again = await ann.follow(page.links("/inbox?mine=1&session=a%20b%26c")[-1])
    assert len([each for each in again.forms if "/decide" in each.action]) == 25
    # Another filter is of the same session, from its first page.
    fields = again.form("/console/inbox").fields
    assert fields == {"session": "a b&c", "tag": "", "mine": "1"}


async def test_a_vote_that_is_handed_on_leaves_the_filter_of_the_inbox(
    console: Served, log_in: LogIn
) -> None:
    await console.client.submit("vote", session_id="s", task_id="t")
    await paused(console, "s", "t")
    ann = await log_in("ann")
    page = await ann.send((await ann.get("/inbox", session="s")).form("/delegate"), to="bob")
    assert page.url.endswith("/console/inbox?session=s&said=delegated")


async def test_a_vote_is_handed_on_to_another_person(console: Served, log_in: LogIn) -> None:
    await console.client.submit("vote", session_id="s", task_id="t")
    await paused(console, "s", "t")
    bob, ann = await log_in("bob"), await log_in("ann")
    assert "Others decide this." in (await bob.get("/inbox")).text
    form = (await ann.get("/inbox")).form("/delegate")
    wrong = await ann.send(form, to="ann")
    assert (wrong.status, wrong.form("/delegate").fields["to"]) == (409, "ann")
    page = await ann.send(form, to="bob")
    assert "handed on" in page.text
    await bob.send((await bob.get("/inbox")).form("/decide"), decision="approve")
    assert (await ends(console, "s", "t")).result == "bob"


async def test_who_sees_what_and_who_decides_is_as_over_the_api(
    console: Served, log_in: LogIn
) -> None:
    for handler, task_id in (("ask", "t"), ("fill_in", "u")):
        await console.client.submit(handler, session_id="s", task_id=task_id)
    asked, limits = await paused(console, "s", "t"), await paused(console, "s", "u")
    fin, rita, ann = await log_in("fin"), await log_in("rita"), await log_in("ann")
    page = await fin.get("/inbox")
    assert "refund?" in page.text
    assert "limit?" not in page.text
    assert (await fin.get("/pause", pause=limits)).status == 404
    seen = await rita.get("/inbox")
    assert "refund?" in seen.text
    assert not [each for each in seen.forms if "decide" in each.action]
    form = (await ann.get("/pause", pause=asked)).form("/decide")
    own = (await rita.get()).form("/logout").fields["form_token"]
    assert (await rita.send(form, form_token=own, decision="approve")).status == 403
    state = await console.client.get("s", "t")
    assert state is not None
    assert state.status.value == "PAUSED"
    # Nobody sees a token.
    pause = await console.client.pause(asked)
    assert pause is not None
    assert pause.token is not None
    assert pause.token not in (await ann.get("/pause", pause=asked)).source


ODD: dict[str, Any] = {
    "type": "object",
    "required": ["name", "kind"],
    "properties": {
        "name": {"type": "string", "title": "Name"},
        "kind": {"enum": ["a", 2, None]},
        "sure": {"type": "boolean", "default": True},
        "rate": {"type": "number"},
        "more": {"$ref": "#/$defs/More"},
        "note": {"type": "string", "maxLength": 5000},
    },
    "$defs": {"More": {"type": "object", "title": "More"}},
}


def test_a_text_of_several_lines_keeps_its_first_line_break() -> None:
    field = replace(fields_of(ODD)[5], value="\r\nas written")
    pause: dict[str, Any] = {"reason": "r", "session_id": "s", "task_id": "t", "pause_id": "p"}
    pause |= {"opened_at": None, "expires_at": None, "tags": [], "payload": None, "deciders": []}
    pause |= {"may_decide": True, "may_delegate": False, "fields": [field]}
    shown = render(
        "pause_card.html",
        base="",
        number=1,
        form_token="",
        form_key="",
        pause=pause | {"written": {"value": "", "reason": "", "to": ""}},
        here={},
    )
    # A browser drops the line break that follows the tag.
    assert ">\n\r\nas written</textarea>" in shown


def test_fields_are_read_as_the_types_of_the_schema() -> None:
    kinds = [each.kind for each in fields_of(ODD)]
    assert kinds == ["text", "choice", "boolean", "number", "json", "long"]
    assert fields_of(ODD)[2].value == "yes"
    given = {"f0": "", "f1": "1", "f2": "no", "f3": "1.5", "f4": '{"a": [1]}', "f5": "x\r\ny"}
    read = read_value(ODD, given)
    assert read == {
        "name": "",
        "kind": 2,
        "sure": False,
        "rate": 1.5,
        "more": {"a": [1]},
        "note": "x\ny",
    }
    assert read_value(ODD, {"f1": ""}) == {"name": ""}
    wrong = [("f1", "9"), ("f1", "-1"), ("f2", "so"), ("f3", "x"), ("f4", "{")]
    # Such numbers pass a schema's bounds, and JSON has none of them.
    wrong += [("f3", text) for text in ("nan", "inf", "-Infinity", "1e999")]
    for field, text in wrong:
        with pytest.raises(HttpProblem):
            read_value(ODD, {field: text})


@pytest.mark.parametrize(
    "schema", [True, {}, {"type": "array"}, {"type": "object"}, {"properties": 5}, {"enum": 3}]
)
def test_what_a_form_cannot_ask_for_is_asked_for_as_json(schema: Any) -> None:
    assert [each.kind for each in fields_of(schema)] == ["json"]
    assert read_value(schema, {"value": "[1, 2]"}) == [1, 2]
