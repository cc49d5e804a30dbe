"""Key-value entries: PenguiFlow's format, compared before they are set."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redis_state import (
    BackendUnavailable,
    CorruptState,
    InvalidField,
    OutcomeUnknown,
    RedisStateStore,
    Settings,
    VersionConflict,
)
from redis_state.models import ArtifactRetentionConfig
from redis_state.models.session_context import ContextPatch
from redis_state.stores.memory.kv import SessionKV
from redis_state.testing import eventually
from tests.processes.stores.use_session import OWNER
from tests.support.samples import admin, changed, keys_of
from tests.support.servers.faults import run_processes, start_process
from tests.support.servers.proxies.command_proxy import CommandProxy
from tests.support.sizes import sizes

DAY_MS = 24 * 3_600_000


@pytest.fixture
def kv(store: RedisStateStore) -> SessionKV:
    return store.kv.bind(OWNER)


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[CommandProxy]:
    async with CommandProxy(settings.url.get_secret_value()) as opened:
        yield opened


@pytest.fixture
async def far(settings: Settings, proxy: CommandProxy) -> AsyncIterator[SessionKV]:
    """Give the entries through the proxy."""
    async with changed(settings, url=proxy.url) as opened:
        yield opened.kv.bind(OWNER)


def place(key: str, *, scope: str = "session", namespace: str = "unknown") -> str:
    return f"kv:v1:acme:ann:s:{scope}:{namespace}:{key}"


def shared(settings: Settings) -> dict[str, Any]:
    return {"url": settings.url.get_secret_value(), "namespace": settings.namespace}


async def life(store: RedisStateStore, key: str) -> int:
    return int(await admin(store, "PTTL", store.base.keys.memory(key)))


async def blobs_of(store: RedisStateStore) -> list[str]:
    return [key for key in await keys_of(store) if ":artifacts:blob:" in key]


async def test_what_is_set_is_there_until_it_is_deleted(
    store: RedisStateStore, kv: SessionKV
) -> None:
    assert await kv.get("k") is None
    assert await kv.get_entry("k") is None
    made = await kv.set("k", {"n": 2**70, "x": [None, 1.5, "é"]})
    assert made.value == {"n": 2**70, "x": [None, 1.5, "é"]}
    assert await kv.get_entry("k") == made
    assert 89 * DAY_MS < await life(store, place("k")) <= 90 * DAY_MS
    assert await kv.delete("k") is True
    assert await kv.delete("k") is False
    assert await kv.get("k") is None
    mark = await store.load_memory_state(place("k"))
    assert mark is not None
    assert (mark["deleted"], mark["value"]) == (True, None)
    assert 0 < await life(store, place("k")) <= DAY_MS
    assert (await kv.set("k", 1)).value == 1
    assert await life(store, place("k")) > 89 * DAY_MS


async def test_scopes_namespaces_and_tools_have_entries_of_their_own(
    store: RedisStateStore, kv: SessionKV
) -> None:
    tool = store.kv.bind({**OWNER, "_current_tool_name": " search "})
    await kv.set(" k ", 1)
    await kv.set("k", 2, scope="task")
    await kv.set("k", 3, namespace=" mine ")
    await tool.set("k", 4)
    found = {
        place("k"): 1,
        place("k", scope="task:t"): 2,
        place("k", namespace="mine"): 3,
        place("k", namespace="tool:search"): 4,
    }
    for key, value in found.items():
        entry = await store.load_memory_state(key)
        assert entry is not None
        assert entry["value"]["inline"] == value
    other = store.kv.bind({**OWNER, "task_id": "another"})
    assert (await other.get("k"), await other.get("k", scope="task")) == (1, None)


async def test_a_tasks_entry_really_expires(store: RedisStateStore, kv: SessionKV) -> None:
    await kv.set("k", 1, scope="task")
    assert 3_500_000 < await life(store, place("k", scope="task:t")) <= 3_600_000
    await kv.delete("k", scope="task")
    assert 0 < await life(store, place("k", scope="task:t")) <= 3_600_000
    entry = await store.load_memory_state(place("k", scope="task:t"))
    past = {**(entry or {}), "deleted": False, "value": {"inline": 1}}
    # Another writer's expiry counts too, and its absence, and one that cannot be read.
    await store.save_memory_state(
        place("k", scope="task:t"), {**past, "expires_at": "2020-01-01T00:00:00"}
    )

    async def gone() -> bool:
        return await store.load_memory_state(place("k", scope="task:t")) is None

    await eventually(gone, "the entry expires")
    assert await kv.get("k", scope="task") is None
    await store.save_memory_state(place("k", scope="task:t"), {**past, "expires_at": "soon"})
    assert await kv.get("k", scope="task") == 1
    assert await life(store, place("k", scope="task:t")) > 89 * DAY_MS


async def test_a_write_may_ask_for_the_etag_it_read(kv: SessionKV) -> None:
    first = await kv.set("k", 1, expected_etag="")
    with pytest.raises(VersionConflict) as caught:
        await kv.set("k", 2, expected_etag="")
    assert (caught.value.expected, caught.value.actual) == ("", first.etag)
    second = await kv.set("k", 2, expected_etag=first.etag)
    with pytest.raises(VersionConflict):
        await kv.delete("k", expected_etag=first.etag)
    assert await kv.delete("k", expected_etag=second.etag) is True
    assert (await kv.set("k", 3, expected_etag="")).value == 3


async def test_of_many_that_set_with_one_etag_one_does(kv: SessionKV) -> None:
    calls = [kv.set("k", number, expected_etag="") for number in range(16)]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    won = [each for each in ended if not isinstance(each, BaseException)]
    assert len(won) == 1
    assert [type(each) for each in ended if each not in won] == [VersionConflict] * 15
    assert await kv.get_entry("k") == won[0]


async def test_the_first_default_becomes_the_value(kv: SessionKV) -> None:
    found = await asyncio.gather(*(kv.get_or_init("k", number) for number in range(16)))
    assert len(set(found)) == 1
    assert await kv.get_or_init("k", 99) == found[0]
    await kv.set("none", None)
    assert await kv.get_or_init("none", 1) is None


async def test_a_patch_sets_names_and_keeps_the_others(kv: SessionKV) -> None:
    assert await kv.patch("k", {"a": 1}) == {"a": 1}
    await asyncio.gather(*(kv.patch("k", {f"n{number}": number}) for number in range(16)))
    assert await kv.get("k") == {"a": 1} | {f"n{number}": number for number in range(16)}
    assert await kv.patch("k", {"a": [2]}) == {**(await kv.get("k")), "a": [2]}


async def test_secrets_are_redacted_wherever_they_stand(
    store: RedisStateStore, kv: SessionKV
) -> None:
    value = {"Token": "s3cret", "deep": [{"api_key": "s3cret", "plain": (1, 2)}]}
    made = await kv.set("k", value)
    assert made.value == {
        "Token": "<redacted>",
        "deep": [{"api_key": "<redacted>", "plain": [1, 2]}],
    }
    assert (await kv.patch("k", {"password": "s3cret"}))["password"] == "<redacted>"
    document = await admin(store, "HGET", store.base.keys.memory(place("k")), "document")
    assert b"s3cret" not in document
    own = store.kv.bind(OWNER, redact_keys=frozenset({"mine"}))
    assert (await own.set("k", {"mine": 1, "token": 2})).value == {"mine": "<redacted>", "token": 2}


async def test_a_large_value_lives_and_goes_with_its_entry(
    store: RedisStateStore, kv: SessionKV
) -> None:
    for letter in "ab":
        value = {letter: letter * 9000}
        await kv.set("k", value)
        assert await kv.get("k") == value
        [blob] = await blobs_of(store)
        assert await admin(store, "PTTL", blob) > await life(store, place("k")) > 89 * DAY_MS
    entry = await store.load_memory_state(place("k"))
    assert entry is not None
    assert entry["value"]["inline"] is None
    ref = entry["value"]["artifact_ref"]
    assert ref["size_bytes"] == len(b'{"b":""}') + 9000
    assert ref["scope"]["session_id"] == "s"
    found = await store.artifact_store.get_ref(ref["id"])
    assert found is not None
    assert found.namespace == "session_kv"
    assert await kv.patch("k", {"c": 1}) == {"b": "b" * 9000, "c": 1}
    await kv.set("k", "small")
    assert await blobs_of(store) == []
    await kv.set("k", "c" * 9000)
    await kv.delete("k")
    assert [key for key in await keys_of(store) if ":artifacts" in key] == []


async def test_uploads_of_a_session_do_not_evict_its_large_values(settings: Settings) -> None:
    retention = ArtifactRetentionConfig(max_artifacts_per_session=1)
    async with RedisStateStore(settings, artifact_retention=retention) as store:
        kv = store.kv.bind(OWNER)
        for key in ("a", "b"):
            await kv.set(key, key * 9000)
        assert await kv.get("a") == "a" * 9000


async def test_a_large_value_that_is_gone_is_told_and_can_be_replaced(
    store: RedisStateStore, kv: SessionKV
) -> None:
    await kv.set("k", "x" * 9000)
    [blob] = await blobs_of(store)
    await admin(store, "DEL", blob)
    for call in (kv.get("k"), kv.get_or_init("k", 1), kv.patch("k", {})):
        with pytest.raises(CorruptState, match="its large value is gone"):
            await call
    assert (await kv.set("k", 1)).value == 1


async def test_a_large_value_that_cannot_be_read_is_told(
    store: RedisStateStore, kv: SessionKV
) -> None:
    await kv.set("k", "x" * 9000)
    [blob] = await blobs_of(store)
    await admin(store, "HSET", blob, "0", "garbage")
    with pytest.raises(CorruptState, match="cannot be read"):
        await kv.get("k")


async def test_models_are_kept_as_objects(kv: SessionKV) -> None:
    made = await kv.set("k", {"patch": [ContextPatch(task_id="t", digest=["d"])]})
    assert made.value["patch"][0]["digest"] == ["d"]
    assert await kv.get("k") == made.value


async def test_a_large_value_replaced_while_it_is_read_is_read_anew(
    proxy: CommandProxy, far: SessionKV, kv: SessionKV
) -> None:
    await kv.set("k", "old" * 4000)

    async def replace() -> None:
        await kv.set("k", ["new"] * 4000)

    # The entry is read, its large value not yet; then its first chunk is asked for.
    for command in ("HGET", "touch_blob"):
        with proxy.meanwhile(command, replace):
            assert await far.get("k") == ["new"] * 4000
        with proxy.meanwhile(command, replace):
            made = await far.change("k", lambda value: [*value, "newer"])
        assert made.value[-2:] == ["new", "newer"]


async def test_a_damaged_entry_can_be_replaced(store: RedisStateStore, kv: SessionKV) -> None:
    await kv.set("k", 1)
    await admin(store, "HSET", store.base.keys.memory(place("k")), "document", "garbage")
    assert await kv.get("k") is None
    assert (await kv.set("k", 2, expected_etag="")).value == 2
    assert len(await store.unreadable(memory_key=place("k"))) == 1


@pytest.mark.parametrize("missing", sorted(OWNER))
def test_a_context_without_an_owner_is_refused_by_name(
    store: RedisStateStore, missing: str
) -> None:
    for bad in (None, " ", 5):
        with pytest.raises(InvalidField) as caught:
            store.kv.bind({**OWNER, missing: bad})
        assert caught.value.field == missing


@pytest.mark.parametrize("name", ["tenant_id", "user_id"])
def test_an_owner_who_could_be_another_tenants_is_refused(
    store: RedisStateStore, name: str
) -> None:
    with pytest.raises(InvalidField, match="colon") as caught:
        store.kv.bind({**OWNER, name: "acme:eu"})
    assert caught.value.field == name


async def test_a_write_that_took_effect_is_told_although_the_old_value_could_not_be_dropped(
    store: RedisStateStore, proxy: CommandProxy, far: SessionKV
) -> None:
    await far.set("k", ["x" * 9000])
    with proxy.answer("delete_blob", times=2):
        made = await far.change("k", lambda value: [*value, "entry"])
        assert made.value[1:] == ["entry"]
        assert await far.get("k") == made.value
        assert await far.delete("k")
    assert await far.get("k") is None
    # They go by themselves, with the entries that named them.
    left = [await admin(store, "PTTL", blob) for blob in await blobs_of(store)]
    assert len(left) == 2
    assert max(left) < 91 * DAY_MS


async def test_the_large_value_of_a_write_that_did_not_happen_is_dropped(
    store: RedisStateStore, proxy: CommandProxy, far: SessionKV
) -> None:
    with proxy.answer("save_record"), pytest.raises(BackendUnavailable):
        await far.set("k", "x" * 9000)
    assert await blobs_of(store) == []
    assert await far.get("k") is None


async def test_the_large_value_of_a_write_that_may_have_happened_stays(
    store: RedisStateStore, proxy: CommandProxy, far: SessionKV
) -> None:
    with (
        proxy.cut_after("save_record"),
        proxy.answer("save_record", at=2),
        pytest.raises(OutcomeUnknown),
    ):
        await far.set("k", "x" * 9000)
    assert len(await blobs_of(store)) == 1
    assert await far.get("k") == "x" * 9000


async def test_a_change_whose_reply_was_lost_is_made_once_though_others_changed_it_since(
    proxy: CommandProxy, far: SessionKV, kv: SessionKV
) -> None:
    def count(value: Any) -> Any:
        return (value or 0) + 1

    lost = proxy.cut_after("save_record")
    with lost, proxy.meanwhile("save_record", lambda: kv.change("n", count), at=2):
        await far.change("n", count)
    assert await kv.get("n") == 2


async def test_bad_input_is_refused_by_name(store: RedisStateStore, kv: SessionKV) -> None:
    wrong: Any = kv
    loop: list[Any] = []
    loop.append(loop)
    cases = [
        ("key", wrong.set(" ", 1)),
        ("key", wrong.get(5)),
        ("scope", wrong.get("k", scope="other")),
        ("patch", wrong.patch("k", [1])),
        *(("value", wrong.set("k", bad)) for bad in ({1}, b"x", float("nan"), object(), loop)),
        ("value", wrong.set("k", "\ud800")),
        ("value", wrong.patch("k", {"a": {1}})),
        ("data", wrong.set("k", "x" * (51 * 1024 * 1024))),
    ]
    for field, call in cases:
        with pytest.raises(InvalidField) as caught:
            await call
        assert caught.value.field == field
    assert await keys_of(store) == []
    await kv.set("k", [1])
    with pytest.raises(InvalidField, match="no object"):
        await kv.patch("k", {"a": 1})
    assert await kv.get("k") == [1]


async def test_a_value_that_is_kept_is_read_as_it_was_set(
    store: RedisStateStore, kv: SessionKV
) -> None:
    deep: Any = "here"
    for _ in range(260):
        deep = [deep]
    for value in (deep, 1 << 3000):
        with pytest.raises(InvalidField, match="nested too deeply"):
            await kv.set("k", value)
        assert await kv.get("k") is None
        apart = store.kv.bind(OWNER, max_inline_bytes=0)
        await apart.set("apart", value)
        assert await apart.get("apart") == value
    fits = {"a": [1 << 2000, None, -0.5, "\u00e9"]}
    await kv.set("k", fits)
    assert await kv.get("k") == fits


async def test_a_memory_state_is_saved_at_the_version_it_was_read(store: RedisStateStore) -> None:
    await store.save_memory_state("m", {"n": 1}, expected_version=0)
    assert await store.load_memory("m") == ({"n": 1}, 1)
    with pytest.raises(VersionConflict):
        await store.save_memory_state("m", {"n": 2}, expected_version=0)
    await store.save_memory_state("m", {"n": 2}, expected_version=1)
    assert await store.load_memory("m") == ({"n": 2}, 2)
    assert await store.load_memory("none") is None


async def test_a_tombstone_goes_after_its_grace(settings: Settings) -> None:
    async with changed(settings, kv_tombstone_ttl="PT0.05S") as store:
        kv = store.kv.bind(OWNER)
        await kv.set("k", 1)
        await kv.delete("k")

        async def gone() -> bool:
            return await keys_of(store) == []

        await eventually(gone, "the mark expires")


@pytest.mark.slow
@pytest.mark.parametrize("processes", sizes(3, 8))
async def test_8_processes_count_to_1000_exactly(
    store: RedisStateStore, settings: Settings, kv: SessionKV, processes: int
) -> None:
    common = {**shared(settings), "does": "count", "times": 125, "processes": processes}
    names = [f"w{n}" for n in range(processes)]
    lost = await run_processes("use_session", [{**common, "name": name} for name in names])
    assert await kv.get("by etag") == 125 * processes
    assert await kv.get("by change") == 25 * processes
    wanted = {f"{name}-{number}": number for name in names for number in range(0, 125, 5)}
    assert await kv.get("patched") == wanted
    assert sum(lost) > 0
    # At the full size it was too large to be kept inline: one value is left of all versions.
    assert len(await blobs_of(store)) == (processes == 8)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("script", "after"), [("commit_blob", True), ("save_record", False), ("save_record", True)]
)
async def test_a_process_that_dies_in_a_large_set_leaves_the_old_value_or_the_new(
    store: RedisStateStore, settings: Settings, kv: SessionKV, script: str, *, after: bool
) -> None:
    await kv.set("large", ["old"] * 4000)
    argument = {**shared(settings), "does": "crash", "call": "set"}
    process = await start_process("use_session", {**argument, "script": script, "after": after})
    _, err = await process.communicate()
    assert process.returncode == -9, err.decode()
    done = script == "save_record" and after
    assert await kv.get("large") == (["new"] * 2000 if done else ["old"] * 4000)
    # What is left over is not named by anything, and goes by its own lifetime.
    left = await blobs_of(store)
    assert len(left) == 2
    assert all([await admin(store, "PTTL", blob) > 0 for blob in left])
    await kv.set("large", 1)
    assert await kv.get("large") == 1


@pytest.fixture
def theirs(store: RedisStateStore) -> Any:
    """PenguiFlow's own facade on our store."""
    facade = pytest.importorskip("penguiflow.sessions.session_kv", reason="needs the package")
    return facade.SessionKVFacade(
        state_store=store,
        artifacts=store.artifact_store,
        tool_context={**OWNER, "_current_tool_name": uuid.uuid4().hex},
    )


@pytest.mark.parametrize("scope", ["session", "task"])
async def test_both_facades_read_each_others_entries(
    store: RedisStateStore, theirs: Any, scope: Any
) -> None:
    ours = store.kv.bind(theirs._tool_context)
    values: list[Any] = [0, "", [], {"token": "x", "n": [1, None, 2**70]}, "y" * 9000, {"z": "é"}]
    for number, value in enumerate(values):
        key = f"k{number}"
        assert await theirs.set(key, value, scope=scope) == await ours.get(key, scope=scope)
        place = _composite(theirs, key, scope)
        by_them = await store.load_memory_state(place)
        await ours.set(key, value, scope=scope)
        by_us = await store.load_memory_state(place)
        assert by_them is not None
        assert by_us is not None
        assert await theirs.get(key, scope=scope) == await ours.get(key, scope=scope)
        _same_form(by_them, by_us)
        assert await ours.delete(key, scope=scope)
        assert await theirs.get(key, scope=scope) is None
        _same_form(
            await _deleted_by(theirs, store, key, scope), await _deleted_by(ours, store, key, scope)
        )
    for facade, other in ((theirs, ours), (ours, theirs)):
        await facade.patch("p", {"a": 1}, scope=scope)
        assert await other.patch("p", {"b": 2}, scope=scope) == {"a": 1, "b": 2}
        assert await facade.get_or_init("p", 1, scope=scope) == {"a": 1, "b": 2}
        assert await other.delete("p", scope=scope)
        assert await facade.get_or_init("i", 1, scope=scope, namespace="n") == 1
        assert await other.get_or_init("i", 2, scope=scope, namespace="n") == 1


async def _deleted_by(facade: Any, store: RedisStateStore, key: str, scope: str) -> dict[str, Any]:
    await facade.set(key, 1, scope=scope)
    await facade.delete(key, scope=scope)
    composite = _composite(facade, key, scope)
    state = await store.load_memory_state(composite)
    assert state is not None
    return state


def _composite(facade: Any, key: str, scope: str) -> str:
    if hasattr(facade, "_composite_key"):
        return str(facade._composite_key(key, scope=scope, namespace=None))
    return str(facade._owner.key(key, scope=scope, namespace=None))


def _same_form(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Compare two entries of one value: all but what each write has of its own."""
    assert list(one) == list(two)
    own = {"etag", "updated_at", "expires_at", "value"}
    assert {k: v for k, v in one.items() if k not in own} == {
        k: v for k, v in two.items() if k not in own
    }
    if one["value"] is None or one["value"]["artifact_ref"] is None:
        assert one["value"] == two["value"]
        return
    first, second = (dict(each["value"]["artifact_ref"]) for each in (one, two))
    assert list(first) == list(second)
    for name in ("id", "source"):
        first.pop(name)
        second.pop(name)
    assert first == second
    assert one["value"]["hash"] == two["value"]["hash"]


async def test_their_large_value_lives_as_long_as_its_entry(
    store: RedisStateStore, theirs: Any
) -> None:
    await theirs.set("k", "x" * 9000)
    [blob] = await blobs_of(store)
    assert await admin(store, "PTTL", blob) > 89 * DAY_MS
    ours = store.kv.bind(theirs._tool_context)
    await ours.set("k", "small")
    # It is named by content, so other entries may stand on it: ours leaves it alone.
    assert await blobs_of(store) == [blob]


async def test_their_deleted_and_task_entries_expire_too(
    store: RedisStateStore, theirs: Any
) -> None:
    await theirs.set("k", 1)
    await theirs.delete("k")
    await theirs.set("t", 1, scope="task")
    task_s, deleted_s = sorted([await admin(store, "TTL", key) for key in await keys_of(store)])
    assert 3500 < task_s <= 3600 < deleted_s <= DAY_MS // 1000
