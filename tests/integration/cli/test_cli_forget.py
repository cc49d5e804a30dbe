"""``redis-state forget``: a dry run first, then a report."""

from __future__ import annotations

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from tests.support.commands import cli
from tests.support.erasure import nothing_is_left
from tests.support.samples import task

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it reads the names of all keys"),
]


async def test_a_session_is_counted_and_then_erased(
    settings: Settings, store: RedisStateStore
) -> None:
    for session in ("mine", "other"):
        await store.save_task(task("t", session))
    for arguments in ((), ("--dry-run", "--yes")):
        ran = await cli(settings, "forget", "--session", "mine", *arguments)
        assert (ran.status, "would be removed" in ran.out) == (0, True)
    assert len(await store.list_tasks("mine")) == 1
    ran = await cli(settings, "forget", "--session", "mine", "--yes", "--json", "--actor", "ann")
    assert (ran.document["redis"]["tasks"], ran.document["complete"]) == (1, True)
    await nothing_is_left(store, "mine")
    again = await cli(settings, "forget", "--session", "mine", "--yes")
    assert "there was nothing" in again.out
    assert len(await store.list_tasks("other")) == 1


async def test_wrong_calls_have_their_status(settings: Settings) -> None:
    for arguments in ((), ("--session", "s", "--user", "u")):
        assert (await cli(settings, "forget", *arguments, "--yes")).status == 2
    ran = await cli(settings, "forget", "--user", "nobody", "--yes", "--json")
    assert (ran.status, ran.document["sessions"]) == (0, [])
