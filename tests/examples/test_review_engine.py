"""The review of Markdown documents: every stage on real files."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.review.engine import (
    Finding,
    LinkPolicy,
    ParagraphIndex,
    ParsedDocument,
    check_links,
    heading_problems,
    long_sections,
    paragraph_index,
    parse,
    parse_text,
    propose_contents,
    repeated_paragraphs,
    report,
    reviewed_copy,
)
from examples.review.engine.markdown import split_lines
from examples.review.engine.repeats import NEAR_PERCENT
from examples.review.engine.sections import with_depths

PROSE = "The quick brown fox jumps over the lazy dog while a second fox looks on from afar"


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def document(text: str) -> ParsedDocument:
    return parse_text(text, Path("docs/page.md"))


def anchors(text: str) -> list[str]:
    return [heading.anchor for heading in document(text).headings]


def kinds(findings: list[Finding]) -> list[tuple[str, int]]:
    return [(finding.kind, finding.line) for finding in findings]


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


class TestLinks:
    def check(
        self, folder: Path, text: str, policy: LinkPolicy = LinkPolicy.RELATIVE
    ) -> list[tuple[str, int]]:
        return kinds(check_links(parse(write(folder, "docs/page.md", text)), policy))

    def test_existing_targets_are_fine(self, tmp_path: Path) -> None:
        write(tmp_path, "docs/my file.md", "# T\n")
        write(tmp_path, "docs/ünï.png", b"")
        write(tmp_path, "README.md", "# Read\n")
        text = (
            "# Here\n\n[a](my%20file.md) [b](<my file.md> 'title') ![c](%C3%BCn%C3%AF.png)\n"
            "[d](../README.md#read) [e](#here) [f](../docs/) [g](ünï.png?raw=true) [h][r]\n"
            '[i](#) [j](#top) <a href="#here">k</a>\n\n[r]: ../README.md "Title"\n'
        )
        assert self.check(tmp_path, text) == []

    def test_missing_targets_are_errors(self, tmp_path: Path) -> None:
        text = "[a](gone.md)\n![b](gone.png)\n[c](#gone)\n[d]()\n\n[e][r]\n\n[r]: gone.md\n"
        assert self.check(tmp_path, text) == [
            ("broken-link", 1),
            ("broken-image", 2),
            ("broken-anchor", 3),
            ("empty-link", 4),
            ("broken-link", 6),
        ]

    def test_anchors_in_other_documents_are_looked_up(self, tmp_path: Path) -> None:
        other = "# Ünïcode Title\n\n## Part\n\n## Part\n\n<a name='by-name'></a>\n"
        write(tmp_path, "docs/other.md", other)
        text = (
            "[ok](other.md#part-1)\n[ok](other.md#%C3%BCn%C3%AFcode-title)\n"
            "[ok](other.md#by-name)\n[no](other.md#Part)\n[no](other.md#part-2)\n"
            "[ok](other.md#L3)\n"
        )
        assert self.check(tmp_path, text) == [("broken-anchor", 4), ("broken-anchor", 5)]

    def test_a_changed_target_is_read_again(self, tmp_path: Path) -> None:
        write(tmp_path, "docs/other.md", "# Old\n")
        assert self.check(tmp_path, "[a](other.md#new)\n") == [("broken-anchor", 1)]
        write(tmp_path, "docs/other.md", "# Old\n\n## New\n")
        assert self.check(tmp_path, "[a](other.md#new)\n") == []

    def test_fragments_of_other_files_are_not_judged(self, tmp_path: Path) -> None:
        write(tmp_path, "docs/code.py", "x = 1\n")
        assert self.check(tmp_path, "[a](code.py#anything) [b](../docs#x)\n") == []

    @pytest.mark.parametrize("target", ["a" * 5000 + ".md", "nul%00.md", "bad%ff.md", "100%.md"])
    def test_impossible_names_do_not_exist(self, tmp_path: Path, target: str) -> None:
        assert self.check(tmp_path, f"[a]({target})\n") == [("broken-link", 1)]

    def test_policies_differ_on_what_is_not_relative(self, tmp_path: Path) -> None:
        write(tmp_path, "README.md", "# Read\n")
        text = (
            "[a](http://example.org)\n[b](https://example.org)\n[c](/etc/hosts)\n"
            "[d](../README.md)\n[e](file:///etc/hosts)\n[f](mailto:a@b.c)\n[g](//example.org)\n"
            "[h](C:\\\\x.md)\n"
        )
        assert self.check(tmp_path, text) == []
        assert self.check(tmp_path, text, LinkPolicy.STRICT) == [
            ("external-link", 1),
            ("absolute-link", 3),
            ("outside-root", 4),
            ("absolute-link", 5),
            ("absolute-link", 8),
        ]

    def test_the_root_may_be_wider_than_the_folder(self, tmp_path: Path) -> None:
        write(tmp_path, "README.md", "# Read\n")
        page = parse(write(tmp_path, "docs/page.md", "[a](../README.md) [b](../../x.md)\n"))
        found = check_links(page, LinkPolicy.STRICT, root=tmp_path)
        assert [(f.kind, f.message) for f in found] == [
            ("outside-root", "../../x.md leaves the root folder")
        ]

    def test_a_target_that_cannot_be_read_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page = parse(write(tmp_path, "page.md", "[a](other.md#x)\n"))
        write(tmp_path, "other.md", "# X\n")

        def refuse(_path: Path) -> bytes:
            raise PermissionError

        monkeypatch.setattr(Path, "read_bytes", refuse)
        assert [f.message for f in check_links(page)] == ["other.md#x cannot be read"]


def test_long_sections_count_their_own_text() -> None:
    text = f"{PROSE}\n\n# T\n\nshort\n\n## Long\n\n{PROSE}\n\n- {PROSE}\n\n### Sub\n\n{PROSE}\n"
    assert kinds(long_sections(document(text), max_words=20)) == [("long-section", 7)]
    assert kinds(long_sections(document(text), max_words=16)) == [
        ("long-section", 1),
        ("long-section", 7),
        ("long-section", 13),
    ]
    assert long_sections(document(text)) == []


class TestRepeats:
    def test_the_same_paragraph_elsewhere_is_found_in_both(self, tmp_path: Path) -> None:
        a = write(tmp_path, "a.md", f"# A\n\n{PROSE}\n\nSomething else.\n")
        shout = PROSE.upper().replace(" FOX", "\n  FOX")
        b = write(tmp_path, "sub/b.md", f"# B\n\n- **{shout}**.\n")
        index = paragraph_index([a, b])
        assert [(f.line, f.message) for f in repeated_paragraphs(parse(a), index)] == [
            (3, "the same as sub/b.md:3")
        ]
        assert [(f.line, f.message) for f in repeated_paragraphs(parse(b), index)] == [
            (3, "the same as ../a.md:3")
        ]

    def test_a_changed_word_is_near(self, tmp_path: Path) -> None:
        a = write(tmp_path, "a.md", f"{PROSE}\n")
        b = write(tmp_path, "b.md", f"{PROSE.replace('lazy', 'sleepy')}\n")
        found = repeated_paragraphs(parse(a), paragraph_index([a, b]))
        assert [f.message for f in found] == ["77 % like b.md:1"]

    def test_twice_in_one_is_reported_at_the_second(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a.md", f"{PROSE}\n\n{PROSE}\n\n{PROSE}!\n")
        for index in (paragraph_index([path]), paragraph_index([])):
            found = repeated_paragraphs(parse(path), index)
            assert [(f.line, f.message) for f in found] == [
                (3, "the same as line 1"),
                (5, "the same as line 1 and 1 more"),
            ]

    def test_code_headings_and_short_paragraphs_do_not_count(self, tmp_path: Path) -> None:
        text = f"# {PROSE}\n\nToo short to matter.\n\n```\n{PROSE}\n```\n\n    {PROSE}\n"
        a, b = write(tmp_path, "a.md", text), write(tmp_path, "b.md", text)
        assert repeated_paragraphs(parse(a), paragraph_index([a, b])) == []

    def test_link_targets_are_no_words(self, tmp_path: Path) -> None:
        a = write(tmp_path, "a.md", f"[{PROSE}](one/two/three.md)\n")
        b = write(tmp_path, "b.md", f"[{PROSE}](four.md)\n")
        found = repeated_paragraphs(parse(a), paragraph_index([a, b]))
        assert [f.message for f in found] == ["the same as b.md:1"]

    def test_a_document_outside_the_index_finds_its_likes(self, tmp_path: Path) -> None:
        a = write(tmp_path, "a.md", f"{PROSE.replace('lazy', 'sleepy')}\n")
        b = write(tmp_path, "b.md", f"{PROSE}\n")
        found = repeated_paragraphs(parse(a), paragraph_index([b]))
        assert [f.message for f in found] == ["77 % like b.md:1"]

    def test_missing_files_are_left_out_and_changes_seen(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a.md", f"{PROSE}\n")
        paths = [path, path, tmp_path / "gone.md"]
        index = paragraph_index(paths)
        assert [p.line for p in index.paragraphs] == [1]
        assert paragraph_index(paths) is index
        write(tmp_path, "a.md", f"\n{PROSE}\n")
        assert [p.line for p in paragraph_index(paths).paragraphs] == [2]

    @given(
        st.lists(
            st.lists(st.sampled_from("abcdef"), min_size=12, max_size=20).map(" ".join),
            min_size=2,
            max_size=12,
        )
    )
    def test_the_filter_misses_nothing(self, texts: list[str]) -> None:
        def pairs(text: str) -> set[tuple[str, str]]:
            words = text.split()
            return set(pairwise(words))

        page = document("\n\n".join(texts))
        reported = {f.line for f in repeated_paragraphs(page, ParagraphIndex(()))}
        expected = {
            2 * later + 1
            for later in range(len(texts))
            for earlier in range(later)
            if 100 * len(pairs(texts[later]) & pairs(texts[earlier]))
            >= NEAR_PERCENT * len(pairs(texts[later]) | pairs(texts[earlier]))
        }
        assert reported == expected

    def test_a_page_of_a_large_set_costs_what_one_of_a_small_set_does(self, tmp_path: Path) -> None:
        def text(number: int) -> str:
            return " ".join(f"word{step * (number + 1) % 3989}" for step in range(50))

        paths: list[Path] = []
        for n in range(20):
            texts = [text(n * 150 + k) for k in range(150)]
            paths.append(write(tmp_path, f"{n}.md", "\n\n".join([*texts, PROSE])))

        def cost_of_a_page(pages: list[Path]) -> float:
            start = time.process_time()
            for path in pages:
                found = repeated_paragraphs(parse(path), paragraph_index(pages))
                assert kinds(found) == [("repeated-paragraph", 301)]
                assert found[0].message.endswith(f" and {len(pages) - 2} more")
            return (time.process_time() - start) / len(pages)

        # Four times as many would cost four times as much each, if all were compared with all.
        assert cost_of_a_page(paths) < 2.5 * cost_of_a_page(paths[:5])


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
