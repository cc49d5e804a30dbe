"""Read a Markdown file into the plain facts that the other stages work on."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

BYTE_ORDER_MARK = "\ufeff"

# The line ends of Markdown. `str.splitlines` also breaks at form feeds and the like, which would
# shift every line number after one.
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
_SPECIAL = re.compile(r"[\\`*\[\]<~]|(?<!\w)_|_(?!\w)|&(?=[#\w]+;)")
# At column 0 only: an indented closing marker would become part of the list before it.
_BLOCK_START = re.compile(r"<!--\s*toc\s*-->", re.IGNORECASE)
_BLOCK_END = re.compile(r"<!--\s*/toc\s*-->", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Heading:
    """Describe a heading. A nested one, in a quote or a list, heads no section."""

    level: int
    text: str
    anchor: str
    line: int
    last_line: int
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Hold a paragraph as plain text: no markup, one line."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Link:
    """Describe a link or an image. ``target`` is as written, percent signs included."""

    target: str
    line: int
    image: bool = False


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """Hold what a review needs from one file. Lines count from 1.

    ``text`` is the whole file, byte order mark and line ends included. ``contents_block`` is the
    slice of lines between the markers of a table of contents, counted from 0.
    """

    path: Path
    text: str
    headings: tuple[Heading, ...]
    paragraphs: tuple[Paragraph, ...]
    links: tuple[Link, ...]
    html_anchors: tuple[str, ...]
    contents_block: tuple[int, int] | None = None

    @property
    def anchors(self) -> frozenset[str]:
        """Every fragment that leads somewhere in this document."""
        return frozenset(self.html_anchors).union(h.anchor for h in self.headings if h.anchor)

    @property
    def sections(self) -> list[Heading]:
        """The headings that head a section."""
        return [heading for heading in self.headings if not heading.nested]

    @property
    def title(self) -> Heading | None:
        """The first heading, if it is of level 1."""
        first = next(iter(self.sections), None)
        return first if first and first.level == 1 else None


class MarkdownParser(MarkdownIt):
    """Keep link targets as written: nothing is rendered, and a bad one must be seen to be named."""

    def validateLink(self, url: str) -> bool:  # noqa: ARG002, N802
        """Accept every target."""
        return True

    def normalizeLink(self, url: str) -> str:  # noqa: N802
        """Leave the target alone."""
        return url


def parse(path: Path) -> ParsedDocument:
    """Read and parse a Markdown file; bytes that are no UTF-8 are replaced.

    A file that cannot be read is an `OSError`.
    """
    return parse_text(path.read_bytes().decode("utf-8", errors="replace"), path)


def parse_text(text: str, path: Path) -> ParsedDocument:
    """Parse a text as if it were the content of ``path``."""
    lines = split_lines(text)
    top = frontmatter_lines(lines)
    # The frontmatter becomes blank lines, so that line numbers stay those of the file.
    source = ("\n" * top + "".join(lines[top:])).removeprefix(BYTE_ORDER_MARK)
    tokens = MarkdownParser("commonmark").enable(["table", "strikethrough"]).parse(source)
    collected = _Collector()
    collected.walk(tokens)
    return ParsedDocument(
        path=path,
        text=text,
        headings=tuple(collected.headings),
        paragraphs=tuple(collected.paragraphs),
        links=tuple(collected.links),
        html_anchors=tuple(collected.anchors),
        contents_block=_contents_block(tokens),
    )


def split_lines(text: str) -> list[str]:
    """Split into lines that keep their ends, so that joining gives the text back."""
    return _LINE.findall(text)


def frontmatter_lines(lines: list[str]) -> int:
    """Count the lines of a YAML block at the top; 0 without one.

    As in pandoc, a blank second line makes the first one a horizontal rule.
    """
    if not any(line.strip() for line in lines[1:2]):
        return 0
    if lines[0].removeprefix(BYTE_ORDER_MARK).rstrip() != "---":
        return 0
    ends = (number for number, line in enumerate(lines[1:], 2) if line.rstrip() in ("---", "..."))
    return next(ends, 0)


def escape(text: str) -> str:
    """Escape what Markdown would read as markup inside a line."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def _contents_block(tokens: Sequence[Token]) -> tuple[int, int] | None:
    # The closing marker belongs to the nearest opening one, so a stray opening marker far above
    # cannot make everything in between look like a table of contents.
    start: int | None = None
    for token in tokens:
        if token.type != "html_block" or token.level or token.map is None:
            continue
        marker = token.content.rstrip()
        if _BLOCK_START.fullmatch(marker):
            start = token.map[1]
        elif start is not None and _BLOCK_END.fullmatch(marker):
            return start, token.map[0]
    return None


class _Collector:
    """Walk the tokens once and keep what a document holds."""

    def __init__(self) -> None:
        self.headings: list[Heading] = []
        self.paragraphs: list[Paragraph] = []
        self.links: list[Link] = []
        self.anchors: list[str] = []
        self._slugs = _Slugs()

    def walk(self, tokens: Sequence[Token]) -> None:
        for before, token in pairwise((Token("", "", 0), *tokens)):
            if token.map is None:
                continue
            line = token.map[0] + 1
            if token.type == "html_block":
                self._html(token.content, line)
            elif token.type == "inline":
                text = self._inline(token.children or (), line)
                if before.type == "heading_open":
                    self._heading(text, before)
                elif before.type == "paragraph_open" and text.strip():
                    self.paragraphs.append(Paragraph(" ".join(text.split()), line))

    def _inline(self, tokens: Iterable[Token], line: int) -> str:
        """Keep the links of a run of inline tokens; return its plain text."""
        parts: list[str] = []
        for token in tokens:
            match token.type:
                case "text" | "code_inline":
                    parts.append(token.content)
                case "softbreak" | "hardbreak":
                    parts.append(" ")
                    line += 1
                case "link_open":
                    self.links.append(Link(str(token.attrGet("href") or ""), line))
                case "image":
                    self.links.append(Link(str(token.attrGet("src") or ""), line, image=True))
                    line += token.content.count("\n")
                case "html_inline":
                    self._html(token.content, line)
                    line += token.content.count("\n")
                case _:
                    pass
        return "".join(parts)

    def _heading(self, text: str, opening: Token) -> None:
        first, last = opening.map or (0, 0)
        self.headings.append(
            Heading(
                level=int(opening.tag[1:]),
                text=" ".join(text.split()),
                anchor=self._slugs.slug(text),
                line=first + 1,
                last_line=last,
                nested=opening.level > 0,
            )
        )

    def _html(self, content: str, line: int) -> None:
        for tag in _tags(content):
            target = tag.attributes.get({"a": "href", "img": "src"}.get(tag.name, ""))
            if target is not None:
                self.links.append(Link(target, line + tag.line, image=tag.name == "img"))
            # Only ``a`` may use ``name`` for an anchor.
            names = ("id", "name") if tag.name == "a" else ("id",)
            self.anchors += [tag.attributes[name] for name in names if tag.attributes.get(name)]


@dataclass(frozen=True, slots=True)
class _Tag:
    name: str
    attributes: dict[str, str]
    line: int


class _TagReader(HTMLParser):
    """Keep the opening tags outside comments, scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Tag] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value for name, value in attrs if value is not None}
        self.found.append(_Tag(tag, attributes, self.getpos()[0] - 1))


def _tags(snippet: str) -> list[_Tag]:
    reader = _TagReader()
    reader.feed(snippet)
    return reader.found


class _Slugs:
    """Give headings the anchors that GitHub gives them, in document order."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def slug(self, text: str) -> str:
        base = "".join("-" if c == " " else c for c in text.lower() if _in_anchor(c))
        anchor = base
        while anchor in self._used:
            self._used[base] += 1
            anchor = f"{base}-{self._used[base]}"
        self._used[anchor] = 0
        return anchor


def _in_anchor(character: str) -> bool:
    category = unicodedata.category(character)
    return character in " -" or category[0] in "LM" or category in {"Nd", "Nl", "Pc"}
