"""The review of Markdown documents: the copy with its contents, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.review.engine import (
    Finding,
    LinkPolicy,
    ParagraphIndex,
    check_links,
    heading_problems,
    long_sections,
    parse,
    propose_contents,
    repeated_paragraphs,
    report,
    reviewed_copy,
)
from examples.review.engine.markdown import split_lines
from tests.support.documents import document, write


class TestContents:
    TEXT = "# T\n\nIntro.\n\n## One\n\n### Deep [x] *y* a_b\n\n#### Deeper\n\n## One\n"
    CONTENTS = "- [One](#one)\n  - [Deep \\[x\\] y a_b](#deep-x-y-a_b)\n- [One](#one-1)"

    def test_headings_below_the_title_are_proposed(self) -> None:
        assert propose_contents(document(self.TEXT)) == self.CONTENTS
        assert "Deeper" in propose_contents(document(self.TEXT), max_level=4)

    def test_the_proposal_leads_to_every_heading(self, tmp_path: Path) -> None:
        text = "# T\n\n## `a|b` <c> \\*d\\*\n\n## !!!\n\n## Ünï & &amp;amp; _x_ \\]\n\n## Ünï\n"
        page = parse(write(tmp_path, "a.md", text))
        copy = parse(write(tmp_path, "b.md", reviewed_copy(page, propose_contents(page))))
        expected = [h for h in page.headings if h.level == 2 and h.anchor]
        assert [k.target for k in copy.links] == [f"#{h.anchor}" for h in expected]
        assert check_links(copy) == []

    def test_contents_go_below_the_title(self) -> None:
        copy = reviewed_copy(document(self.TEXT), self.CONTENTS)
        block = f"<!-- toc -->\n\n{self.CONTENTS}\n\n<!-- /toc -->\n"
        assert copy == self.TEXT.replace("# T\n\n", f"# T\n\n{block}\n", 1)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("T\n===\nx", "T\n===\n\n<B>\n\nx"),
            ("# T", "# T\n\n<B>\n"),
            ("x\n", "<B>\n\nx\n"),
            ("---\na: 1\n---\n# T\n", "---\na: 1\n---\n# T\n\n<B>\n"),
            ("---\na: 1\n---\nx\n", "---\na: 1\n---\n\n<B>\n\nx\n"),
            ("\ufeff# T\n", "\ufeff# T\n\n<B>\n"),
            ("\ufeffx\n", "\ufeff<B>\n\nx\n"),
            ("<pre>\n<h1>T</h1>\n", "<B>\n\n<pre>\n<h1>T</h1>\n"),
            ("a <!-- toc -->\n\n# T\n<!-- /toc -->\n", None),
        ],
    )
    def test_every_place_is_found(self, text: str, expected: str | None) -> None:
        block = "<!-- toc -->\n\n- [A](#a)\n\n<!-- /toc -->"
        copy = reviewed_copy(document(text), "- [A](#a)")
        assert copy.count(block) == 1
        if expected is not None:
            assert copy == expected.replace("<B>", block)
        assert reviewed_copy(document(copy), "- [A](#a)") == copy

    def test_windows_line_ends_stay(self) -> None:
        text = self.TEXT.replace("\n", "\r\n")
        copy = reviewed_copy(document(text), self.CONTENTS)
        assert copy.count("\n") == copy.count("\r\n")
        assert copy.replace("\r\n", "\n") == reviewed_copy(document(self.TEXT), self.CONTENTS)
        assert reviewed_copy(document(copy), self.CONTENTS) == copy

    @pytest.mark.parametrize("text", ["x\r\n# T\r# U\n", "\n# T\r\r"])
    def test_mixed_line_ends_stay_apart(self, text: str) -> None:
        copy = reviewed_copy(document(text), "- [A](#a)")
        assert reviewed_copy(document(copy), "- [A](#a)") == copy

    def test_a_present_block_is_replaced_where_it_is(self) -> None:
        text = "x\n<!--TOC-->\nold\n\n## One\n<!-- /toc -->\ny\n\n# T\n\n## One\n"
        page = document(text)
        contents = propose_contents(page, max_level=2)
        assert contents == "- [One](#one)"
        copy = reviewed_copy(page, contents)
        start, end = text.index("old"), text.index("<!-- /toc")
        assert copy == f"{text[:start]}\n{contents}\n\n{text[end:]}"
        assert reviewed_copy(document(copy), "") == f"{text[:start]}\n{text[end:]}"

    @pytest.mark.parametrize(
        "text",
        [
            "```\n<!-- toc -->\n<!-- /toc -->\n```\n",
            "> <!-- toc -->\n> <!-- /toc -->\n",
            "<!-- /toc -->\n\n<!-- toc -->\n",
        ],
    )
    def test_markers_elsewhere_are_no_block(self, text: str) -> None:
        assert document(text).contents_block is None

    def test_without_headings_nothing_is_inserted(self) -> None:
        page = document("# T\n\ntext\n")
        assert reviewed_copy(page, propose_contents(page)) == page.text


def joined(start: str, lines: list[str], end: str, last: str) -> str:
    return start + end.join(lines) + last


LINES = st.sampled_from(
    [
        "# Title", "## Part", "### Sub *x* [y](z)", "#", "Setext", "===", "---", "", "", "text",
        "    indented", "- item", "> quote", "```", "~~~", "<div>", "</div>", "<pre>", "<!--",
        "-->", "<h1>Big</h1>", "<!-- toc -->", "<!-- /toc -->", "  <!-- /toc -->", "a: 1", "+++",
        "| a | b |", "| - | - |", "[r]: x.md", "## `<!-- /toc -->`", "## \\", "\t# x", "1. # in",
    ]
)  # fmt: skip
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
TEXTS = st.one_of(
    st.text(alphabet=st.characters(codec="utf-8")),
    st.text(alphabet="#-=`~<>!/toc \n\r\t[]()*_&;a1|\\\ufeff\u2028\x0b\x00"),
    st.builds(
        joined,
        st.sampled_from(["", "", "\ufeff", "---\na: 1\n---\n"]),
        st.lists(LINES, max_size=20),
        ENDS,
        st.sampled_from(["", "\n", "\r\n"]),
    ),
)


@given(TEXTS)
def test_a_second_copy_is_the_first(text: str) -> None:
    page = document(text)
    contents = propose_contents(page)
    copy = reviewed_copy(page, contents)
    again = document(copy)
    assert propose_contents(again) == contents
    assert reviewed_copy(again, contents) == copy


@given(TEXTS)
def test_the_copy_without_the_block_is_the_original(text: str) -> None:
    page = document(text)
    copy = reviewed_copy(page, propose_contents(page))
    if page.contents_block is not None:
        start, end = page.contents_block
        lines = split_lines(text)
        assert copy.startswith("".join(lines[:start]))
        assert copy.endswith("".join(lines[end:]))
        return
    added = len(copy) - len(text)
    cuts = [at for at in range(len(text) + 1) if copy[:at] + copy[at + added :] == text]
    assert cuts
    if added:
        blocks = [copy[at : at + added].strip() for at in cuts]
        assert any(b.startswith("<!-- toc -->") and b.endswith("<!-- /toc -->") for b in blocks)


@given(TEXTS)
def test_no_text_breaks_a_stage(text: str) -> None:
    page = document(text)
    index = ParagraphIndex(())
    found = [
        *heading_problems(page),
        *check_links(page, LinkPolicy.STRICT),
        *long_sections(page, max_words=3),
        *repeated_paragraphs(page, index),
    ]
    lines = max(1, len(split_lines(text)))
    assert all(1 <= finding.line <= lines for finding in found)
    assert document(report(page, found, propose_contents(page))).title is not None


class TestReport:
    def test_it_tells_facts_findings_outline_and_contents(self) -> None:
        page = document("# A|B\n\n## Two\n\n[x](gone.md)\n")
        found = [
            Finding("long-section", "warning", 3, "too | long"),
            Finding("broken-link", "error", 5, "gone.md does not exist"),
        ]
        text = report(page, found, propose_contents(page))
        assert "| Title | A\\|B |" in text
        assert "| Findings | 1 error, 1 warning |" in text
        assert text.index("### broken-link (1)") < text.index("### long-section (1)")
        assert "| 5 | error | gone.md does not exist |" in text
        assert "| 3 | warning | too \\| long |" in text
        assert "- line 1: A|B\n  - line 3: Two\n" in text
        assert "```markdown\n- [Two](#two)\n```\n" in text


def test_findings_survive_json() -> None:
    finding = Finding("kind", "info", 3, "message")
    assert Finding(**json.loads(json.dumps(finding.to_dict()))) == finding
