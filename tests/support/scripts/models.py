"""Random calls, compared with a model."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from hypothesis import event, given, seed
from hypothesis import strategies as st

from redis_state import Settings
from redis_state.scripts import (
    Scripts,
)
from redis_state.transport.transport import Transport
from tests.support.scripts.replies import T

_ROUNDS = 40


def explore(
    settings: Settings,
    steps: st.SearchStrategy[T],
    play: Callable[[Scripts, T], Awaitable[Sequence[str]]],
    *,
    wanted: set[str],
) -> None:
    """Play generated steps in one loop; ``play`` tells what happened.

    Fails unless each wanted thing happened in some example: steps that never come near a rule
    would prove nothing about it. They get a few rounds to come near all of them.
    """
    happened: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        transport = Transport(settings)

        async def one(example: T) -> Sequence[str]:
            return await play(Scripts(transport), example)

        @given(steps)
        def run(example: T) -> None:
            for name in runner.run(one(example)):
                event(name)
                happened[name] += 1

        try:
            for _ in range(_ROUNDS):
                # Drawn from the run's own seed, so that a round is new and can be repeated.
                seed(random.getrandbits(64))(run)()
                if wanted <= set(happened):
                    break
        finally:
            runner.run(transport.aclose())
    assert wanted <= set(happened), f"never happened: {wanted - set(happened)}"
