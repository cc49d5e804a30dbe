"""PenguiFlow's job store: upstream's rules, on upstream's own store and on ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, model_serializer

pytest.importorskip("penguiflow.sessions.scheduler", reason="needs the published package")

from penguiflow.sessions.scheduler import (
    InMemoryJobStore,
    JobScheduler,
)

from redis_state import InvalidField, Settings
from tests.support.penguiflow.jobs import NOW, Spawned, ids, job, make


@pytest.fixture(params=["upstream", "ours"])
async def either(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[Any]:
    """Give upstream's own store and ours, so that both are asked the same."""
    if request.param == "upstream":
        yield InMemoryJobStore()
        return
    async with make(settings) as made:
        yield made


async def test_jobs_are_listed_as_saved_in_the_order_of_their_first_save(either: Any) -> None:
    assert await either.list_jobs() == []
    saved = [
        job("b", task_payload={"a": [1, {"b": None}]}, delivery_policy={"to": "é"}),
        job("a", session_id="other", due=None, enabled=False),
        job("c:{x}*", every=60, due=NOW.astimezone(timezone(timedelta(hours=2)))),
    ]
    for one in saved:
        await either.save_job(one)
    await either.save_job(saved[0])
    assert await either.list_jobs() == saved
    assert await either.list_jobs("s") == [saved[0], saved[2]]
    assert ids(await either.list_jobs("other")) == ["a"]
    assert await either.list_jobs("nobody") == []


async def test_saving_refreshes_the_time_on_the_callers_object(either: Any) -> None:
    one = job("a", updated_at=NOW - timedelta(days=1))
    await either.save_job(one)
    assert one.updated_at >= NOW
    assert (await either.list_jobs())[0].updated_at == one.updated_at


async def test_due_are_enabled_jobs_at_or_before_the_moment_asked_for(either: Any) -> None:
    moment = NOW + timedelta(days=300)
    step = timedelta(microseconds=1)
    await either.save_job(job("at", due=moment))
    await either.save_job(job("after", due=moment + step))
    await either.save_job(job("never", due=None))
    await either.save_job(job("disabled", due=moment, enabled=False))
    assert ids(await either.list_due(moment - step)) == []
    assert ids(await either.list_due(moment)) == ["at"]


async def test_a_session_that_a_job_has_left_does_not_list_it(either: Any) -> None:
    await either.save_job(job("a"))
    await either.save_job(job("a", session_id="other"))
    assert ids(await either.list_jobs("s")) == []
    assert ids(await either.list_jobs("other")) == ["a"]


async def test_the_scheduler_spawns_what_is_due_and_records_it(either: Any) -> None:
    spawned = Spawned()
    for one in (job("once"), job("often", every=3600), job("later", due=NOW + timedelta(days=1))):
        await either.save_job(one)
    await JobScheduler(store=either, spawn=spawned).tick()
    assert sorted(spawned) == ["often", "once"]
    assert ids(await either.list_jobs()) == ["once", "often", "later"]
    (often,) = [one for one in await either.list_jobs() if one.job_id == "often"]
    assert often.schedule.next_run_at is not None
    assert often.schedule.next_run_at > NOW


class _Unwritable(BaseModel):
    @model_serializer
    def refuse(self) -> Any:
        raise ValueError("a secret")


async def test_a_job_whose_payload_cannot_be_dumped_is_refused_by_name_and_not_saved(
    settings: Settings,
) -> None:
    async with make(settings) as jobs:
        with pytest.raises(InvalidField) as refused:
            await jobs.save_job(job("a", task_payload={"x": _Unwritable()}))
        assert refused.value.field == "job"
        assert "secret" not in str(refused.value)
        assert await jobs.list_jobs() == []
