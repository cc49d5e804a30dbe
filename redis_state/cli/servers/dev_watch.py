"""The watch of `redis-state dev`: workers are replaced when a Python file has changed."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

# Folders of a project whose files are not its own code.
_IGNORED = frozenset(
    {
        *("venv", ".venv", "env", ".env", "site-packages", ".tox", ".nox", "node_modules"),
        *(".git", "__pycache__", ".redis-state"),
    }
)
_AGAIN_S = 5.0

Changes = Callable[[], AsyncIterator[set[str]]]


class CodeWatch:
    """Replaces workers when code changes. ``problem`` is why it does not now."""

    def __init__(self, reload: Callable[[], Awaitable[bool]], say: Callable[[str], None]) -> None:
        self.problem: str | None = None
        self._reload = reload
        self._say = say

    async def run(self, changes: Changes) -> None:
        """Follow the code until it is cancelled. What has failed is tried again after 5 s."""
        while True:
            try:
                await self._follow(changes)
            except Exception as error:  # noqa: BLE001 - shown, and tried again
                self._show(f"changed code is not used: {type(error).__name__}: {error}")
            await asyncio.sleep(_AGAIN_S)

    async def _follow(self, changes: Changes) -> None:
        async for paths in changes():
            # After a failure a change may have been missed.
            if paths or self.problem is not None:
                await self._replace(paths)
            self.problem = None

    async def _replace(self, paths: set[str]) -> None:
        name = Path(min(paths)).name if paths else "the code"
        self._say(f"{name} has changed: starting new workers")
        used = await self._reload()
        self._say(
            "the new workers serve" if used else "the old workers stay, until it can be imported"
        )

    def _show(self, problem: str) -> None:
        if problem != self.problem:
            self._say(f"{problem}; it is tried again each {_AGAIN_S:g} s")
        self.problem = problem


def watchfiles() -> Any:
    """Return the package that notices changes, or None."""
    try:
        return importlib.import_module("watchfiles")
    except ImportError:
        return None


async def python_changes() -> AsyncGenerator[set[str]]:
    """Give the Python files below the current folder that have changed; none after some seconds."""
    project = Path.cwd()

    def wanted(_: Any, path: str) -> bool:
        return is_code(project, Path(path))

    found = watchfiles().awatch(project, watch_filter=wanted, yield_on_timeout=True)
    async with aclosing(found) as batches:
        async for changed in batches:
            yield {path for _, path in changed}


def is_code(project: Path, path: Path) -> bool:
    """Return whether a file is code of a project, wherever the project itself is."""
    if path.suffix != ".py":
        return False
    below = path.relative_to(project) if path.is_relative_to(project) else path
    return not _IGNORED.intersection(below.parts[:-1])
