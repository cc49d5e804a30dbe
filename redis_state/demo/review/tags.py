"""The few facts a review needs from HTML inside Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

_INERT = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE
)
_TAG = re.compile(r"""<([a-zA-Z][a-zA-Z0-9-]*)((?:[^<>"']|"[^"]*"|'[^']*')*)>""")
_ANY_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_ATTRIBUTE = re.compile(r"""([^\s"'>/=]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'=<>`]+))""")
_HEADING = re.compile(r"<h([1-6])\b[^>]*>(.*?)</h\1\s*>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Tag:
    """Describe an opening tag. ``line`` counts from 0 at the start of the snippet."""

    name: str
    attributes: dict[str, str]
    line: int

    @property
    def anchors(self) -> tuple[str, ...]:
        """The fragments that lead to this tag; only ``a`` may use ``name`` for that."""
        names = ("id", "name") if self.name == "a" else ("id",)
        return tuple(self.attributes[name] for name in names if self.attributes.get(name))

    @property
    def target(self) -> str | None:
        """Where a link or an image points."""
        attribute = {"a": "href", "img": "src"}.get(self.name)
        return self.attributes.get(attribute) if attribute else None


@dataclass(frozen=True, slots=True)
class TaggedHeading:
    """Describe a heading written as HTML. ``line`` counts from 0."""

    level: int
    text: str
    line: int


def tags(snippet: str) -> Iterator[Tag]:
    """Yield the opening tags outside comments, scripts and styles."""
    live = _without_inert(snippet)
    for match in _TAG.finditer(live):
        attributes = {
            name.lower(): html.unescape(double or single or bare)
            for name, double, single, bare in _ATTRIBUTE.findall(match[2])
        }
        yield Tag(match[1].lower(), attributes, live.count("\n", 0, match.start()))


def tagged_headings(snippet: str) -> Iterator[TaggedHeading]:
    """Yield the headings ``<h1>`` to ``<h6>`` that end in the same snippet."""
    live = _without_inert(snippet)
    for match in _HEADING.finditer(live):
        text = " ".join(html.unescape(_ANY_TAG.sub("", match[2])).split())
        yield TaggedHeading(int(match[1]), text, live.count("\n", 0, match.start()))


def _without_inert(snippet: str) -> str:
    # Line ends stay, so that line numbers do.
    return _INERT.sub(lambda match: "\n" * match[0].count("\n"), snippet)
