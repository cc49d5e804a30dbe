"""Erasure as a user of the server, and on a cluster."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import CommandRefused
from redis_state.rights import Role, user_rule
from redis_state.worker import TaskClient
from tests.support.erasure import fill, left_over, nothing_is_left
from tests.support.servers.clusters import running_cluster
from tests.support.servers.faults import sender_to

pytestmark = pytest.mark.server
PASSWORD = "s3cret"


async def erased(store: RedisStateStore, *, other: str = "other-one") -> None:
    """Erase one of two sessions, with a task that waits."""
    for trace, session in enumerate(("erased-one", other)):
        await fill(store, session, f"trace-{trace}")
    async with TaskClient(store) as client:
        await client.submit("nobody", session_id="erased-one", task_id="t", attributes={"user": 1})
        report = await client.forget_user(1)
    assert (report.sessions, report.failed) == (["erased-one"], {})
    assert report.redis["tasks"] == 2


async def test_an_admin_may_and_a_worker_changes_nothing(own_url: str) -> None:
    plain = Settings(url=SecretStr(own_url), namespace="t")
    async with sender_to(own_url) as admin:
        for role in (Role.ADMIN, Role.WORKER):
            user, *words = user_rule(plain, role).words()
            given = ("reset", f">{PASSWORD}", *words)
            await admin.send("ACL", "SETUSER", user, *given, repeatable=True)

    def as_role(role: Role) -> Settings:
        url = own_url.replace("unix://", f"unix://t-{role.value}:{PASSWORD}@")
        return Settings(url=SecretStr(url), namespace="t")

    async with RedisStateStore(as_role(Role.WORKER)) as store:
        await fill(store, "erased-one", "its-trace")
        with pytest.raises(CommandRefused, match=r"(?i)scan"):
            await store.forget("erased-one")
        assert len(await store.list_tasks("erased-one")) == 1
        assert await store.load_memory_state("erased-one") == {"of": "memory"}
    async with RedisStateStore(as_role(Role.ADMIN)) as store:
        await erased(store)
    async with RedisStateStore(plain) as store:
        await nothing_is_left(store, "erased-one")
        assert await left_over(store, "other-one") != []


async def test_a_session_in_all_slots_of_a_cluster_is_erased() -> None:
    async with running_cluster() as cluster:
        settings = Settings(url=SecretStr(cluster.url), namespace="t")
        async with RedisStateStore(settings) as store:
            await erased(store)
            await nothing_is_left(store, "erased-one")
            assert len(await store.list_tasks("other-one")) == 1
