"""The review of Markdown documents: long sections and repeated paragraphs are found."""

from __future__ import annotations

import time
from itertools import pairwise
from math import inf
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from examples.review.engine import (
    ParagraphIndex,
    long_sections,
    paragraph_index,
    parse,
    repeated_paragraphs,
)
from examples.review.engine.repeats import NEAR_PERCENT
from tests.support.documents import PROSE, document, kinds, write


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
        # In turn, so that a noise is in both, and the best of each.
        few = many = inf
        for _ in range(20):
            few = min(few, cost_of_a_page(paths[:5]))
            many = min(many, cost_of_a_page(paths))
            if many < 2.5 * few:
                break
        assert many < 2.5 * few
