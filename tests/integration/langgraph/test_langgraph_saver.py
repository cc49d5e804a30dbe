"""RedisSaver under graphs, with odd ids, sealed values, other writers, and killed ones."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any, TypedDict

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from cryptography.fernet import Fernet
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from pydantic import SecretStr

from redis_state import (
    ConfigError,
    InvalidField,
    LeaseLost,
    PayloadTooLarge,
    PayloadUnreadable,
    RedisStateStore,
    Settings,
    ThreadClaimed,
)
from redis_state.integrations.langgraph import RedisSaver
from redis_state.integrations.langgraph.threads.stored.places import value_name
from redis_state.testing import eventually
from tests.support.agents.graphs import adding_deltas, asking, config_of, counting
from tests.support.processes import forkserver

ODD = [
    "",
    " ",
    "a:b",
    "a/b",
    "%",
    "%25",
    "{a}",
    "}{",
    "\0",
    "ä\ud800",
    "*?[x]",
    "x" * 300,
    "x" * 301,
]


async def put(
    saver: RedisSaver, thread: str, namespace: str = "", *, parent: Any = None, **values: Any
) -> Any:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = {name: saver.get_next_version(None, None) for name in values}
    config = parent or config_of(thread, checkpoint_ns=namespace)
    return await saver.aput(
        config, checkpoint, {"source": "loop", "step": 1}, checkpoint["channel_versions"]
    )


async def listed(saver: RedisSaver, config: Any, **options: Any) -> list[Any]:
    return [found async for found in saver.alist(config, **options)]


# Under graphs


async def test_a_graph_runs_pauses_and_is_forked(store: RedisStateStore) -> None:
    done: list[Any] = []
    graph = asking(RedisSaver(store), done.append, "pay")
    config = config_of("t")
    await graph.ainvoke({"log": ["start"]}, config)
    assert (await graph.aget_state(config)).interrupts[0].value == {"question": "pay"}
    # Another process goes on.
    other = asking(RedisSaver(store), done.append, "pay")
    assert (await other.ainvoke(Command(resume="yes"), config))["log"] == ["start", "pay yes"]
    history = [state async for state in graph.aget_state_history(config)]
    first = history[-2]
    forked = await graph.aupdate_state(first.config, {"log": ["other"]})
    assert (await graph.aget_state(forked)).values["log"] == ["start", "other"]
    # Nothing of the first branch was overwritten.
    again = [state.values for state in history]
    now = [(await graph.aget_state(state.config)).values for state in history]
    assert now == again
    assert done == [("pay", "yes")]


def test_a_graph_runs_without_a_loop(settings: Settings) -> None:
    with RedisSaver(RedisStateStore(settings)) as saver:
        graph = counting(saver)
        config = config_of("t")
        assert len(graph.invoke({"log": ["x"]}, config)["log"]) == 4
        assert len(list(graph.get_state_history(config))) == 5
        assert saver.get_tuple(config) is not None
        saver.copy_thread("t", "u")
        saver.prune(["t"])
        assert [len(list(saver.list(config_of(thread)))) for thread in "tu"] == [1, 5]
        saver.delete_thread("t")
        assert saver.get_tuple(config) is None


async def test_blocking_calls_work_under_a_running_loop(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    await put(saver, "t", n=1)
    found = saver.get_tuple(config_of("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"n": 1}
    saver.close()


async def test_each_version_of_a_value_is_stored_once(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    await counting(saver, steps=10).ainvoke({"log": ["x"]}, config_of("t"))
    fields = await store.base.scripts.transport.commands.hgetall(store.base.keys.graph_thread("t"))
    values = [name for name in fields[::2] if name.startswith(b"b") and name.endswith(b" log")]
    assert len(values) == 11


# Ids


async def test_no_two_ids_meet(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    for thread in ODD:
        for namespace in ODD:
            await put(saver, thread, namespace, at=[ODD.index(thread), ODD.index(namespace)])
    for thread in ODD:
        for namespace in ODD:
            config = config_of(thread, checkpoint_ns=namespace)
            (found,) = await listed(saver, config)
            at = [ODD.index(thread), ODD.index(namespace)]
            assert found.checkpoint["channel_values"]["at"] == at
            assert found.config["configurable"]["checkpoint_ns"] == namespace
        assert len(await listed(saver, config_of(thread))) == len(ODD)
    everywhere = await listed(saver, None)
    assert {found.config["configurable"]["thread_id"] for found in everywhere} == set(ODD)
    await saver.adelete_thread("")
    assert len(await listed(saver, None)) == (len(ODD) - 1) * len(ODD)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "configurable"),
        ({"configurable": {}}, "configurable.thread_id"),
        (config_of(3.5), "configurable.thread_id"),  # type: ignore[arg-type]
        (config_of("t", checkpoint_ns=1), "configurable.checkpoint_ns"),
        (config_of("t", checkpoint_id="a b"), "configurable.checkpoint_id"),
        (config_of("t", checkpoint_id="x" * 201), "configurable.checkpoint_id"),
    ],
)
async def test_a_bad_config_is_refused_by_name(
    store: RedisStateStore, config: Any, field: str
) -> None:
    with pytest.raises(InvalidField) as refused:
        await RedisSaver(store).aget_tuple(config)
    assert refused.value.field == field


async def test_other_bad_input_is_refused_by_name(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    with pytest.raises(InvalidField, match="strategy"):
        await saver.aprune(["t"], strategy="some")
    with pytest.raises(InvalidField, match="thread_ids"):
        await saver.aprune("t")
    with pytest.raises(InvalidField, match="checkpoint_id"):
        await saver.aput_writes(config_of("t"), [("a", 1)], "task")
    with pytest.raises(InvalidField, match="limit"):
        await listed(saver, None, limit=-1)
    with pytest.raises(InvalidField, match="channel_versions"):
        value_name("a\ud800", 1)
    config = {**config_of("t"), "metadata": {"run_id": "\ud800"}}
    with pytest.raises(InvalidField, match=r"metadata\.run_id"):
        await counting(saver).ainvoke({"log": []}, config)
    with pytest.raises(InvalidField, match="lease_s"):
        saver.claim("t", lease_s=0)
    with pytest.raises(ConfigError, match="lifetime"):
        RedisSaver(store, lifetime=timedelta(0))


# Listing


async def test_all_threads_are_listed_page_by_page(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    threads = [f"t{number:03}" for number in range(250)]
    await asyncio.gather(*(put(saver, thread, n=1) for thread in threads))
    await put(saver, "t003", n=2)
    found: list[str] = []
    before = None
    while page := await listed(saver, None, before=before, limit=20):
        found += [each.config["configurable"]["thread_id"] for each in page]
        before = page[-1].config
    assert found == sorted([*threads, "t003"])


async def test_namespaces_are_merged_by_age(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    made = [await put(saver, "t", "ab c"[number % 4], n=number) for number in range(40)]
    ids = [each["configurable"]["checkpoint_id"] for each in made]
    found = await listed(saver, config_of("t"))
    assert [each.checkpoint["id"] for each in found] == ids[::-1]
    part = await listed(saver, config_of("t"), before=made[20], limit=5)
    assert [each.checkpoint["id"] for each in part] == ids[19:14:-1]
    one = await listed(saver, config_of("t", checkpoint_id=ids[7]))
    assert [each.checkpoint["channel_values"] for each in one] == [{"n": 7}]


async def test_a_thread_that_another_process_deletes_is_listed_again(
    store: RedisStateStore, settings: Settings
) -> None:
    async with RedisStateStore(settings) as second:
        one, other = RedisSaver(store), RedisSaver(second)
        await put(one, "t", n=1)
        await other.adelete_thread("t")
        assert await listed(other, None) == []
        await put(one, "t", n=2)
        (found,) = await listed(other, None)
        assert found.checkpoint["channel_values"] == {"n": 2}


async def test_large_checkpoints_come_in_several_replies(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    for number in range(6):
        await put(saver, "t", big="x" * 2_000_000, n=number)
    found = await listed(saver, config_of("t"))
    assert [each.checkpoint["channel_values"]["n"] for each in found] == [5, 4, 3, 2, 1, 0]
    assert all(len(each.checkpoint["channel_values"]["big"]) == 2_000_000 for each in found)


# Housekeeping


async def test_a_run_is_deleted_with_what_no_other_needs(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    graph = counting(saver)
    for run in ("r1", "r2"):
        config = config_of("t")
        config["metadata"] = {"run_id": run}
        await graph.ainvoke({"log": [run]}, config)
    kept = await listed(saver, config_of("t"), filter={"run_id": "r2"})
    await saver.adelete_for_runs(["r1"])
    assert await listed(saver, config_of("t")) == kept


async def test_what_is_left_after_pruning_is_what_the_newest_needs(
    store: RedisStateStore,
) -> None:
    saver = RedisSaver(store)
    graph = counting(saver, steps=5)
    await graph.ainvoke({"log": ["x"]}, config_of("t"))
    newest = await saver.aget_tuple(config_of("t"))
    await saver.aprune(["t"])
    assert await listed(saver, config_of("t")) == [newest]
    key = store.base.keys.graph_thread("t")
    fields = (await store.base.scripts.transport.commands.hgetall(key))[::2]
    assert {field[:1] for field in fields} <= {b"r", b"b"}
    assert len([field for field in fields if field.endswith(b" log")]) == 1


async def test_a_pruning_does_not_lose_what_is_put_meanwhile(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    parent = await put(saver, "t", n=0)
    for number in range(30):
        parent = await put(saver, "t", parent=parent, n=number)
    made: list[Any] = await asyncio.gather(
        saver.aprune(["t"]), *(put(saver, "t", parent=parent, branch=number) for number in range(9))
    )
    for config in made[1:]:
        found = await saver.aget_tuple(config)
        if found is not None:
            assert "branch" in found.checkpoint["channel_values"]
    assert await saver.aget_tuple(config_of("t")) is not None


async def test_a_copy_can_be_made_twice_and_stands_alone(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    graph = asking(saver, str, "pay")
    await graph.ainvoke({"log": ["x"]}, config_of("t"))
    for _ in range(2):
        await saver.acopy_thread("t", "u")
    original = await listed(saver, config_of("t"))
    await saver.adelete_thread("t")
    copied = await listed(saver, config_of("u"))
    assert [each[1:3] + each[4:] for each in copied] == [each[1:3] + each[4:] for each in original]
    assert (await graph.ainvoke(Command(resume="yes"), config_of("u")))["log"] == ["x", "pay yes"]


# Payloads and lifetimes


async def test_nothing_of_a_users_values_is_readable_without_the_key(
    store: RedisStateStore, settings: Settings
) -> None:
    keyed = settings.model_copy(update={"payload_keys": SecretStr(Fernet.generate_key().decode())})
    async with RedisStateStore(keyed) as sealed:
        saver = RedisSaver(sealed)
        graph = asking(saver, str, "secret-question")
        config = config_of("t")
        config["metadata"] = {"note": "secret-note"}
        await graph.ainvoke({"log": ["secret-start"]}, config)
        stored = b"".join(
            await store.base.scripts.transport.commands.hgetall(store.base.keys.graph_thread("t"))
        )
        assert b"secret-start" not in stored
        assert b"secret-note" not in stored
        plain = RedisSaver(store)
        with pytest.raises(PayloadUnreadable):
            await plain.aget_tuple(config_of("t"))
        # Who cannot read it can copy it, and prune and delete.
        await plain.acopy_thread("t", "u")
        state = await graph.aget_state(config_of("u"))
        assert state.values["log"] == ["secret-start"]
        # What was written without a key is read as it is: also a value that looks sealed.
        await put(plain, "v", text='\r"sealed:f:abc"')
        found = await saver.aget_tuple(config_of("v"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"text": '\r"sealed:f:abc"'}


async def test_a_value_that_is_too_large_is_refused_before_anything_is_written(
    store: RedisStateStore, settings: Settings
) -> None:
    async with RedisStateStore(settings.model_copy(update={"max_payload_bytes": 1000})) as small:
        saver = RedisSaver(small)
        with pytest.raises(PayloadTooLarge, match=r"channel_values\.big"):
            await put(saver, "t", big="x" * 2000)
        assert await listed(saver, None) == []


async def test_a_thread_lives_from_its_last_write(store: RedisStateStore) -> None:
    saver = RedisSaver(store, lifetime=timedelta(hours=8))
    config = await put(saver, "t", n=1)
    keys = [store.base.keys.graph_thread("t"), store.base.keys.graph_order("t")]
    commands = store.base.scripts.transport.commands
    for write in (put(saver, "t", n=2), saver.aput_writes(config, [("a", 1)], "task")):
        for key in keys:
            await store.base.scripts.transport.sender.send("PEXPIRE", key, 5_000, repeatable=True)
        await write
        assert all([int(await commands.pttl(key)) > 7 * 3_600_000 for key in keys])


async def test_a_saver_shows_no_values(store: RedisStateStore) -> None:
    assert "RedisSaver on <RedisStateStore" in repr(RedisSaver(store))


# Delta channels


@pytest.mark.filterwarnings("ignore")
async def test_delta_channels_are_rebuilt_and_survive_pruning(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    compiled = adding_deltas(saver, steps=12)
    config = config_of("t")
    result = await compiled.ainvoke({"n": 0, "log": ["first"]}, config)
    newest = await saver.aget_tuple(config)
    assert newest is not None
    assert "log" not in newest.checkpoint["channel_values"]
    base: Any = BaseCheckpointSaver
    wanted = await base.aget_delta_channel_history(saver, config=config, channels=["log", "none"])
    found = await saver.aget_delta_channel_history(config=config, channels=["log", "none"])
    assert found == wanted
    before = len(await listed(saver, config))
    await saver.aprune(["t"])
    assert len(await listed(saver, config)) < before
    assert (await compiled.aget_state(config)).values == {"n": 12, "log": result["log"]}


# Claims


async def test_a_claimed_thread_has_one_writer(store: RedisStateStore, settings: Settings) -> None:
    async with RedisStateStore(settings) as second:
        one, other = RedisSaver(store), RedisSaver(second)
        async with one.claim("t") as claim:
            assert claim.epoch > 0
            graph = counting(one)
            await graph.ainvoke({"log": ["mine"]}, config_of("t"))
            count = len(await listed(one, config_of("t")))
            for call in (
                put(other, "t", n=1),
                other.adelete_thread("t"),
                other.aprune(["t"]),
                counting(other).ainvoke({"log": ["theirs"]}, config_of("t")),
                _enter(other),
            ):
                with pytest.raises(ThreadClaimed) as refused:
                    await call
                assert refused.value.thread_id == "t"
            assert len(await listed(other, config_of("t"))) == count
            await put(other, "u", n=1)
        await put(other, "t", n=1)


async def test_a_writer_whose_claim_was_taken_over_is_refused(
    store: RedisStateStore, settings: Settings
) -> None:
    async with RedisStateStore(settings) as second:
        one, other = RedisSaver(store), RedisSaver(second)
        async with one.claim("t", lease_s=30) as claim:
            await put(one, "t", n=0)
            config = await put(one, "t", n=1)
            # The process stood still for longer than its lease.
            await store.base.scripts.transport.sender.send(
                "HSET", store.base.keys.graph_thread("t"), "expires", 1, repeatable=True
            )
            async with other.claim("t") as taken:
                assert taken.epoch > claim.epoch
                for call in (
                    put(one, "t", n=2),
                    one.aput_writes(config, [("a", 1)], "task"),
                    one.aprune(["t"]),
                    one.adelete_thread("t"),
                ):
                    with pytest.raises(LeaseLost):
                        await call
                await put(other, "t", n=3)
        found = await other.aget_tuple(config_of("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": 3}


async def test_a_claim_is_renewed_and_reports_its_loss(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    async with saver.claim("t", lease_s=0.3) as claim:
        key = store.base.keys.graph_thread("t")
        commands = store.base.scripts.transport.commands
        first = int(await commands.hget(key, "expires"))

        async def is_renewed() -> bool:
            return int(await commands.hget(key, "expires")) > first

        await eventually(is_renewed, "the claim is renewed")
        taken = {"owner": "other", "claim": "other", "epoch": str(claim.epoch + 1)}
        flat = [part for pair in taken.items() for part in pair]
        await store.base.scripts.transport.sender.send("HSET", key, *flat, repeatable=True)

        async def is_lost() -> bool:
            return claim.is_lost

        await eventually(is_lost, "the claim is lost")


async def _enter(saver: RedisSaver) -> None:
    async with saver.claim("t"):
        pass


# Killed


async def test_a_killed_writer_loses_nothing_that_was_acknowledged(
    store: RedisStateStore, settings: Settings
) -> None:
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "thread": "t",
    }
    for _ in range(2):
        processes = [
            await forkserver.start(
                "-m",
                "tests.processes.langgraph_writer",
                json.dumps({**argument, "name": name}),
                environment={},
            )
            for name in "ab"
        ]
        printed: dict[str, list[str]] = {"a": [], "b": []}
        for name, process in zip("ab", processes, strict=True):
            assert process.stdout is not None
            for _ in range(20):
                printed[name].append((await process.stdout.readline()).decode().strip())
        for process in processes:
            process.kill()
            await process.wait()
        saver = RedisSaver(store)
        for name, ids in printed.items():
            found = await listed(saver, config_of("t", checkpoint_ns=name))
            by_id = {each.checkpoint["id"]: each for each in found}
            assert set(ids) <= by_id.keys()
            for id_ in ids:
                each = by_id[id_]
                number = each.metadata["step"]
                assert each.checkpoint["channel_values"] == {"n": number}
                assert each.pending_writes == [
                    (f"task {number}", "n", number),
                    (f"task {number}", "m", name),
                ]
        await saver.adelete_thread("t")
        assert await listed(saver, None) == []


async def test_a_put_whose_parent_is_gone_has_all_values(store: RedisStateStore) -> None:
    saver = RedisSaver(store)

    class Two(TypedDict):
        old: str
        new: int

    async def step(state: Two) -> Any:
        if state["new"] == 2:
            # Another process deletes the thread, it expires, or the server's history goes back.
            await saver.adelete_thread("t")
        return {"new": state["new"] + 1}

    def more(state: Any) -> str:
        return "step" if state["new"] < 4 else END

    graph: Any = StateGraph(Two)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", more)
    compiled = graph.compile(checkpointer=saver)
    given = {"old": "kept", "new": 0}
    # Else puts may still be on their way, and come after the deletion.
    ended = await compiled.ainvoke(given, config_of("t"), durability="sync")
    assert ended == {"old": "kept", "new": 4}
    state = await compiled.aget_state(config_of("t"))
    assert state.values == {"old": "kept", "new": 4}
    async for each in compiled.aget_state_history(config_of("t")):
        assert each.values["old"] == "kept"
