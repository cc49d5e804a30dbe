"""Review Markdown documents: pure functions, one per stage.

A caller goes `parse` -> `outline` and `heading_problems` -> `check_links` -> `long_sections` ->
`repeated_paragraphs` -> `propose_contents` and `reviewed_copy`, and puts the findings together with
`report`. Nothing here prints, waits or opens a connection; only files are read.
"""

from redis_state.demo.review.contents import propose_contents, reviewed_copy
from redis_state.demo.review.findings import Finding, Severity
from redis_state.demo.review.links import LinkPolicy, check_links
from redis_state.demo.review.markdown import (
    Heading,
    Link,
    Paragraph,
    ParsedDocument,
    parse,
    parse_text,
)
from redis_state.demo.review.repeats import (
    IndexedParagraph,
    ParagraphIndex,
    paragraph_index,
    repeated_paragraphs,
)
from redis_state.demo.review.report import report
from redis_state.demo.review.sections import (
    OutlineEntry,
    heading_problems,
    long_sections,
    outline,
)
from redis_state.demo.review.stages import Stage, stages

__all__ = [
    "Finding",
    "Heading",
    "IndexedParagraph",
    "Link",
    "LinkPolicy",
    "OutlineEntry",
    "Paragraph",
    "ParagraphIndex",
    "ParsedDocument",
    "Severity",
    "Stage",
    "check_links",
    "heading_problems",
    "long_sections",
    "outline",
    "paragraph_index",
    "parse",
    "parse_text",
    "propose_contents",
    "repeated_paragraphs",
    "report",
    "reviewed_copy",
    "stages",
]
