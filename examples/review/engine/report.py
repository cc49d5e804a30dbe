"""Write a review down as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from examples.review.engine.findings import SEVERITIES, Finding
from examples.review.engine.markdown import ParsedDocument, escape
from examples.review.engine.sections import with_depths


def report(document: ParsedDocument, findings: Iterable[Finding], contents: str) -> str:
    """Write the facts, the findings by kind, the outline and the proposed contents."""
    ordered = sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), f.kind, f.line))
    lines = [
        f"# Review of {escape(document.path.name)}",
        "",
        *_facts(document, ordered),
        *_findings(ordered),
        *_outline(document),
        # Fenced, because the anchors lead nowhere in the report.
        *("## Proposed contents", ""),
        *(("```markdown", contents, "```") if contents else ("None.",)),
    ]
    return "\n".join(lines) + "\n"


def _facts(document: ParsedDocument, findings: Sequence[Finding]) -> Iterator[str]:
    severities = Counter(finding.severity for finding in findings)
    found = ", ".join(f"{severities[s]} {s}" for s in SEVERITIES if severities[s])
    yield from ("| Fact | Value |", "| --- | --- |")
    for name, value in (
        ("Title", document.title.text if document.title else "none"),
        ("Words", sum(len(paragraph.text.split()) for paragraph in document.paragraphs)),
        ("Headings", len(document.headings)),
        ("Links", len(document.links)),
        ("Findings", found or "none"),
    ):
        yield f"| {name} | {_cell(str(value))} |"
    yield ""


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield from ("## Findings", "")
    if not findings:
        yield from ("None.", "")
    for kind in dict.fromkeys(finding.kind for finding in findings):
        rows = [finding for finding in findings if finding.kind == kind]
        yield from (f"### {kind} ({len(rows)})", "")
        yield from ("| Line | Severity | Message |", "| ---: | --- | --- |")
        yield from (f"| {row.line} | {row.severity} | {_cell(row.message)} |" for row in rows)
        yield ""


def _outline(document: ParsedDocument) -> Iterator[str]:
    yield from ("## Outline", "")
    for depth, heading in with_depths(document.sections):
        yield f"{'  ' * depth}- line {heading.line}: {escape(heading.text) or '(no text)'}"
    yield from ("",) if document.sections else ("No headings.", "")


def _cell(text: str) -> str:
    return " ".join(escape(text).replace("|", "\\|").split())
