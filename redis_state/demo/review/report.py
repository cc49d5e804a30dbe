"""Write a review down as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from redis_state.demo.review.findings import SEVERITIES, Finding
from redis_state.demo.review.markdown import ParsedDocument
from redis_state.demo.review.sections import OutlineEntry, outline
from redis_state.demo.review.text import escape


def report(
    document: ParsedDocument,
    findings: Iterable[Finding],
    contents: str,
    *,
    entries: Sequence[OutlineEntry] | None = None,
) -> str:
    """Write the facts, the findings by kind, the outline and the proposed contents.

    ``entries`` is the outline, if the caller has it already.
    """
    ordered = sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), f.kind, f.line))
    lines = [
        f"# Review of {escape(document.path.name)}",
        "",
        *_facts(document, ordered),
        *_findings(ordered),
        *_outline(outline(document) if entries is None else entries),
        *_contents(contents),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _facts(document: ParsedDocument, findings: Sequence[Finding]) -> Iterator[str]:
    severities = Counter(finding.severity for finding in findings)
    found = ", ".join(f"{severities[s]} {s}" for s in SEVERITIES if severities[s])
    title = document.title.text if document.title else ""
    yield from ("| Fact | Value |", "| --- | --- |")
    for name, value in (
        ("Title", title or "none"),
        ("Words", document.word_count),
        ("Lines", document.line_count),
        ("Headings", len(document.headings)),
        ("Paragraphs", len(document.paragraphs)),
        ("Links", len(document.links)),
        ("Encoding", "UTF-8" if document.valid_utf8 else "not valid UTF-8; some bytes replaced"),
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


def _outline(entries: Sequence[OutlineEntry]) -> Iterator[str]:
    yield from ("## Outline", "")
    for entry in entries:
        yield f"{'  ' * entry.depth}- line {entry.line}: {escape(entry.text) or '(no text)'}"
    yield from ("",) if entries else ("No headings.", "")


def _contents(contents: str) -> Iterator[str]:
    # Fenced, because the anchors lead nowhere in the report.
    yield from ("## Proposed contents", "")
    yield from ("```markdown", contents, "```") if contents else ("None.",)


def _cell(text: str) -> str:
    return " ".join(escape(text).replace("|", "\\|").split())
