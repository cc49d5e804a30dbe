"""Find paragraphs that are the same, or nearly, in several documents or twice in one.

Two paragraphs are near when the sets of their word pairs have a Jaccard similarity of at least
`NEAR_PERCENT`.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from examples.review.engine.findings import Finding
from examples.review.engine.markdown import ParsedDocument, parse

MIN_WORDS = 12
NEAR_PERCENT = 65
# A word pair in more texts than that says nothing about any of them.
_TOO_COMMON = 100

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class IndexedParagraph:
    """Locate a paragraph. ``words`` is its text in lower case without markup and punctuation."""

    path: str
    line: int
    words: str


class ParagraphIndex:
    """Search the paragraphs of a set of documents by similarity."""

    def __init__(self, paragraphs: Iterable[IndexedParagraph]) -> None:
        self.paragraphs = tuple(paragraphs)
        self._pairs = [_pairs(paragraph.words) for paragraph in self.paragraphs]
        self._holders: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for number, pairs in enumerate(self._pairs):
            for pair in pairs:
                self._holders[pair].append(number)

    def including(self, path: str, paragraphs: Sequence[IndexedParagraph]) -> ParagraphIndex:
        """Return the index in which that document has exactly these paragraphs."""
        if [p for p in self.paragraphs if p.path == path] == list(paragraphs):
            return self
        return ParagraphIndex((*(p for p in self.paragraphs if p.path != path), *paragraphs))

    def near(self, paragraph: IndexedParagraph) -> list[tuple[int, IndexedParagraph]]:
        """Return the likes of a paragraph with their percentage, the closest first.

        Of its own document, only those above it.
        """
        pairs = _pairs(paragraph.words)
        shared = Counter[int]()
        for pair in pairs:
            holders = self._holders.get(pair, [])
            if len(holders) <= _TOO_COMMON:
                shared.update(holders)
        found: list[tuple[int, IndexedParagraph]] = []
        for number in shared:
            other = self.paragraphs[number]
            if other.path == paragraph.path and other.line >= paragraph.line:
                continue
            both = len(pairs & self._pairs[number])
            percent = 100 * both // (len(pairs) + len(self._pairs[number]) - both)
            if percent >= NEAR_PERCENT:
                found.append((100 if other.words == paragraph.words else min(percent, 99), other))
        return sorted(found, key=lambda match: (-match[0], match[1].path, match[1].line))


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
            paragraphs.extend(_paragraphs(parse(path)))
    return ParagraphIndex(paragraphs)


def repeated_paragraphs(document: ParsedDocument, index: ParagraphIndex) -> list[Finding]:
    """Report paragraphs that occur elsewhere in the set, or earlier in the same document.

    The document itself may be in the index or not, or in an older version.
    """
    path = document.path.resolve()
    own = list(_paragraphs(document))
    index = index.including(str(path), own)
    found: list[Finding] = []
    for paragraph in own:
        near = index.near(paragraph)
        if near:
            percent, closest = near[0]
            how = "the same as" if percent == 100 else f"{percent} % like"  # noqa: PLR2004
            more = f" and {len(near) - 1} more" if len(near) > 1 else ""
            message = f"{how} {_place(path, closest)}{more}"
            found.append(Finding("repeated-paragraph", "warning", paragraph.line, message))
    return found


def _pairs(words: str) -> frozenset[tuple[str, str]]:
    return frozenset(pairwise(words.split()))


def _place(path: Path, paragraph: IndexedParagraph) -> str:
    if paragraph.path == str(path):
        return f"line {paragraph.line}"
    return f"{os.path.relpath(paragraph.path, path.parent)}:{paragraph.line}"


def _paragraphs(document: ParsedDocument) -> Iterator[IndexedParagraph]:
    for paragraph in document.paragraphs:
        words = _WORD.findall(paragraph.text.casefold())
        if len(words) >= MIN_WORDS:
            yield IndexedParagraph(str(document.path.resolve()), paragraph.line, " ".join(words))
