"""What a run of a host's own tests needs to know of the host."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# What a test is skipped with that does not apply, before the reason.
LEFT_OUT = "left out: "


@dataclass(frozen=True)
class Host:
    """A host's package, where its tests are, and which of them are about a store.

    ``tests`` are patterns of files. ``store`` is a pattern of the store that ours stands in for: a
    test is about the store if its source has it. ``variant`` is a pattern that the id of a test
    with several stores must have. ``left_out`` has patterns of ids, and why such tests do not
    apply. ``paths`` are folders whose modules the tests import. ``around`` wraps each test that is
    a coroutine.
    """

    package: str
    repository: str
    tag: str
    tests: str | tuple[str, ...]
    store: str
    install: Callable[[str], None]
    variant: str = ""
    paths: tuple[str, ...] = ()
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    def names_the_store(self, source: str) -> bool:
        """Return whether a source is about the store."""
        return re.search(self.store, source) is not None

    def reason(self, test: str) -> str | None:
        """Return why a test about the store does not apply, or None."""
        found = (why for pattern, why in self.left_out.items() if re.search(pattern, test))
        return next(found, None)
