"""One call of every script, with keys as the stores make them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from redis_state.scripts import (
    CopyKeys,
    EndedJob,
    EndedJobs,
    Fence,
    GatheringKeys,
    IndexedTask,
    KnownTask,
    KnownTasks,
    LaneState,
    Reply,
    Scripts,
)
from redis_state.transport.key_groups import JobKeys, ScheduleKeys
from redis_state.transport.keys import Keys, agent_shard
from tests.support.a2a.rows import a2a_keys, drop, write
from tests.support.scripts import (
    GRAPH_ROW,
    HOUR,
    add_row,
    adk_keys,
    append,
    apply,
    close,
    decide,
    delegate,
    drop_checkpoints,
    escalate,
    finish,
    graph_keys,
    graph_listing,
    group_keys,
    job_payload,
    join,
    make_group,
    make_stream,
    open_pause,
    patch_keys,
    pause,
    pause_list_keys,
    queued_job,
    saying,
    snapshot_keys,
    spawn,
    start,
    task_keys,
    task_values,
    token_key,
    trace_keys,
    wake,
)

Call = Callable[[Scripts, Keys], Awaitable[Reply]]

MARK = b"1  o"
SESSION = "a{b}:*?[c] \ud800"


def _move(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.move_task(
        task_keys(keys, SESSION),
        {"status": b"COMPLETE"},
        mark=MARK,
        from_states=["RUNNING"],
        release=True,
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "moved", session=SESSION),
    )


def _transition(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.transition_task(
        task_keys(keys, SESSION),
        {"result": b"1"},
        mark=MARK,
        from_phases=["RUNNING"],
        status="COMPLETE",
        phase="COMPLETE",
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "transition", session=SESSION),
    )


def _save_task(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.save_task(
        task_keys(keys, SESSION),
        task_values("PENDING"),
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


def job_keys(keys: Keys, job_id: str = SESSION) -> JobKeys:
    """Name a job's keys."""
    return JobKeys(keys.job(job_id), keys.jobs(), keys.jobs_of(SESSION), keys.jobs_due())


def _save_job(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.save_job(
        job_keys(keys),
        {"document": b"{}"},
        write="w",
        ttl_ms=HOUR,
        job_id=SESSION,
        next_us=1,
        interval_us=None,
        enabled=True,
    )


def _copied(keys: Keys) -> CopyKeys:
    key = keys.tasks(SESSION)
    return CopyKeys(key, keys.copied(key), keys.copy_of(key))


def _indexed() -> IndexedTask:
    return IndexedTask(
        entry=b"e",
        status="p",
        version=1,
        write="w",
        ttl_ms=HOUR,
        created=1,
        session=SESSION,
        task="\ud800",
        handler="h",
        attributes=[b"a=1"],
    )


def _retry(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.retry_task(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        children=keys.children(SESSION, "t"),
        expected=1,
        key="\ud800",
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "reopened", session=SESSION),
        dropped=["step:\ud800#1"],
    )


def _fork(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.fork_task(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        source=task_keys(keys, SESSION, "source"),
        steering=keys.steering(SESSION),
        updates=keys.updates(SESSION),
        children=keys.children(SESSION, "t"),
        write="w",
        ttl_ms=HOUR,
        before=1,
        order=1,
        copied=["step:\ud800#1"],
        made={b"entries": b"1"},
    )


def _create_in_turn(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    other = task_keys(keys, SESSION, "other")
    known = KnownTask(other, keys.updates(SESSION).topic_rows("other"), b"u", b"[]")
    return scripts.create_turn_task(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        steering=keys.steering(SESSION),
        announcement=saying(keys, "made", session=SESSION),
        children=keys.children(SESSION, "t"),
        turn=keys.turn(SESSION),
        line=KnownTasks([known]),
        write="w",
        ttl_ms=HOUR,
        before=1,
        policy="replace",
        delay_ms=0,
        earlier_ms=0,
        life_ms=HOUR,
        ended_ms=HOUR,
        cancelled={"status": b"CANCELLED"},
    )


def _open_gathering(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.open_gathering(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        of=GatheringKeys(keys.gathering(SESSION)),
        steering=keys.steering(SESSION),
        announcement=saying(keys, "made", session=SESSION),
        children=keys.children(SESSION, "t"),
        write="w",
        ttl_ms=HOUR,
        before=1,
        name="b",
        closed="",
        item_id="\ud800",
        item=b"1",
        after_ms=1,
        latest_ms=1,
        keep_ms=HOUR,
        in_turn=True,
        earlier_ms=0,
        turn=keys.turn(SESSION),
    )


CALLS: dict[str, Call] = {
    "open_gathering": _open_gathering,
    "add_item": lambda scripts, keys: scripts.add_item(
        GatheringKeys(keys.gathering(SESSION)),
        task=keys.task(SESSION, "t"),
        task_id="t",
        name="b",
        item_id="\ud800",
        item=b"1",
        most=2,
        most_bytes=1,
        after_ms=1,
        keep_ms=HOUR,
    ),
    "defer_job": lambda scripts, keys: scripts.defer_job(
        keys.queue("q"), id=queued_job(keys).id, at_ms=1, sooner=True
    ),
    "create_turn_task": _create_in_turn,
    "keep_turn": lambda scripts, keys: scripts.keep_turn(
        task=keys.task(SESSION, "t"),
        turn=keys.turn(SESSION),
        task_id="\ud800",
        place_ms=1,
        life_ms=HOUR,
    ),
    "settle_turn": lambda scripts, keys: scripts.settle_turn(task=keys.task(SESSION, "t"), order=1),
    "retry_task": _retry,
    "fork_task": _fork,
    "set_attributes": lambda scripts, keys: scripts.set_attributes(
        task_keys(keys, SESSION),
        mark=MARK,
        entry="attributes:set#1",
        attributes=b"{}",
        write="w",
        lane=LaneState("lane:\ud800", b"[]"),
    ),
    "retire_claim": lambda scripts, keys: scripts.retire_claim(
        task_keys(keys, SESSION), version=1, claimed=1
    ),
    "note_running": lambda scripts, keys: scripts.note_running(
        task_keys(keys, SESSION), mark=MARK, steps=b"[]"
    ),
    "index_task": lambda scripts, keys: scripts.index_task(
        keys.task_index(0), _indexed(), rule="new", delay_ms=HOUR, stands="given"
    ),
    "unindex_task": lambda scripts, keys: scripts.unindex_task(
        keys.task_index(0), entry=b"e", stamp="1 w p"
    ),
    "find_tasks": lambda scripts, keys: scripts.find_tasks(
        keys.task_index(0),
        kind="s",
        value=b"\x00\xff",
        statuses="pr",
        newest=True,
        low=b"[",
        high=b"(\xff",
        size=10,
        most=20,
        wanted=[b"hh"],
    ),
    "list_sessions": lambda scripts, keys: scripts.list_sessions(
        keys.task_index(0), after=b"", size=10
    ),
    "count_tasks": lambda scripts, keys: scripts.count_tasks(
        keys.task_index(0), kind="s", statuses="pr", values=[b"\x00", b"b"]
    ),
    "read_ended": lambda scripts, keys: scripts.read_ended(
        task_keys(keys, SESSION), least_ms=HOUR, hold_ms=HOUR, whole=True
    ),
    "mark_archived": lambda scripts, keys: scripts.mark_archived(
        task_keys(keys, SESSION), stamp="1 w"
    ),
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
        keys.updates(SESSION), least_ms=HOUR, hold_ms=HOUR
    ),
    "watch_since": lambda scripts, keys: scripts.watch_since(
        keys.events_watch(0), since=keys.events_since(0), entry=b"e", delay_ms=HOUR, stands="sooner"
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
    "close_group": lambda scripts, keys: close(scripts, group_keys(keys, "\ud800")),
    "create_group": lambda scripts, keys: make_group(
        scripts, group_keys(keys, "\ud800"), instead_of="\ud800"
    ),
    "finish_member": lambda scripts, keys: finish(
        scripts, group_keys(keys), "\ud800", patch_id="\ud800"
    ),
    "join_group": lambda scripts, keys: scripts.join_group(
        group_keys(keys), task_id="\ud800", write="w", ttl_ms=HOUR
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
    "append_log": lambda scripts, keys: append(
        scripts,
        keys.updates(SESSION),
        "a",
        "b",
        topic="t",
        announce=True,
        fence=Fence(keys.lease(SESSION, "t"), 1, "o"),
    ),
    "pack_log": lambda scripts, keys: scripts.pack_log(keys.updates(SESSION)),
    "claim_due": lambda scripts, keys: scripts.claim_due(keys.watch(0), limit=1, hold_ms=HOUR),
    "settle_claim": lambda scripts, keys: scripts.settle_claim(
        keys.watch(0), mark=b"1.5", entries=[(b"e", HOUR), (b"f", None)]
    ),
    "clear_task": lambda scripts, keys: scripts.clear_task(
        task_keys(keys, SESSION), children=keys.children(SESSION, "t"), lease_ms=HOUR
    ),
    "leave_trace": lambda scripts, keys: scripts.leave_trace(
        trace_keys(keys, SESSION),
        session="\ud800",
        keeps=False,
        own=1,
        bindings=[(keys.binding(SESSION, "b"), "b", b"w"), (keys.binding(SESSION, "c"), "c", b"")],
    ),
    "look_task": lambda scripts, keys: scripts.look_task(task_keys(keys, SESSION)),
    "prioritize_task": lambda scripts, keys: scripts.prioritize_task(
        task_keys(keys, SESSION), priority=3, write="w", mark=MARK, expected=2
    ),
    "clear_log": lambda scripts, keys: scripts.clear_log(keys.updates(SESSION), topics=["t", ""]),
    "commit_blob": _commit,
    "keep_reference": _keep_reference,
    "decide_pause": lambda scripts, keys: decide(scripts, keys, task_keys(keys), token_key(keys)),
    "delegate_pause": lambda scripts, keys: delegate(
        scripts, keys, (task_keys(keys), token_key(keys)), "\ud800", "b"
    ),
    "escalate_pause": lambda scripts, keys: escalate(
        scripts, keys, task_keys(keys), token_key(keys), "\ud800"
    ),
    "delete_blob": lambda scripts, keys: scripts.delete_blob(
        keys.artifacts(SESSION), blob_id="\ud800"
    ),
    "delete_record": lambda scripts, keys: scripts.delete_record(
        keys.task(SESSION, "t"), index=keys.tasks(SESSION), member="t", only_if_gone=False
    ),
    "delete_snapshots": lambda scripts, keys: scripts.delete_snapshots(
        snapshot_keys(keys, SESSION), version="0011"
    ),
    "find_row": lambda scripts, keys: scripts.find_row(keys.updates(SESSION), row_id=b"a"),
    "keep_part": lambda scripts, keys: scripts.keep_part(
        task_keys(keys, SESSION), mark=MARK, entry="step:\ud800#1", number=0, data=b"x"
    ),
    "emit_update": lambda scripts, keys: scripts.emit_update(
        task_keys(keys, SESSION),
        saying(keys, "emitted", session=SESSION),
        mark=MARK,
        lane=LaneState("lane:\ud800", b"[]"),
    ),
    "publish_value": lambda scripts, keys: scripts.publish_value(
        task_keys(keys, SESSION),
        saying(keys, "published", session=SESSION),
        mark=MARK,
        entry="value:\ud800",
        value=b"1",
        most=100,
        lane=LaneState("lane:\ud800", b"[]"),
    ),
    "send_message": lambda scripts, keys: scripts.send_message(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        live="live",
        covered=True,
        box="signal:\ud800",
        message_id="m",
        message=b'"m","s",1]',
        most=10,
        most_bytes=1000,
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "woken", session=SESSION),
    ),
    "take_message": lambda scripts, keys: scripts.take_message(
        task_keys(keys, SESSION),
        mark=MARK,
        entry="signal:\ud800#1",
        box="signal:\ud800",
        timeout_ms=HOUR,
    ),
    "await_message": lambda scripts, keys: scripts.await_message(
        task_keys(keys, SESSION),
        {"status": b"PAUSED"},
        mark=MARK,
        left_ms=HOUR,
        boxes=b"\0signal:a\0",
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "waits", session=SESSION),
    ),
    "wake_receiver": lambda scripts, keys: scripts.wake_receiver(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "wakes", session=SESSION),
    ),
    "list_values": lambda scripts, keys: scripts.list_values(task_keys(keys, SESSION)),
    "record_entry": lambda scripts, keys: scripts.record_entry(
        task_keys(keys, SESSION), mark=MARK, entry="took:\ud800", value=b"[]"
    ),
    "list_blobs": lambda scripts, keys: scripts.list_blobs(keys.artifacts(SESSION)),
    "move_task": _move,
    "note_member": lambda scripts, keys: scripts.note_member(
        keys.artifact_sessions(), member="\ud800", ttl_ms=HOUR
    ),
    "unlist_member": lambda scripts, keys: scripts.unlist_member(
        keys.artifact_sessions(), member="\ud800", expiry=b"1"
    ),
    "note_step": lambda scripts, keys: scripts.note_step(
        task_keys(keys, SESSION),
        mark=MARK,
        entry="step:\ud800#1",
        checkpoint=False,
        chunks=0,
        about=b"[1]",
        result=b"1",
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
    "page_pauses": lambda scripts, keys: scripts.page_pauses(
        pause_list_keys(keys), first=0, size=2
    ),
    "open_token": lambda scripts, keys: scripts.open_token(
        keys.pause("token"), payload=b"p", mark="m", ttl_ms=HOUR, keep_ms=HOUR
    ),
    "pause_task": lambda scripts, keys: pause(
        scripts, keys, task_keys(keys), token_key(keys), mark=MARK
    ),
    "prune_snapshots": lambda scripts, keys: scripts.prune_snapshots(
        snapshot_keys(keys, SESSION), keep_last=1, keep_checkpoints=True
    ),
    "read_journal": lambda scripts, keys: scripts.read_journal(task_keys(keys, SESSION)),
    "read_log": lambda scripts, keys: scripts.read_log(
        keys.updates(SESSION), after=1, after_ms=0, count=10, topic="t"
    ),
    "read_snapshot": lambda scripts, keys: scripts.read_snapshot(
        snapshot_keys(keys, SESSION), prefix="v:"
    ),
    "look_lease": lambda scripts, keys: scripts.look_lease(keys.lease(SESSION, "t")),
    "release_lease": lambda scripts, keys: scripts.release_lease(
        keys.lease(SESSION, "t"), owner="o", epoch=1
    ),
    "release_token": lambda scripts, keys: scripts.release_token(
        keys.pause("token"), claim="c", keep_ms=HOUR
    ),
    "renew_lease": lambda scripts, keys: scripts.renew_lease(
        keys.lease(SESSION, "t"), owner="o", epoch=1, duration_ms=HOUR, keep_ms=HOUR
    ),
    "resolve_token": lambda scripts, keys: scripts.resolve_token(
        keys.pause("token"), claim="c", actor="me", decision=b"null", keep_ms=HOUR
    ),
    "rollback_snapshots": lambda scripts, keys: scripts.rollback_snapshots(
        snapshot_keys(keys, SESSION), prefix="c:"
    ),
    "create_task": lambda scripts, keys: scripts.create_task(
        task_keys(keys, SESSION),
        {"status": b"PENDING"},
        steering=keys.steering(SESSION),
        announcement=saying(keys, "made", session=SESSION),
        children=keys.children(SESSION, "t"),
        write="w",
        ttl_ms=HOUR,
    ),
    "save_record": _save_record,
    "save_snapshot": lambda scripts, keys: scripts.save_snapshot(
        snapshot_keys(keys, SESSION),
        version="0011",
        snapshot_id="%",
        checkpoint=True,
        row=b"[]",
        ttl_ms=HOUR,
    ),
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
    "put_checkpoint": lambda s, k: s.put_checkpoint(
        graph_keys(k, SESSION),
        mark=None,
        listed=False,
        place=b"%:1",
        parent=b"",
        row=GRAPH_ROW,
        ttl_ms=HOUR,
        values=[b"%:i1 c", b"v"],
    ),
    "put_graph_writes": lambda s, k: s.put_graph_writes(
        graph_keys(k, SESSION),
        mark=None,
        listed=False,
        place=b"%:1",
        task="t",
        ttl_ms=HOUR,
        writes=[b"0", b"c", b"v"],
    ),
    "read_checkpoints": lambda s, k: s.read_checkpoints(
        graph_keys(k, SESSION), most_bytes=100, places=[b"%:", b"%:1"]
    ),
    "read_bases": lambda s, k: s.read_bases(
        graph_keys(k, SESSION), most_bytes=100, names=[b"%:i1 c"]
    ),
    "page_checkpoints": lambda s, k: s.page_checkpoints(
        graph_keys(k, SESSION), high=b"(%;", low=b"[%:", size=10, most_bytes=100
    ),
    "walk_deltas": lambda s, k: s.walk_deltas(
        graph_keys(k, SESSION), place=b"%:1", most=10, channels=[b"c", b"c"]
    ),
    "list_checkpoints": lambda s, k: s.list_checkpoints(
        graph_keys(k, SESSION), high=b"(%;", low=b"[%:", size=10
    ),
    "list_graph_namespaces": lambda s, k: s.list_graph_namespaces(
        graph_keys(k, SESSION), after=b"", size=10
    ),
    "watch_graph_puts": lambda s, k: s.watch_graph_puts(
        graph_keys(k, SESSION), watch="w", ttl_ms=HOUR
    ),
    "drop_checkpoints": lambda s, k: drop_checkpoints(s, k, b"%:1", thread=SESSION),
    "delete_graph_thread": lambda s, k: s.delete_graph_thread(graph_keys(k, SESSION), mark=None),
    "enter_listing": lambda s, k: s.enter_listing(graph_listing(k), entry=SESSION, ttl_ms=HOUR),
    "read_listing": lambda s, k: s.read_listing(graph_listing(k), start=b"-", size=10),
    "leave_listing": lambda s, k: s.leave_listing(graph_listing(k), entry=b"t", stamp=b""),
    "list_store_namespaces": lambda s, k: s.list_store_namespaces(
        graph_listing(k), start=b"-", size=10
    ),
    "save_listed": lambda s, k: s.save_listed(
        k.llama_handler(SESSION),
        {"document": b"d"},
        indexes=[k.llama_handlers(), k.llama_running(), k.llama_handlers_of(SESSION)],
        write="w",
        ttl_ms=HOUR,
        member=SESSION,
        listed=2,
    ),
    "drop_listed": lambda s, k: s.drop_listed(
        k.llama_handler(SESSION), indexes=[k.llama_handlers()], member=SESSION
    ),
    "write_adk_session": lambda s, k: s.write_adk_session(
        adk_keys(k, SESSION),
        expected=0,
        write="w",
        updated="1.0",
        ttl_ms=HOUR,
        max_rows=10,
        row_id=b"",
        row=b"",
        of_session=(b"s:\xed\xa0\x80", b"1"),
        of_user=(b"s:a", b"1"),
        of_app=(),
    ),
    "delete_adk_session": lambda s, k: s.delete_adk_session(adk_keys(k, SESSION)),
    "put_store_item": lambda s, k: s.put_store_item(
        k.graph_item("n", SESSION), value=b"{}", ttl_ms=HOUR
    ),
    "read_store_item": lambda s, k: s.read_store_item(k.graph_item("n", SESSION), refresh=True),
    "transition_task": _transition,
    "save_oauth_token": lambda scripts, keys: scripts.save_oauth_token(
        keys.oauth_token(SESSION, "\ud800"), value=b"v", expires_ms=None, ttl_ms=HOUR
    ),
    "run_once": lambda scripts, keys: scripts.run_once("DEL", keys.unreadable(SESSION)),
    "save_job": _save_job,
    "claim_job": lambda scripts, keys: scripts.claim_job(
        keys.job(SESSION), keys.jobs_due(), owner="o", lease_ms=HOUR, job_id=SESSION, asked_us=1
    ),
    "start_job": lambda scripts, keys: scripts.start_job(
        keys.job(SESSION), Fence(keys.job(SESSION), 1, "o"), lease_ms=HOUR
    ),
    "end_job": lambda scripts, keys: scripts.end_job(
        job_keys(keys), Fence(keys.job(SESSION), 1, "o"), job_id=SESSION, ttl_ms=HOUR
    ),
    "spawn_task": lambda scripts, keys: spawn(scripts, keys, task_keys(keys), mark=MARK),
    "join_task": lambda scripts, keys: join(
        scripts, keys, task_keys(keys), task_keys(keys, task="c"), mark=MARK
    ),
    "wake_task": lambda scripts, keys: wake(
        scripts, keys, task_keys(keys), task_keys(keys, task="c")
    ),
    "create_stream": lambda scripts, keys: make_stream(scripts, keys, SESSION),
    "append_stream": lambda scripts, keys: add_row(scripts, keys, path=SESSION, producer="\ud800"),
    "read_stream": lambda scripts, keys: scripts.read_stream(
        keys.stream(SESSION), after="", most_rows=9, most_bytes=9, renew=True
    ),
    "delete_stream": lambda scripts, keys: scripts.delete_stream(
        keys.stream(SESSION), stream_id="id", forks=b"", keep=False
    ),
    "copy_stream": lambda scripts, keys: scripts.copy_stream(
        keys.stream(SESSION),
        stream_id="id",
        hold_ms=HOUR,
        opening=True,
        part=b"",
        data=b"",
        copied=[b"1-1", b"p"],
    ),
    "add_fork": lambda scripts, keys: scripts.add_fork(
        keys.stream(SESSION).info, stream_id="id", fork=b"f \xed\xa0\x80", most=9
    ),
    "claim_stream": lambda scripts, keys: scripts.claim_stream(
        keys.streams_of(SESSION), path="\ud800", ttl_ms=HOUR, most=9, keep_ms=HOUR
    ),
    "release_stream": lambda scripts, keys: scripts.release_stream(
        keys.streams_of(SESSION), path="\ud800", mark="1"
    ),
    "save_schedule": lambda scripts, keys: scripts.save_schedule(
        ScheduleKeys(keys.schedule(SESSION), keys.schedules(), keys.schedules_due()),
        {"paused": b"0"},
        write="w",
        expected=0,
        ttl_ms=HOUR,
        schedule_id=SESSION,
        look_ms=0,
        sooner=False,
        restart=True,
    ),
    "queue_job": lambda scripts, keys: scripts.queue_job(
        keys.queue("q"), payload=job_payload(keys), job=queued_job(keys)
    ),
    "claim_jobs": lambda scripts, keys: scripts.claim_jobs(keys.queue("q"), limit=1, life_ms=HOUR),
    "claim_parked": lambda scripts, keys: scripts.claim_parked(
        keys.queue("q"), limit=1, life_ms=HOUR, lanes=["v:h/1;"]
    ),
    "park_job": lambda scripts, keys: scripts.park_job(
        keys.queue("q"),
        payload=job_payload(keys),
        id=queued_job(keys).id.encode(),
        claimed=b"1",
        place=b"1",
        lane="v:h/1;",
        version=1,
        life_ms=HOUR,
    ),
    "look_parked": lambda scripts, keys: scripts.look_parked(
        keys.queue("q").keyed, lanes=1, limit=1
    ),
    "end_jobs": lambda scripts, keys: scripts.end_jobs(
        keys.queue("q"),
        EndedJobs([EndedJob(job_payload(keys), queued_job(keys).id.encode(), b"1", None)]),
        life_ms=HOUR,
    ),
    "ensure_job": lambda scripts, keys: scripts.ensure_job(
        keys.queue("q"),
        payload=job_payload(keys),
        picked=f"arq:in-progress:{queued_job(keys).id}",
        earlier_payload=job_payload(keys),
        job=queued_job(keys),
        earlier=queued_job(keys).id,
        orphan=False,
        version="1",
        patience_ms=0,
    ),
    "move_job": lambda scripts, keys: scripts.move_job(
        keys.queue("q"), id=queued_job(keys).id, earlier_ms=1
    ),
    "list_claims": lambda scripts, keys: scripts.list_claims(
        keys.queue("q").claims, after=0, patience_ms=0, limit=1
    ),
    "look_agenda": lambda scripts, keys: scripts.look_agenda(keys.queue("q")),
    "look_queue": lambda scripts, keys: scripts.look_queue(keys.queue("q"), most=2),
    "clear_queue": lambda scripts, keys: scripts.clear_queue(
        keys.queue("q"), history=keys.queue_history()
    ),
    "know_history": lambda scripts, keys: scripts.know_history(
        keys.queue_history(), id="i", picking=True
    ),
    "hasten_entries": lambda scripts, keys: scripts.hasten_entries(
        keys.watch(0),
        walker="w",
        hold_ms=HOUR,
        history="h",
        all=False,
        first_ms=0,
        step_ms=1,
        entries=[b"e"],
    ),
    "drop_claims": lambda scripts, keys: scripts.drop_claims(
        keys.queue("q"), before_ms=1, tasks=[("t", 1)]
    ),
    "set_flow": lambda scripts, keys: scripts.set_flow(keys.queue("q"), {"limit": b"1"}),
    "take_rate": lambda scripts, keys: scripts.take_rate(
        keys.rates(), name="r", rate="1 1000", cost=1
    ),
    "skip_time": lambda scripts, keys: scripts.skip_time(
        keys.test_clock(), others=[f"{keys.test_clock()}:other"], until_ms=1
    ),
    "watch_entry": lambda scripts, keys: scripts.watch_entry(
        keys.watch(0), entry=b"e", delay_ms=HOUR, stands="later"
    ),
}
