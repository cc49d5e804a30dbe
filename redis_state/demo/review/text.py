"""Lines, frontmatter, anchors and escapes: what several stages need from plain text."""

from __future__ import annotations

import re
import unicodedata

BYTE_ORDER_MARK = "\ufeff"

# The line ends of Markdown. `str.splitlines` also breaks at form feeds and the like, which would
# shift every line number after one.
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")

_SPECIAL = re.compile(r"[\\`*\[\]<~]|(?<!\w)_|_(?!\w)|&(?=[#\w]+;)")

_FRONTMATTER_ENDS = {"---": ("---", "..."), "+++": ("+++",)}


def split_lines(text: str) -> list[str]:
    """Split into lines that keep their ends, so that joining gives the text back."""
    return _LINE.findall(text)


def frontmatter_lines(lines: list[str]) -> int:
    """Count the lines of a YAML or TOML block at the top; 0 without one.

    As in pandoc, a blank second line makes the first one a horizontal rule.
    """
    if not any(line.strip() for line in lines[1:2]):
        return 0
    ends = _FRONTMATTER_ENDS.get(lines[0].removeprefix(BYTE_ORDER_MARK).rstrip(), ())
    for number, line in enumerate(lines[1:], start=2):
        if line.rstrip() in ends:
            return number
    return 0


def escape(text: str) -> str:
    """Escape what Markdown would read as markup inside a line."""
    return _SPECIAL.sub(r"\\\g<0>", text)


class Slugs:
    """Give headings the anchors that GitHub gives them, in document order."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def slug(self, text: str) -> str:
        """Return the next free anchor for a heading of this text."""
        base = "".join("-" if c == " " else c for c in text.lower() if _in_anchor(c))
        anchor = base
        while anchor in self._used:
            self._used[base] += 1
            anchor = f"{base}-{self._used[base]}"
        self._used[anchor] = 0
        return anchor


def _in_anchor(character: str) -> bool:
    if character in " -":
        return True
    category = unicodedata.category(character)
    return category[0] in "LM" or category in {"Nd", "Nl", "Pc"}
