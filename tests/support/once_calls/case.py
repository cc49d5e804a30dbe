"""A call that may be repeated, and what another client does in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys

Step = Callable[[Scripts, Keys], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """What another client makes, the call that changes it, and how to look at it."""

    make: Step
    call: Step
    look: Step
