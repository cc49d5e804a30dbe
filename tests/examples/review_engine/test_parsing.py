"""The review of Markdown documents: headings, links, anchors and the outline are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.review.engine import (
    heading_problems,
    parse,
    propose_contents,
    report,
    reviewed_copy,
)
from examples.review.engine.sections import with_depths
from tests.support.documents import document, kinds, write


def anchors(text: str) -> list[str]:
    return [heading.anchor for heading in document(text).headings]


class TestParse:
    def test_headings_of_both_styles_are_found_with_their_lines(self) -> None:
        found = document("Title\n=====\n\ntext\n\n## Part *one* `x`\n\nSub\n---\n").headings
        assert [(h.level, h.text, h.line, h.last_line) for h in found] == [
            (1, "Title", 1, 2),
            (2, "Part one x", 6, 6),
            (2, "Sub", 8, 9),
        ]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("# A\n# A\n# A\n", ["a", "a-1", "a-2"]),
            ("# A\n# A 1\n# A\n# A\n", ["a", "a-1", "a-2", "a-3"]),
            ("# Über uns & Straße\n", ["über-uns--straße"]),
            ("# हिन्दी 漢字\n", ["हिन्दी-漢字"]),
            ("# C++: what's new?\n", ["c-whats-new"]),
            ("# 🎉 Party\n", ["-party"]),
            ("# snake_case `code()` [link](x.md)\n", ["snake_case-code-link"]),
            ("# !!!\n", [""]),
        ],
    )
    def test_anchors_are_those_of_github(self, text: str, expected: list[str]) -> None:
        assert anchors(text) == expected

    def test_a_frontmatter_is_no_content_but_counts_lines(self) -> None:
        page = document("---\ntitle: x\n---\n# T\n\nOne two.\n")
        assert [(h.text, h.line) for h in page.headings] == [("T", 4)]
        assert [(p.text, p.line) for p in page.paragraphs] == [("One two.", 6)]

    @pytest.mark.parametrize("text", ["---\n\ntext\n\n---\n", "---\ntext\n", "---"])
    def test_a_rule_at_the_top_is_no_frontmatter(self, text: str) -> None:
        assert bool(document(text).paragraphs) == ("text" in text)

    def test_an_empty_file_works(self, tmp_path: Path) -> None:
        page = parse(write(tmp_path, "empty.md", ""))
        assert (page.headings, page.paragraphs) == ((), ())
        assert kinds(heading_problems(page)) == [("no-title", 1)]
        assert reviewed_copy(page, propose_contents(page)) == ""
        assert "None." in report(page, [], "")

    def test_invalid_utf8_is_replaced(self, tmp_path: Path) -> None:
        page = parse(write(tmp_path, "bad.md", b"# T\n\nfa\xe7ade\n"))
        assert page.paragraphs[0].text == "fa\ufffdade"

    def test_a_byte_order_mark_stays_in_the_text_and_out_of_the_title(self, tmp_path: Path) -> None:
        page = parse(write(tmp_path, "bom.md", "\ufeff# T\n"))
        assert page.text == "\ufeff# T\n"
        assert page.title is not None
        assert page.title.text == "T"

    def test_line_ends_of_windows_are_kept_and_counted_once(self, tmp_path: Path) -> None:
        page = parse(write(tmp_path, "crlf.md", "# T\r\n\r\ntext\r\n"))
        assert page.text == "# T\r\n\r\ntext\r\n"
        assert page.paragraphs[0].line == 3

    def test_links_of_every_form_are_found(self) -> None:
        text = (
            "[a](a.md 'title') and\n[b](<b c.md>) ![pic](p.png)\n\n[full][ref] [ref]\n\n"
            "| h |\n| - |\n| [cell](t.md) |\n\n<https://example.org>\n\n"
            '<a href="h.md"><img src="i.png" alt="I"></a>\n\n[ref]: r.md "t"\n'
        )
        assert [(k.target, k.line, k.image) for k in document(text).links] == [
            ("a.md", 1, False),
            ("b c.md", 2, False),
            ("p.png", 2, True),
            ("r.md", 4, False),
            ("r.md", 4, False),
            ("t.md", 8, False),
            ("https://example.org", 10, False),
            ("h.md", 12, False),
            ("i.png", 12, True),
        ]

    def test_a_badge_is_an_image_and_a_link(self) -> None:
        links = document("[![alt](b.svg)](ci.md)\n").links
        assert [(k.target, k.image) for k in links] == [("ci.md", False), ("b.svg", True)]

    @pytest.mark.parametrize(
        "text",
        [
            "```\n[a](gone.md)\n```\n",
            "~~~md\n[a](gone.md)\n~~~\n",
            "    [a](gone.md)\n",
            "`[a](gone.md)`\n",
            "<!-- [a](gone.md) <a href='gone.md'> -->\n",
            "<script>'<a href=\"gone.md\">'</script>\n",
        ],
    )
    def test_code_and_comments_hold_no_links(self, text: str) -> None:
        assert document(text).links == ()

    def test_html_gives_anchors(self) -> None:
        page = document(
            '<h1 id="top" align="center">T</h1>\n\n<a name="old"></a>\n\ntext <i id=in>x</i>\n'
            '\n<div id="block">\n'
        )
        assert page.html_anchors == ("top", "old", "in", "block")


class TestOutline:
    def test_depth_follows_the_parents_not_the_levels(self) -> None:
        page = document("# T\n### A\n### B\n## C\n#### D\n")
        assert [(h.text, depth) for depth, h in with_depths(page.sections)] == [
            ("T", 0),
            ("A", 1),
            ("B", 1),
            ("C", 1),
            ("D", 2),
        ]

    def test_skipped_levels_and_empty_headings_are_reported(self) -> None:
        found = heading_problems(document("# T\n### A\n## B\n#\n"))
        assert kinds(found) == [("skipped-level", 2), ("empty-heading", 4)]

    @pytest.mark.parametrize("text", ["## Late\n# T\n", "text\n", "> # Quoted\n"])
    def test_a_document_without_a_title_is_reported(self, text: str) -> None:
        assert ("no-title", 1) in kinds(heading_problems(document(text)))

    def test_duplicates_are_reported(self) -> None:
        text = "# T\n## 1.0\n### Added\n### added\n## 0.9\n### Added\n"
        found = heading_problems(document(text))
        assert [(f.severity, f.line) for f in found] == [("info", 4), ("info", 6)]
        assert {f.kind for f in found} == {"duplicate-heading"}

    def test_quoted_headings_are_no_sections(self) -> None:
        page = document("# T\n\n> #### Quoted\n\n- # Item\n")
        assert [h.text for h in page.sections] == ["T"]
        assert heading_problems(page) == []
        assert page.anchors == {"t", "quoted", "item"}
