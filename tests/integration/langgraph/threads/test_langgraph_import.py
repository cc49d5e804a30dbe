"""Threads of another saver in RedisSaver: whole, again, after a kill, beside other writers."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("arq", reason="the command line needs the worker extra")
pytest.importorskip("langgraph")

from cryptography.fernet import Fernet
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.types import Command
from pydantic import SecretStr

from redis_state import CorruptState, InvalidField, RedisStateStore, Settings, ThreadClaimed
from redis_state.integrations.langgraph import RedisSaver, source_of
from redis_state.integrations.langgraph.importing.importer import ThreadImport
from redis_state.testing import eventually
from tests.support.agents import graph_sources
from tests.support.agents.graph_sources import LONG, fill, put
from tests.support.agents.graphs import adding_deltas, asking, config_of
from tests.support.commands import begin, cli, end
from tests.support.samples import changed
from tests.support.servers.proxies.command_proxy import CommandProxy

FROM = "tests.support.agents.graph_sources:given"


async def listed(saver: BaseCheckpointSaver[Any], thread: str) -> list[Any]:
    return [found async for found in saver.alist(config_of(thread))]


async def test_imported_threads_are_the_same_and_go_on(store: RedisStateStore) -> None:
    other, saver = InMemorySaver(), RedisSaver(store)
    source = source_of(other)
    threads = await fill(other)
    assert sorted([thread async for thread in source.threads()]) == threads
    for thread in threads:
        done = await saver.aimport_thread(source, thread)
        assert done.equal
        assert done.added == done.checkpoints == len(await listed(other, thread))
        assert await listed(saver, thread) == await listed(other, thread)
        again = await saver.aimport_thread(source, thread)
        assert (again.equal, again.added, again.added_writes) == (True, 0, 0)
        assert again.target_digest == done.source_digest
    effects: list[Any] = []
    graph = asking(saver, effects.append, "pay", "ship")
    state = await graph.aget_state(config_of("asks"))
    answers = {each.id: "yes" for each in state.interrupts}
    assert len(answers) == 2
    await graph.ainvoke(Command(resume=answers), config_of("asks"))
    assert sorted(effects) == [("pay", "yes"), ("ship", "yes")]
    # A thread that has gone on has all that its source has, and more.
    ahead = await saver.aimport_thread(source, "asks", check=True)
    assert ahead.equal
    assert ahead.extra > 0
    deltas = [
        (await adding_deltas(each, steps=13).aget_state(config_of("deltas"))).values
        for each in (saver, other)
    ]
    assert deltas[0] == deltas[1]


async def test_what_the_source_gets_later_is_added(store: RedisStateStore) -> None:
    other, saver = InMemorySaver(), RedisSaver(store)
    source = source_of(other)
    first = await put(other, "t", 0, a=1)
    await other.aput_writes(first, [("a", 1), ("b", 2)], "task-2")
    assert (await saver.aimport_thread(source, "t")).added_writes == 2
    # A task whose id comes before, but which wrote later, and special writes.
    await other.aput_writes(first, [("a", 3), ("__interrupt__", "x"), ("b", 4)], "task-1")
    await put(other, "t", 1, a=2)
    await put(other, "t", 1, namespace="node:1", a=5)
    seen = await saver.aimport_thread(source, "t", check=True)
    assert (seen.equal, seen.missing, seen.added) == (False, 2, 0)
    done = await saver.aimport_thread(source, "t")
    assert (done.equal, done.added, done.added_writes) == (True, 2, 3)
    found = await saver.aget_tuple(first)
    assert found is not None
    assert sorted(found.pending_writes or []) == sorted(
        [
            *(("task-2", "a", 1), ("task-2", "b", 2), ("task-1", "a", 3)),
            *(("task-1", "__interrupt__", "x"), ("task-1", "b", 4)),
        ]
    )


async def test_writes_keep_the_order_of_their_tasks(store: RedisStateStore) -> None:
    other, saver = InMemorySaver(), RedisSaver(store)
    config = await put(other, "t", 0, a=1)
    for task, path in (("b", "1"), ("a", "2"), ("c", "0")):
        await other.aput_writes(config, [("x", task), ("y", task)], task, path)
    assert (await saver.aimport_thread(source_of(other), "t")).equal
    found, given = await saver.aget_tuple(config), await other.aget_tuple(config)
    assert found is not None
    assert given is not None
    assert found.pending_writes == given.pending_writes
    assert [task for task, *_ in found.pending_writes or []] == ["c", "c", "b", "b", "a", "a"]


@pytest.mark.parametrize("thread", ["", "a:b", "{a}", "ä", "x" * 301, "*?[x]"])
async def test_odd_names_are_imported(store: RedisStateStore, thread: str) -> None:
    other, saver = InMemorySaver(), RedisSaver(store)
    for namespace in ("", "node:1|sub:2", "n" * 200):
        config = await put(other, thread, 0, namespace=namespace, a=[namespace])
        await other.aput_writes(config, [("a b\n", 1)], "task id")
    done = await saver.aimport_thread(source_of(other), thread)
    assert (done.equal, done.added, done.extra) == (True, 3, 0)
    assert {
        each.config["configurable"]["checkpoint_ns"] for each in await listed(saver, thread)
    } == {*("", "node:1|sub:2", "n" * 200)}


async def test_values_are_sealed_and_compared(settings: Settings) -> None:
    other = InMemorySaver()
    await put(other, "t", 0, a="a secret", b={"x", "y", "z"})
    keys = SecretStr(Fernet.generate_key().decode())
    sealed = settings.model_copy(update={"payload_keys": keys})
    async with RedisStateStore(sealed) as store:
        saver = RedisSaver(store)
        for added in (1, 0):
            done = await saver.aimport_thread(source_of(other), "t")
            assert (done.equal, done.added) == (True, added)
        key = store.base.keys.graph_thread("t")
        stored: list[bytes] = await store.transport.sender.send("HGETALL", key, repeatable=True)
        assert stored
        assert not any(b"a secret" in part for part in stored)


class _Cipher:
    """Encrypts each time in another way, as ciphers do."""

    def __init__(self) -> None:
        self._fernet = Fernet(Fernet.generate_key())

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "fernet", self._fernet.encrypt(plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "fernet"
        return self._fernet.decrypt(ciphertext)


async def put_shared(saver: Any, thread: str) -> None:
    """Put two checkpoints with one version of a value, the first of a run."""
    for n, run in enumerate(({"run_id": "r"}, {})):
        checkpoint = empty_checkpoint() | {"id": f"{n}", "channel_versions": {"a": 1}}
        checkpoint["channel_values"] = {"a": {"x", "y"}}
        config = config_of(thread, checkpoint_ns="")
        await saver.aput(config, checkpoint, {"step": n, **run}, {"a": 1})


async def test_a_serializer_may_write_a_value_in_another_way_each_time(
    store: RedisStateStore,
) -> None:
    other, saver = InMemorySaver(), RedisSaver(store, serde=EncryptedSerializer(_Cipher()))
    await put_shared(other, "shared")
    for thread in (*await fill(other), "shared"):
        for added in (len(await listed(other, thread)), 0):
            done = await saver.aimport_thread(source_of(other), thread)
            assert (done.equal, done.added) == (True, added)
        assert await listed(saver, thread) == await listed(other, thread)


@pytest.mark.parametrize("thread", [7, uuid.UUID(int=7)])
async def test_an_id_that_is_no_text_is_imported_as_its_text(
    store: RedisStateStore, settings: Settings, thread: Any
) -> None:
    other, saver = InMemorySaver(), RedisSaver(store)
    await put(other, thread, 0, a=1)
    graph_sources.made["given"] = other
    ran = await cli(settings, "langgraph", "import", "--from", FROM, "--json")
    assert (ran.status, ran.document["added"], ran.document["failed"]) == (0, 1, {})
    (found,) = await listed(saver, str(thread))
    assert found.checkpoint["channel_values"] == {"a": 1}
    with pytest.raises(InvalidField, match="thread_id"):
        await saver.aimport_thread(source_of(other), None)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def test_a_checkpoint_comes_behind_those_whose_values_it_needs(
    store: RedisStateStore, settings: Settings
) -> None:
    """Only the first is of a run. A kill in between leaves the second one without its value."""
    other, found = InMemorySaver(), list[str]()
    await put_shared(other, "t")

    async def look() -> None:
        found.extend(each.checkpoint["id"] for each in await listed(RedisSaver(store), "t"))

    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url) as far,
    ):
        with proxy.meanwhile("put_checkpoint", look, holding="%:1"):
            assert (await RedisSaver(far).aimport_thread(source_of(other), "t")).equal
    assert found == ["0"]


async def test_a_claimed_thread_is_left_alone(store: RedisStateStore, settings: Settings) -> None:
    other, saver = InMemorySaver(), RedisSaver(store)
    await put(other, "t", 0, a=1)
    await put(other, "u", 0, a=1)
    graph_sources.made["given"] = other
    async with RedisSaver(store).claim("t", lease_s=1):
        with pytest.raises(ThreadClaimed):
            await saver.aimport_thread(source_of(other), "t")
        ran = await cli(settings, "langgraph", "import", "--from", FROM, "--json")
    assert ran.status == 1
    assert (ran.document["claimed"], ran.document["added"]) == (["t"], 1)
    assert await listed(saver, "t") == []
    assert len(await listed(saver, "u")) == 1


async def test_what_differs_is_counted_and_left_alone(
    store: RedisStateStore, settings: Settings
) -> None:
    other, saver = InMemorySaver(), RedisSaver(store)
    await put(other, "t", 0, a=1)
    await put(saver, "t", 0, a=2)
    graph_sources.made["given"] = other
    for arguments in (["import"], ["import", "--dry-run"], ["check"]):
        ran = await cli(settings, "langgraph", *arguments, "--from", FROM, "--json")
        assert ran.status == 1
        assert (ran.document["different"], ran.document["unequal"]) == (1, ["t"])
        assert ran.document["source_digest"] != ran.document["target_digest"]
    (found,) = await listed(saver, "t")
    assert found.checkpoint["channel_values"] == {"a": 2}


async def test_a_dry_run_writes_nothing_and_a_check_compares(settings: Settings) -> None:
    other = InMemorySaver()
    await fill(other)
    graph_sources.made["given"] = other
    asked = ("--from", FROM, "--json")
    dry = await cli(settings, "langgraph", "import", "--dry-run", *asked)
    assert dry.status == 0
    assert dry.document["threads"] == 3
    assert dry.document["missing"] == dry.document["checkpoints"] > 0
    assert (await cli(settings, "langgraph", "check", *asked)).status == 1
    one = await cli(settings, "langgraph", "import", "--thread", "loop", *asked)
    assert (one.status, one.document["threads"]) == (0, 1)
    ran = await cli(settings, "langgraph", "import", "--from", FROM)
    assert ran.status == 0
    checked = await cli(settings, "langgraph", "check", *asked)
    assert (checked.status, checked.document["missing"]) == (0, 0)
    assert checked.document["source_digest"] == checked.document["target_digest"]
    assert checked.document["source_digest"] in ran.out


async def test_threads_that_are_named_and_not_there_are_named_again(
    settings: Settings, tmp_path: Path
) -> None:
    other = InMemorySaver()
    await put(other, "t", 0, a=1)
    graph_sources.made["given"] = other
    ids = tmp_path / "ids"
    asked = ("langgraph", "import", "--from", FROM, "--json", "--threads-file", str(ids))
    missing = await cli(settings, *asked)
    assert (missing.status, missing.out) == (2, "")
    assert f"{ids} cannot be read: No such file" in missing.err
    ids.write_bytes(b"\xff")
    assert "is not UTF-8" in (await cli(settings, *asked)).err
    ids.write_text("t\n\nmistyped\n", encoding="utf-8")
    ran = await cli(settings, *asked)
    assert (ran.status, ran.document["added"], ran.document["equal"]) == (1, 1, False)
    assert ran.document["failed"] == {"mistyped": "the source has no such thread"}


@dataclass
class _Mine:
    n: int


async def put_gone(saver: Any, thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a checkpoint with a type of a module that is gone from then on."""
    module = ModuleType("gone_tomorrow")
    kind: Any = type("Mine", (_Mine,), {"__module__": "gone_tomorrow"})
    module.Mine = kind  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "gone_tomorrow", module)
    await put(saver, thread, 0, a=kind(1))
    monkeypatch.delitem(sys.modules, "gone_tomorrow")


async def test_a_type_that_is_not_importable_stops_its_thread(
    store: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, saver = InMemorySaver(), RedisSaver(store)
    await put_gone(other, "mine", monkeypatch)
    await put(other, "t", 0, a=1)
    with pytest.raises(CorruptState, match=r"gone_tomorrow\.Mine"):
        await saver.aimport_thread(source_of(other), "mine")
    graph_sources.made["given"] = other
    ran = await cli(settings, "langgraph", "import", "--from", FROM, "--json")
    assert (ran.status, ran.document["added"]) == (1, 1)
    assert list(ran.document["failed"]) == ["mine"]
    assert await listed(saver, "mine") == []


class _Waiting(InMemorySaver):
    """Lists the threads of numbers when all others are listed."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.begun, self.rest_is_read = asyncio.Event(), asyncio.Event()

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        waits = config["configurable"]["thread_id"].isdigit()
        if waits:
            self.begun.set()
        await (self.rest_is_read if waits else self.begun).wait()
        async for each in super().alist(config, **options):
            yield each
        self.rest_is_read.set()


async def test_a_type_that_is_not_importable_stops_no_other_thread(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, saver = _Waiting(), RedisSaver(store)
    await put_gone(other, "mine", monkeypatch)
    await put(other, "7", 0, a=1)
    source = source_of(other)
    done, failed = await asyncio.gather(
        saver.aimport_thread(source, "7"),
        saver.aimport_thread(source, "mine"),
        return_exceptions=True,
    )
    assert isinstance(done, ThreadImport)
    assert (done.equal, done.added) == (True, 1)
    assert isinstance(failed, CorruptState)


class _Fixed(InMemorySaver):
    """Lists what it is given, as a saver does that stores whole checkpoints."""

    change: Callable[[Any], Any]

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        async for each in super().alist(config, **options):
            self.change(each)
            yield each


def _unversion(each: Any) -> None:
    each.checkpoint["channel_versions"].clear()


def _share_a_version(each: Any) -> None:
    each.checkpoint["channel_versions"].update(a=1)


def _space(each: Any) -> None:
    each.checkpoint.update(id="a b")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("channel_values", _unversion),
        ("channel_versions.a", _share_a_version),
        ("checkpoint.id", _space),
    ],
)
async def test_what_cannot_be_kept_is_refused(
    store: RedisStateStore, field: str, change: Callable[[Any], Any]
) -> None:
    other, saver = _Fixed(), RedisSaver(store)
    other.change = change
    for n in range(2):
        await put(other, "t", n, a=n)
    with pytest.raises(InvalidField) as raised:
        await saver.aimport_thread(source_of(other), "t")
    assert raised.value.field == field
    assert await listed(saver, "t") == []


async def test_an_import_that_was_killed_is_completed(
    settings: Settings, store: RedisStateStore
) -> None:
    asked = ("langgraph", "import", "--from", "tests.support.agents.graph_sources:long", "--json")
    first = await begin(settings, *asked)
    order = store.base.keys.graph_order("long")

    async def there() -> int:
        counted: int = await store.transport.sender.send("ZCARD", order, repeatable=True)
        return counted

    await eventually(there, "the first checkpoints are there", timeout_s=60)
    first.kill()
    await first.wait()
    before = await there()
    ran = await end(await begin(settings, *asked))
    assert ran.status == 0
    assert ran.document["equal"]
    assert ran.document["added"] == LONG - before
    found = await listed(RedisSaver(store), "long")
    assert [each.checkpoint["channel_values"]["number"] for each in found] == [*range(LONG)][::-1]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere", "MODULE:FACTORY"),
        ("mysql://x", "MODULE:FACTORY"),
        ("sqlite:///not/there", "no file"),
        ("tests.support.agents.graph_sources:absent", "absent"),
        ("tests.support.agents.graph_sources:nothing", "object"),
        ("not_there:saver", "not_there"),
    ],
)
async def test_a_wrong_source_is_named(settings: Settings, source: str, says: str) -> None:
    ran = await cli(settings, "langgraph", "import", "--from", source)
    assert ran.status == 2
    assert says in ran.err
