"""Check that links and anchors lead somewhere. Nothing here uses the network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from examples.review.engine.findings import Finding, Severity
from examples.review.engine.markdown import Link, ParsedDocument, parse

_MARKDOWN = frozenset({".md", ".markdown"})
_EXTERNAL = re.compile(r"//|[a-zA-Z][a-zA-Z0-9+.-]+:")
_ABSOLUTE = re.compile(r"/(?!/)|\\|[a-zA-Z]:[\\/]|file:", re.IGNORECASE)
# Fragments that no document has to declare: the top, and lines of a source view.
_ALWAYS_THERE = re.compile(r"|top|L\d+(?:-L\d+)?")


class LinkPolicy(StrEnum):
    """Which links are checked.

    ``RELATIVE`` checks relative links and anchors and ignores the others. ``STRICT`` also reports
    plain http links, links by absolute path and links that leave the root folder.
    """

    RELATIVE = "relative"
    STRICT = "strict"


def check_links(
    document: ParsedDocument, policy: LinkPolicy = LinkPolicy.RELATIVE, *, root: Path | None = None
) -> list[Finding]:
    """Report links, images and anchors that lead nowhere, in the order of their lines.

    ``root`` is the folder that ``STRICT`` holds relative links to; by default the document's own.
    What lies outside is reported there and not read.
    """
    check = _Check(document, policy, (root or document.path.parent).resolve())
    found = [finding for link in document.links if (finding := check.link(link))]
    return sorted(found, key=lambda finding: finding.line)


@dataclass(frozen=True, slots=True)
class _Check:
    document: ParsedDocument
    policy: LinkPolicy
    root: Path

    def link(self, link: Link) -> Finding | None:
        target = link.target.strip()
        if not target:
            return _finding("empty-link", "warning", link, "the target is empty")
        if _ABSOLUTE.match(target):
            return self._strict("absolute-link", "warning", link, "is an absolute path")
        if _EXTERNAL.match(target):
            plain = target.lower().startswith("http://")
            return self._strict("external-link", "info", link, "is plain http") if plain else None
        path, _, fragment = target.partition("#")
        path = unquote(path.partition("?")[0])
        if not path:
            return _check_anchor(link, fragment, self.document.anchors, "this document")
        return self._relative(link, path, fragment)

    def _relative(self, link: Link, path: str, fragment: str) -> Finding | None:
        target = self.document.path.parent / path
        strict = self.policy is LinkPolicy.STRICT
        try:
            if strict and not target.resolve().is_relative_to(self.root):
                return self._strict("outside-root", "warning", link, "leaves the root folder")
            if not target.exists():
                kind = "broken-image" if link.image else "broken-link"
                return _finding(kind, "error", link, f"{link.target} does not exist")
            if not fragment or target.suffix.lower() not in _MARKDOWN or not target.is_file():
                return None
            return _check_anchor(link, fragment, _anchors_of(target), path)
        except (OSError, ValueError):  # no right to read it, a name too long, or one with a NUL
            return _finding("broken-link", "error", link, f"{link.target} cannot be read")

    def _strict(self, kind: str, severity: Severity, link: Link, problem: str) -> Finding | None:
        if self.policy is not LinkPolicy.STRICT:
            return None
        return _finding(kind, severity, link, f"{link.target} {problem}")


def _check_anchor(link: Link, fragment: str, anchors: frozenset[str], where: str) -> Finding | None:
    name = unquote(fragment)
    if name in anchors or _ALWAYS_THERE.fullmatch(name):
        return None
    return _finding("broken-anchor", "error", link, f"{where} has no anchor #{name}")


def _finding(kind: str, severity: Severity, link: Link, message: str) -> Finding:
    return Finding(kind, severity, link.line, message)


def _anchors_of(path: Path) -> frozenset[str]:
    state = path.stat()
    return _cached_anchors(path.resolve(), state.st_mtime_ns, state.st_size)


# Documents of one set link to each other a lot, and each is checked on its own: without a cache
# the popular ones would be parsed once per document that links to them.
@lru_cache(maxsize=512)
def _cached_anchors(path: Path, _mtime_ns: int, _size: int) -> frozenset[str]:
    return parse(path).anchors
