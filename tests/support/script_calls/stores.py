"""One call of every other script: records, blobs, snapshots, contexts, A2A."""

from __future__ import annotations

from collections.abc import Awaitable

from redis_state.scripts import (
    CopyKeys,
    Fence,
    Reply,
    Scripts,
)
from redis_state.transport.keys import Keys, agent_shard
from tests.support.a2a.rows import a2a_keys, drop, write
from tests.support.script_calls.names import SESSION, Call
from tests.support.scripts.groups import apply
from tests.support.scripts.keys import (
    patch_keys,
    saying,
    snapshot_keys,
    task_keys,
)
from tests.support.scripts.replies import HOUR


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
        fence=Fence(task.lease, 1, "o"),
    )


def _put_record(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    task = task_keys(keys, SESSION)
    return scripts.put_record(
        task.task,
        {"document": b"{}"},
        write="w",
        ttl_ms=HOUR,
        index=task.tasks,
        member="t",
        fence=Fence(task.lease, 1, "o"),
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


def _keep_reference(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.keep_reference(
        keys.artifacts(SESSION), blob_id="b", write="w", reference_ttl_ms=HOUR
    )


def _resolve_patch(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.resolve_patch(
        patch_keys(keys, "\ud800"),
        claim="c",
        actor="me",
        decision=b"yes",
        keep_ms=HOUR,
        basis=(0, ""),
        result=b"result",
        ttl_ms=HOUR,
        call="w",
        announcement=saying(keys, "resolved"),
    )


def _copied(keys: Keys) -> CopyKeys:
    key = keys.tasks(SESSION)
    return CopyKeys(key, keys.copied(key), keys.copy_of(key, "c"))


CALLS: dict[str, Call] = {
    "hold_record": lambda scripts, keys: scripts.hold_record(
        keys.trajectory(SESSION, "t"),
        index=keys.traces(SESSION),
        member="t",
        least_ms=HOUR,
        hold_ms=HOUR,
        whole=True,
    ),
    "mark_record": lambda scripts, keys: scripts.mark_record(
        keys.trajectory(SESSION, "t"), index=keys.traces(SESSION), member="t", stamp="1 w"
    ),
    "keep_rows": lambda scripts, keys: scripts.keep_rows(
        keys.updates(SESSION), least_ms=HOUR, n=0, hold_ms=HOUR
    ),
    "release_record": lambda scripts, keys: scripts.release_record(
        keys.trajectory(SESSION, "t"),
        index=keys.traces(SESSION),
        member="t",
        beside=keys.journal(SESSION, "t"),
        alone_ms=HOUR,
        looks=False,
    ),
    "release_log": lambda scripts, keys: scripts.release_log(keys.updates(SESSION), looks=False),
    "watch_since": lambda scripts, keys: scripts.watch_since(
        keys.events_watch(0), since=keys.events_since(0), entry=b"e", delay_ms=HOUR, stands="sooner"
    ),
    "note_waits": lambda scripts, keys: scripts.note_waits(
        keys.archive_sessions(0), since=keys.archive_sessions_since(0), entries=[b"e"]
    ),
    "release_rows": lambda scripts, keys: scripts.release_rows(
        keys.events(SESSION), n=1, at_ms=HOUR, ttl_ms=HOUR
    ),
    "drop_copy": lambda scripts, keys: scripts.drop_copy(_copied(keys), digest=b"d"),
    "read_part": lambda scripts, keys: scripts.read_part(_copied(keys), after=b"", limit=9),
    "write_part": lambda scripts, keys: scripts.write_part(
        _copied(keys),
        kind="zset",
        at=0,
        ttl_ms=HOUR,
        keep_ms=HOUR,
        digest=b"d",
        about=[],
        items=[1, b"t"],
    ),
    "apply_patch": lambda scripts, keys: apply(
        scripts, keys, patch_keys(keys, "\ud800"), gated=True
    ),
    "resolve_patch": _resolve_patch,
    "update_context": lambda scripts, keys: scripts.update_context(
        keys.context(SESSION),
        {"llm_context": b"{}"},
        results=[("\ud800".encode("utf-8", "surrogatepass"), b"{}")],
        content_hash="h",
        hashed=True,
        expected=0,
        call="c",
        ttl_ms=HOUR,
    ),
    "acquire_lease": lambda scripts, keys: scripts.acquire_lease(
        keys.lease(SESSION, "t"), owner="o", duration_ms=HOUR, keep_ms=HOUR
    ),
    "read_a2a_task": lambda scripts, keys: scripts.read_a2a_task(
        a2a_keys(keys, SESSION), messages=-1, whole=True
    ),
    "write_a2a_task": lambda scripts, keys: write(
        scripts, a2a_keys(keys, SESSION), messages=[b"{}"], parts=[b"{}"]
    ),
    "drop_a2a_task": lambda scripts, keys: drop(scripts, a2a_keys(keys, SESSION)),
    "list_a2a_tasks": lambda scripts, keys: scripts.list_a2a_tasks(
        a2a_keys(keys).books,
        [a2a_keys(keys, SESSION).task],
        prefix=b"*|*|",
        since=b"0",
        after=b"",
        size=10,
        most_bytes=9,
        whole=True,
        known=[b"x"],
    ),
    "name_a2a_stream": lambda scripts, keys: scripts.name_a2a_stream(
        a2a_keys(keys, SESSION), stream=SESSION
    ),
    "put_a2a_config": lambda scripts, keys: scripts.put_a2a_config(
        a2a_keys(keys, SESSION), name="n", config=b"c", most=9, ttl_ms=HOUR
    ),
    "drop_a2a_configs": lambda scripts, keys: scripts.drop_a2a_configs(
        a2a_keys(keys, SESSION), name=""
    ),
    "commit_blob": _commit,
    "keep_reference": _keep_reference,
    "delete_blob": lambda scripts, keys: scripts.delete_blob(
        keys.artifacts(SESSION), blob_id="\ud800"
    ),
    "drop_unlisted_blob": lambda scripts, keys: scripts.drop_unlisted_blob(
        keys.artifacts(SESSION), blob_id="\ud800"
    ),
    "delete_record": lambda scripts, keys: scripts.delete_record(
        keys.task(SESSION, "t"), index=keys.tasks(SESSION), member="t", only_if_gone=False
    ),
    "delete_snapshots": lambda scripts, keys: scripts.delete_snapshots(
        snapshot_keys(keys, SESSION), version="0011"
    ),
    "list_blobs": lambda scripts, keys: scripts.list_blobs(keys.artifacts(SESSION)),
    "add_member": lambda scripts, keys: scripts.add_member(
        keys.artifact_sessions(), member="\ud800", ttl_ms=HOUR
    ),
    "unlist_member": lambda scripts, keys: scripts.unlist_member(
        keys.artifact_sessions(), member="\ud800", expiry=b"1"
    ),
    "prune_snapshots": lambda scripts, keys: scripts.prune_snapshots(
        snapshot_keys(keys, SESSION), keep_last=1, keep_checkpoints=True
    ),
    "read_snapshot": lambda scripts, keys: scripts.read_snapshot(
        snapshot_keys(keys, SESSION), prefix="v:"
    ),
    "look_lease": lambda scripts, keys: scripts.look_lease(keys.lease(SESSION, "t")),
    "release_lease": lambda scripts, keys: scripts.release_lease(
        keys.lease(SESSION, "t"), owner="o", epoch=1
    ),
    "renew_lease": lambda scripts, keys: scripts.renew_lease(
        keys.lease(SESSION, "t"), owner="o", epoch=1, duration_ms=HOUR, keep_ms=HOUR
    ),
    "rollback_snapshots": lambda scripts, keys: scripts.rollback_snapshots(
        snapshot_keys(keys, SESSION), prefix="c:"
    ),
    "save_record": _save_record,
    "put_record": _put_record,
    "save_worker": lambda scripts, keys: scripts.save_worker(
        keys.worker(SESSION),
        index=keys.workers(),
        served=keys.served(),
        write="w",
        ttl_ms=HOUR,
        member="\ud800",
        document=b"{}",
        remember_ms=HOUR,
        most=2,
        names=["q h"],
    ),
    "save_snapshot": lambda scripts, keys: scripts.save_snapshot(
        snapshot_keys(keys, SESSION),
        version="0011",
        snapshot_id="%",
        checkpoint=True,
        row=b"[]",
        ttl_ms=HOUR,
    ),
    "stage_chunk": lambda scripts, keys: scripts.stage_chunk(
        keys.artifacts(SESSION).upload("u"), number=0, data=b"x", ttl_ms=HOUR
    ),
    "touch_blob": lambda scripts, keys: scripts.touch_blob(
        keys.artifacts(SESSION), blob_id="\ud800"
    ),
    "save_session": lambda s, k: s.save_session(
        k.agent_session("s"),
        {"head": b"{}"},
        index=k.agent_sessions(agent_shard("s")),
        expiries=k.agent_expiries(agent_shard("s")),
        session_id="s",
        tags="/ active/",
        born="1",
        expected=1,
        base="",
        dropped=("s:1",),
        write="w",
        ttl_ms=HOUR,
        fence=Fence(k.agent_lease("s"), 1, "o"),
    ),
    "delete_session": lambda s, k: s.delete_session(
        k.agent_session("s"),
        index=k.agent_sessions(agent_shard("s")),
        expiries=k.agent_expiries(agent_shard("s")),
        session_id="s",
    ),
    "save_oauth_token": lambda scripts, keys: scripts.save_oauth_token(
        keys.oauth_token(SESSION, "\ud800"), value=b"v", expires_ms=None, ttl_ms=HOUR
    ),
    "run_once": lambda scripts, keys: scripts.run_once("DEL", keys.unreadable(SESSION)),
}
