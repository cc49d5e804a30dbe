"""Review Markdown documents: pure functions, one per stage. Only files are read."""

from examples.review.engine.contents import propose_contents, reviewed_copy
from examples.review.engine.findings import Finding
from examples.review.engine.links import LinkPolicy, check_links
from examples.review.engine.markdown import ParsedDocument, parse, parse_text
from examples.review.engine.repeats import ParagraphIndex, paragraph_index, repeated_paragraphs
from examples.review.engine.report import report
from examples.review.engine.sections import heading_problems, long_sections

__all__ = [
    "Finding",
    "LinkPolicy",
    "ParagraphIndex",
    "ParsedDocument",
    "check_links",
    "heading_problems",
    "long_sections",
    "paragraph_index",
    "parse",
    "parse_text",
    "propose_contents",
    "repeated_paragraphs",
    "report",
    "reviewed_copy",
]
