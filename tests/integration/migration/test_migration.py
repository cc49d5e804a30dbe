"""A namespace on two servers: copied in passes, compared, and continued on the second."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    BackendError,
    BackendUnavailable,
    CommandRefused,
    ConfigError,
    LostRace,
)
from redis_state.migration import Migration, PassProgress
from redis_state.migration.content import Content
from redis_state.migration.namespace import ServerNamespace
from redis_state.rights import Role, user_rule
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from redis_state.transport.sending.sender import Sender
from redis_state.transport.transport import Transport
from tests.support.samples import update as make_update
from tests.support.script_calls import CALLS
from tests.support.servers.choice import on_path, wheel_binary
from tests.support.servers.faults import Proxy, run_server, sender_to, short_directory
from tests.support.servers.proxies.command_proxy import CommandProxy
from tests.support.servers.sets.clusters import running_cluster
from tests.support.servers.states import assert_alike, state_of
from tests.support.sizes import sizes

pytestmark = [pytest.mark.server]
NAMESPACE = "moved"


@pytest.fixture
def source(own_url: str) -> Settings:
    return settings_of(own_url)


@pytest.fixture
async def target() -> AsyncIterator[Settings]:
    with short_directory() as directory, run_server(directory) as url:
        yield settings_of(url)


def settings_of(url: str) -> Settings:
    return Settings(url=SecretStr(url), namespace=NAMESPACE)


def state(settings: Settings, **options: str) -> dict[str, tuple[Any, int]]:
    return state_of(settings.url.get_secret_value(), NAMESPACE, **options)


async def fill(settings: Settings, *, seed: int = 1, keys: int = 150) -> None:
    """Write what every script writes, and random keys of all types, some of them large."""
    chance = random.Random(seed)
    transport = Transport(settings)
    for call in CALLS.values():
        await call(Scripts(transport), Keys(NAMESPACE))
    for number in range(keys):
        await _write_random(transport, f"{NAMESPACE}:v1:{{r{number}}}:random", chance)
    await transport.aclose()


async def _write_random(transport: Transport, key: str, chance: random.Random) -> None:
    async def send(*command: Any) -> Any:
        return await transport.sender.send(*command, repeatable=True)

    def word() -> bytes:
        return chance.randbytes(chance.choice((0, 1, 20, 20, 300)))

    many = chance.choice((1, 2, 30, 30, 700))
    kind = chance.choice(("string", "hash", "list", "zset", "stream", "trimmed"))
    await send("UNLINK", key)
    match kind:
        case "string":
            await send("SET", key, word() * many)
        case "hash":
            await send("HSET", key, *(part for n in range(many) for part in (b"%d" % n, word())))
        case "list":
            await send("RPUSH", key, *(word() for _ in range(many)))
        case "zset":
            scores = (1.1, -0.1, 2**53, 1e300, float("inf"), 1 / 3)
            rows = [(repr(chance.choice(scores)), word()) for _ in range(many)]
            await send("ZADD", key, *(part for row in rows for part in row))
        case _:
            await asyncio.gather(
                *(send("XADD", key, f"5-{n}", "f", word()) for n in range(1, many + 1))
            )
            await send("XTRIM", key, "MAXLEN", 0 if kind == "trimmed" else many // 2)
    if chance.random() < 0.9:
        await send("PEXPIRE", key, chance.choice((60_000, 10**9)))


async def change_some(settings: Settings, *, seed: int) -> None:
    """Write some of the random keys again, and delete others."""
    chance = random.Random(seed)
    transport = Transport(settings)
    for number in range(0, 150, 7):
        key = f"{NAMESPACE}:v1:{{r{number}}}:random"
        if chance.random() < 0.3:
            await transport.commands.unlink(key)
        else:
            await _write_random(transport, key, chance)
    await transport.aclose()


async def copy(source: Settings, target: Settings, **options: Any) -> Any:
    async with Migration(source, target) as migration:
        return await migration.copy(**options)


async def test_every_key_is_copied_with_its_lifetime_and_the_next_pass_copies_what_changed(
    source: Settings, target: Settings
) -> None:
    await fill(source)
    seen: list[PassProgress] = []
    async with Migration(source, target) as migration:
        done = await migration.copy(listen=seen.append)
        assert done.complete
        here = state(source)
        assert (done.copied, done.same, done.dropped) == (len(here), 0, 0)
        assert_alike(here, state(target))
        assert seen[-1] == PassProgress(len(here), done.bytes)
        assert (await migration.copy()).copied == 0
        assert (await migration.check()).equal

        await change_some(source, seed=2)
        found = await migration.check()
        assert not found.equal
        assert found.different.count
        assert found.extra.count
        again = await migration.copy()
        assert 0 < again.copied < 30
        assert again.dropped == found.extra.count
        assert_alike(state(source), state(target))
        assert (await migration.finish()).finished
    # Nothing of the migration stays.
    assert state(target, pattern="moving:*") == {}
    assert_alike(state(source), state(target))


async def test_what_others_wrote_at_the_target_is_left_alone_unless_it_is_to_be_replaced(
    source: Settings, target: Settings
) -> None:
    async with RedisStateStore(source) as here, RedisStateStore(target) as there:
        await here.save_memory_state("both", {"n": 1})
        await here.save_memory_state("gone", {"n": 1})
        await copy(source, target)
        # Somebody uses the target already.
        for key in ("both", "new"):
            await there.save_memory_state(key, {"n": 2})
        await here.save_memory_state("both", {"n": 3})
        await here.save_memory_state("gone", {"n": 4})
        done = await copy(source, target)
        assert (done.conflicts.count, done.copied, done.complete) == (2, 1, False)
        assert sorted(done.conflicts.first) == sorted(
            there.base.keys.memory(key) for key in ("both", "new")
        )
        assert await there.load_memory_state("both") == {"n": 2}
        assert await there.load_memory_state("new") == {"n": 2}
        assert (await copy(source, target, overwrite=True)).complete
        assert_alike(state(source), state(target))


async def test_nothing_is_finished_or_deleted_while_they_differ(
    source: Settings, target: Settings
) -> None:
    async with RedisStateStore(source) as here, Migration(source, target) as migration:
        await here.save_memory_state("a", {"n": 1})
        await migration.copy()
        await here.save_memory_state("a", {"n": 2})
        found = await migration.finish(delete_source=True)
        assert (found.finished, found.deleted, found.different.count) == (False, 0, 1)
        assert state(source)
        assert state(target, pattern="moving:*")
        await migration.copy()
        found = await migration.finish(delete_source=True)
        assert (found.finished, found.deleted) == (True, found.same)
    assert state(source) == {}
    assert state(target)


async def test_a_deletion_of_the_source_that_was_cut_off_is_completed(
    source: Settings, target: Settings
) -> None:
    async with RedisStateStore(source) as here:
        for number in range(30):
            await here.save_memory_state(f"m{number}", {"n": number})
    async with (
        CommandProxy(source.url.get_secret_value()) as proxy,
        Migration(settings_of(proxy.url), target) as migration,
    ):
        await migration.copy()
        before = state(target, pattern="v1:*")
        with (
            proxy.answer("UNLINK", "NOPERM no right", at=10, times=None),
            pytest.raises(CommandRefused),
        ):
            await migration.finish(delete_source=True)
        assert 0 < len(state(source)) < 30
        assert not (await migration.finish()).finished
        found = await migration.finish(delete_source=True)
        assert (found.finished, found.stale) == (True, 0)
    assert state(source) == {}
    assert_alike(before, state(target, pattern="v1:*"))


async def test_what_was_copied_and_is_gone_stands_against_a_deletion(
    source: Settings, target: Settings
) -> None:
    async with RedisStateStore(source) as here, Migration(source, target) as migration:
        for key in ("a", "b"):
            await here.save_memory_state(key, {})
        await migration.copy()
        await here.transport.commands.unlink(here.base.keys.memory("a"))
        found = await migration.finish(delete_source=True)
        assert (found.finished, found.extra.count, found.stale) == (False, 1, 1)
        assert state(source)


async def test_a_lifetime_goes_on_while_a_key_is_copied(source: Settings, target: Settings) -> None:
    async with (
        RedisStateStore(source) as here,
        ServerNamespace(source) as one,
        ServerNamespace(target) as other,
    ):
        name = here.base.keys.memory("m")
        await here.save_memory_state("m", {})
        commands = here.transport.commands
        content, _ = await one.read(name)
        assert content is not None
        assert content.left_ms is not None
        left_ms = content.left_ms

        async def went_on() -> bool:
            return bool(await commands.pttl(name) < left_ms - 1000)

        await eventually(went_on, "a second of its lifetime is over")
        await other.write(name, content)
        async with RedisStateStore(target) as there:
            # Both clocks began within the read.
            assert await there.transport.commands.pttl(name) < left_ms - 200


async def test_no_copy_has_parts_of_another_that_is_made_at_the_same_time(
    target: Settings,
) -> None:
    name = Keys(NAMESPACE).tasks("s")
    mine, others = (Content("list", 60_000) for _ in range(2))
    mine.add([b"mine"] * 1200)
    others.add([b"other"] * 1200)
    url = target.url.get_secret_value()
    async with (
        CommandProxy(url) as near,
        CommandProxy(url) as far,
        ServerNamespace(settings_of(near.url)) as one,
        ServerNamespace(settings_of(far.url)) as other,
    ):

        async def begin() -> None:
            with far.answer("write_part", at=2, times=None), pytest.raises(BackendError):
                await other.write(name, others)

        with near.meanwhile("write_part", begin, at=2):
            await one.write(name, mine)
        found, copied = await one.read(name)
    assert found is not None
    assert found.digest() == copied == mine.digest()


@pytest.mark.parametrize("rows", sizes(400, 20_000))
async def test_a_pass_under_load_is_completed_by_one_at_rest_and_cursors_stay_valid(
    source: Settings, target: Settings, rows: int
) -> None:
    written, over = 0, False

    async def write() -> None:
        nonlocal written
        while not over:
            await store.save_update(make_update(f"u{written}", session_id="s"))
            written += 1

    async with RedisStateStore(source) as store, Migration(source, target) as migration:
        writer = asyncio.create_task(write())
        await eventually(lambda: written > rows // 4, "there is something to copy")
        middle = (await store.read_updates("s", limit=100)).cursor
        passes = 0
        while written < rows:
            await migration.copy()
            passes += 1
        assert not (await migration.check()).equal
        over = True
        await writer
        await migration.copy()
        assert (await migration.finish()).finished
    assert passes
    # Who reads on at the target misses nothing and sees nothing twice.
    async with RedisStateStore(target) as store:
        await store.save_update(make_update("after", session_id="s"))
        async with aclosing(store.watch_updates("s", after=middle)) as entries:
            found: list[str] = []
            async for entry in entries:
                found.append(entry.value.update_id)
                if found[-1] == "after":
                    break
    kept = 100 + len(found)
    assert found == [*(f"u{n}" for n in range(written - (kept - 101), written)), "after"]


async def test_a_link_that_is_cut_while_keys_are_copied_costs_nothing(
    source: Settings, target: Settings
) -> None:
    await fill(source, seed=3)
    async with (
        Proxy(source.url.get_secret_value()) as far,
        Proxy(target.url.get_secret_value()) as near,
    ):
        looked = 0

        def cut(_: PassProgress) -> None:
            nonlocal looked
            looked += 1
            if looked % 40 == 0:
                (far if looked % 80 else near).cut()

        done = await copy(settings_of(far.url), settings_of(near.url), listen=cut)
        assert far.cuts
        assert near.cuts
    assert done.complete
    assert_alike(state(source), state(target))


@pytest.mark.parametrize("to_wheel", [True, False])
async def test_between_servers_that_cannot_read_each_others_dumps(to_wheel: bool) -> None:  # noqa: FBT001
    redis = on_path()
    if redis is None:
        pytest.skip("no redis-server on PATH")
    binaries = [redis, str(wheel_binary())]
    with (
        short_directory() as one,
        short_directory() as two,
        run_server(one, binary=binaries[not to_wheel]) as here,
        run_server(two, binary=binaries[to_wheel]) as there,
    ):
        await fill(settings_of(here), seed=4)
        assert (await copy(settings_of(here), settings_of(there))).complete
        assert_alike(state(settings_of(here)), state(settings_of(there)))


async def test_to_a_cluster_and_back(source: Settings, target: Settings) -> None:
    await fill(source, seed=5)
    async with running_cluster() as cluster:
        middle = settings_of(cluster.url)
        for here, there in ((source, middle), (middle, target)):
            async with Migration(here, there) as migration:
                assert (await migration.copy()).complete
                assert (await migration.finish()).finished
        assert_alike(state(source), state(middle))
    assert_alike(state(source), state(target))


async def test_a_pass_while_slots_move_is_refused_at_its_end(
    source: Settings, target: Settings
) -> None:
    """A key that moves to a node that was walked through is in no page."""
    await fill(source, seed=6)
    # More than are copied at once: the walk ends after the first was copied.
    async with RedisStateStore(source) as store:
        await asyncio.gather(*(store.save_memory_state(f"k{n}", {"n": n}) for n in range(600)))
    async with running_cluster() as cluster:
        moving = settings_of(cluster.url)
        assert (await copy(source, moving)).complete
        first, second = cluster.ports[:2]
        # An empty one.
        slot = await cluster.empty_slot(first)
        async with Migration(moving, target) as migration:
            await cluster.begin_move(slot, second)
            with pytest.raises(LostRace, match="are being moved"):
                await migration.copy()
            await cluster.end_move(slot, second)

            moved: list[PassProgress] = []

            def move_once(done: PassProgress) -> None:
                if not moved:
                    moved.append(done)
                    cluster.give_at_once(slot, second, first)

            with pytest.raises(LostRace, match="are being moved"):
                await migration.copy(listen=move_once)
            assert (await migration.copy()).complete
            assert (await migration.finish(delete_source=True)).finished
    assert_alike(state(source), state(target))


async def test_both_addresses_of_one_server_are_refused(source: Settings) -> None:
    async with Proxy(source.url.get_secret_value()) as proxy:
        with pytest.raises(ConfigError, match="are the same server"):
            await copy(source, settings_of(proxy.url))
    with pytest.raises(ConfigError, match="keeps the namespace"):
        Migration(source, source.model_copy(update={"namespace": "other"}))


async def test_a_target_that_cannot_be_reached_is_named(source: Settings) -> None:
    absent = Settings(url=SecretStr("redis://127.0.0.1:1"), namespace=NAMESPACE, call_timeout_s=0.2)
    with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1:1"):
        await copy(source, absent)


async def test_a_key_of_a_strange_type_is_named_and_left_out(
    source: Settings, target: Settings
) -> None:
    transport = Transport(source)
    key = f"{NAMESPACE}:v1:{{x}}:set"
    await transport.sender.send("SADD", key, "a", repeatable=True)
    await transport.aclose()
    done = await copy(source, target)
    assert (done.strange.first, done.complete) == ([key], False)
    assert state(target) == {}


async def test_admins_of_the_namespace_on_both_servers_are_refused_nothing(
    source: Settings, target: Settings
) -> None:
    rule = user_rule(source, Role.ADMIN)
    user, *words = rule.words()
    await fill(source, seed=6, keys=60)
    async with AsyncExitStack() as stack:
        sides: list[Settings] = []
        logs: list[Sender] = []
        for each in (source, target):
            url = each.url.get_secret_value()
            sender = await stack.enter_async_context(sender_to(url))
            await sender.send("ACL", "SETUSER", user, "reset", ">pw", *words, repeatable=True)
            sides.append(settings_of(url.replace("unix://", f"unix://{user}:pw@")))
            logs.append(sender)
        async with Migration(*sides) as migration:
            assert (await migration.copy()).complete
            assert (await migration.finish(delete_source=True)).finished
        for sender in logs:
            assert await sender.send("ACL", "LOG", repeatable=True) == []
    assert state(source) == {}
