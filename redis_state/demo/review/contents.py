"""Propose a table of contents, and put it into a copy of the text."""

from __future__ import annotations

from redis_state.demo.review.markdown import ParsedDocument, parse_text
from redis_state.demo.review.sections import outline_of
from redis_state.demo.review.text import (
    BYTE_ORDER_MARK,
    escape,
    frontmatter_lines,
    split_lines,
)

START = "<!-- toc -->"
END = "<!-- /toc -->"


def propose_contents(document: ParsedDocument, *, max_level: int = 3) -> str:
    """List the headings below the title as links; empty when there are none.

    What stands in the present table of contents does not count: the proposal replaces it.
    """
    clean = _without_block(document)
    headings = [
        heading
        for heading in clean.headings
        if heading.anchor
        and heading.level <= max_level
        and not heading.nested
        and heading != clean.title
    ]
    return "\n".join(
        f"{'  ' * entry.depth}- [{escape(entry.text)}](#{entry.anchor})"
        for entry in outline_of(headings)
    )


def reviewed_copy(document: ParsedDocument, contents: str) -> str:
    r"""Return the text with the contents that `propose_contents` made; the rest stays as it is.

    They replace what stands between the lines ``<!-- toc -->`` and ``<!-- /toc -->``. Without
    these they go below the title, or to the top. Doing it again changes nothing.
    """
    lines = split_lines(document.text)
    block = document.contents_block
    if block is not None:
        start, end = block
        inner = _inner(contents, _newline(lines, start))
        return "".join([*lines[:start], *inner, *lines[end:]])
    if contents:
        for at in _places(document, lines):
            copy = _insert(document.text, at, contents)
            # A title in unclosed HTML would swallow the markers, and the next copy add its own.
            if parse_text(copy, document.path).contents_block is not None:
                return copy
    return document.text


def _without_block(document: ParsedDocument) -> ParsedDocument:
    block = document.contents_block
    if block is None or not any(block[0] < h.line <= block[1] for h in document.headings):
        return document
    lines = split_lines(document.text)
    return parse_text("".join([*lines[: block[0]], *lines[block[1] :]]), document.path)


def _places(document: ParsedDocument, lines: list[str]) -> list[int]:
    top = frontmatter_lines(lines)
    return [document.title.last_line, top] if document.title else [top]


def _insert(text: str, at: int, contents: str) -> str:
    mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
    lines = split_lines(text.removeprefix(mark))
    before, after = lines[:at], lines[at:]
    newline = _newline(lines, at)
    block = [START, newline, *_inner(contents, newline), END, newline]
    if before and not before[-1].endswith(("\r", "\n")):
        block.insert(0, newline)
    if before and before[-1].strip():
        block.insert(0, newline)
    if after and after[0].strip():
        block.append(newline)
    return mark + "".join([*before, *block, *after])


def _inner(contents: str, newline: str) -> list[str]:
    if not contents:
        return [newline]
    return [newline, *(line + newline for line in contents.split("\n")), newline]


def _newline(lines: list[str], at: int) -> str:
    # The end of the line before, not of any other: in a file that mixes them, a lone carriage
    # return and the line feed after it would become one line end.
    for line in (*lines[max(at - 1, 0) : at], *lines[:1]):
        if end := line[len(line.rstrip("\r\n")) :]:
            return end
    return "\n"
