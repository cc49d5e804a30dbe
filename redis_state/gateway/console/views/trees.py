"""Trees of tasks on a page: as many of their tasks as a person reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

MOST_TASKS = 1_000


def shortened(
    trees: Iterable[dict[str, Any]], *, most: int | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Return trees with so many tasks at most, upper levels first, and how many are left out."""
    most = MOST_TASKS if most is None else most
    kept: list[dict[str, Any]] = []
    waiting = deque((tree, kept) for tree in trees)
    count = 0
    while waiting:
        tree, beside = waiting.popleft()
        children: list[dict[str, Any]] = []
        count += 1
        if count <= most:
            beside.append({**tree, "children": children})
        waiting.extend((child, children) for child in tree["children"])
    return kept, max(0, count - most)
