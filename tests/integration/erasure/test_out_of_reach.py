"""An erasure by a process without the archive's address: it is refused, or says what it leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("typer", reason="needs the cli extra")

from pydantic import SecretStr

from redis_state import ErasureOutOfReach, RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.waiting import ArchiveList
from redis_state.archive.working import WorkingArchivers
from redis_state.erasure import Eraser, release_held
from redis_state.gateway.answers import problem_answer, problem_of
from redis_state.http_client.requests.caller import Ask
from redis_state.http_client.requests.problems import read_problem
from redis_state.models import StoredEvent, TaskStatus
from redis_state.stores.kept_elsewhere import ElsewhereSigns
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.support.commands import cli
from tests.support.samples import admin, task
from tests.support.servers.postgres import OwnPostgres

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it reads the names of all keys"),
]


@pytest.fixture
def archiving(settings: Settings, tmp_path: Path) -> Settings:
    """Give settings with an archive; those of the test's own store have none."""
    return settings.model_copy(update={"archive_url": SecretStr(tmp_path.as_uri())})


@pytest.fixture
async def live(archiving: Settings) -> AsyncIterator[RedisStateStore]:
    """Give a store that archives."""
    async with RedisStateStore(archiving) as opened:
        yield opened


async def is_refused(store: RedisStateStore, why: str, *, what: str = "archive") -> None:
    """Look whether an erasure is refused, counted as failed, and left alone if that is asked."""
    await store.save_task(task("t", "mine"))
    with pytest.raises(ErasureOutOfReach, match=why):
        await store.forget("mine")
    async with Eraser(store) as eraser:
        with pytest.raises(ErasureOutOfReach, match=why):
            await eraser.forget_user("nobody")
    assert len(await store.list_tasks("mine")) == 1
    counted = await store.forget("mine", dry_run=True)
    assert (list(counted.failed), counted.is_complete) == ([what], False)
    report = await store.forget("mine", leave_unset=True)
    assert why in report.kept[what]
    assert (report.redis["tasks"], report.is_complete) == (1, True)
    assert await store.list_tasks("mine") == []


async def test_archivers_work(store: RedisStateStore) -> None:
    async with WorkingArchivers(store) as signs:
        await signs.sign()
        # As archivers of earlier versions: the one sign alone.
        await ElsewhereSigns(store.base).withdraw("archive")
        await is_refused(store, "1 archivers work")
    await store.save_task(task("t", "mine"))
    assert (await store.forget("mine")).is_complete


async def test_the_namespace_was_archived_and_redis_has_nothing_left_of_it(
    store: RedisStateStore, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        there.setenv("REDIS_STATE_ARCHIVE_URL", tmp_path.as_uri())
        assert (await cli(settings, "archive", "run")).status == 0
    await is_refused(store, "the namespace was archived")
    # Who takes the archive away for good says so by that.
    await release_held(store, dry_run=False)
    await store.save_task(task("t", "mine"))
    assert (await store.forget("mine")).is_complete


async def test_something_waits_for_the_archive(store: RedisStateStore) -> None:
    await ArchiveList(store).watch_session("another", within_ms=60_000)
    await is_refused(store, "waits for the archive")


async def test_a_record_says_that_it_is_archived(store: RedisStateStore) -> None:
    await store.save_task(task("t", "mine"))
    await admin(store, "HSET", store.base.keys.task("mine", "t"), "archived", "1 w")
    with pytest.raises(ErasureOutOfReach, match="is archived"):
        await store.forget("mine")
    assert len(await store.list_tasks("mine")) == 1
    # Of another session nothing says so.
    assert (await store.forget("other")).is_complete


async def test_with_its_archive_nothing_is_out_of_reach(live: RedisStateStore) -> None:
    async with WorkingArchivers(live) as signs:
        await signs.sign()
        await live.save_task(task("t", "mine"))
        assert (await live.forget("mine")).is_complete


async def test_an_archive_that_is_given_is_within_reach(
    store: RedisStateStore, archiving: Settings
) -> None:
    archive = open_archive(archiving)
    async with WorkingArchivers(store) as signs, Eraser(store, archive) as eraser:
        await signs.sign()
        assert (await eraser.forget("mine")).is_complete
    await archive.aclose()


@pytest.mark.parametrize("mode", ["sync", "delayed"])
async def test_durable_events_are_somewhere_else(
    store: RedisStateStore, settings: Settings, postgres: OwnPostgres, mode: str
) -> None:
    url = SecretStr(postgres.url)
    named = {"durable_events": url, "durable_events_mode": mode}
    async with RedisStateStore(settings.model_copy(update=named)) as durable:
        await durable.save_event(StoredEvent("trace", 1.0, "kind", "node", None, {}))

        async def signed() -> bool:
            return "durable_events" in await ElsewhereSigns(store.base).all()

        await eventually(signed, "the process says that it has durable events")
        await durable.save_task(task("t", "mine"))
        assert (await durable.forget("mine")).is_complete
    await is_refused(store, "durable events", what="durable events")


async def test_tasks_are_not_cancelled_for_an_erasure_that_is_refused(
    store: RedisStateStore,
) -> None:
    async with TaskClient(store) as client, WorkingArchivers(store) as signs:
        await signs.sign()
        await client.submit("h", session_id="mine", task_id="t", attributes={"user": "ann"})
        for call in (client.forget("mine"), client.forget_user("ann")):
            with pytest.raises(ErasureOutOfReach):
                await call
        state = await client.get("mine", "t")
        assert state is not None
        assert state.status is TaskStatus.PENDING
        report = await client.forget_user("ann", leave_unset=True)
        assert (report.sessions, report.cancelled) == (["mine"], 1)


async def test_a_command_has_its_status(settings: Settings, store: RedisStateStore) -> None:
    await store.save_task(task("t", "mine"))
    async with WorkingArchivers(store) as signs:
        await signs.sign()
        ran = await cli(settings, "forget", "--session", "mine")
        assert (ran.status, "failed  archive" in ran.out) == (1, True)
        ran = await cli(settings, "forget", "--session", "mine", "--yes")
        assert (ran.status, "archive_url is not set here" in ran.err) == (4, True)
        assert len(await store.list_tasks("mine")) == 1
        ran = await cli(settings, "forget", "--session", "mine", "--yes", "--leave-unset")
        assert (ran.status, "kept    archive" in ran.out) == (0, True)


def test_over_http_it_is_a_conflict_with_its_reasons() -> None:
    error = ErasureOutOfReach(["one", "two"])
    answered = problem_answer(problem_of(error))
    assert answered.status_code == 409
    problem = read_problem(409, {}, bytes(answered.body))
    assert problem is not None
    made = problem.error("redis", Ask("DELETE", ("sessions", "s")))
    assert isinstance(made, ErasureOutOfReach)
    assert (str(made), made.reasons) == (str(error), ["one", "two"])
