"""What a run of a host's own tests needs to know of the host."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Host:
    """A host's package, where its tests are, and which of them are about a store.

    ``store`` is the name of the store that ours stands in for. A test is about the store if its
    source has the name. ``variant`` is a pattern that the id of a test with several stores must
    have. ``left_out`` has patterns of ids, and why such tests do not apply. ``paths`` are folders
    whose modules the tests import.
    """

    package: str
    repository: str
    tag: str
    tests: str
    store: str
    install: Callable[[str], None]
    variant: str = ""
    paths: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    def reason(self, test: str) -> str | None:
        """Return why a test about the store does not apply, or None."""
        found = (why for pattern, why in self.left_out.items() if re.search(pattern, test))
        return next(found, None)
