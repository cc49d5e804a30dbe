"""Keys of a namespace that never expire, in a sample of a server's keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from redis_state.transport.diagnostics import Diagnostics

# Keys of any namespace that a server looks at for one page.
_PAGE = 500


@dataclass(slots=True)
class Lifetimes:
    """What a sample has: keys of any namespace, ours of them, and ours without a lifetime.

    ``total`` are all keys of the server, or None if it does not say how many.
    """

    total: int | None
    examined: int = 0
    own: int = 0
    permanent: int = 0
    first: str = ""

    @property
    def size(self) -> str:
        """How large the sample is, in words."""
        among = "" if self.total is None else f" of {self.total:,}"
        return f"{self.examined:,}{among} keys of the server were examined"


class KeySample:
    """A sample of a server's keys. ``total`` is how many it has, if that is known."""

    def __init__(self, ask: Diagnostics, namespace: str, total: int | None) -> None:
        self._ask = ask
        self._pattern = f"{namespace}:v1:*"
        self._total = total

    async def ask(
        self, most: int | None, progress: Callable[[int, int | None], None] | None
    ) -> Lifetimes:
        """Ask for the lifetime of our keys among so many; None is all. Errors: those of a call."""
        answer = Lifetimes(self._total)
        async for keys, answer.examined in self._pages(most):
            lives: list[int] = await asyncio.gather(*(self._ask.pttl(key) for key in keys))
            stay = [key for key, left in zip(keys, lives, strict=True) if left == -1]
            answer.own += len(keys)
            answer.permanent += len(stay)
            if stay and not answer.first:
                answer.first = stay[0].decode(errors="replace")
            if progress is not None:
                progress(answer.examined, self._total)
        return answer

    async def _pages(self, most: int | None) -> AsyncGenerator[tuple[list[bytes], int], None]:
        """Read pages of our keys, each with about how many keys were looked at so far."""
        cursor, examined = b"0", 0
        while most is None or examined < most:
            count = _PAGE if most is None else min(_PAGE, most - examined)
            cursor, keys = await self._ask.some_keys(cursor, self._pattern, count=count)
            at_end, examined = cursor == b"0", examined + count
            if self._total is not None:
                examined = self._total if at_end else min(examined, self._total)
            yield keys, examined
            if at_end:
                return
