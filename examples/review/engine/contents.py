"""Propose a table of contents, and put it into a copy of the text."""

from __future__ import annotations

from examples.review.engine.markdown import (
    BYTE_ORDER_MARK,
    ParsedDocument,
    escape,
    frontmatter_lines,
    parse_text,
    split_lines,
)
from examples.review.engine.sections import with_depths

START = "<!-- toc -->"
END = "<!-- /toc -->"


def propose_contents(document: ParsedDocument, *, max_level: int = 3) -> str:
    """List the headings below the title as links; empty when there are none.

    What stands in the present table of contents does not count: the proposal replaces it.
    """
    clean = _without_block(document)
    headings = [h for h in clean.sections if h.anchor and h.level <= max_level and h != clean.title]
    return "\n".join(
        f"{'  ' * depth}- [{escape(heading.text)}](#{heading.anchor})"
        for depth, heading in with_depths(headings)
    )


def reviewed_copy(document: ParsedDocument, contents: str) -> str:
    r"""Return the text with the contents that `propose_contents` made; the rest stays as it is.

    They replace what stands between the lines ``<!-- toc -->`` and ``<!-- /toc -->``. Without
    these they go below the title, or to the top. Doing it again changes nothing.
    """
    lines = split_lines(document.text)
    newline = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    inner = contents.replace("\n", newline)
    inner = f"{newline}{inner}{newline}{newline}" if contents else newline
    if document.contents_block is not None:
        start, end = document.contents_block
        return "".join([*lines[:start], inner, *lines[end:]])
    if not contents:
        return document.text
    block = f"{START}{newline}{inner}{END}{newline}"
    top = frontmatter_lines(lines)
    for at in [document.title.last_line, top] if document.title else [top]:
        copy = _insert(document.text, at, block, newline)
        # A title in unclosed HTML would swallow the markers, and the next copy add its own.
        if parse_text(copy, document.path).contents_block is not None:
            return copy
    return document.text


def _without_block(document: ParsedDocument) -> ParsedDocument:
    block = document.contents_block
    if block is None:
        return document
    lines = split_lines(document.text)
    return parse_text("".join([*lines[: block[0]], *lines[block[1] :]]), document.path)


def _insert(text: str, at: int, block: str, newline: str) -> str:
    mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
    lines = split_lines(text.removeprefix(mark))
    before, after = "".join(lines[:at]), "".join(lines[at:])
    if before and not before.endswith(("\r", "\n")):
        before += newline
    gap = newline if before and before.splitlines()[-1].strip() else ""
    end = newline if lines[at:] and lines[at].strip() else ""
    return f"{mark}{before}{gap}{block}{end}{after}"
