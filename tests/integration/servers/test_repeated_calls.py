"""A call whose reply was lost is repeated. What another client wrote in between stays as it is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import SecretStr

import redis_state
from redis_state import RedisStateStore, Settings
from redis_state.agents import SessionStore
from redis_state.models.artifacts import ArtifactScope
from redis_state.models.hosts.snapshots import Snapshot
from redis_state.scripts import SCRIPTS, Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys, call_key
from tests.support.agents.sessions import fresh
from tests.support.once_calls import CASES
from tests.support.once_calls.stored import look_at_snapshots, save_snapshots
from tests.support.scripts.keys import snapshot_keys
from tests.support.scripts.replies import ask, lives, ok
from tests.support.servers.faults import Proxy

T = TypeVar("T")


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
    # These remember their calls in the record.
    remembering |= {"put_record", "save_task", "save_job"}
    assert remembering == {name.partition(" ")[0] for name in CASES}


@pytest.mark.role("any", why="it lists keys")
async def test_removals_at_once_are_each_remembered_for_as_long_as_they_may_be_repeated(
    settings: Settings, scripts: Scripts, keys: Keys
) -> None:
    task = snapshot_keys(keys)
    await save_snapshots(scripts, keys)

    async def are_gone() -> bool:
        return not await look_at_snapshots(scripts, keys)

    async with repeating(settings) as (client, _):
        answers = await client.call(
            lambda: asyncio.gather(
                client.scripts.rollback_snapshots(task, prefix="c:"),
                client.scripts.delete_snapshots(task, version="0011"),
                client.scripts.prune_snapshots(task, keep_last=0, keep_checkpoints=False),
            ),
            done=are_gone,
            meanwhile=lambda: save_snapshots(scripts, keys),
        )
    assert list(answers) == [ok(b"0011", b"theirs"), ok(1), ok(0)]
    assert set(await look_at_snapshots(scripts, keys)) == {"0011", "0011:", "0012", "0012:"}
    calls = await ask(scripts, "KEYS", call_key(task.rows, "*"))
    assert len(calls) == 3 + 4  # and the other client's saves
    longest_ms = settings.call_timeout_s * 1000 + 60_000
    assert all(0 < life <= longest_ms for life in await lives(scripts, *calls))


async def _gone(found: Awaitable[Any]) -> bool:
    return await found is None


async def test_a_repeated_save_without_a_version_keeps_what_was_saved_since(
    settings: Settings, store: RedisStateStore
) -> None:
    async def is_saved() -> bool:
        return await store.load_memory("m") is not None

    async with repeating(settings) as (client, mine):
        await client.call(
            lambda: mine.save_memory_state("m", {"by": "me"}),
            done=is_saved,
            meanwhile=lambda: store.save_memory_state("m", {"by": "another"}),
        )
    assert await store.load_memory("m") == ({"by": "another"}, 2)


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
    ("migration/namespace.py", "unlink(name)"),  # what others write there is to be discarded
    ("migration/namespace.py", "set_if_absent(probe"),  # a name that nobody else has
    ("primitives/blob.py", "unlink(upload.key)"),  # a key that is never used again
    ("testing/conformance/trial.py", "unlink(key)"),  # of a namespace whose workers have ended
    # of a session or a user that is being erased: what comes meanwhile is to go too
    ("erasure/memories.py", "unlink(key.name)"),
    ("erasure/user.py", "unlink(key.name)"),
    ("worker/queue/jobs/withdrawing.py", "unlink(payload_key(job))"),
    ("worker/queue/jobs/withdrawing.py", "unlink(name)"),
    ("worker/queue/claims.py", "unlink(_payload_of(job"),  # of a job that no worker of ours runs
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
