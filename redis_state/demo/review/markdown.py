"""Read a Markdown file into the plain facts that the other stages work on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from redis_state.demo.review.tags import tagged_headings, tags
from redis_state.demo.review.text import (
    BYTE_ORDER_MARK,
    Slugs,
    frontmatter_lines,
    split_lines,
)

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

    text: str
    target: str
    line: int
    image: bool = False


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """Hold what a review needs from one file. Lines count from 1.

    ``text`` is the whole file, byte order mark and line ends included. Without ``valid_utf8`` it
    has replacement characters where bytes could not be read. ``word_count`` covers headings and
    paragraphs, not code and tables. ``contents_block`` is the slice of lines between the markers
    of a table of contents, counted from 0.
    """

    path: Path
    text: str
    headings: tuple[Heading, ...]
    paragraphs: tuple[Paragraph, ...]
    links: tuple[Link, ...]
    html_anchors: tuple[str, ...]
    word_count: int
    line_count: int
    valid_utf8: bool = True
    contents_block: tuple[int, int] | None = None

    @property
    def anchors(self) -> frozenset[str]:
        """Every fragment that leads somewhere in this document."""
        return frozenset(self.html_anchors).union(h.anchor for h in self.headings if h.anchor)

    @property
    def title(self) -> Heading | None:
        """The first heading, if it is of level 1."""
        first = next((heading for heading in self.headings if not heading.nested), None)
        return first if first and first.level == 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Return the document as JSON values."""
        return {**asdict(self), "path": str(self.path)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ParsedDocument:
        """Read what ``to_dict`` wrote, also after a trip through JSON."""
        block = values["contents_block"]
        return cls(
            path=Path(values["path"]),
            text=values["text"],
            headings=tuple(Heading(**heading) for heading in values["headings"]),
            paragraphs=tuple(Paragraph(**paragraph) for paragraph in values["paragraphs"]),
            links=tuple(Link(**link) for link in values["links"]),
            html_anchors=tuple(values["html_anchors"]),
            word_count=values["word_count"],
            line_count=values["line_count"],
            valid_utf8=values["valid_utf8"],
            contents_block=None if block is None else (block[0], block[1]),
        )


class MarkdownParser(MarkdownIt):
    """Keep link targets as written: nothing is rendered, and a bad one must be seen to be named."""

    def validateLink(self, url: str) -> bool:  # noqa: ARG002, N802
        """Accept every target."""
        return True

    def normalizeLink(self, url: str) -> str:  # noqa: N802
        """Leave the target alone."""
        return url


def read(path: Path) -> tuple[str, bool]:
    """Read a file as it is, and return whether it was valid UTF-8."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8"), True
    except UnicodeDecodeError:
        return data.decode("utf-8", errors="replace"), False


def markdown_source(text: str) -> str:
    """Blank the frontmatter out, so that line numbers stay those of the file."""
    lines = split_lines(text)
    count = frontmatter_lines(lines)
    return ("\n" * count + "".join(lines[count:])).removeprefix(BYTE_ORDER_MARK)


def parse(path: Path) -> ParsedDocument:
    """Read and parse a Markdown file. A file that cannot be read is an `OSError`."""
    text, valid_utf8 = read(path)
    return parse_text(text, path, valid_utf8=valid_utf8)


def parse_text(text: str, path: Path, *, valid_utf8: bool = True) -> ParsedDocument:
    """Parse a text as if it were the content of ``path``."""
    tokens = _parser().parse(markdown_source(text))
    collected = _Collector()
    collected.walk(tokens)
    texts = [heading.text for heading in collected.headings]
    texts += [paragraph.text for paragraph in collected.paragraphs]
    return ParsedDocument(
        path=path,
        text=text,
        headings=tuple(collected.headings),
        paragraphs=tuple(collected.paragraphs),
        links=tuple(collected.links),
        html_anchors=tuple(collected.html_anchors),
        word_count=sum(len(text.split()) for text in texts),
        line_count=len(split_lines(text)),
        valid_utf8=valid_utf8,
        contents_block=_contents_block(tokens),
    )


def _parser() -> MarkdownParser:
    parser = MarkdownParser("commonmark")
    parser.enable(["table", "strikethrough"])
    return parser


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


@dataclass(slots=True)
class _Inline:
    """Collect the plain text, the links and the anchors of one run of inline tokens."""

    line: int
    parts: list[str] = field(default_factory=list[str])
    images: list[str] = field(default_factory=list[str])
    links: list[Link] = field(default_factory=list[Link])
    anchors: list[str] = field(default_factory=list[str])
    _open: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])

    def walk(self, tokens: Iterable[Token]) -> _Inline:
        for token in tokens:
            match token.type:
                case "text" | "code_inline":
                    self.parts.append(token.content)
                case "softbreak" | "hardbreak":
                    self.parts.append(" ")
                    self.line += 1
                case "link_open":
                    href = str(token.attrGet("href") or "")
                    self._open.append((len(self.parts), href, self.line))
                case "link_close":
                    start, href, line = self._open.pop()
                    self.links.append(Link("".join(self.parts[start:]), href, line))
                case "image":
                    self._image(token)
                case "html_inline":
                    self._html(token.content)
                case _:
                    pass
        return self

    def _image(self, token: Token) -> None:
        alternative = _Inline(self.line).walk(token.children or ()).text
        source = str(token.attrGet("src") or "")
        self.images.append(alternative)
        self.links.append(Link(alternative, source, self.line, image=True))
        self.line += token.content.count("\n")

    def _html(self, content: str) -> None:
        self.links.extend(_html_links(content, self.line))
        self.anchors.extend(anchor for tag in tags(content) for anchor in tag.anchors)
        self.line += content.count("\n")

    @property
    def text(self) -> str:
        return "".join(self.parts)


class _Collector:
    """Walk the block tokens once and keep what a document holds."""

    def __init__(self) -> None:
        self.headings: list[Heading] = []
        self.paragraphs: list[Paragraph] = []
        self.links: list[Link] = []
        self.html_anchors: list[str] = []
        self._slugs = Slugs()

    def walk(self, tokens: Sequence[Token]) -> None:
        for before, token in zip((None, *tokens), tokens, strict=False):
            if token.map is None:
                continue
            if token.type == "html_block":
                self._html(token, token.map)
            elif token.type == "inline" and before is not None:
                self._inline(before, token, token.map)

    def _inline(self, opening: Token, token: Token, lines: Sequence[int]) -> None:
        line = lines[0] + 1
        inline = _Inline(line).walk(token.children or ())
        self.links.extend(inline.links)
        self.html_anchors.extend(inline.anchors)
        if opening.type == "heading_open":
            self._heading(inline, opening)
        elif opening.type == "paragraph_open" and inline.text.strip():
            self.paragraphs.append(Paragraph(" ".join(inline.text.split()), line))

    def _heading(self, inline: _Inline, opening: Token) -> None:
        first, last = opening.map or (0, 0)
        self.headings.append(
            Heading(
                level=int(opening.tag[1:]),
                text=" ".join((inline.text.strip() or " ".join(inline.images)).split()),
                # GitHub makes the anchor from the text alone: an image before it leaves a hyphen.
                anchor=self._slugs.slug(inline.text),
                line=first + 1,
                last_line=last,
                nested=opening.level > 0,
            )
        )

    def _html(self, token: Token, lines: Sequence[int]) -> None:
        line = lines[0] + 1
        self.links.extend(_html_links(token.content, line))
        self.html_anchors.extend(anchor for tag in tags(token.content) for anchor in tag.anchors)
        for found in tagged_headings(token.content):
            anchor = self._slugs.slug(found.text)
            nested = token.level > 0
            self.headings.append(
                Heading(found.level, found.text, anchor, line + found.line, lines[1], nested)
            )


def _html_links(content: str, line: int) -> list[Link]:
    return [
        Link(tag.attributes.get("alt", ""), tag.target, line + tag.line, image=tag.name == "img")
        for tag in tags(content)
        if tag.target is not None
    ]
