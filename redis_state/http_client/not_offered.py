"""What `TaskClient` has and `HttpTaskClient` has not, and why. A test finds what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CALLER = "Who calls is who the credentials name."

# A method, or an argument of one as ``method(argument)``.
NOT_OFFERED: Final[Mapping[str, str]] = {
    "unfinished": "`find(status=['PENDING', 'RUNNING', 'PAUSED'])` has them, in another order.",
    "unserved": "It is for who operates the workers, beside the server.",
    "versions": "It is for who operates the workers, beside the server.",
    "forget": "It is for who operates the store. The gateway has DELETE of a session.",
    "forget_user": "It is for who operates the store, beside the server.",
    "drop_queue": "It is for who operates the workers, beside the server.",
    "submit_or_find": "`submit` does the same. The gateway's answer says it, as `created`.",
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
    "bulk(concurrency)": "The gateway decides it.",
    "bulk(progress)": "The report comes in one answer, of 500 tasks at most.",
    "request(sender)": _CALLER,
    "rerun(sent)": "The gateway gives it, for calls with an Idempotency-Key.",
    "fork(sent)": "The gateway gives it, for calls with an Idempotency-Key.",
}
