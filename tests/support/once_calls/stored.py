"""Calls that may be repeated: of what is stored under a name."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from redis_state.primitives.record import new_write_id
from redis_state.scripts import Reply, Scripts
from redis_state.transport.keys import Keys, agent_shard
from tests.support.once_calls.case import Case, Step
from tests.support.script_calls import CALLS
from tests.support.script_calls.names import SESSION
from tests.support.scripts.graphs import GRAPH_ROW, drop_checkpoints, watch_graph_puts
from tests.support.scripts.keys import adk_keys, graph_keys, snapshot_keys, trace_keys
from tests.support.scripts.logs import add_row, append, make_stream
from tests.support.scripts.replies import HOUR, ask, fields


async def save_snapshots(scripts: Scripts, keys: Keys) -> None:
    for version in ("0011", "0012"):
        await scripts.save_snapshot(
            snapshot_keys(keys),
            version=version,
            snapshot_id="%",
            checkpoint=version == "0011",
            row=b"theirs",
            ttl_ms=HOUR,
        )


async def look_at_snapshots(scripts: Scripts, keys: Keys) -> Any:
    return await fields(scripts, snapshot_keys(keys).rows)


async def _save_session(scripts: Scripts, keys: Keys) -> None:
    await scripts.save_session(
        keys.agent_session("s"),
        {"head": b"theirs"},
        index=keys.agent_sessions(agent_shard("s")),
        expiries=keys.agent_expiries(agent_shard("s")),
        session_id="s",
        tags="/",
        born="1",
        expected=0,
        base="",
        dropped=(),
        write="w",
        ttl_ms=HOUR,
    )


def _delete_session(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.delete_session(
        keys.agent_session("s"),
        index=keys.agent_sessions(agent_shard("s")),
        expiries=keys.agent_expiries(agent_shard("s")),
        session_id="s",
    )


def _put_checkpoint(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.put_checkpoint(
        graph_keys(keys),
        mark=None,
        listed=False,
        place=b"%:1",
        parent=b"",
        row=GRAPH_ROW,
        ttl_ms=HOUR,
        values=[b"%:i1 c", b"v"],
    )


async def _put_watched_checkpoint(scripts: Scripts, keys: Keys) -> None:
    await _put_checkpoint(scripts, keys)
    await watch_graph_puts(scripts, keys)


def _look_at_thread(scripts: Scripts, keys: Keys) -> Awaitable[Any]:
    return ask(scripts, "HKEYS", graph_keys(keys).thread)


async def _commit(scripts: Scripts, keys: Keys) -> Reply:
    """Commit a blob of no bytes: it needs no upload, which would be gone the second time."""
    blobs = keys.artifacts("p")
    return await scripts.commit_blob(
        blobs,
        blobs.upload("u"),
        blob_id="b",
        ref=b"{}",
        size=0,
        chunks=0,
        trace=None,
        ttl_ms=HOUR,
        strategy="none",
        limits=(9, 9, 9, 9),
        victims=[],
    )


def _delete_blob(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.delete_blob(keys.artifacts("p"), blob_id="b")


async def _look_at_blob(scripts: Scripts, keys: Keys) -> Any:
    return await ask(scripts, "HGET", keys.artifacts("p").blob("b"), "ref")


def _save_record(document: bytes = b"theirs", *, only_if_there: bool = False) -> Step:
    return lambda scripts, keys: scripts.put_record(
        keys.memory("m"),
        {"document": document},
        write=new_write_id(),
        ttl_ms=HOUR,
        only_if_there=only_if_there,
    )


async def _look_at_record(scripts: Scripts, keys: Keys) -> Any:
    return await ask(scripts, "HGET", keys.memory("m"), "document")


def _save_listed(document: bytes, listed: int) -> Step:
    return lambda scripts, keys: scripts.save_listed(
        keys.llama_handler(SESSION),
        {"document": document},
        indexes=[keys.llama_handlers(), keys.llama_running()],
        write=document.decode(),
        ttl_ms=HOUR,
        member=SESSION,
        listed=listed,
    )


async def _look_at_listed(scripts: Scripts, keys: Keys) -> Any:
    document = await ask(scripts, "HGET", keys.llama_handler(SESSION), "document")
    return document, await ask(scripts, "ZCARD", keys.llama_running())


def _update_context(value: bytes) -> Step:
    return lambda scripts, keys: scripts.update_context(
        keys.context("s"),
        {"llm_context": value},
        results=[],
        content_hash="h",
        hashed=True,
        expected=None,
        call=value.decode(),
        ttl_ms=HOUR,
    )


async def _look_at_context(scripts: Scripts, keys: Keys) -> Any:
    return await ask(scripts, "HGET", keys.context("s"), "llm_context")


async def _log(scripts: Scripts, keys: Keys) -> Any:
    rows = await ask(scripts, "XRANGE", keys.updates("s").rows, "-", "+")
    return [found[1] for _, found in rows]


def _save_token(value: bytes, expires_ms: int | None = None) -> Step:
    return lambda scripts, keys: scripts.save_oauth_token(
        keys.oauth_token("u", "p"), value=value, expires_ms=expires_ms, ttl_ms=HOUR
    )


async def _look_at_token(scripts: Scripts, keys: Keys) -> Any:
    return await ask(scripts, "GET", keys.oauth_token("u", "p"))


async def _join_trace(scripts: Scripts, keys: Keys) -> None:
    await ask(scripts, "ZADD", trace_keys(keys, "t").sessions, 1 << 52, "s")
    await ask(scripts, "PEXPIRE", trace_keys(keys, "t").sessions, HOUR)


def _plain(*made: Any, call: tuple[Any, ...]) -> Case:
    """Make a case of a plain command on the key of a session's tasks."""

    async def make(scripts: Scripts, keys: Keys) -> None:
        await ask(scripts, "DEL", keys.tasks("s"))
        await ask(scripts, made[0], keys.tasks("s"), *made[1:])
        await ask(scripts, "PEXPIRE", keys.tasks("s"), HOUR)

    async def look(scripts: Scripts, keys: Keys) -> Any:
        return await ask(scripts, "DUMP", keys.tasks("s"))

    verb, *arguments = call
    return Case(
        make, lambda scripts, keys: scripts.run_once(verb, keys.tasks("s"), *arguments), look
    )


async def _make_durable_stream(scripts: Scripts, keys: Keys) -> None:
    await scripts.delete(keys.stream("s").info)
    await make_stream(scripts, keys)


async def _append_row(scripts: Scripts, keys: Keys) -> Any:
    reply = await add_row(scripts, keys)
    return reply.word, reply.text(0).partition("-")[0], reply.facts[1]


async def _look_at_rows(scripts: Scripts, keys: Keys) -> Any:
    found = await fields(scripts, keys.stream("s").info)
    return found, await ask(scripts, "XLEN", keys.stream("s").rows)


CASES: dict[str, Case] = {
    "append_stream": Case(_make_durable_stream, _append_row, _look_at_rows),
    "delete_stream": Case(
        _make_durable_stream,
        lambda scripts, keys: scripts.delete_stream(
            keys.stream("s"), stream_id="id", forks=b"", keep=False
        ),
        _look_at_rows,
    ),
    "delete_snapshots one": Case(
        save_snapshots,
        lambda scripts, keys: scripts.delete_snapshots(snapshot_keys(keys), version="0012"),
        look_at_snapshots,
    ),
    "delete_snapshots all": Case(
        save_snapshots,
        lambda scripts, keys: scripts.delete_snapshots(snapshot_keys(keys), version=None),
        look_at_snapshots,
    ),
    "prune_snapshots": Case(
        save_snapshots,
        lambda scripts, keys: scripts.prune_snapshots(
            snapshot_keys(keys), keep_last=0, keep_checkpoints=True
        ),
        look_at_snapshots,
    ),
    "rollback_snapshots": Case(
        save_snapshots,
        lambda scripts, keys: scripts.rollback_snapshots(snapshot_keys(keys), prefix="c:"),
        look_at_snapshots,
    ),
    "save_snapshot": Case(
        save_snapshots,
        lambda scripts, keys: scripts.save_snapshot(
            snapshot_keys(keys),
            version="0012",
            snapshot_id="%",
            checkpoint=True,
            row=b"mine",
            ttl_ms=HOUR,
        ),
        look_at_snapshots,
    ),
    "delete_session": Case(
        _save_session,
        _delete_session,
        lambda scripts, keys: ask(scripts, "HGET", keys.agent_session("s"), "head"),
    ),
    "delete_graph_thread": Case(
        _put_checkpoint,
        lambda scripts, keys: scripts.delete_graph_thread(graph_keys(keys), mark=None),
        _look_at_thread,
    ),
    "put_store_item": Case(
        lambda scripts, keys: scripts.put_store_item(
            keys.graph_item("n", "k"), value=b"theirs", ttl_ms=HOUR
        ),
        lambda scripts, keys: scripts.put_store_item(
            keys.graph_item("n", "k"), value=b"mine", ttl_ms=HOUR
        ),
        lambda scripts, keys: ask(scripts, "HGET", keys.graph_item("n", "k"), "value"),
    ),
    "drop_checkpoints": Case(
        _put_watched_checkpoint,
        lambda scripts, keys: drop_checkpoints(scripts, keys, b"%:1"),
        _look_at_thread,
    ),
    "delete_blob": Case(_commit, _delete_blob, _look_at_blob),
    "commit_blob": Case(_delete_blob, _commit, _look_at_blob),
    "put_record": Case(_save_record(), _save_record(b"mine"), _look_at_record),
    "put_record there": Case(
        _save_record(), _save_record(b"mine", only_if_there=True), _look_at_record
    ),
    "save_listed": Case(_save_listed(b"theirs", 2), _save_listed(b"mine", 1), _look_at_listed),
    "update_context": Case(_update_context(b"theirs"), _update_context(b"mine"), _look_at_context),
    "delete_record": Case(
        _save_record(),
        lambda scripts, keys: scripts.delete_record(
            keys.memory("m"), index=None, member=None, only_if_gone=False
        ),
        lambda scripts, keys: ask(scripts, "HGET", keys.memory("m"), "document"),
    ),
    "clear_log": Case(
        lambda scripts, keys: append(scripts, keys.updates("s"), "a", topic="t"),
        lambda scripts, keys: scripts.clear_log(keys.updates("s")),
        _log,
    ),
    "leave_trace": Case(
        _join_trace,
        lambda scripts, keys: scripts.leave_trace(
            trace_keys(keys, "t"), session="s", keeps=False, own=0, bindings=[]
        ),
        lambda scripts, keys: ask(scripts, "ZRANGE", trace_keys(keys, "t").sessions, 0, -1),
    ),
    "save_oauth_token": Case(_save_token(b"theirs"), _save_token(b"mine"), _look_at_token),
    "save_oauth_token late": Case(_save_token(b"theirs"), _save_token(b"mine", 1), _look_at_token),
    "drop_listed": Case(
        CALLS["save_listed"],
        CALLS["drop_listed"],
        lambda scripts, keys: ask(scripts, "HGET", keys.llama_handler(SESSION), "document"),
    ),
    "delete_adk_session": Case(
        CALLS["write_adk_session"],
        CALLS["delete_adk_session"],
        lambda scripts, keys: ask(scripts, "EXISTS", adk_keys(keys, SESSION).session),
    ),
    "run_once DEL": _plain("SET", "theirs", call=("DEL",)),
    "run_once HDEL": _plain("HSET", "a", "theirs", call=("HDEL", "a", "b")),
    "run_once ZREM": _plain("ZADD", 1, "a", call=("ZREM", "a")),
}
