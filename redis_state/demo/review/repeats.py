"""Find paragraphs that are the same, or nearly, in several documents or twice in one.

Two paragraphs are near when the sets of their word pairs have a Jaccard similarity of at least
`NEAR_PERCENT`. Comparing all with all would take too long, so candidates come from a prefix
filter, which by itself misses none: order the word pairs of the whole set from rare to common.
Two sets that similar share at least ``c = ceil(n * NEAR_PERCENT / 100)`` of the ``n`` pairs of
either, so they share at least ``k`` among the first ``n - c + k`` pairs of each.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import nsmallest
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from redis_state.demo.review.findings import Finding
from redis_state.demo.review.markdown import MarkdownParser, ParsedDocument, markdown_source, read

MIN_WORDS = 12
NEAR_PERCENT = 65

_WORD = re.compile(r"\w+")
_NOT_PROSE = re.compile(r"\]\([^()\s]*\)|<[^<>]*>")
# The k of the filter: higher tells apart texts of few words, lower makes a smaller index.
_MIN_HITS = 3
# Where hundreds of texts follow one template, the most promising ones tell enough.
_MAX_COMPARED = 200


@dataclass(frozen=True, slots=True)
class IndexedParagraph:
    """Locate a paragraph. ``words`` is its text in lower case without markup and punctuation."""

    path: str
    line: int
    words: str


@dataclass(frozen=True)
class ParagraphIndex:
    """Hold the paragraphs of a set of documents.

    The first search prepares the index, which takes longer than those after it.
    """

    paragraphs: tuple[IndexedParagraph, ...]

    @cached_property
    def places(self) -> dict[str, list[IndexedParagraph]]:
        """The paragraphs of each text."""
        places: dict[str, list[IndexedParagraph]] = {}
        for paragraph in self.paragraphs:
            places.setdefault(paragraph.words, []).append(paragraph)
        return places

    @cached_property
    def similar(self) -> SimilarTexts:
        """The texts of the set, searched by similarity."""
        return SimilarTexts(self.places)

    def including(self, path: str, paragraphs: Sequence[IndexedParagraph]) -> ParagraphIndex:
        """Return the index in which that document has exactly these paragraphs."""
        if [p for p in self.paragraphs if p.path == path] == list(paragraphs):
            return self
        return ParagraphIndex((*(p for p in self.paragraphs if p.path != path), *paragraphs))

    def to_dict(self) -> dict[str, Any]:
        """Return the index as JSON values."""
        return {"paragraphs": [[p.path, p.line, p.words] for p in self.paragraphs]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ParagraphIndex:
        """Read what ``to_dict`` wrote."""
        return cls(tuple(IndexedParagraph(*row) for row in values["paragraphs"]))


class SimilarTexts:
    """Search a set of texts for those that share most of their word pairs with one of them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(texts)
        self._sizes: list[int] = []
        self._common = _in_several(self._texts)
        # Pairs of one text only come first in the order, and can match nothing: they take up
        # room in the prefix, but need neither a count nor a place in the index.
        common: list[frozenset[int]] = []
        self._counts = Counter[int]()
        for text in self._texts:
            pairs = word_pairs(text)
            self._sizes.append(len(pairs))
            common.append(pairs & self._common)
            self._counts.update(common[-1])
        self._holders: dict[int, list[int]] = {}
        for number, (size, pairs) in enumerate(zip(self._sizes, common, strict=True)):
            for pair in self._prefix(size, pairs):
                self._holders.setdefault(pair, []).append(number)

    def near(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield the other texts that are near this one of the set, with the percentage."""
        pairs = word_pairs(text)
        prefix = self._prefix(len(pairs), pairs & self._common)
        hits = Counter(chain.from_iterable(self._holders.get(pair, ()) for pair in prefix))
        enough = min(_MIN_HITS, _needed(len(pairs)))
        promising = [(-count, number) for number, count in hits.items() if count >= enough]
        for _, number in nsmallest(_MAX_COMPARED, promising):
            size, other = self._sizes[number], self._texts[number]
            fits = _needed(max(size, len(pairs))) <= min(size, len(pairs))
            if fits and other != text:
                percent = _jaccard_percent(pairs, word_pairs(other))
                if percent >= NEAR_PERCENT:
                    yield other, percent

    def _prefix(self, size: int, common: frozenset[int]) -> list[int]:
        length = len(common) - _needed(size) + _MIN_HITS
        if length <= 0:
            return []
        return sorted(common, key=lambda pair: (self._counts[pair], pair))[:length]


def word_pairs(words: str) -> frozenset[int]:
    """Hash each pair of neighbouring words; the numbers are good in this process only."""
    return frozenset(map(hash, pairwise(words.split())))


def _in_several(texts: Iterable[str]) -> frozenset[int]:
    seen: set[int] = set()
    several: set[int] = set()
    for text in texts:
        pairs = word_pairs(text)
        several |= seen & pairs
        seen |= pairs
    return frozenset(several)


def _needed(size: int) -> int:
    return -(-size * NEAR_PERCENT // 100)


def paragraph_index(paths: Iterable[Path]) -> ParagraphIndex:
    """Index the paragraphs of a set of Markdown files.

    A file that cannot be read is left out: its own review is the place to say so. As long as no
    file changes, the same set in the same process gives the same index without further work.
    """
    states: list[tuple[Path, int, int]] = []
    for path in dict.fromkeys(path.resolve() for path in paths):
        with suppress(OSError):
            state = path.stat()
            states.append((path, state.st_mtime_ns, state.st_size))
    return _cached_index(tuple(states))


# Each document of a set is a task of its own, and a worker runs many of them.
@lru_cache(maxsize=1)
def _cached_index(states: tuple[tuple[Path, int, int], ...]) -> ParagraphIndex:
    paragraphs: list[IndexedParagraph] = []
    for path, _, _ in states:
        with suppress(OSError):
            paragraphs.extend(_paragraphs(read(path)[0], path))
    return ParagraphIndex(tuple(paragraphs))


def repeated_paragraphs(document: ParsedDocument, index: ParagraphIndex) -> list[Finding]:
    """Report paragraphs that occur elsewhere in the set, or earlier in the same document.

    The document itself may be in the index or not, or in an older version.
    """
    path = document.path.resolve()
    own = list(_paragraphs(document.text, path))
    index = index.including(str(path), own)
    found: list[Finding] = []
    for paragraph in own:
        same, near = _matches(paragraph, index)
        if same or near:
            message = "; ".join(_phrases(path, same, near))
            found.append(Finding("repeated-paragraph", "warning", paragraph.line, message))
    return found


def _matches(
    paragraph: IndexedParagraph, index: ParagraphIndex
) -> tuple[list[IndexedParagraph], list[tuple[int, IndexedParagraph]]]:
    def elsewhere(words: str) -> list[IndexedParagraph]:
        return [
            other
            for other in index.places[words]
            if other.path != paragraph.path or other.line < paragraph.line
        ]

    near = [
        (percent, other)
        for words, percent in index.similar.near(paragraph.words)
        for other in elsewhere(words)
    ]
    return elsewhere(paragraph.words), sorted(
        near, key=lambda match: (-match[0], match[1].path, match[1].line)
    )


def _phrases(
    path: Path, same: Sequence[IndexedParagraph], near: Sequence[tuple[int, IndexedParagraph]]
) -> Iterator[str]:
    if same:
        yield f"the same as {_place(path, same[0])}{_more(same)}"
    if near:
        percent, closest = near[0]
        yield f"{percent} % like {_place(path, closest)}{_more(near)}"


def _place(path: Path, paragraph: IndexedParagraph) -> str:
    if paragraph.path == str(path):
        return f"line {paragraph.line}"
    return f"{os.path.relpath(paragraph.path, path.parent)}:{paragraph.line}"


def _more(matches: Sequence[object]) -> str:
    return f" and {len(matches) - 1} more" if len(matches) > 1 else ""


def _paragraphs(text: str, path: Path) -> Iterator[IndexedParagraph]:
    tokens = _block_parser().parse(markdown_source(text))
    for opening, token in pairwise(tokens):
        if opening.type == "paragraph_open" and token.map is not None:
            words = _WORD.findall(_NOT_PROSE.sub(" ", token.content).casefold())
            if len(words) >= MIN_WORDS:
                yield IndexedParagraph(str(path), token.map[0] + 1, " ".join(words))


def _block_parser() -> MarkdownParser:
    # Reading an entire set has to be quick, and the inline rules are most of the work.
    parser = MarkdownParser("commonmark")
    parser.enable("table")
    parser.core.ruler.disable(["inline", "text_join"])
    return parser


def _jaccard_percent(a: frozenset[int], b: frozenset[int]) -> int:
    shared = len(a & b)
    return 100 * shared // (len(a) + len(b) - shared)
