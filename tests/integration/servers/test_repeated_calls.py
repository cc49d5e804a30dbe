"""A call whose reply was lost is repeated. What another client wrote in between stays as it is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import SecretStr

import redis_state
from redis_state import RedisStateStore, Settings
from redis_state.agents import SessionStore
from redis_state.models.artifacts import ArtifactScope
from redis_state.models.hosts.snapshots import Snapshot
from redis_state.scripts import SCRIPTS, GatheringKeys, Reply, Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys, agent_shard, call_key
from tests.support.a2a.rows import a2a_keys, create, drop
from tests.support.agents.sessions import fresh
from tests.support.script_calls import CALLS
from tests.support.script_calls.names import SESSION, job_keys
from tests.support.scripts.graphs import GRAPH_ROW, drop_checkpoints, watch_graph_puts
from tests.support.scripts.keys import adk_keys, graph_keys, snapshot_keys, task_keys, trace_keys
from tests.support.scripts.logs import add_row, append, make_stream
from tests.support.scripts.replies import HOUR, ask, fields, lives, ok
from tests.support.scripts.tasks import job_payload, make_task, queued_job
from tests.support.servers.faults import Proxy

T = TypeVar("T")
Step = Callable[[Scripts, Keys], Awaitable[Any]]


class Repeating:
    """A client whose replies can be lost: what it calls then is done, and done again later."""

    def __init__(self, scripts: Scripts, proxy: Proxy) -> None:
        self.scripts = scripts
        self._proxy = proxy
        # Of no key that is there: what is asked opens the connection.
        self._key = f"{scripts.transport.settings.namespace}:none"

    async def call(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        done: Callable[[], Awaitable[bool]],
        meanwhile: Callable[[], Awaitable[Any]],
    ) -> T:
        """Make a call, lose its reply once it is ``done``, and have it repeated ``meanwhile``."""
        await self.scripts.transport.commands.exists(self._key)
        swallowed, connections = self._proxy.swallowed, self.scripts.transport.sender.connections
        self._proxy.silence()
        answer = asyncio.ensure_future(call())
        await eventually(done, "the call is executed")
        await meanwhile()
        await eventually(lambda: self._proxy.swallowed > swallowed, "its reply is lost")
        self._proxy.silence(silent=False)
        assert self._proxy.cut()
        found = await answer
        assert self.scripts.transport.sender.connections > connections
        return found


@asynccontextmanager
async def repeating(settings: Settings) -> AsyncGenerator[tuple[Repeating, RedisStateStore]]:
    """Give a client whose replies can be lost, and its store."""
    async with Proxy(settings.url.get_secret_value()) as proxy:
        through = settings.model_copy(update={"url": SecretStr(proxy.url)})
        async with RedisStateStore(through) as store:
            yield Repeating(store.base.scripts, proxy), store


# Every script that removes or overwrites


@dataclass(frozen=True)
class Case:
    """What another client makes, the call that changes it, and how to look at it."""

    make: Step
    call: Step
    look: Step


async def _save_snapshots(scripts: Scripts, keys: Keys) -> None:
    for version in ("0011", "0012"):
        await scripts.save_snapshot(
            snapshot_keys(keys),
            version=version,
            snapshot_id="%",
            checkpoint=version == "0011",
            row=b"theirs",
            ttl_ms=HOUR,
        )


async def _look_at_snapshots(scripts: Scripts, keys: Keys) -> Any:
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


def _save_record(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.save_record(keys.memory("m"), {"document": b"theirs"}, write="w", ttl_ms=HOUR)


async def _log(scripts: Scripts, keys: Keys) -> Any:
    rows = await ask(scripts, "XRANGE", keys.updates("s").rows, "-", "+")
    return [found[1] for _, found in rows]


def _put_config(config: bytes) -> Step:
    return lambda scripts, keys: scripts.put_a2a_config(
        a2a_keys(keys), name="n", config=config, most=9, ttl_ms=HOUR
    )


async def _look_at_configs(scripts: Scripts, keys: Keys) -> Any:
    found = await fields(scripts, a2a_keys(keys).configs)
    return {name: value.partition(b" ")[2] for name, value in found.items() if name}


def _save_token(value: bytes, expires_ms: int | None = None) -> Step:
    return lambda scripts, keys: scripts.save_oauth_token(
        keys.oauth_token("u", "p"), value=value, expires_ms=expires_ms, ttl_ms=HOUR
    )


async def _look_at_token(scripts: Scripts, keys: Keys) -> Any:
    return await ask(scripts, "GET", keys.oauth_token("u", "p"))


def _set_stream(stream: str) -> Step:
    return lambda scripts, keys: scripts.name_a2a_stream(a2a_keys(keys), stream=stream)


async def _make_a2a_task(scripts: Scripts, keys: Keys) -> None:
    await create(scripts, a2a_keys(keys))


async def _make_stream(scripts: Scripts, keys: Keys) -> None:
    await _make_a2a_task(scripts, keys)
    await _set_stream("theirs")(scripts, keys)


async def _look_at_stream(scripts: Scripts, keys: Keys) -> Any:
    return await ask(scripts, "HGET", a2a_keys(keys).task, "stream")


def _drop(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return drop(scripts, a2a_keys(keys), tombstone_ms=0)


async def _claim_job(scripts: Scripts, keys: Keys) -> None:
    """Have the job claimed after others have fired it meanwhile."""
    await CALLS["save_job"](scripts, keys)
    lease = ("owner", "o", "claim", "o", "epoch", 1, "length", HOUR)
    claim = ("occurrence", 1, "asked", 1, "ended", "another", *lease)
    await ask(scripts, "HSET", job_keys(keys).job, *claim)


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


async def _queue(scripts: Scripts, keys: Keys, *tasks: str) -> None:
    """Queue jobs, each due an hour after the one before."""
    await ask(scripts, "DEL", keys.queue("q").queue)
    for place, task in enumerate(tasks):
        job = queued_job(keys, task, earlier_ms=(len(tasks) - place) * HOUR)
        await scripts.queue_job(keys.queue("q"), payload=job_payload(keys, task), job=job)


async def _claim(scripts: Scripts, keys: Keys) -> Reply:
    """Claim one, and tell which: the times are others in each server's history."""
    reply = await scripts.claim_jobs(keys.queue("q"), limit=1, life_ms=HOUR)
    return Reply(reply.word, [name.rpartition(b"/")[2] for name in reply.facts[3:4]])


async def _park(scripts: Scripts, keys: Keys) -> None:
    """Park one, and leave no other, in the queue or claimed."""
    await ask(scripts, "DEL", *(keys.queue("q")[:2]))
    await _queue(scripts, keys, "a")
    reply = await scripts.claim_jobs(keys.queue("q"), limit=1, life_ms=HOUR)
    *_, name, place, claimed = reply.facts
    await scripts.park_job(
        keys.queue("q"),
        payload=job_payload(keys, "a"),
        id=name,
        claimed=claimed,
        place=place,
        lane="v:h/1;",
        version=1,
        life_ms=HOUR,
    )


async def _claim_parked(scripts: Scripts, keys: Keys) -> Reply:
    reply = await scripts.claim_parked(keys.queue("q"), limit=1, life_ms=HOUR, lanes=["v:h/1;"])
    return Reply(reply.word, [name.rpartition(b"/")[2] for name in reply.facts[3:4]])


async def _parked(scripts: Scripts, keys: Keys) -> Any:
    return (await scripts.look_parked(keys.queue("q").keyed, lanes=1, limit=0)).facts


async def _queued(scripts: Scripts, keys: Keys) -> list[bytes]:
    names: list[bytes] = await ask(scripts, "ZRANGE", keys.queue("q").queue, 0, -1)
    return [name.rpartition(b"/")[2] for name in names]


async def _open_batch(scripts: Scripts, keys: Keys) -> None:
    task, gathering = task_keys(keys), keys.gathering("s")
    await ask(scripts, "DEL", task.task, gathering, f"{gathering}:items")
    values = ("status", "PENDING", "gathers", "b", "items", 0, "item_bytes", 0, "due", 1)
    await ask(scripts, "HSET", task.task, *values, "latest", 1)
    await ask(scripts, "HSET", gathering, "b", "t")
    for key in (task.task, gathering):
        await ask(scripts, "PEXPIRE", key, HOUR)


async def _make_durable_stream(scripts: Scripts, keys: Keys) -> None:
    await scripts.delete(keys.stream("s").info)
    await make_stream(scripts, keys)


async def _append_row(scripts: Scripts, keys: Keys) -> Any:
    reply = await add_row(scripts, keys)
    return reply.word, reply.text(0).partition("-")[0], reply.facts[1]


async def _look_at_rows(scripts: Scripts, keys: Keys) -> Any:
    found = await fields(scripts, keys.stream("s").info)
    return found, await ask(scripts, "XLEN", keys.stream("s").rows)


CASES = {
    "append_stream": Case(_make_durable_stream, _append_row, _look_at_rows),
    "delete_stream": Case(
        _make_durable_stream,
        lambda scripts, keys: scripts.delete_stream(
            keys.stream("s"), stream_id="id", forks=b"", keep=False
        ),
        _look_at_rows,
    ),
    "add_item": Case(
        _open_batch,
        lambda scripts, keys: scripts.add_item(
            GatheringKeys(keys.gathering("s")),
            task=task_keys(keys).task,
            task_id="t",
            name="b",
            item_id="",
            item=b"1",
            most=9,
            most_bytes=9,
            after_ms=1,
            keep_ms=HOUR,
        ),
        lambda scripts, keys: ask(scripts, "HGET", task_keys(keys).task, "items"),
    ),
    "delete_snapshots one": Case(
        _save_snapshots,
        lambda scripts, keys: scripts.delete_snapshots(snapshot_keys(keys), version="0012"),
        _look_at_snapshots,
    ),
    "delete_snapshots all": Case(
        _save_snapshots,
        lambda scripts, keys: scripts.delete_snapshots(snapshot_keys(keys), version=None),
        _look_at_snapshots,
    ),
    "prune_snapshots": Case(
        _save_snapshots,
        lambda scripts, keys: scripts.prune_snapshots(
            snapshot_keys(keys), keep_last=0, keep_checkpoints=True
        ),
        _look_at_snapshots,
    ),
    "rollback_snapshots": Case(
        _save_snapshots,
        lambda scripts, keys: scripts.rollback_snapshots(snapshot_keys(keys), prefix="c:"),
        _look_at_snapshots,
    ),
    "save_snapshot": Case(
        _save_snapshots,
        lambda scripts, keys: scripts.save_snapshot(
            snapshot_keys(keys),
            version="0012",
            snapshot_id="%",
            checkpoint=True,
            row=b"mine",
            ttl_ms=HOUR,
        ),
        _look_at_snapshots,
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
    "delete_record": Case(
        _save_record,
        lambda scripts, keys: scripts.delete_record(
            keys.memory("m"), index=None, member=None, only_if_gone=False
        ),
        lambda scripts, keys: ask(scripts, "HGET", keys.memory("m"), "document"),
    ),
    "claim_jobs": Case(
        lambda scripts, keys: _queue(scripts, keys, "a"),
        _claim,
        _queued,
    ),
    "claim_parked": Case(_park, _claim_parked, _parked),
    "clear_queue": Case(
        lambda scripts, keys: _queue(scripts, keys, "a"),
        lambda scripts, keys: scripts.clear_queue(keys.queue("q"), history=keys.queue_history()),
        _queued,
    ),
    "take_rate": Case(
        lambda scripts, keys: ask(scripts, "DEL", keys.rates()),
        lambda scripts, keys: scripts.take_rate(keys.rates(), name="r", rate=f"1 {HOUR}", cost=1),
        lambda scripts, keys: ask(scripts, "ZCARD", keys.rates()),
    ),
    "move_job": Case(
        lambda scripts, keys: _queue(scripts, keys, "a", "b"),
        lambda scripts, keys: scripts.move_job(
            keys.queue("q"), id=queued_job(keys, "b").id, earlier_ms=2 * HOUR
        ),
        _queued,
    ),
    "clear_log": Case(
        lambda scripts, keys: append(scripts, keys.updates("s"), "a", topic="t"),
        lambda scripts, keys: scripts.clear_log(keys.updates("s")),
        _log,
    ),
    "clear_task": Case(
        lambda scripts, keys: make_task(scripts, task_keys(keys), "PENDING"),
        lambda scripts, keys: scripts.clear_task(
            task_keys(keys), children=keys.children("s", "t"), lease_ms=HOUR
        ),
        lambda scripts, keys: ask(scripts, "HGET", task_keys(keys).task, "status"),
    ),
    "leave_trace": Case(
        _join_trace,
        lambda scripts, keys: scripts.leave_trace(
            trace_keys(keys, "t"), session="s", keeps=False, own=0, bindings=[]
        ),
        lambda scripts, keys: ask(scripts, "ZRANGE", trace_keys(keys, "t").sessions, 0, -1),
    ),
    "drop_a2a_configs": Case(
        _put_config(b"theirs"),
        lambda scripts, keys: scripts.drop_a2a_configs(a2a_keys(keys), name=""),
        _look_at_configs,
    ),
    "put_a2a_config": Case(_put_config(b"theirs"), _put_config(b"mine"), _look_at_configs),
    "save_oauth_token": Case(_save_token(b"theirs"), _save_token(b"mine"), _look_at_token),
    "save_oauth_token late": Case(_save_token(b"theirs"), _save_token(b"mine", 1), _look_at_token),
    "name_a2a_stream": Case(_make_stream, _set_stream("mine"), _look_at_stream),
    "drop_a2a_task": Case(
        _make_a2a_task,
        _drop,
        lambda scripts, keys: ask(scripts, "HGET", a2a_keys(keys).task, "state"),
    ),
    "end_job": Case(
        _claim_job,
        CALLS["end_job"],
        lambda scripts, keys: ask(scripts, "HGET", job_keys(keys).job, "owner"),
    ),
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
    "unlist_pauses": Case(
        CALLS["list_pause"],
        CALLS["unlist_pauses"],
        lambda scripts, keys: ask(scripts, "ZCARD", keys.opened_pauses()),
    ),
    "run_once DEL": _plain("SET", "theirs", call=("DEL",)),
    "run_once HDEL": _plain("HSET", "a", "theirs", call=("HDEL", "a", "b")),
    "run_once ZREM": _plain("ZADD", 1, "a", call=("ZREM", "a")),
}


def _dumping(name: str) -> Any:
    marks = [pytest.mark.role("any", why="it dumps keys")] if name.startswith("run_once") else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [*map(_dumping, CASES)])
async def test_what_another_client_wrote_before_a_repetition_stays(
    name: str,
    settings: Settings,
    scripts: Scripts,
    keys: Keys,
    beside: Callable[[str], Settings],
) -> None:
    case = CASES[name]
    undisturbed = Keys(beside("undisturbed").namespace)
    await case.make(scripts, undisturbed)
    expected = await case.call(scripts, undisturbed)
    await case.make(scripts, keys)
    made = await case.look(scripts, keys)

    async def is_done() -> bool:
        return bool(await case.look(scripts, keys) != made)

    async with repeating(settings) as (client, _):
        answer = await client.call(
            lambda: case.call(client.scripts, keys),
            done=is_done,
            meanwhile=lambda: case.make(scripts, keys),
        )
    assert answer == expected
    assert await case.look(scripts, keys) == made


def test_every_script_that_remembers_its_call_is_tried() -> None:
    remembering = {name for name, script in SCRIPTS.items() if script.once}
    assert remembering == {name.partition(" ")[0] for name in CASES}


@pytest.mark.role("any", why="it lists keys")
async def test_removals_at_once_are_each_remembered_for_as_long_as_they_may_be_repeated(
    settings: Settings, scripts: Scripts, keys: Keys
) -> None:
    task = snapshot_keys(keys)
    await _save_snapshots(scripts, keys)

    async def are_gone() -> bool:
        return not await _look_at_snapshots(scripts, keys)

    async with repeating(settings) as (client, _):
        answers = await client.call(
            lambda: asyncio.gather(
                client.scripts.rollback_snapshots(task, prefix="c:"),
                client.scripts.delete_snapshots(task, version="0011"),
                client.scripts.prune_snapshots(task, keep_last=0, keep_checkpoints=False),
            ),
            done=are_gone,
            meanwhile=lambda: _save_snapshots(scripts, keys),
        )
    assert list(answers) == [ok(b"0011", b"theirs"), ok(1), ok(0)]
    assert set(await _look_at_snapshots(scripts, keys)) == {"0011", "0011:", "0012", "0012:"}
    calls = await ask(scripts, "KEYS", call_key(task.rows, "*"))
    assert len(calls) == 3 + 4  # and the other client's saves
    longest_ms = settings.call_timeout_s * 1000 + 60_000
    assert all(0 < life <= longest_ms for life in await lives(scripts, *calls))


# As a user meets it


async def _gone(found: Awaitable[Any]) -> bool:
    return await found is None


async def test_a_repeated_rollback_keeps_the_snapshots_saved_since(
    settings: Settings, store: RedisStateStore
) -> None:
    def snapshot(version: int) -> Snapshot:
        return Snapshot(
            id=f"s{version}", task_id="t", version=version, data={}, checkpoint=version == 1
        )

    async def save_and_remove() -> None:
        await store.snapshots.save(snapshot(2))
        await store.snapshots.save(snapshot(3))
        # A later removal must not make the server forget the one that will be repeated.
        assert await store.snapshots.delete("t", 3)

    for version in (1, 2, 3):
        await store.snapshots.save(snapshot(version))
    async with repeating(settings) as (client, mine):
        found = await client.call(
            lambda: mine.snapshots.rollback("t"),
            done=lambda: _gone(store.snapshots.get("t", 2)),
            meanwhile=save_and_remove,
        )
    assert found is not None
    assert found.version == 1
    assert await store.snapshots.versions("t") == [1, 2]


async def test_a_repeated_deletion_keeps_the_session_that_was_created_since(
    settings: Settings, store: RedisStateStore
) -> None:
    session = fresh()
    theirs = SessionStore(store)
    await theirs.create(session)
    async with repeating(settings) as (client, mine):
        deleted = await client.call(
            lambda: SessionStore(mine).delete(session.session_id),
            done=lambda: _gone(theirs.load(session.session_id)),
            meanwhile=lambda: theirs.create(session),
        )
    assert deleted
    assert await theirs.exists(session.session_id)


async def test_a_repeated_deletion_keeps_the_same_bytes_stored_since(
    settings: Settings, store: RedisStateStore
) -> None:
    scope = ArtifactScope(session_id="s")
    artifacts = store.artifact_store
    ref = await artifacts.put_text("the same", scope=scope)
    async with repeating(settings) as (client, mine):
        deleted = await client.call(
            lambda: mine.artifact_store.delete(ref.id),
            done=lambda: _gone(artifacts.get(ref.id)),
            meanwhile=lambda: artifacts.put_text("the same", scope=scope),
        )
    assert deleted
    assert await artifacts.get(ref.id) == b"the same"
    assert [found.id for found in await artifacts.list()] == [ref.id]


# The class

_REMOVING = (
    r"DEL|UNLINK|HDEL|ZREM\w*|LTRIM|XTRIM|XDEL|SREM|LREM|GETDEL|SET|RENAME|HSET|HINCRBY|INCR"
)
# A plain command of these that is repeated does no harm.
_HARMLESS = {
    ("migration/side.py", "unlink(name)"),  # what others write there is to be discarded
    ("migration/side.py", "set_if_absent(probe"),  # a name that nobody else has
    ("primitives/blob.py", "unlink(upload.key)"),  # a key that is never used again
    ("testing/conformance/trial.py", "unlink(key)"),  # of a namespace whose workers have ended
    # of a session or a user that is being erased: what comes meanwhile is to go too
    ("erasure/user.py", "unlink(key.name)"),
    ("erasure/user.py", "unlink(index.name)"),
    ("worker/queue/withdrawing.py", "unlink(payload_key(job))"),
    ("worker/queue/withdrawing.py", "unlink(name)"),
    ("store.py", "unlink(key)"),  # of a namespace that nobody uses
    ("stores/a2a/page_tokens.py", "set_if_absent(key"),  # the first one stays
}


def test_no_plain_command_that_removes_is_repeated() -> None:
    folder = Path(redis_state.__file__).parent
    removing = re.compile(rf'send\(\s*b?"(?:{_REMOVING})".*')
    commands = (folder / "transport" / "commands.py").read_text(encoding="utf-8")
    assert [found.split('"')[1] for found in removing.findall(commands)] == ["SET", "UNLINK"]
    pattern = re.compile(r"\bcommands\.((?:unlink|set_if_absent)\(.*)")
    found = {
        (file.relative_to(folder).as_posix(), re.split(r"[,)]", command)[0])
        for file in folder.rglob("*.py")
        for command in pattern.findall(file.read_text(encoding="utf-8"))
    }
    assert found == {(place, command.rstrip(")")) for place, command in _HARMLESS}
