"""A worker process that kills itself at a planted place of a step, once per place."""

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

STEPS = 3
LARGE = 700_000


class Place:
    """Where the process is to die: only the first that comes there does, and leaves a mark."""

    def __init__(self, folder: Path, place: str, entry: str) -> None:
        self._mark = folder / "killed"
        self._place = place
        self._entry = entry

    def here(self, place: str, entry: str) -> None:
        """Die, if this is the place."""
        if (place, entry) != (self._place, self._entry):
            return
        try:
            with self._mark.open("x") as mark:
                mark.write(f"{os.getpid()} {place} {entry}")
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def plant(death: Place) -> None:
    """Die before or after the round trips that note a step."""
    for name in ("record_step", "keep_part"):
        setattr(Scripts, name, _around(getattr(Scripts, name), death, name.partition("_")[2]))


def _around(
    script: Callable[..., Awaitable[Reply]], death: Place, name: str
) -> Callable[..., Awaitable[Reply]]:
    async def watched(*arguments: Any, **options: Any) -> Reply:
        which = f"{options['entry']}{options.get('number', '')}"
        death.here(f"before {name}", which)
        reply = await script(*arguments, **options)
        death.here(f"after {name}", which)
        return reply

    return watched


def effects(folder: Path, death: Place) -> Callable[[TaskContext], Awaitable[Any]]:
    """Make a handler whose steps each leave one effect outside, under its key."""

    def charge(key: str, number: int) -> str:
        entry = f"step:charge#{number + 1}"
        death.here("before work", entry)
        with (folder / "tries").open("a") as tries:
            tries.write(f"{number} {key}\n")
        # The outside world: who comes with a key that it has seen changes nothing.
        effect = folder / f"effect-{key}"
        if not effect.exists():
            effect.write_text(f"{number}")
        death.here("after work", entry)
        return f"{number}" * LARGE if number == 1 else f"{number}"

    async def handler(ctx: TaskContext) -> Any:
        found = [
            await ctx.step("charge", charge, ctx.effect_id("charge"), number)
            for number in range(STEPS)
        ]
        return [[len(text), text[:1], set(text) == set(text[:1])] for text in found]

    return handler


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM, or until death."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    folder = Path(argument["folder"])
    death = Place(folder, argument["place"], argument["entry"])
    plant(death)
    worker = AgentWorker(
        {"effects": effects(folder, death)},
        settings=settings,
        queue=argument["queue"],
        lease_s=0.5,
        poll_s=0.02,
        name=argument["name"],
    )
    worker.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
