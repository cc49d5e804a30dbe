"""One call of every script, with keys as the stores make them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Fence, Reply, Scripts
from tests.a2a_rows import a2a_keys, write
from tests.looking import HOUR, append, pause, saying, start, task_keys, token_key

Call = Callable[[Scripts, Keys], Awaitable[Reply]]

SESSION = "a{b}:*?[c] \ud800"


def _move(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.move_task(
        task_keys(keys, SESSION),
        {"status": b"COMPLETE"},
        epoch=1,
        from_states=["RUNNING"],
        release=True,
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "moved", session=SESSION),
    )


def _resume(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.resume_task(
        task_keys(keys),
        {"status": b"PENDING"},
        token=token_key(keys),
        claim="c",
        by="me",
        decision=b"yes",
        keep_ms=HOUR,
        entry="pause:x#1",
        ttl_ms=HOUR,
        announcement=saying(keys, "resumed"),
    )


def _save_task(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.save_task(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        write="w",
        ttl_ms=HOUR,
        finished=False,
        updated_at_us=1,
    )


def _save_record(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    task = task_keys(keys, SESSION)
    return scripts.save_record(
        task.task,
        {"document": b"{}"},
        write="w",
        ttl_ms=HOUR,
        expected=0,
        index=task.tasks,
        member="t",
        fence=Fence(task.lease, 1),
    )


def _commit(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    blobs = keys.artifacts(SESSION)
    return scripts.commit_blob(
        blobs,
        blobs.upload("u"),
        blob_id="b",
        ref=b"{}",
        size=1,
        chunks=1,
        trace="\ud800",
        ttl_ms=HOUR,
        strategy="lru",
        limits=(1, 1, 1, 1),
        victims=["v", "\ud800"],
    )


CALLS: dict[str, Call] = {
    "acquire_lease": lambda scripts, keys: scripts.acquire_lease(
        keys.lease(SESSION, "t"), owner="o", duration_ms=HOUR, keep_ms=HOUR
    ),
    "read_a2a_version": lambda scripts, keys: scripts.read_a2a_version(a2a_keys(keys, SESSION)),
    "write_a2a_version": lambda scripts, keys: write(scripts, a2a_keys(keys, SESSION)),
    "drop_a2a_version": lambda scripts, keys: scripts.drop_a2a_version(
        a2a_keys(keys, SESSION), write="d", ttl_ms=HOUR
    ),
    "list_a2a_versions": lambda scripts, keys: scripts.list_a2a_versions(
        a2a_keys(keys).books,
        [a2a_keys(keys, SESSION).task],
        asked=b"*|*|",
        since=b"0",
        after=b"",
        size=10,
        known=[b"x"],
    ),
    "put_a2a_config": lambda scripts, keys: scripts.put_a2a_config(
        keys.a2a_push(SESSION), name=b"o n", config=b"c", most=9, ttl_ms=HOUR
    ),
    "drop_a2a_configs": lambda scripts, keys: scripts.drop_a2a_configs(
        keys.a2a_push(SESSION), owner=b"o ", name=b""
    ),
    "append_log": lambda scripts, keys: append(
        scripts,
        keys.updates(SESSION),
        "a",
        "b",
        topic="t",
        announce=True,
        fence=Fence(keys.lease(SESSION, "t"), 1),
    ),
    "claim_due": lambda scripts, keys: scripts.claim_due(keys.watch(0), limit=1, hold_ms=HOUR),
    "clear_log": lambda scripts, keys: scripts.clear_log(keys.updates(SESSION), topics=["t", ""]),
    "commit_blob": _commit,
    "delete_blob": lambda scripts, keys: scripts.delete_blob(
        keys.artifacts(SESSION), blob_id="\ud800"
    ),
    "delete_record": lambda scripts, keys: scripts.delete_record(
        keys.task(SESSION, "t"), index=keys.tasks(SESSION), member="t", only_if_gone=False
    ),
    "find_row": lambda scripts, keys: scripts.find_row(keys.updates(SESSION), row_id=b"a"),
    "list_blobs": lambda scripts, keys: scripts.list_blobs(keys.artifacts(SESSION)),
    "move_task": _move,
    "note_member": lambda scripts, keys: scripts.note_member(
        keys.artifact_sessions(), member="\ud800", ttl_ms=HOUR
    ),
    "note_step": lambda scripts, keys: scripts.note_step(
        keys.journal(SESSION, "t"),
        fence=Fence(keys.lease(SESSION, "t"), 1),
        entry="step:x#1",
        result=b"1",
        ttl_ms=HOUR,
    ),
    "open_token": lambda scripts, keys: scripts.open_token(
        keys.pause("token"), payload=b"p", mark="m", ttl_ms=HOUR, keep_ms=HOUR
    ),
    "pause_task": lambda scripts, keys: pause(scripts, keys, task_keys(keys), token_key(keys)),
    "read_log": lambda scripts, keys: scripts.read_log(
        keys.updates(SESSION), after=1, after_ms=0, count=10, topic="t"
    ),
    "release_lease": lambda scripts, keys: scripts.release_lease(
        keys.lease(SESSION, "t"), owner="o", epoch=1
    ),
    "renew_lease": lambda scripts, keys: scripts.renew_lease(
        keys.lease(SESSION, "t"), owner="o", epoch=1, duration_ms=HOUR, keep_ms=HOUR
    ),
    "resolve_token": lambda scripts, keys: scripts.resolve_token(
        keys.pause("token"), claim="c", by="me", decision=b"null", keep_ms=HOUR
    ),
    "resume_task": _resume,
    "create_task": lambda scripts, keys: scripts.create_task(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        steering=keys.steering(SESSION),
        updates=keys.updates(SESSION),
        write="w",
        ttl_ms=HOUR,
    ),
    "save_record": _save_record,
    "save_task": _save_task,
    "set_aside": lambda scripts, keys: scripts.set_aside(
        keys.unreadable(SESSION), place="row \ud800", note=b"{}", most=1, ttl_ms=HOUR
    ),
    "stage_chunk": lambda scripts, keys: scripts.stage_chunk(
        keys.artifacts(SESSION).upload("u"), number=0, data=b"x", ttl_ms=HOUR
    ),
    "start_task": lambda scripts, keys: start(scripts, keys, task_keys(keys)),
    "tail_log": lambda scripts, keys: scripts.tail_log(
        keys.updates(SESSION), after_id=b"a", count=10, topic="t"
    ),
    "touch_blob": lambda scripts, keys: scripts.touch_blob(
        keys.artifacts(SESSION), blob_id="\ud800"
    ),
    "watch_entry": lambda scripts, keys: scripts.watch_entry(
        keys.watch(0), entry=b"e", delay_ms=HOUR, sooner=False
    ),
}
