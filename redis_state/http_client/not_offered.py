"""What `TaskClient` has and `HttpTaskClient` has not, and why. A test finds what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CALLER = "Who calls is who the credentials name."
_ERASES = {
    "actor": _CALLER,
    "timeout_s": "The gateway gives tasks that run 10 seconds.",
    "archive": "The gateway has that of its settings.",
    "progress": "The report comes in one answer.",
}

# A method, or an argument of one as ``method(argument)``.
NOT_OFFERED: Final[Mapping[str, str]] = {
    "unfinished": "`find(status=['PENDING', 'RUNNING', 'PAUSED'])` has them, a page at a time.",
    "unserved": "It is for who operates the workers, beside the server.",
    "versions": "It reads each unfinished task, for who operates the workers, beside the server.",
    "drop_queue": "It empties the queue of all sessions, for who operates the workers.",
    "submit(task_type)": "A submitted task is in the background.",
    "submit(context)": "A context may be large and secret: a host gives it, beside the server.",
    "signal(sender)": _CALLER,
    "steer(source)": _CALLER,
    "approve(actor)": _CALLER,
    "reject(actor)": _CALLER,
    "resolve(actor)": _CALLER,
    "delegate(actor)": _CALLER,
    "pauses(decider)": f"{_CALLER} `mine=True` lists what that actor may decide.",
    "list_pauses(decider)": f"{_CALLER} `mine=True` lists what that actor may decide.",
    "count(handler)": "The gateway counts by session. `sessions` lists all of them.",
    "count(attributes)": "The gateway counts by session. `sessions` lists all of them.",
    "count(ended_after)": "The gateway counts by session. `find` lists by the end.",
    "count(ended_before)": "The gateway counts by session. `find` lists by the end.",
    "bulk(concurrency)": "The gateway decides it.",
    "bulk(progress)": "The report comes in one answer, of 500 tasks at most.",
    "request(sender)": _CALLER,
    "rerun(sent)": "The gateway gives it, for calls with an Idempotency-Key.",
    **{
        f"{method}({argument})": reason
        for method in ("forget", "forget_user")
        for argument, reason in _ERASES.items()
    },
    "fork(sent)": "The gateway gives it, for calls with an Idempotency-Key.",
}
