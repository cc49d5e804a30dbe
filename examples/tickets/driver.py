"""The driver: submit tickets, kill a worker, decide each refund twice at once; then count."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from examples.tickets.notes import NOTES, SLOWLY
from redis_state import RedisStateStore, Settings
from redis_state.demo.pool import WorkerPool, on_server
from redis_state.errors import ConfigError, RedisStateError, TokenResolved
from redis_state.models import StateUpdate, UpdateType
from redis_state.worker import OpenPause, TaskClient, TextReader

_SESSION = "tickets"
_TIME_S = 90.0
Say = Callable[[str], None]


@dataclass
class Outcome:
    """How it went."""

    results: dict[str, str] = field(default_factory=dict[str, str])
    killed: str = ""
    ran_in: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    refused: int = 0
    done: Counter[str] = field(default_factory=Counter[str])
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    problems: list[str] = field(default_factory=list[str])
    seconds: float = 0.0

    def check(self, tickets: list[str]) -> None:
        """Compare with what was caused."""
        for ticket in tickets:
            wanted = "Done: tea refunded, 20; too much."
            self._expect(f"{ticket} ended", self.results.get(ticket), wanted)
            self._expect(f"{ticket} wrote", self.texts[ticket][-1:], [wanted])
            # The request that the killed worker was making is all that was made again.
            requests = [2 if ticket == tickets[0] else 1, 1, 1]
            for number, count in enumerate(requests):
                self._expect(
                    f"request {number} of {ticket}", self.done[f"request {ticket} {number}"], count
                )
            for what, count in (("look_up", 2), ("review", 2), ("refund", 1)):
                self._expect(f"{what} of {ticket}", self.done[f"{what} {ticket}"], count)
        self._expect("later deciders refused", self.refused, 2 * len(tickets))
        first = self.ran_in.get(tickets[0], [])
        if self.killed not in first[:-1] or first[-1] == self.killed:
            self.problems.append(f"{tickets[0]} was not taken over from {self.killed}")

    def _expect(self, what: str, found: Any, wanted: Any) -> None:
        if found != wanted:
            self.problems.append(f"{what}: {found!r}, not {wanted!r}")


async def run_tickets(
    target: str, many: int, workers: int, output: Path, url: str | None, say: Say
) -> Outcome:
    """Run some tickets; see `Outcome` for how it went. Errors: ConfigError, BackendUnavailable."""
    notes = output / "notes.jsonl"
    with suppress(OSError):
        notes.unlink(missing_ok=True)

    async def run(url: str) -> Outcome:
        namespace = f"demo-{secrets.token_hex(4)}"
        queue = f"{namespace}:queue"
        settings = Settings(url=SecretStr(url), namespace=namespace, queue_url=None)
        os.environ[NOTES] = str(notes)
        pool = WorkerPool(
            size=workers,
            url=url,
            namespace=namespace,
            queue=queue,
            logs=output / "workers",
            target=target,
        )
        async with RedisStateStore(settings) as store, TaskClient(store, queue=queue) as client:
            try:
                async with pool:
                    say(f"started {workers} workers: {', '.join(pool.names)}")
                    return await _Driver(store, client, pool, say).run(many, notes)
            finally:
                with suppress(RedisStateError):
                    await client.drop_queue()
                    await store.delete_everything()

    return await on_server(url, say, run)


class _Driver:
    def __init__(
        self, store: RedisStateStore, client: TaskClient, pool: WorkerPool, say: Say
    ) -> None:
        self._store, self._client, self._pool, self._say = store, client, pool, say
        self._outcome = Outcome()
        self._readers: dict[str, TextReader] = {}
        self._opened = 0
        self._news = asyncio.Event()

    async def run(self, many: int, notes: Path) -> Outcome:
        """Run the tickets, in a time; tell if a worker ends by itself."""
        started = time.monotonic()
        tickets = [f"ticket-{number}" for number in range(1, many + 1)]
        going = asyncio.ensure_future(self._go(tickets))
        dying = asyncio.ensure_future(self._pool.death())
        async with asyncio.timeout(_TIME_S):
            await asyncio.wait({going, dying}, return_when=asyncio.FIRST_COMPLETED)
        if not going.done():
            going.cancel()
            await asyncio.wait({going})
            raise ConfigError(dying.result())
        dying.cancel()
        going.result()
        self._count(notes)
        for ticket in tickets:
            texts = self._readers[ticket].texts.values()
            self._outcome.texts[ticket] = [text.text for text in texts]
        self._outcome.check(tickets)
        self._outcome.seconds = time.monotonic() - started
        return self._outcome

    def _count(self, notes: Path) -> None:
        for line in notes.read_text(encoding="utf-8").splitlines():
            what, ticket, *more = json.loads(line)
            number = f" {more[0]}" if what == "request" else ""
            self._outcome.done[f"{what} {ticket}{number}"] += 1

    async def _go(self, tickets: list[str]) -> None:
        watching = asyncio.create_task(self._watch(tickets))
        try:
            await self._serve(tickets)
            await watching
        finally:
            watching.cancel()

    async def _serve(self, tickets: list[str]) -> None:
        await self._submit(tickets[0], SLOWLY)
        writing = await self._writing(tickets[0])
        self._outcome.killed = writing
        self._say(f"{writing} is killed (-9) while its model writes")
        await self._pool.kill(writing)
        for ticket in tickets[1:]:
            await self._submit(ticket)
        for pause in await self._open(2 * len(tickets)):
            await self._decide(pause)
        for ticket in tickets:
            self._outcome.results[ticket] = await self._client.result(
                _SESSION, ticket, timeout_s=_TIME_S
            )
            self._say(f"{ticket}: {self._outcome.results[ticket]}")

    async def _submit(self, ticket: str, prompt: str = "Please help.") -> None:
        await self._client.submit("clerk", prompt, session_id=_SESSION, task_id=ticket)

    async def _writing(self, ticket: str) -> str:
        """Wait until a ticket's model has written something; return the worker that it runs in."""

        def writes() -> bool:
            reader = self._readers.get(ticket)
            return reader is not None and any(text.text for text in reader.texts.values())

        await self._until(writes)
        return self._outcome.ran_in[ticket][-1]

    async def _open(self, many: int) -> list[OpenPause]:
        await self._until(lambda: self._opened == many)
        return await self._client.pauses(_SESSION, tag="refund")

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until the updates have shown something."""
        while not holds():
            self._news.clear()
            await self._news.wait()

    async def _decide(self, pause: OpenPause) -> None:
        """Let two people decide a refund at once."""
        payload: Any = pause.payload
        token, order = str(pause.pause_id), payload["arguments"]["order"]
        decide = self._client.approve if order == "tea" else self._client.reject
        value = None if order == "tea" else "too much"
        decisions = await asyncio.gather(
            *(decide(token, value, actor=actor) for actor in ("ann", "bob")),
            return_exceptions=True,
        )
        self._outcome.refused += sum(isinstance(each, TokenResolved) for each in decisions)
        said = "approved" if order == "tea" else "rejected"
        self._say(f"{pause.task_id}: {payload['tool']} {payload['arguments']} is {said}")

    async def _watch(self, tickets: list[str]) -> None:
        """Follow the session until all tickets have ended."""
        ended: set[str] = set()
        async with aclosing(self._store.watch_updates(_SESSION)) as updates:
            async for entry in updates:
                self._see(entry.value, ended)
                if len(ended) == len(tickets):
                    return

    def _see(self, update: StateUpdate, ended: set[str]) -> None:
        self._readers.setdefault(update.task_id, TextReader()).feed(update)
        self._opened += update.update_type is UpdateType.CHECKPOINT
        self._news.set()
        if update.update_type is not UpdateType.STATUS_CHANGE:
            return
        content: Any = update.content
        if content["status"] == "RUNNING":
            ran = self._outcome.ran_in.setdefault(update.task_id, [])
            ran.append(str(content.get("worker", "")))
        elif content["status"] in ("COMPLETE", "FAILED", "CANCELLED"):
            ended.add(update.task_id)
