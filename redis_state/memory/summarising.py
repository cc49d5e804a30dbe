"""Making summaries in the background: attempts, pauses between them, falling back, catching up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Protocol, cast

from redis_state.backoff import Backoff
from redis_state.memory.state import Degraded, Folded, MemoryChange, Recovered, Rules, State, Turn
from redis_state.memory.types import MemoryHealth, ShortTermMemoryConfig, Summarizer

log: logging.Logger = logging.getLogger(__name__)


class Attempt(Enum):
    """What is being summarised."""

    PENDING = "pending"
    RECOVERY = "recovery"


class Memory(Protocol):
    """The memory whose turns are summarised."""

    @property
    def state(self) -> State:
        """What it holds."""
        ...

    @property
    def rules(self) -> Rules:
        """What its configuration says."""
        ...

    def change(self, change: MemoryChange) -> bool:
        """Make a change."""
        ...

    def mark(self, health: MemoryHealth) -> None:
        """Set the health for the moment."""
        ...

    def abandon(self) -> None:
        """End a recovery that came to nothing."""
        ...

    def fire(self, callback: Callable[..., Any] | None, *facts: Any) -> None:
        """Call a callback."""
        ...

    async def save_quietly(self) -> None:
        """Save, later if it cannot be now."""
        ...


@dataclass(frozen=True, slots=True)
class _Request:
    """The turns that one attempt is about, and the summary they are to be added to."""

    turns: list[Turn]
    previous: str
    folds: int

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(turn["id"] for turn in self.turns)


class Summarising:
    """The one background task of a memory.

    A failed attempt is repeated after a growing pause, with all that waits by then. After
    ``retry_attempts`` of them the memory is degraded: it shows recent turns only and keeps a
    limited backlog, which the first turn after ``degraded_retry_interval_s`` tries to recover.
    """

    def __init__(
        self,
        memory: Memory,
        config: ShortTermMemoryConfig,
        summarizer: Summarizer | None,
        time_source: Callable[[], float],
    ) -> None:
        self.attempt: Attempt | None = None
        self._memory = memory
        self._config = config
        self._summarizer = summarizer
        self._time = time_source
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._recovered_at = 0.0

    @property
    def running(self) -> bool:
        """Whether the task is at work."""
        return self._task is not None and not self._task.done()

    def begin(self, *, recover: bool = True) -> None:
        """Begin to summarise what waits, unless it is being done or it is too early.

        Without ``recover`` a degraded memory stays as it is.
        """
        if self._config.strategy != "rolling_summary" or self.running:
            return
        state = self._memory.state
        if state.health == MemoryHealth.DEGRADED:
            if not recover:
                return
            now = self._time()
            if now - self._recovered_at < self._config.degraded_retry_interval_s:
                return
            self._recovered_at = now
            self._task = asyncio.create_task(self._run(Attempt.RECOVERY))
        elif state.pending:
            self._task = asyncio.create_task(self._run(Attempt.PENDING))

    async def finish(self) -> None:
        """Wait until nothing waits any more, or the memory has degraded."""
        while True:
            if self._task is not None:
                await asyncio.wait([self._task])
            state = self._memory.state
            if state.health == MemoryHealth.DEGRADED or not state.pending:
                return
            self.begin()
            if not self.running:
                return

    async def stop(self) -> None:
        """Give up the attempt; what it was about still waits."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._memory.abandon()

    async def _run(self, attempt: Attempt) -> None:
        try:
            while (request := self._request(attempt)) is not None:
                self.attempt = attempt
                pause_s = await self._try(request, attempt)
                if pause_s is None:
                    return
                attempt = Attempt.PENDING
                await asyncio.sleep(pause_s)
            await self._memory.save_quietly()
        finally:
            self.attempt = None

    def _request(self, attempt: Attempt) -> _Request | None:
        """Take what waits; None if nothing does."""
        memory, state = self._memory, self._memory.state
        recovering = attempt is Attempt.RECOVERY
        if not recovering and state.health == MemoryHealth.DEGRADED:
            return None
        turns = list(state.backlog if recovering else state.pending)
        if recovering and not turns:
            memory.change(Recovered())
            self._failures = 0
        if not turns:
            return None
        if recovering:
            memory.mark(MemoryHealth.RECOVERING)
        elif self._failures:
            memory.mark(MemoryHealth.RETRY)
        return _Request(turns, state.summary, state.folds)

    async def _try(self, request: _Request, attempt: Attempt) -> float | None:
        """Make one attempt; return the pause before the next, None if there is to be none."""
        before = self._memory.state.summary
        try:
            summary = await self._ask(request)
            # A summary that the budget's policy refuses is a failure like any other.
            made = self._memory.change(
                Folded(request.ids, request.folds, request.previous, summary)
            )
        except Exception as error:  # noqa: BLE001 - a host's summarizer, any failure
            log.info("a memory could not be summarised: %s", type(error).__name__)
            return await self._failed(request, attempt)
        self._failures = 0
        self.attempt = None
        if made:
            after = self._memory.state.summary
            self._memory.fire(self._config.on_summary_updated, before, after)
        else:
            # Another process's summary came first. What that left is what waits now.
            self._memory.abandon()
        await self._memory.save_quietly()
        return 0.0

    async def _ask(self, request: _Request) -> str:
        assert self._summarizer is not None  # noqa: S101 - checked when the memory was made
        turns = self._memory.rules.show(request.turns)
        answer: Any = await self._summarizer({"previous_summary": request.previous, "turns": turns})
        if isinstance(answer, Mapping):
            summary = cast("Mapping[str, object]", answer).get("summary")
            if isinstance(summary, str):
                return summary
        raise TypeError("the summarizer's answer has no text 'summary'")

    async def _failed(self, request: _Request, attempt: Attempt) -> float | None:
        self._failures += 1
        if attempt is Attempt.PENDING and self._failures <= self._config.retry_attempts:
            self._memory.mark(MemoryHealth.RETRY)
            backoff_s = Backoff(self._config.retry_backoff_base_s, inf, jitter=0.0)
            return backoff_s.after(self._failures)
        self.attempt = None
        self._memory.change(Degraded(request.ids))
        await self._memory.save_quietly()
        return None
