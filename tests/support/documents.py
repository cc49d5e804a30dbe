"""Markdown documents to review, and what is found in them."""

from __future__ import annotations

from pathlib import Path

from examples.review.engine import Finding, ParsedDocument, parse_text

PROSE = "The quick brown fox jumps over the lazy dog while a second fox looks on from afar"


def write(folder: Path, name: str, content: str | bytes) -> Path:
    """Write a document."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def document(text: str) -> ParsedDocument:
    """Parse the text of a document."""
    return parse_text(text, Path("docs/page.md"))


def kinds(findings: list[Finding]) -> list[tuple[str, int]]:
    """Give the kinds and lines of findings."""
    return [(finding.kind, finding.line) for finding in findings]
