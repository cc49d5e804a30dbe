"""A worker process whose handler books, fails and undoes; it kills itself at planted places."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.scripts import Reply, Scripts
from redis_state.worker import AgentWorker, TaskContext

BOOKED = 3


class Places:
    """Where processes are to die: the first that comes to each does, and leaves a mark."""

    def __init__(self, folder: Path, places: list[str]) -> None:
        self._folder = folder
        self._places = places

    def here(self, place: str) -> None:
        """Die, if this is a place and nobody has died here."""
        if place not in self._places:
            return
        mark = self._folder / f"killed {self._places.index(place)}"
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def plant(places: Places) -> None:
    """Die before or after the round trip that records an entry, or that ends the task."""
    for name in ("record_entry", "move_task"):
        setattr(Scripts, name, _around(getattr(Scripts, name), places, name))


def _around(
    script: Callable[..., Awaitable[Reply]], places: Places, name: str
) -> Callable[..., Awaitable[Reply]]:
    async def watched(*arguments: Any, **options: Any) -> Reply:
        what = options.get("entry", name)
        places.here(f"before {what}")
        reply = await script(*arguments, **options)
        places.here(f"after {what}")
        return reply

    return watched


def trip(folder: Path, places: Places) -> Callable[[TaskContext], Awaitable[None]]:
    """Make a handler that books, and then finds that there is no flight."""

    def note(line: str) -> None:
        with (folder / "log").open("a") as log:
            log.write(f"{line}\n")

    def cancel(ctx: TaskContext, number: int) -> None:
        places.here(f"before undo {number}")
        note(f"undo {number} {ctx.effect_id()}")
        places.here(f"after undo {number}")

    async def handler(ctx: TaskContext) -> None:
        for number in range(1, BOOKED + 1):
            await ctx.step("book", note, f"book {number}")
            ctx.on_failure(cancel, ctx, number, on_cancel=True)
        if ctx.input == "wait":
            await ctx.pause()
        await ctx.step("fly", note, "fly")
        raise ValueError("no flight")

    return handler


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM, or until death."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    folder = Path(argument["folder"])
    places = Places(folder, argument["places"])
    plant(places)
    worker = AgentWorker(
        {"trip": trip(folder, places)},
        settings=settings,
        queue=argument["queue"],
        lease_s=0.5,
        poll_s=0.02,
        name=argument["name"],
        # More die here than a task survives by default.
        max_crashes=20,
    )
    worker.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
