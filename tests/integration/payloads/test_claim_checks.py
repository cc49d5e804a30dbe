"""Large payloads stand in a store of claims, and the server has what names them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from redis_state import FolderClaims, RedisStateStore, Sealed, Settings
from redis_state.errors import (
    ConfigError,
    InvalidField,
    PayloadLost,
    PayloadStoreUnavailable,
    TaskFailed,
)
from redis_state.models import TaskStatus
from redis_state.serialization import claim_store
from redis_state.settings import make_settings
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from tests.support.payloads import KEYS, dump, in_bucket, opened, s3_bucket
from tests.support.processes.pools import SESSION, becomes, client_of, pool
from tests.support.tasks.runs import renewed

MARK = "marker-of-a-large-payload "
LARGE = MARK * 4_000


class Breaking(FolderClaims):
    """A folder that fails, or dies, at the calls that are named."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fails: set[str] = set()
        self.calls: list[str] = []

    async def put(self, key: str, data: bytes) -> None:
        """Write a file, unless it is to fail."""
        self.calls.append("put")
        if "put" in self.fails:
            raise OSError("the disk is away")
        await super().put(key, data)

    async def get(self, key: str) -> bytes | None:
        """Return a file, unless it is to fail."""
        self.calls.append("get")
        if "get" in self.fails:
            raise OSError("the disk is away")
        return await super().get(key)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder of the test's own."""
    return tmp_path / "claims"


@pytest.fixture
async def claiming(settings: Settings, folder: Path) -> AsyncGenerator[RedisStateStore]:
    """Give a store with keys, and with large payloads in a folder."""
    url = folder.as_uri()
    async with opened(settings, KEYS[0], claim_check_bytes=10_000, claim_check_url=url) as store:
        yield store


def files(folder: Path) -> list[Path]:
    """List the objects."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


async def copying(ctx: TaskContext) -> Any:
    """Pass what is large from one place to the next."""
    assert ctx.input == LARGE
    assert await ctx.step("s", lambda: ctx.input) == LARGE
    child = await ctx.spawn("child", LARGE)
    return await ctx.join(child)


async def echo(ctx: TaskContext) -> Any:
    """Return the input."""
    return ctx.input


@pytest.mark.role("admin")
async def test_large_payloads_are_elsewhere_sealed_and_small_ones_are_not(
    claiming: RedisStateStore, folder: Path
) -> None:
    async with pool(claiming, {"copying": copying, "child": echo}) as client:
        small = await client.submit("child", "small", session_id=SESSION)
        assert await client.result(SESSION, small, timeout_s=60) == "small"
        assert files(folder) == []
        task = await client.submit("copying", LARGE, session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == LARGE
        # Input, step, the child's input, its result, the join's record, the result.
        assert len(files(folder)) == 6
        assert all(MARK.encode() not in path.read_bytes() for path in files(folder))
        kept = await dump(claiming)
        assert max(len(held) for held in kept.values()) < 20_000
        again = await client.rerun(SESSION, task)
        assert await client.result(SESSION, again, timeout_s=60) == LARGE
        fork = await client.fork(SESSION, task)
        assert await client.result(SESSION, fork, timeout_s=60) == LARGE
        assert [state.result for state in await claiming.list_tasks(SESSION)][-1] == LARGE


@pytest.mark.role("any", why="an erasure reads the names of all keys")
async def test_a_rerun_in_another_session_outlives_the_erasure_of_the_first(
    claiming: RedisStateStore, folder: Path
) -> None:
    async with pool(claiming, {"child": echo}) as client:
        task = await client.submit("child", LARGE, session_id=SESSION)
        await client.result(SESSION, task, timeout_s=60)
        # Without the keys it copies the object as it is.
        url = folder.as_uri()
        async with (
            opened(claiming.settings, claim_check_bytes=10_000, claim_check_url=url) as keyless,
            client_of(keyless) as other,
        ):
            again = await other.rerun(SESSION, task, new_session_id="other")
        assert await client.result("other", again, timeout_s=60) == LARGE
        assert len(files(folder)) == 4
        await claiming.forget(SESSION)
        assert len(files(folder)) == 2
        last = await client.rerun("other", again)
        assert await client.result("other", last, timeout_s=60) == LARGE


@pytest.mark.parametrize("damage", ["missing", "changed"])
async def test_a_missing_or_damaged_object_fails_the_task_and_says_which(
    claiming: RedisStateStore, folder: Path, damage: str
) -> None:
    async with client_of(claiming) as client:
        task = await client.submit("h", LARGE, session_id=SESSION)
        (path,) = files(folder)
        kept = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(kept[:-1] + b"?")
        async with pool(claiming, {"h": echo}):
            with pytest.raises(TaskFailed, match="PayloadLost") as failed:
                await client.result(SESSION, task, timeout_s=60)
            assert path.name in str(failed.value)
            assert MARK not in str(failed.value)
            # With the object back, the task is retried.
            path.write_bytes(kept)
            await client.retry(SESSION, task)
            assert await client.result(SESSION, task, timeout_s=60) == LARGE
        for path in files(folder):
            path.unlink()
        with pytest.raises(PayloadLost):
            await client.result(SESSION, task)


async def test_a_folder_that_has_gone_fails_no_task_and_is_not_made_anew(
    claiming: RedisStateStore, folder: Path
) -> None:
    async with client_of(claiming) as client:
        task = await client.submit("h", LARGE, session_id=SESSION)
        away = shutil.move(folder, folder.with_name("away"))
        async with pool(claiming, {"h": echo}):

            async def was_given_back() -> bool:
                view = await client.inspect(SESSION, task)
                assert view is not None
                return view.attempts > 0 and view.state.status is TaskStatus.PENDING

            await eventually(was_given_back, "its run has not found the input")
        with pytest.raises(PayloadStoreUnavailable):
            await client.submit("h", LARGE, session_id=SESSION)
        assert files(folder) == []
        shutil.move(away, folder)
        again = await client.rerun(SESSION, task)
        async with pool(claiming, {"h": echo}):
            assert await client.result(SESSION, again, timeout_s=60) == LARGE


async def test_a_store_of_claims_that_is_away_delays_a_task_and_fails_none(
    settings: Settings, folder: Path
) -> None:
    claims = Breaking(folder)
    done: list[int] = []

    async def handler(ctx: TaskContext) -> str:
        if not done:
            claims.fails.add("put")
        done.append(ctx.attempt)
        if len(done) == 2:
            claims.fails.clear()
        return str(await ctx.step("s", lambda: LARGE))

    options: dict[str, Any] = {"claim_check_bytes": 10_000, "claim_check_store": claims}
    async with opened(settings, **options) as store, pool(store, {"h": handler}) as client:
        task = await client.submit("h", LARGE, session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == LARGE
        assert len(done) == 2
        shutil.rmtree(folder)
        with pytest.raises(PayloadStoreUnavailable):
            await client.result(SESSION, task)


async def test_a_store_of_claims_that_does_not_answer_is_away(
    settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(FolderClaims):
        async def put(self, key: str, data: bytes) -> None:
            del key, data
            await asyncio.Event().wait()

    monkeypatch.setattr(claim_store, "_ANSWER_S", 0.05)
    options: dict[str, Any] = {"claim_check_bytes": 10_000, "claim_check_store": Silent(folder)}
    async with opened(settings, **options) as store, TaskClient(store) as client:
        with pytest.raises(PayloadStoreUnavailable, match="cannot write an object: TimeoutError"):
            await client.submit("h", LARGE, session_id=SESSION)


async def test_a_child_that_failed_with_a_long_text_runs_again_with_its_parent(
    claiming: RedisStateStore,
) -> None:
    runs: list[str] = []

    async def child(ctx: TaskContext) -> int:
        runs.append(ctx.task.task_id)
        if len(runs) == 1:
            raise ValueError("x" * 20_000)
        return len(runs)

    async def parent(ctx: TaskContext) -> Any:
        return await ctx.join(await ctx.spawn("child"))

    async with pool(claiming, {"parent": parent, "child": child}) as client:
        task = await client.submit("parent", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        await client.retry(SESSION, task)
        assert await client.result(SESSION, task, timeout_s=60) == 2


async def test_without_the_store_of_claims_a_result_says_where_it_is(
    claiming: RedisStateStore, settings: Settings
) -> None:
    async with pool(claiming, {"h": echo}) as client:
        task = await client.submit("h", LARGE, session_id=SESSION)
        await becomes(client, task, TaskStatus.COMPLETE)
    async with opened(settings, KEYS[0]) as store:
        state = await store.tasks.load(SESSION, task)
        assert state is not None
        assert type(state.result) is Sealed
        assert str(state.result) == "<stored elsewhere>"


async def test_a_folder_forgets_what_is_older_and_no_more(tmp_path: Path) -> None:
    claims, today = FolderClaims(tmp_path), datetime.now(UTC).date()
    for age in (0, 9, 10, 11):
        await claims.put(f"rs/{today - timedelta(days=age)}/{age}", b"x")
    await claims.put("rs/other/name", b"x")
    with pytest.raises(InvalidField, match="older_than"):
        await claims.prune(timedelta(hours=1))
    assert await claims.prune(timedelta(days=10)) == 1
    assert sorted(path.name for path in files(tmp_path)) == ["0", "10", "9", "name"]
    assert await claims.get(f"rs/{today}/0") == b"x"
    await claims.delete(f"rs/{today}/0")
    assert await claims.get(f"rs/{today}/0") is None
    with pytest.raises(InvalidField):
        await claims.get("../outside")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"claim_check_bytes": 1}, "claim_check_bytes"),
        ({"claim_check_url": "ftp://a/b"}, "claim_check_url"),
        ({"claim_check_url": "file://host/b"}, "claim_check_url"),
        ({"claim_check_url": "s3://bucket/b?region=eu-west-1"}, "claim_check_url: .* a query"),
        ({"claim_check_url": "file:///a#b"}, "claim_check_url: .* a fragment"),
        ({"claim_check_url": "s3://id:secret@bucket"}, "claim_check_url: a login"),
        # What urlsplit refuses it repeats, with the login.
        ({"claim_check_url": "s3://id:sec\u2100ret@bucket"}, r"claim_check_url: [^\u2100]*$"),
        ({"claim_check_url": "s3://[bucket"}, "claim_check_url: is no URL"),
        ({"claim_check_store": object()}, "claim_check_store"),
        ({"payload_keys": "short"}, "payload_keys"),
        ({"payload_codec": "no.such:thing"}, "payload_codec"),
        ({"max_payload_bytes": 0}, "max_payload_bytes"),
    ],
)
def test_settings_that_cannot_be_used_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RedisStateStore(make_settings("redis://localhost:1", **options))


@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_a_lease_is_renewed_while_a_large_input_is_fetched(
    settings: Settings, folder: Path, heartbeat: str
) -> None:
    runs: list[int] = []

    class Slow(FolderClaims):
        async def get(self, key: str) -> bytes | None:
            if not runs:
                await renewed(store, "slow")
            return await super().get(key)

    async def work(ctx: TaskContext) -> int:
        runs.append(ctx.attempt)
        return len(ctx.input)

    options: dict[str, Any] = {"claim_check_bytes": 10_000, "claim_check_store": Slow(folder)}
    async with (
        opened(settings, KEYS[0], **options) as store,
        pool(store, {"work": work}, lease_s=0.6, heartbeat=heartbeat) as client,
    ):
        task = await client.submit("work", LARGE, session_id=SESSION, task_id="slow")
        assert await client.result(SESSION, task, timeout_s=60) == len(LARGE)
    assert runs == [1]


async def test_an_s3_compatible_server_keeps_large_payloads(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_bucket(monkeypatch) as (url, s3):
        options: dict[str, Any] = {"claim_check_bytes": 10_000, "claim_check_url": url}
        async with (
            opened(settings, KEYS[0], **options) as store,
            pool(store, {"copying": copying, "child": echo}) as client,
        ):
            task = await client.submit("copying", LARGE, session_id=SESSION)
            assert await client.result(SESSION, task, timeout_s=60) == LARGE
            names = in_bucket(s3)
            day = f"agents/{settings.namespace}/{datetime.now(UTC):%Y-%m-%d}/"
            assert len(names) == 6
            assert all(name.startswith(day) for name in names)
            bodies = [s3.get_object(Bucket="payloads", Key=name)["Body"].read() for name in names]
            assert all(MARK.encode() not in body for body in bodies)
            for name in names:
                s3.delete_object(Bucket="payloads", Key=name)
            with pytest.raises(PayloadLost):
                await client.result(SESSION, task)


async def test_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    await FolderClaims(tmp_path / "new").put("rs/day/x", b"x")
    (path,) = files(tmp_path)
    assert not path.stat().st_mode & 0o077
