"""One call of every script of pauses and tokens."""

from __future__ import annotations

from tests.support.script_calls.names import MARK, Call
from tests.support.scripts.keys import (
    pause_list_keys,
    task_keys,
    token_key,
)
from tests.support.scripts.pauses import decide, delegate, escalate, open_pause, pause
from tests.support.scripts.replies import HOUR

CALLS: dict[str, Call] = {
    "decide_pause": lambda scripts, keys: decide(scripts, keys, task_keys(keys), token_key(keys)),
    "delegate_pause": lambda scripts, keys: delegate(
        scripts, keys, (task_keys(keys), token_key(keys)), "\ud800", "b"
    ),
    "escalate_pause": lambda scripts, keys: escalate(
        scripts, keys, task_keys(keys), token_key(keys), "\ud800"
    ),
    "pause_left": lambda scripts, keys: scripts.pause_left(
        token_key(keys), tasks=task_keys(keys).tasks
    ),
    "open_pause": lambda scripts, keys: open_pause(
        scripts, keys, task_keys(keys), token_key(keys), mark=MARK
    ),
    "list_pause": lambda scripts, keys: scripts.list_pause(
        pause_list_keys(keys), member=token_key(keys), opened=1, ttl_ms=HOUR
    ),
    "unlist_pauses": lambda scripts, keys: scripts.unlist_pauses(
        pause_list_keys(keys), members=[token_key(keys)]
    ),
    "unlist_pause": lambda scripts, keys: scripts.unlist_pause(
        task_keys(keys).task, tasks=task_keys(keys).tasks, token=token_key(keys)
    ),
    "page_pauses": lambda scripts, keys: scripts.page_pauses(
        pause_list_keys(keys), first=0, size=2
    ),
    "open_token": lambda scripts, keys: scripts.open_token(
        keys.pause("token"), payload=b"p", mark="m", ttl_ms=HOUR, keep_ms=HOUR
    ),
    "pause_task": lambda scripts, keys: pause(
        scripts, keys, task_keys(keys), token_key(keys), mark=MARK
    ),
    "release_token": lambda scripts, keys: scripts.release_token(
        keys.pause("token"), claim="c", keep_ms=HOUR
    ),
    "resolve_token": lambda scripts, keys: scripts.resolve_token(
        keys.pause("token"), claim="c", actor="me", decision=b"null", keep_ms=HOUR
    ),
}
