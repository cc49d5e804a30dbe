"""The index of tasks as an earlier version of the package writes and reads it: without ends."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from redis_state.scripts import Scripts
from redis_state.stores.task_index import stamp_of
from redis_state.worker.recovery import index_repair
from redis_state.worker.tasks.views import finding

_CALLS = (
    *("index_task", "begin_index_task", "unindex_task", "begin_unindex_task"),
    *("find_tasks", "claim_due"),
)
_LISTED = (
    "  if doc[9] then members[#members + 1], members[#members + 2] = 0, "
    "index_key('e', '') .. doc[9] .. id end\n"
)
# What this version has, and what the earlier one had instead.
_CHANGES = (
    (_LISTED, ""),
    (" .. doc[1] .. ended\n", " .. doc[1]\n"),
    ("  if not doc or not doc[9] then return end\n", "  do return end\n"),
    ("unpack(was, 4, 8)", "unpack(was, 4)"),
    ("  if was[3] == write and was[1] == status then doc[9] = was[9] end\n", ""),
    ("if ended then doc[9] = status .. struct.pack('>I7', ended) end\n", ""),
)


@contextmanager
def earlier_index() -> Generator[None]:
    """Let this process be of an earlier version, for the block."""
    made: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        for name in _CALLS:
            space: dict[str, Any] = getattr(Scripts, name).__globals__
            text = space["script"].text
            for new, old in _CHANGES:
                if new in text:
                    made.add(new)
                    text = text.replace(new, old)
            digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            patch.setitem(space, "script", replace(space["script"], text=text, digest=digest))
        assert made == {new for new, _ in _CHANGES}
        for module in (index_repair, finding):
            patch.setattr(module, "stamp_of", _stamp_of_earlier)
        yield


def _stamp_of_earlier(*given: Any, **_: Any) -> str:
    return stamp_of(*given, updated_us=None)
