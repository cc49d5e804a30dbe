"""The outline of a document, and what is wrong with its headings and sections."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from redis_state.demo.review.findings import Finding, Severity
from redis_state.demo.review.markdown import Heading, ParsedDocument


@dataclass(frozen=True, slots=True)
class OutlineEntry:
    """Place a heading in the outline. ``depth`` counts its parents, whatever levels they skip."""

    depth: int
    level: int
    text: str
    anchor: str
    line: int

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return asdict(self)


def outline(document: ParsedDocument) -> list[OutlineEntry]:
    """List the headings in order, each with its depth."""
    return outline_of(_section_headings(document))


def outline_of(headings: Iterable[Heading]) -> list[OutlineEntry]:
    """Give each of these headings its depth among them."""
    parents: list[int] = []
    entries: list[OutlineEntry] = []
    for heading in headings:
        while parents and parents[-1] >= heading.level:
            parents.pop()
        entries.append(
            OutlineEntry(len(parents), heading.level, heading.text, heading.anchor, heading.line)
        )
        parents.append(heading.level)
    return entries


def heading_problems(document: ParsedDocument) -> list[Finding]:
    """Report a missing title, empty headings, skipped levels and duplicate headings."""
    found = [*_title_problems(document), *_level_problems(document), *_duplicates(document)]
    return sorted(found, key=lambda finding: finding.line)


def long_sections(document: ParsedDocument, max_words: int = 600) -> list[Finding]:
    """Report sections of more words than that, counted up to the next heading of any level."""
    headings = _section_headings(document)
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


def _section_headings(document: ParsedDocument) -> list[Heading]:
    return [heading for heading in document.headings if not heading.nested]


def _title_problems(document: ParsedDocument) -> list[Finding]:
    if document.title is not None:
        return []
    message = "the document does not start with a heading of level 1"
    return [Finding("no-title", "warning", 1, message)]


def _level_problems(document: ParsedDocument) -> list[Finding]:
    found: list[Finding] = []
    level = 0
    for heading in _section_headings(document):
        if not heading.text:
            found.append(Finding("empty-heading", "warning", heading.line, "a heading has no text"))
        if level and heading.level > level + 1:
            message = f"'{heading.text}' jumps from level {level} to level {heading.level}"
            found.append(Finding("skipped-level", "warning", heading.line, message))
        level = heading.level
    return found


def _duplicates(document: ParsedDocument) -> list[Finding]:
    # Under different parents a repeated heading is often meant, as "Added" and "Fixed" are in a
    # change log: worth knowing for its numbered anchor, but no more.
    lines: dict[str, int] = {}
    siblings: set[tuple[str, int]] = set()
    parents: list[Heading] = []
    found: list[Finding] = []
    for heading in _section_headings(document):
        while parents and parents[-1].level >= heading.level:
            parents.pop()
        text = heading.text.casefold()
        place = (text, parents[-1].line if parents else 0)
        if text and text in lines:
            message = f"'{heading.text}' is also the heading of line {lines[text]}"
            severity: Severity = "warning" if place in siblings else "info"
            found.append(Finding("duplicate-heading", severity, heading.line, message))
        lines.setdefault(text, heading.line)
        siblings.add(place)
        parents.append(heading)
    return found
