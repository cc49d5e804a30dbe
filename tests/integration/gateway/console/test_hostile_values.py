"""Hostile values in every stored string stay text: in pages, in live parts, in SVG and URLs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.worker import Schedule, TaskContext
from tests.integration.gateway.console.conftest import AUTH, KEYS
from tests.support import gateway as support
from tests.support.console import Browser, Page
from tests.support.gateway import Served, ends, gateway_of, paused

PAYLOADS = [
    '<script>alert("{}")</script>',
    '"><img src=x onerror=alert("{}")>',
    "'><svg onload=alert('{}')>",
    "javascript:alert('{}')",
    "</textarea></title></pre></svg><script>alert('{}')</script>",
    "{{{{ 7*7 }}}}{{% raw %}}{}",
    "\" autofocus onfocus=\"alert('{}')",
    "' hx-on:load='alert(1)' x='{}",
    "a\r\n\r\nevent: end\r\ndata: <script>{}</script>\r\n\r\n",
    "<!--{}",
    "]]><script>{}</script>",
    "\u2028<base href=//evil.test>{}",
]


_TEMPLATE = next(at for at, each in enumerate(PAYLOADS) if "7*7" in each)
_DAY = timedelta(days=1)


async def _nothing() -> None:
    return None


class Watch(HTMLParser):
    """Finds what a browser would run, or send somewhere else."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at an element."""
        named = {name: value or "" for name, value in attrs}
        if tag in ("img", "iframe", "object", "embed", "base", "style", "foreignobject"):
            self.found.append(f"<{tag}>")
        if tag == "script" and not named.get("src", "").startswith("/console/static/"):
            self.found.append("<script>")
        for name, value in named.items():
            where = value.strip().lower()
            if name.startswith(("on", "hx-on", "style", "srcdoc", "formaction")):
                self.found.append(f"{tag} {name}")
            if name in LEADS and not where.startswith(("/console", "#")):
                self.found.append(f"{tag} {name}={value}")
            if name.startswith("hx-") and name not in KNOWN:
                self.found.append(f"{tag} {name}")


LEADS = {"href", "src", "action", "xlink:href", "hx-get", "hx-sse:connect"}
KNOWN = {"hx-get", "hx-trigger", "hx-swap", "hx-sse:connect", "hx-sse:close"}


def evil(kind: int, where: str) -> str:
    """Make a payload, with the place where it was stored."""
    return PAYLOADS[kind % len(PAYLOADS)].format(where)


def watched(source: str) -> list[str]:
    """Return what is not inert."""
    watch = Watch()
    watch.feed(source)
    watch.close()
    return watch.found


@pytest.fixture(params=range(len(PAYLOADS)))
def kind(request: pytest.FixtureRequest) -> int:
    """Return the number of a payload."""
    number: int = request.param
    return number


@pytest.fixture
async def hostile(
    store: RedisStateStore, kind: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    """Serve handlers that store the payload wherever a handler can."""

    async def asks(ctx: TaskContext) -> Any:
        await ctx.step(evil(kind, "step"), _nothing)
        await ctx.progress(evil(kind, "message"))
        form = {
            "type": "object",
            "title": evil(kind, "form"),
            "properties": {
                evil(kind, "property"): {"title": evil(kind, "title"), "type": "string"},
                "x": {"description": evil(kind, "help"), "enum": [evil(kind, "choice")]},
                "y": {"type": "string", "default": evil(kind, "default")},
                "z": {"type": "string", "maxLength": 900, "default": evil(kind, "long")},
            },
        }
        payload = {evil(kind, "name"): evil(kind, "payload")}
        pause = await ctx.open_pause(
            evil(kind, "reason"), payload, tags=[evil(kind, "tag")[:60]], schema=form
        )
        return (await ctx.wait_for(pause)).actor

    async def fails(ctx: TaskContext) -> Any:
        del ctx
        raise RuntimeError(evil(kind, "error"))

    monkeypatch.setitem(support.HANDLERS, "asks", asks)
    monkeypatch.setitem(support.HANDLERS, "fails", fails)
    async with gateway_of(store, handlers=["asks", "fails"], auth=AUTH, console=True) as opened:
        yield opened


async def test_a_payload_in_every_stored_string_stays_text(hostile: Served, kind: int) -> None:
    session, task = evil(kind, "session"), evil(kind, "task")
    client = hostile.client
    await client.submit(
        "asks",
        session_id=session,
        task_id=task,
        description=evil(kind, "description"),
        attributes={"note": evil(kind, "attribute")[:60]},
    )
    await client.submit("fails", session_id=session, task_id="f")
    await client.schedules.save(
        Schedule(
            schedule_id=evil(kind, "schedule"),
            handler="fails",
            session_id=session.replace("{", "{{").replace("}", "}}"),
            every=_DAY,
            description=evil(kind, "of a schedule"),
        )
    )
    pause_id = await paused(hostile, session, task)
    await ends(hostile, session, "f")
    ann = Browser(hostile.app)
    await ann.log_in(KEYS["ann"])
    pages: list[Page] = [
        *[await ann.get(each) for each in ("", "/inbox", "/find", "/sessions", "/schedules")],
        await ann.get("/task", session=session, task=task),
        await ann.get("/task", session=session, task="f"),
        await ann.get("/session", session=session),
        await ann.get("/pause", pause=pause_id),
        await ann.get("/find", handler=evil(kind, "filter"), session_id=evil(kind, "filter")),
        await ann.get("/inbox", tag=evil(kind, "filter")),
        await ann.get("/find", after=evil(kind, "cursor")),
    ]
    decide = pages[1].form("/decide")
    pages.append(await ann.send(decide, decision="approve", f0="x", f1="9"))
    pages.append(await ann.send(decide, decision="reject", reason=evil(kind, "rejection")))
    await ends(hostile, session, task)
    pages.append(await ann.send(decide, decision="approve", f1="0", f2="", f3=""))
    pages.append(await ann.get("/pause", pause=pause_id))
    pages.append(await ann.get("/task", session=session, task=task))
    for page in pages:
        assert watched(page.source) == [], page.url
        assert page.status < 500
    # It was really there: as text, and not as an element.
    for where, page in (("reason", pages[1]), ("payload", pages[1]), ("session", pages[2])):
        assert where in page.text
    # Nobody renders what was rendered.
    assert kind != _TEMPLATE or "{{ 7*7 }}" in pages[1].text
    live = await ann.http.get("/console/task/live", params={"session": session, "task": task})
    assert watched(live.text) == []
    names = {line.partition(":")[0] for line in live.text.split("\n")}
    assert names <= {"", "id", "data", "event", "retry"}
    await ann.http.aclose()


def test_the_watch_sees_what_is_not_inert() -> None:
    for source in (
        "<script>1</script>",
        "<img src=x onerror=1>",
        '<a href="javascript:1">',
        '<p hx-on:load="1">',
        "<form action=//evil.test>",
        '<p style="x">',
    ):
        assert watched(source)
