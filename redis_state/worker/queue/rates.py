"""Rates that all tasks of a namespace share: take from one, and set it in place of the code's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.transport.clock import ms_of
from redis_state.transport.key_text import unescape
from redis_state.worker.queue.limits import OTHER_KEY, Rate, named_key
from redis_state.worker.queue.queue import Queue

_MOST_USED = 100
# Places are kept to the thousandth of a ms.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class RateUse:
    """A rate that is used now: what was taken of it is not all there again.

    ``rate`` is what it was last taken by. ``taken`` is more than its limit if some wait for their
    places. ``wait_s`` is how long the next one would wait.
    """

    name: str
    rate: Rate
    taken: int
    wait_s: float


class Rates:
    """The rates that were set in place of those that handlers give to `TaskContext.take`.

    Every change holds for the next take of every process, and is safe to repeat. What was taken of
    a period stays taken. A task that waits already takes a new place by the new rate when its wait
    ends. A take that costs more than a set rate has in a period takes all of one. A rate that was
    set is forgotten 400 days after the last take or change.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def set(self, name: str, rate: Rate | None) -> None:
        """Set a rate; None takes it away, and what the handlers give holds again.

        Errors: InvalidField.
        """
        rate = checked_rate(rate)
        await self._queue.scripts.set_rate(
            self._queue.rate_settings,
            name=named_key(name, field="name"),
            rate="" if rate is None else rate.written,
        )

    async def list(self) -> Mapping[str, Rate]:
        """List the rates that were set, by their names. The digest stands for a long name."""
        flat: list[bytes] = await self._queue.transport.commands.hgetall(self._queue.rate_settings)
        named = zip(flat[::2], flat[1::2], strict=True)
        return {
            unescape(name.decode().removeprefix(OTHER_KEY)): Rate.read(rate.decode())
            for name, rate in sorted(named)
        }

    async def in_use(self) -> Sequence[RateUse]:
        """List the rates that are used now, by their names: also those that handlers give.

        It reads no more than the 100 that are used up for longest. The digest stands for a long
        name.
        """
        commands, key = self._queue.transport.commands, self._queue.rates_key
        now_ms = ms_of(await commands.time())
        # Beside each name stands what it was taken by, at the same place.
        flat: list[bytes] = await commands.zrevrange_from(key, now_ms, count=2 * _MOST_USED)
        uses = [
            _use(member.decode(), float(full_at), now_ms)
            for member, full_at in zip(flat[::2], flat[1::2], strict=True)
            if b"\0" in member
        ]
        # Of several the one that it was last taken by.
        last = {use.name: use for _, use in sorted(uses, key=lambda one: one[0])}
        return sorted((use for use in last.values() if use.taken), key=lambda use: use.name)


def checked_rate(rate: Rate | None) -> Rate | None:
    """Return what a rate is set to. Errors: InvalidField."""
    if rate is not None and not isinstance(rate, Rate):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField("rate", "needs a Rate, or None")
    return rate


def _use(member: str, full_at_ms: float, now_ms: int) -> tuple[int, RateUse]:
    """Read a rate's name, with what it was taken by, and when all of it is there again.

    Return also when it was taken by that last.
    """
    name, written, times = member.split("\0")
    own_full_at_ms, _, at_ms = times.rpartition(":")
    rate = Rate.read(written)
    one_ms = rate.per / timedelta(milliseconds=1) / rate.limit
    left_ms = max(0.0, float(own_full_at_ms or full_at_ms) - now_ms)
    return int(at_ms), RateUse(
        unescape(name.removeprefix(OTHER_KEY)),
        rate,
        math.ceil(left_ms / one_ms - _ROUNDING),
        max(0, math.ceil(left_ms - (rate.limit - 1) * one_ms)) / 1000,
    )


async def take(queue: Queue, name: str, rate: Rate, cost: int, under: str = "") -> tuple[int, str]:
    """Take from a rate of the namespace; return in how many ms it may be used, and by which rate.

    A rate that was set comes before the one that is given. Without a rate in the reply nothing is
    taken: so many wait that the caller asks again later. ``under`` is the rate of a place that has
    come: it holds, unless another rate holds by now, which is then taken from. Errors: InvalidField
    for more than a period of the given one has.
    """
    if limits.count("cost", cost) > rate.limit:
        raise InvalidField("cost", "is more than the rate has in a period")
    reply = await queue.scripts.take_rate(
        queue.rates_key,
        settings=queue.rate_settings,
        name=named_key(name, field="name"),
        rate=rate.written,
        cost=cost,
        under=under,
    )
    wait_ms, taken = reply.facts
    return int(wait_ms), taken.decode()
