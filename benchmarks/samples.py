"""What is written: an update of about 300 bytes as JSON and a task of about 2 KB, the same for all.

Imports nothing of the store: contenders of other environments use it too.
"""

from __future__ import annotations

from typing import Any

SESSIONS = 64
TASKS = 1024
# The tasks that are loaded: few, because some contenders save few in their time.
LOADED = 32
CONTENT: dict[str, Any] = {"message": "looked at one more section", "tokens": 512}
CONTEXT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "x" * 120, "n": n} for n in range(8)],
    "facts": {f"fact-{n}": n * 1.5 for n in range(20)},
}


def session_name(number: int) -> str:
    """Name the session of a call."""
    return f"session-{number % SESSIONS:04d}"


def task_name(number: int) -> str:
    """Name a task: 32 characters, as random ids have."""
    return f"task-{number:027d}"


def update_name(number: int) -> str:
    """Name an update: 32 characters, as random ids have."""
    return f"update-{number:025d}"


def plain_update(number: int) -> dict[str, Any]:
    """Make an update as a plain object: what a hand-written store would dump."""
    return {
        "session_id": session_name(number),
        "task_id": task_name(number % SESSIONS),
        "trace_id": None,
        "update_id": update_name(number),
        "update_type": "PROGRESS",
        "content": CONTENT,
        "step_index": 3,
        "total_steps": 9,
        "created_at": "2026-01-02T03:04:05.678901+00:00",
    }


def plain_task(number: int) -> dict[str, Any]:
    """Make a task as a plain object."""
    name = task_name(number % TASKS)
    return {
        "task_id": name,
        "session_id": session_name(number % TASKS),
        "status": "RUNNING",
        "task_type": "BACKGROUND",
        "priority": 0,
        "context_snapshot": {
            "session_id": session_name(number % TASKS),
            "task_id": name,
            "query": "review",
            "llm_context": CONTEXT,
        },
        "progress": {"done": 3, "of": 9},
        "created_at": "2026-01-02T03:04:05.678901+00:00",
        "updated_at": "2026-01-02T03:04:05.678901+00:00",
    }
