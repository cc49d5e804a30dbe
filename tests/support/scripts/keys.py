"""The keys of one task, trace, thread and more, as the stores make them."""

from __future__ import annotations

from redis_state.scripts import (
    AdkKeys,
    Announcement,
    GraphKeys,
    GraphListing,
    GroupKeys,
    PatchKeys,
    PauseListKeys,
    SnapshotKeys,
    TaskKeys,
    TraceKeys,
    raw,
)
from redis_state.transport.keys import Keys, adk_member
from tests.support.scripts.replies import HOUR


def task_keys(keys: Keys, session: str = "s", task: str = "t") -> TaskKeys:
    """Name a task's keys."""
    return TaskKeys(
        task_id=task,
        task=keys.task(session, task),
        tasks=keys.tasks(session),
        lease=keys.lease(session, task),
        journal=keys.journal(session, task),
    )


def trace_keys(keys: Keys, trace: str = "t") -> TraceKeys:
    """Name what is kept of a trace."""
    return TraceKeys(
        sessions=keys.trace_sessions(trace),
        events=keys.events(trace),
        planner_events=keys.planner_events(trace),
        unreadable=keys.unreadable(trace),
        bindings=keys.bindings(trace),
    )


def snapshot_keys(keys: Keys, task: str = "t") -> SnapshotKeys:
    """Name the keys of a task's snapshots."""
    return SnapshotKeys(
        rows=keys.snapshots(task),
        index=keys.snapshot_index(task),
    )


def graph_keys(keys: Keys, thread: str = "h") -> GraphKeys:
    """Name the keys of a thread of LangGraph."""
    return GraphKeys(keys.graph_thread(thread), keys.graph_order(thread), keys.graph_puts(thread))


def adk_keys(keys: Keys, session: str = "h", user: str = "u") -> AdkKeys:
    """Name the keys of a session of Google's ADK."""
    member = adk_member(user, session)
    return AdkKeys(
        session=keys.adk_session_at("p", member),
        user=keys.adk_user("p", user),
        app=keys.adk_app("p"),
        index=keys.adk_sessions("p"),
        own=keys.adk_sessions_of("p", user),
        events=keys.adk_events("p", member),
        member=member,
    )


def graph_listing(keys: Keys) -> GraphListing:
    """Name the keys of the first shard of the listing of threads."""
    return GraphListing(keys.graph_threads(0), keys.graph_expiries(0))


def saying(keys: Keys, *ids: str, session: str = "s") -> Announcement:
    """Make the updates that go with a move."""
    rows = [(raw(row_id), b"row " + raw(row_id)) for row_id in ids]
    return Announcement(keys.updates(session), 100, HOUR, rows)


def token_key(keys: Keys, name: str = "x", session: str = "s") -> str:
    """Name a session's token."""
    key = keys.session_token(f"{session}.{name}")
    assert key is not None
    return key


def pause_list_keys(keys: Keys) -> PauseListKeys:
    """Name the keys of the list of all open pauses."""
    return PauseListKeys(keys.open_pauses(), keys.opened_pauses())


def patch_keys(keys: Keys, patch: str = "p", session: str = "s", task: str = "t") -> PatchKeys:
    """Name the keys of a patch of a session's context."""
    return PatchKeys(
        patch_id=patch,
        task_id=task,
        context=keys.context(session),
        patch=keys.patch(session, patch),
        patches=keys.patches(session),
        kept=keys.kept_patches(session),
    )


def group_keys(keys: Keys, group: str = "g", session: str = "s") -> GroupKeys:
    """Name a group's keys."""
    return GroupKeys(
        group_id=group,
        group=keys.group(session, group),
        groups=keys.groups(session),
        names=keys.group_names(session),
    )
