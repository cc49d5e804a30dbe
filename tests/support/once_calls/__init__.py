"""Every script that removes or overwrites: what it meets, its call, and how to look at it."""

from __future__ import annotations

from tests.support.once_calls import stored, tasks
from tests.support.once_calls.case import Case

CASES: dict[str, Case] = {**stored.CASES, **tasks.CASES}
