"""A worker process with versions of a handler, which may kill itself at a script."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.scripts import Reply, Scripts
from redis_state.worker import AgentWorker, TaskContext, versioned


def ask(version: str) -> Callable[[TaskContext], Awaitable[list[str]]]:
    """Pause, and say which version went on where."""

    async def handler(ctx: TaskContext) -> list[str]:
        began = await ctx.step("began", lambda: version)
        await ctx.approval("Go on?")
        hangs = ctx.input == "hang" and mark_once(str(ctx.attributes["mark"]))
        await ctx.progress("approved")
        if hangs:
            await asyncio.Event().wait()
        return [began, version]

    return handler


async def say_new(ctx: TaskContext) -> str:
    """Be a handler that older workers do not have."""
    return ctx.worker


def mark_once(mark: Path | str) -> bool:
    """Leave a mark; return whether it is the first."""
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def plant(when: str, script: str, mark: Path, *, number: int = 1) -> None:
    """Die before or after the n-th call of a script, in the first process that comes there."""
    call: Callable[..., Awaitable[Reply]] = getattr(Scripts, script)
    calls = count(1)

    def die() -> None:
        if mark_once(mark):
            os.kill(os.getpid(), signal.SIGKILL)

    async def replied(reply: Awaitable[Reply]) -> Reply:
        found = await reply
        die()
        return found

    def watched(*arguments: Any, **options: Any) -> Awaitable[Reply]:
        if next(calls) != number:
            return call(*arguments, **options)
        if when == "after":
            return replied(call(*arguments, **options))
        die()
        return call(*arguments, **options)

    setattr(Scripts, script, watched)


def worker_of(
    settings: Settings, *, versions: list[str], fresh: bool = False, **options: Any
) -> AgentWorker:
    """Make a worker with these versions of the handler, and perhaps with the new handler."""
    handlers: dict[str, Any] = {
        "ask": versioned({version: ask(version) for version in versions}, default=versions[-1])
    }
    if fresh:
        handlers["fresh"] = say_new
    return AgentWorker(handlers, settings=settings, **options)


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM; under arq's own runner if asked for."""
    logging.basicConfig(level=logging.WARNING)
    own = argument.pop("runner", "ours") == "ours"
    settings = Settings(url=SecretStr(argument.pop("url")), namespace=argument.pop("namespace"))
    if "die" in argument:
        when, script, mark = argument.pop("die")
        plant(when, script, Path(mark))
    worker = worker_of(settings, **argument)
    if own:
        worker.run()
    else:
        from arq.worker import run_worker  # noqa: PLC0415 - after logging is set up

        run_worker(worker.arq_settings())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
