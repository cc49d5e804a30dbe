"""Templates: everything that is shown is escaped, and nothing undefined is shown.

Ids stand in the query of a URL, not in its path: a browser takes the ids ``.`` and ``..`` for parts
of a path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, cast
from urllib.parse import quote

from jinja2 import DictLoader, Environment, StrictUndefined, pass_context
from jinja2.runtime import Context
from starlette.responses import Response

_LONGEST_VALUE = 20_000
_POLICY = "; ".join(
    [
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "connect", "img")),
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": _POLICY,
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-robots-tag": "noindex",
}
_PRETTY = json.JSONEncoder(indent=2, ensure_ascii=False)
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def html_response(template: str, status: int = 200, **values: Any) -> Response:
    """Render a page."""
    # An id may hold what is no Unicode: it is shown by a sign of replacement.
    body = render(template, **values).encode("utf-8", "replace")
    return Response(body, status, headers=HEADERS, media_type="text/html")


def render(template: str, **values: Any) -> str:
    """Render a template."""
    return _environment().get_template(template).render(**values)


def write_query(values: Mapping[str, Any]) -> str:
    """Write the query of a URL, for any text. None is left out; a list is repeated.

    An empty text stays: it is an id like any other.
    """
    pairs: list[str] = []
    for name, value in values.items():
        listed: list[Any] = cast("Any", value) if isinstance(value, list) else [value]
        shown = [str(each) for each in listed if each is not None]
        pairs += [f"{_quoted(name)}={_quoted(each)}" for each in shown]
    return "&".join(pairs)


def write_json(value: Any) -> str:
    """Write a value for people, and cut it where it is very long."""
    if isinstance(value, str):
        more = len(value) - _LONGEST_VALUE
        return value if more <= 0 else f"{value[:_LONGEST_VALUE]}\n… {more} more characters"
    text = ""
    # What is cut off is not written: it may be large.
    for part in _PRETTY.iterencode(value):
        text += part
        if len(text) > _LONGEST_VALUE:
            return f"{text[:_LONGEST_VALUE]}\n… and more"
    return text


def age(seconds: float | None) -> str:
    """Write a length of time: 3 s, 5 min, 2 h, 4 d."""
    if seconds is None:
        return "-"
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def read_time(text: str) -> datetime:
    """Read a time of a document. One without a zone, which a host may give, is UTC."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def moment(text: str | None) -> datetime | None:
    """Read a time of a document, or None."""
    return None if text is None else read_time(text)


def since(text: str | None) -> str:
    """Write how long ago a time of a document is."""
    at = moment(text)
    return "-" if at is None else age((datetime.now(UTC) - at) / timedelta(seconds=1))


def clock(text: str | None) -> str:
    """Write a time of a document in UTC."""
    at = moment(text)
    try:
        return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        # In UTC it is of a year that Python has not.
        return str(text)


def milliseconds(value: float | None) -> str:
    """Write a length of time in ms as people read it."""
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 1_000 else f"{value / 1_000:.1f} s"  # noqa: PLR2004


@pass_context
def _link(context: Context, page: str, **values: Any) -> str:
    query = write_query(values)
    return f"{context['base']}{page}" + (f"?{query}" if query else "")


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


@cache
def _environment() -> Environment:
    folder = files("redis_state.gateway.console").joinpath("templates")
    sources = {
        each.name: each.read_text(encoding="utf-8")
        for each in folder.iterdir()
        if each.name.endswith((".html", ".svg"))
    }
    made = Environment(
        loader=DictLoader(sources),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "age": age,
        "since": since,
        "clock": clock,
        "json": write_json,
        "ms": milliseconds,
    }
    helpers = cast("dict[str, Any]", made.globals)
    helpers["link"] = _link
    return made
