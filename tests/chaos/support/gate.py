"""A gate that processes wait at, so that all of them begin at once, however slowly they started."""

from __future__ import annotations

import asyncio
from pathlib import Path

from redis_state.testing import eventually


def arrive(folder: Path, name: str) -> None:
    """Say that one more is at the gate."""
    (folder / f"arrived-{name}").touch()


def read(folder: Path) -> str | None:
    """Return what the gate says, or None while it is closed."""
    try:
        return (folder / "gate").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


async def wait_at(folder: Path, name: str) -> str:
    """Wait until the gate opens; return what it says."""
    arrive(folder, name)
    stated: str | None = await eventually(lambda: read(folder), "the gate opens", timeout_s=120)
    assert stated is not None
    return stated


async def all_arrive(folder: Path, number: int, racing: asyncio.Task[object]) -> None:
    """Wait until so many are at the gate."""

    def arrived() -> bool:
        return racing.done() or len(list(folder.glob("arrived-*"))) == number

    await eventually(arrived, f"{number} are at the gate", timeout_s=120)


def open_gate(folder: Path, says: str) -> None:
    """Let all of them go, with this to read."""
    (folder / "half").write_text(says, encoding="utf-8")
    (folder / "half").replace(folder / "gate")
