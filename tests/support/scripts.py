"""What the tests of scripts and primitives share: calls in short, and a look at what they left."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from hypothesis import event, given, seed
from hypothesis import strategies as st

from redis_state import Settings
from redis_state.scripts import (
    TASK_FIELDS,
    AdkKeys,
    Announcement,
    Fence,
    GraphKeys,
    GraphListing,
    GroupKeys,
    LogLimits,
    PatchKeys,
    PauseListKeys,
    QueuedJob,
    Reply,
    ReplyCode,
    Scripts,
    SnapshotKeys,
    TaskKeys,
    TraceKeys,
    raw,
    topic_bytes,
)
from redis_state.scripts.stores.streams import StreamLimits
from redis_state.serialization import codec
from redis_state.testing import eventually
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.keys import Keys, adk_member
from redis_state.transport.transport import Transport
from redis_state.transport.wire.resp import Argument

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

HOUR = 3_600_000
_ROUNDS = 40


def ok(*facts: Any) -> Reply:
    """Make the reply OK with these facts."""
    return Reply(ReplyCode.OK, list(facts))


def no(word: ReplyCode, *facts: Any) -> Reply:
    """Make another reply."""
    return Reply(word, list(facts))


async def ask(scripts: Scripts, *command: Argument) -> Any:
    """Send a plain command."""
    return await scripts.transport.sender.send(*command, repeatable=True)


async def lives(scripts: Scripts, *keys: str) -> list[int]:
    """Tell how many milliseconds each key has left: -1 for ever, -2 not there."""
    return [int(await ask(scripts, "PTTL", key)) for key in keys]


async def fields(scripts: Scripts, key: str) -> dict[str, bytes]:
    """Read a hash."""
    flat: list[bytes] = await ask(scripts, "HGETALL", key)
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


async def outcome(call: Awaitable[T], *errors: type[E]) -> T | E:
    """Return what a call gave, or the error that it raised."""
    try:
        return await call
    except errors as error:
        return error


async def clock_ms(scripts: Scripts) -> int:
    """Read the server's clock."""
    seconds, micros = await ask(scripts, "TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def clock_passes(scripts: Scripts, moment_ms: int) -> None:
    """Wait until the server's clock is past a moment."""

    async def passed() -> bool:
        return await clock_ms(scripts) > moment_ms

    await eventually(passed, "the server's clock moves on")


async def end_of(scripts: Scripts, log: LogKeys) -> list[int]:
    """Return the number and the time of a log's newest row."""
    head = await scripts.transport.commands.hget(log.ids, "")
    return [int(part) for part in head.split(b" ")[0].split(b"-")]


async def append(
    scripts: Scripts,
    log: LogKeys,
    *ids: str,
    topic: str | None = None,
    max_rows: int = 0,
    ttl_ms: int = HOUR,
    announce: bool = False,
    fence: Fence | None = None,
) -> Reply:
    """Append a row for each id."""
    return await scripts.append_log(
        log,
        tuple(chain.from_iterable((row_id.encode(), b"row " + row_id.encode()) for row_id in ids)),
        LogLimits(max_rows, ttl_ms, announce),
        topic=topic,
        fence=fence,
    )


async def rows_of(scripts: Scripts, log: LogKeys) -> list[tuple[int, str]]:
    """List what the log's stream holds: number and id."""
    entries = await ask(scripts, "XRANGE", log.rows, "-", "+")
    return [(int(entry.split(b"-")[0]), found[1].decode()) for entry, found in entries]


async def topic_of(scripts: Scripts, log: LogKeys, topic: str) -> list[int]:
    """List what a topic's index holds."""
    return [int(n) for n in await ask(scripts, "LRANGE", log.topic_rows(topic), 0, -1)]


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


# A checkpoint of a thread of LangGraph: no parent, no run, and the value ``i1 c``.
GRAPH_ROW = b"\x93\xc0\xa0\x91\xa4i1 c" + b"document" + b"\x00\x00\x00\x09"


def graph_keys(keys: Keys, thread: str = "h") -> GraphKeys:
    """Name the keys of a thread of LangGraph."""
    return GraphKeys(keys.graph_thread(thread), keys.graph_order(thread), keys.graph_puts(thread))


async def watch_graph_puts(scripts: Scripts, keys: Keys) -> Reply:
    """Have the puts of a thread listed under the id ``w``."""
    return await scripts.watch_graph_puts(graph_keys(keys), watch="w", ttl_ms=HOUR)


def drop_checkpoints(
    scripts: Scripts,
    keys: Keys,
    *places: bytes,
    thread: str = "h",
    needed: Mapping[bytes, bytes] | None = None,
    names: Sequence[bytes] = (b"%:i1 c",),
    known: int = 1,
    seen: tuple[int, bytes] = (1, b"w"),
    forks: bool = True,
    claim: Fence | None = None,
) -> Awaitable[Reply]:
    """Drop checkpoints of a thread, whose puts are listed. Of some the needed parent is given."""
    return scripts.drop_checkpoints(
        graph_keys(keys, thread),
        mark=claim,
        namespace="%:",
        watch=b"w",
        seen=seen[0],
        last=seen[1],
        known=known,
        forks=forks,
        ttl_ms=HOUR,
        places=[part for place in places for part in (place, (needed or {}).get(place, b""))],
        names=names,
    )


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


def task_values(status: str) -> list[bytes]:
    """Make what a host's save of a task in this state writes."""
    given = {"status": status, "priority": "0", "document": "{}", "updated": "then"}
    return [given.get(name, "null").encode() for name in TASK_FIELDS]


async def make_task(
    scripts: Scripts, task: TaskKeys, status: str, *, finished: bool = False
) -> None:
    """Save a task in a state."""
    saved = await scripts.save_task(
        task,
        task_values(status),
        write=f"made {status}",
        ttl_ms=HOUR,
        finished=finished,
        updated_at_us=1,
    )
    assert saved.word is ReplyCode.OK


STRANGER = b"7  stranger"


async def mark_of(scripts: Scripts, lease: str) -> bytes:
    """Make what a write of the lease's holder carries."""
    epoch, claim = await ask(scripts, "HMGET", lease, "epoch", "claim")
    return STRANGER if epoch is None else bytes(epoch) + b"  " + bytes(claim)


async def entries_of(scripts: Scripts, task: TaskKeys) -> dict[str, bytes]:
    """Give a task's journal without the count of its entries."""
    found = await fields(scripts, task.journal)
    return {name: value for name, value in found.items() if name != "entries"}


async def epoch_of(scripts: Scripts, lease: str) -> int:
    """Tell a lease's epoch, 0 if there is none."""
    return int(await ask(scripts, "HGET", lease, "epoch") or 0)


def queued_job(
    keys: Keys, task: str = "t", *, runs: int = 0, since_ms: int | None = None, **changes: Any
) -> QueuedJob:
    """Make a job of a task, as the queue's scripts take it."""
    job = QueuedJob(
        channel=keys.queue("q").channel,
        id=f"{keys.jobs_tag}/s/{task}:{runs}",
        payload=b"payload",
        life_ms=HOUR,
        earlier_ms=0,
        since_ms=since_ms,
        at_ms=None,
        key="",
    )
    return job._replace(**changes)


def job_payload(keys: Keys, task: str = "t", *, runs: int = 0) -> str:
    """Name the key of a job's payload."""
    return f"arq:job:{queued_job(keys, task, runs=runs).id}"


async def start(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    *,
    owner: str = "one",
    lease_ms: int = HOUR,
    claimed: int | None = None,
) -> Reply:
    """Start a task."""
    return await scripts.start_task(
        task,
        {"status": b"RUNNING"},
        owner=owner,
        lease_ms=lease_ms,
        write=f"start {owner}",
        ttl_ms=HOUR,
        announcement=saying(keys, f"started-{owner}"),
        steering=keys.steering("s"),
        claimed=claimed,
    )


async def spawn(
    scripts: Scripts,
    keys: Keys,
    parent: TaskKeys,
    *,
    child: str = "c",
    mark: bytes | None = None,
    write: str = "spawned",
    before: int = 1 << 52,
    ttl_ms: int = HOUR,
) -> Reply:
    """Spawn a child of a task."""
    return await scripts.spawn_task(
        task_keys(keys, task=child),
        {"status": b"PENDING", "finished": b"0", "parent": parent.task_id.encode()},
        parent=parent,
        children=keys.children("s", parent.task_id),
        mark=await mark_of(scripts, parent.lease) if mark is None else mark,
        entry=f"child:{child}#1",
        note=b"{}",
        before=before,
        write=write,
        ttl_ms=ttl_ms,
        index_ttl_ms=2 * ttl_ms,
        announcement=saying(keys, f"spawned-{child}"),
    )


async def join(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    child: TaskKeys,
    *,
    mark: bytes | None = None,
    write: str = "joined",
) -> Reply:
    """Have a task wait for a child's end."""
    return await scripts.join_task(
        task,
        {"status": b"PAUSED"},
        child=child,
        mark=await mark_of(scripts, task.lease) if mark is None else mark,
        write=write,
        ttl_ms=HOUR,
        announcement=saying(keys, f"joined-{child.task_id}"),
    )


async def wake(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    child: TaskKeys,
    *,
    write: str = "woken",
    ttl_ms: int = HOUR,
) -> Reply:
    """Tell a task that a child may be over."""
    return await scripts.wake_task(
        task,
        {"status": b"PENDING"},
        child=child,
        write=write,
        ttl_ms=ttl_ms,
        announcement=saying(keys, f"woken-{child.task_id}"),
    )


async def open_pause(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    token: str,
    *,
    mark: bytes | None = None,
    entry: str = "pause:x#1",
    ttl_ms: int = HOUR,
    before: int | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> Reply:
    """Open a pause under a token."""
    return await scripts.open_pause(
        task,
        mark=await mark_of(scripts, task.lease) if mark is None else mark,
        token=token,
        entry=entry,
        note=b"open",
        owner=b"owner",
        about=b"about",
        extra={name.encode(): value for name, value in (extra or {}).items()},
        token_ttl_ms=ttl_ms,
        keep_ms=HOUR,
        ttl_ms=HOUR,
        announcement=saying(keys, f"opened-{token}"),
        before=before,
    )


async def pause(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    token: str,
    *,
    mark: bytes | None = None,
    entry: str = "pause:x#1",
) -> Reply:
    """Have a task wait for a pause."""
    return await scripts.pause_task(
        task,
        {"status": b"PAUSED"},
        mark=await mark_of(scripts, task.lease) if mark is None else mark,
        token=token,
        entry=entry,
        write=f"pause {token}",
        ttl_ms=HOUR,
        announcement=saying(keys, f"paused-{token}"),
    )


async def decide(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    token: str,
    claim: str = "c",
    *,
    answer: str = "yes",
    entry: str = "pause:x#1",
    overdue: bool = False,
    mark: bytes = b"",
    voter: str | None = None,
    approves: bool = True,
) -> Reply:
    """Decide a pause, or vote on it."""
    return await scripts.decide_pause(
        task,
        {"status": b"PENDING"},
        token=token,
        entry=entry,
        claim=claim,
        actor=f"by {claim}" if voter is None else voter,
        decision=answer.encode(),
        approves=approves,
        vote=b"" if voter is None else codec.encode([voter, answer]),
        note=f"{answer} by {claim}".encode() if voter is None else b'{"by":1}',
        keep_ms=HOUR,
        ttl_ms=HOUR,
        announcement=saying(keys, *(f"{what}-{claim}" for what in ("resumed", "decided", "voted"))),
        overdue=overdue,
        mark=mark,
    )


def seats(*actors: str, approvals: int = 1, rejections: int = 0) -> dict[str, bytes]:
    """Name who decides a pause, for `open_pause`."""
    counts = {"approvals": b"%d" % approvals, "rejections": b"%d" % rejections}
    return counts | {f"seat:{actor}": b"open" for actor in actors}


async def delegate(
    scripts: Scripts, keys: Keys, pair: tuple[TaskKeys, str], actor: str, to: str, *, most: int = 99
) -> Reply:
    """Hand a seat of a pause on."""
    task, token = pair
    return await scripts.delegate_pause(
        task,
        token=token,
        actor=actor,
        to=to,
        most=most,
        announcement=saying(keys, f"delegated-{actor}-{to}"),
    )


async def escalate(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    token: str,
    *actors: str,
    number: int = 0,
    after_ms: int = 0,
    replaces: bool = False,
) -> Reply:
    """Let a pause gain deciders."""
    return await scripts.escalate_pause(
        task,
        token=token,
        number=number,
        after_ms=after_ms,
        replaces=replaces,
        announcement=saying(keys, f"escalated-{number}"),
        actors=actors,
    )


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
    )


async def apply(
    scripts: Scripts, keys: Keys, patch: PatchKeys, *, gated: bool = False, **more: Any
) -> Reply:
    """Bring a patch into its context, or keep it for a decision."""
    given: dict[str, Any] = {
        "basis": (0, ""),
        "payload": b"kept" if gated else b"",
        "result": b"" if gated else b"result",
        "decision": b"pending" if gated else b"applied",
        "actor": "me",
        "wait_ms": HOUR,
        "keep_ms": HOUR,
        "limit": 2,
        "ttl_ms": HOUR,
        "call": uuid.uuid4().hex,
        "announcement": saying(keys, "told"),
    }
    return await scripts.apply_patch(patch, **{**given, **more})


def group_keys(keys: Keys, group: str = "g", session: str = "s") -> GroupKeys:
    """Name a group's keys."""
    return GroupKeys(
        group_id=group,
        group=keys.group(session, group),
        groups=keys.groups(session),
        names=keys.group_names(session),
    )


async def make_group(
    scripts: Scripts,
    group: GroupKeys,
    *,
    alias: bytes = b"name",
    instead_of: str | None = None,
    write: str = "w",
) -> Reply:
    """Open a group of a name."""
    return await scripts.create_group(
        group,
        {"status": b"open", "report": b"all", "document": b"{}"},
        alias=alias,
        instead_of=instead_of,
        write=write,
        ttl_ms=HOUR,
    )


async def finish(
    scripts: Scripts, group: GroupKeys, task: str, *, call: str = "c", **more: Any
) -> Reply:
    """End a member of a group."""
    given: dict[str, Any] = {"outcome": "complete", "patch_id": None}
    return await scripts.finish_member(
        group,
        task_id=task,
        call=call,
        ttl_ms=HOUR,
        ended_ttl_ms=HOUR // 2,
        **{**given, **more},
    )


async def close(
    scripts: Scripts,
    group: GroupKeys,
    *,
    target: str = "sealed",
    call: str = "c",
    alias: bytes = b"name",
) -> Reply:
    """Seal a group, or end it as failed."""
    return await scripts.close_group(
        group, target=target, alias=alias, call=call, ttl_ms=HOUR, ended_ttl_ms=HOUR // 2
    )


def matching(topic: str | None, rows: Iterable[T], of: Callable[[T], str | None]) -> list[T]:
    """Pick a topic's rows; all for None."""
    return [row for row in rows if topic is None or topic_bytes(of(row)) == topic_bytes(topic)]


def explore(
    settings: Settings,
    steps: st.SearchStrategy[T],
    play: Callable[[Scripts, T], Awaitable[Sequence[str]]],
    *,
    wanted: set[str],
) -> None:
    """Play generated steps in one loop; ``play`` tells what happened.

    Fails unless each wanted thing happened in some example: steps that never come near a rule
    would prove nothing about it. They get a few rounds to come near all of them.
    """
    happened: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        transport = Transport(settings)

        async def one(example: T) -> Sequence[str]:
            return await play(Scripts(transport), example)

        @given(steps)
        def run(example: T) -> None:
            for name in runner.run(one(example)):
                event(name)
                happened[name] += 1

        try:
            for _ in range(_ROUNDS):
                # Drawn from the run's own seed, so that a round is new and can be repeated.
                seed(random.getrandbits(64))(run)()
                if wanted <= set(happened):
                    break
        finally:
            runner.run(transport.aclose())
    assert wanted <= set(happened), f"never happened: {wanted - set(happened)}"


async def make_stream(scripts: Scripts, keys: Keys, path: str = "s", **given: Any) -> Reply:
    """Create a durable stream of bytes."""
    requested: dict[str, Any] = {
        "stream_id": "id",
        "content_type": "application/octet-stream",
        "life": HOUR,
        "expires": None,
        "closed": False,
        "about": b'{"type":"application/octet-stream","ttl":null,"expires":null}',
        "origin": b"",
        "first": "0-0",
        "hold_ms": 0,
        "data": b"",
    }
    return await scripts.create_stream(keys.stream(path), **(requested | given))


async def add_row(scripts: Scripts, keys: Keys, data: bytes = b"p", **given: Any) -> Reply:
    """Append a row to a durable stream."""
    requested: dict[str, Any] = {
        "content_type": "application/octet-stream" if data else "",
        "seq": "",
        "producer": "",
        "epoch": 0,
        "number": 0,
        "closing": False,
    }
    bounds = given.pop("limits", StreamLimits(0, 0, 9))
    keys_of = keys.stream(given.pop("path", "s"))
    return await scripts.append_stream(keys_of, bounds, data=data, **(requested | given))
