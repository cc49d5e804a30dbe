"""What is wrong with the headings and sections of a document."""

from __future__ import annotations

from collections.abc import Iterable

from examples.review.engine.findings import Finding
from examples.review.engine.markdown import Heading, ParsedDocument


def with_depths(headings: Iterable[Heading]) -> list[tuple[int, Heading]]:
    """Pair each heading with its count of parents, whatever levels they skip."""
    parents: list[int] = []
    found: list[tuple[int, Heading]] = []
    for heading in headings:
        while parents and parents[-1] >= heading.level:
            parents.pop()
        found.append((len(parents), heading))
        parents.append(heading.level)
    return found


def heading_problems(document: ParsedDocument) -> list[Finding]:
    """Report a missing title, empty headings, skipped levels and duplicate headings."""
    found: list[Finding] = []
    if document.title is None:
        message = "the document does not start with a heading of level 1"
        found.append(Finding("no-title", "warning", 1, message))
    level = 0
    lines: dict[str, int] = {}
    for heading in document.sections:
        if not heading.text:
            found.append(Finding("empty-heading", "warning", heading.line, "a heading has no text"))
        if level and heading.level > level + 1:
            message = f"'{heading.text}' jumps from level {level} to level {heading.level}"
            found.append(Finding("skipped-level", "warning", heading.line, message))
        text = heading.text.casefold()
        if text and text in lines:
            # Often meant, as "Added" and "Fixed" are in a changelog.
            message = f"'{heading.text}' is also the heading of line {lines[text]}"
            found.append(Finding("duplicate-heading", "info", heading.line, message))
        lines.setdefault(text, heading.line)
        level = heading.level
    return found


def long_sections(document: ParsedDocument, max_words: int = 600) -> list[Finding]:
    """Report sections of more words than that, counted up to the next heading of any level."""
    headings = document.sections
    words = [0] * (len(headings) + 1)
    section = 0
    for paragraph in document.paragraphs:
        while section < len(headings) and headings[section].line <= paragraph.line:
            section += 1
        words[section] += len(paragraph.text.split())
    found: list[Finding] = []
    for heading, count in zip((None, *headings), words, strict=True):
        if count > max_words:
            name = f"'{heading.text}'" if heading else "the text before the first heading"
            message = f"{name} has {count} words, more than {max_words}"
            line = heading.line if heading else 1
            found.append(Finding("long-section", "warning", line, message))
    return found
