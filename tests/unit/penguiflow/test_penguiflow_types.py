"""A user of pyright strict hands the stores to PenguiFlow: `make types` reads this file as his."""

from __future__ import annotations

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")

from penguiflow import Message, Node, NodePolicy, create
from penguiflow.catalog import build_catalog
from penguiflow.planner import ReactPlanner
from penguiflow.registry import ModelRegistry
from penguiflow.sessions import SessionManager, StreamingSession
from penguiflow.sessions.scheduler import JobDefinition, JobScheduler
from penguiflow.state import StateStore, StateUpdate, TaskState

from redis_state.integrations.penguiflow import (
    PenguiflowStateStore,
    create_job_store,
    create_store,
)
from redis_state.integrations.penguiflow.durable.durable_session import DurableSession
from redis_state.integrations.penguiflow.playground import DurableSessionManager
from redis_state.integrations.penguiflow.sessions import WatchedStore


class Model:
    """A model that is never asked."""

    async def complete(self, **_: object) -> str:
        """Say nothing."""
        return ""


async def pass_on(message: Message, _: object) -> Message:
    return message


async def spawn(job: JobDefinition) -> str:
    job_id: str = job.job_id
    return job_id


async def read(store: PenguiflowStateStore) -> tuple[list[TaskState], list[StateUpdate]]:
    """Have what is read as PenguiFlow's own."""
    return await store.list_tasks("session"), await store.list_updates("session")


def test_the_stores_are_what_penguiflow_asks_for_also_by_their_types() -> None:
    store = create_store()
    plain: StateStore = store
    kept = WatchedStore(store)
    node = Node(pass_on, policy=NodePolicy(validate="none"))
    sessions: list[StreamingSession] = [
        StreamingSession("session", state_store=store),
        StreamingSession("session", state_store=kept),
        DurableSession("session", state_store=kept),
    ]
    managers: list[SessionManager] = [
        SessionManager(state_store=store),
        DurableSessionManager(state_store=store),
    ]
    flow = create(node.to(), state_store=plain)
    catalog = build_catalog([], ModelRegistry())
    planner = ReactPlanner(llm_client=Model(), catalog=catalog, state_store=store)
    scheduler = JobScheduler(store=create_job_store(), spawn=spawn)
    assert all((*sessions, *managers, flow, planner, scheduler))
