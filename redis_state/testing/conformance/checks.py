"""The checks: each is one errand, or several, to which something happens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from typing import Final, TypeAlias

from redis_state.errors import TokenResolved
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.testing.conformance.host import EFFECTS, text_of
from redis_state.testing.conformance.trial import SHORT_GRACE_S, Sent, Trial
from redis_state.worker import TaskClient, TextReader

Check: TypeAlias = Callable[[Trial], Awaitable[None]]

# Each pair is one that a careless join of the two ids makes equal to another one.
ODD_IDS: Final = (
    ("a:b", "c"),
    ("a", "b:c"),
    ("p/q", "d"),
    ("p", "q/d"),
    ("{x}", "{y}"),
    ("*", "?[a]"),
    ("line\nbreak", "tab\t"),
    ("\u65e5\u672c %00", "e\u0301"),
    ("x" * 300, "y" * 300),
)


async def killed_in(trial: Trial, effect: str) -> None:
    """Kill a worker in an effect: another one repeats that effect, and none before it."""
    sent = await trial.submit()
    first = await trial.start(kill=[effect])
    asks_first = effect == "send"
    if asks_first:
        await trial.approve(sent, await trial.paused(sent), "ann says yes")
    await trial.dies(first, sent, effect)
    await trial.start()
    if not asks_first:
        await trial.approve(sent, await trial.paused(sent), "ann says yes")
    result = await trial.completed(sent)
    trial.expect_once(sent, f"a worker was killed in {effect!r}")
    trial.expect_result(sent, result, "ann says yes")


async def one_decider_wins(trial: Trial) -> None:
    """Decide a pause from two stores at once: one wins, and the other learns who has."""
    sent = await trial.submit()
    await trial.start()
    pause = await trial.paused(sent)
    async with RedisStateStore(trial.settings) as store, TaskClient(store) as other:
        outcomes = await asyncio.gather(
            trial.approve(sent, pause, "ann says yes"),
            trial.approve(sent, pause, "bob says yes", client=other),
            return_exceptions=True,
        )
    losers = {
        actor: outcome
        for actor, outcome in zip(("ann", "bob"), outcomes, strict=True)
        if isinstance(outcome, BaseException)
    }
    if len(losers) != 1:
        raise AssertionError(f"of two deciders {2 - len(losers)} heard that they decided")
    ((loser, refusal),) = losers.items()
    winner = "bob" if loser == "ann" else "ann"
    if not isinstance(refusal, TokenResolved) or refusal.actor != winner:
        raise AssertionError(f"the loser got {type(refusal).__name__}, not who has decided")
    result = await trial.completed(sent)
    trial.expect_result(sent, result, f"{winner} says yes")
    if f"{loser} says yes" in result:
        raise AssertionError("the answer of the decider who lost is in the result")
    trial.expect_once(sent, "two deciders")


async def a_rejection_is_obeyed(trial: Trial) -> None:
    """Reject: the effect behind the approval is not made."""
    sent = await trial.submit()
    await trial.start()
    pause = await trial.paused(sent)
    await trial.client.reject(pause.pause_id or "", "no", actor="ann")
    sent.decided.append(pause.pause_id or "")
    await trial.ended(sent)
    if any(line.effect == "send" for line in trial.lines(sent)):
        raise AssertionError("'send' was made although it was rejected")


async def resumes_elsewhere(trial: Trial) -> None:
    """Kill the process that paused: another one does the rest, and only the rest."""
    sent = await trial.submit()
    first = await trial.start()
    pause = await trial.paused(sent)
    await trial.kill(first)
    await trial.approve(sent, pause, "ann says yes")
    second = await trial.start()
    result = await trial.completed(sent)
    trial.expect_once(sent, "the process that paused was killed, and another one resumed")
    trial.expect_result(sent, result, "ann says yes")
    pids = {line.effect: line.pid for line in trial.lines(sent)}
    if pids["draft"] != first.pid or pids["send"] != second.pid:
        raise AssertionError("the effects were not made by the processes that had the task")


async def is_handed_off(trial: Trial) -> None:
    """Stop a worker in an effect that outlasts its grace: another one does the rest, at once."""
    sent = await trial.submit()
    first = await trial.start(hold=["draft"], grace_s=SHORT_GRACE_S)
    await trial.begun(sent, "draft")
    first.terminate()
    await trial.handed_off(sent)
    # A thread goes on with its effect, and its process waits for it.
    trial.release()
    await trial.stopped(first)
    await trial.start()
    await trial.approve(sent, await trial.paused(sent), "ann says yes")
    result = await trial.completed(sent)
    trial.expect_result(sent, result, "ann says yes")
    made = Counter(
        (line.effect, "first" if line.pid == first.pid else "second")
        for line in trial.lines(sent)
        if line.ended and (line.effect, line.pid) != ("draft", first.pid)
    )
    if made != {("look", "first"): 1, ("draft", "second"): 1, ("send", "second"): 1}:
        listed = ", ".join(
            f"{effect!r} {count} by the {who}" for (effect, who), count in made.items()
        )
        raise AssertionError(f"after a hand-off the two workers have made {listed}")
    view = await trial.client.inspect(sent.session_id, sent.task_id)
    if view is not None and view.crashes:
        raise AssertionError("a hand-off counts as a crash")
    _expect_once(sent, await trial.updates(sent))


async def nothing_is_published_twice(trial: Trial) -> None:
    """Kill the workers of a task twice: its log is that of a task which nobody disturbs."""
    sent = await trial.submit()
    first = await trial.start(kill=["draft"])
    await trial.dies(first, sent, "draft")
    second = await trial.start(kill=["send"])
    pause = await trial.paused(sent)
    _expect_published(sent, await trial.updates(sent), EFFECTS[:2])
    await trial.approve(sent, pause, "ann says yes")
    await trial.dies(second, sent, "send")
    await trial.start()
    await trial.completed(sent)
    rows = await trial.updates(sent)
    _expect_published(sent, rows, EFFECTS)
    _expect_once(sent, rows)
    undisturbed = await trial.submit(session_id="undisturbed")
    await trial.approve(undisturbed, await trial.paused(undisturbed), "ann says yes")
    await trial.completed(undisturbed)
    # What is said again in other words makes more rows.
    usual = _shapes(undisturbed, await trial.updates(undisturbed))
    for (kind, effects), count in _shapes(sent, rows).items():
        if count > usual[kind, effects]:
            about = f" about {' and '.join(map(repr, effects))}" if effects else ""
            raise AssertionError(
                f"replays published {kind}{about} {count} times, in words that differ; a task that "
                f"nobody disturbs has {usual[kind, effects]}"
            )


def _expect_once(sent: Sent, rows: list[StateUpdate]) -> None:
    seen = Counter((row.update_type.value, codec.encode(row.content)) for row in rows)
    for (kind, content), count in seen.items():
        if count > 1:
            shown = content.decode().replace(sent.mark, "<mark>")
            raise AssertionError(f"a replay published {kind} {shown:.120} {count} times")


def _shapes(sent: Sent, rows: list[StateUpdate]) -> Counter[tuple[str, tuple[str, ...]]]:
    """Count what was published by its type, and by the effects whose texts it has."""
    return Counter(
        (kind.value, tuple(each for each in EFFECTS if text_of(each, sent.mark) in content))
        for kind, content in _published(rows)
    )


def _published(rows: list[StateUpdate]) -> list[tuple[UpdateType, str]]:
    """Return type and content of each update. A text is one, in however many rows it came."""
    reader, kinds = TextReader(), dict[str, UpdateType]()
    others: list[tuple[UpdateType, str]] = []
    for row in rows:
        shown = reader.feed(row)
        if shown is None:
            others.append((row.update_type, str(row.content)))
        else:
            kinds[shown.text_id] = row.update_type
    texts = [(kinds[name], shown.text) for name, shown in reader.texts.items()]
    return others + texts


def _expect_published(sent: Sent, rows: list[StateUpdate], effects: tuple[str, ...]) -> None:
    # Not what a pause says of itself: its payload may quote the texts.
    contents = [text for kind, text in _published(rows) if kind is not UpdateType.CHECKPOINT]
    for effect in effects:
        if not any(text_of(effect, sent.mark) in content for content in contents):
            raise AssertionError(f"no update has the text of {effect!r}")


def _expect_own(others: set[str], texts: list[str]) -> None:
    if any(mark in text for mark in others for text in texts):
        raise AssertionError("it has texts of another task")


async def a_cancel_ends_it(trial: Trial) -> None:
    """Cancel during an effect: the task is CANCELLED, and no further effect is made."""
    sent = await trial.submit()
    worker = await trial.start(hold=["draft"])
    await trial.begun(sent, "draft")
    if not await trial.client.cancel(sent.session_id, sent.task_id, reason="enough"):
        raise AssertionError("the cancel was refused")
    trial.release()
    state = await trial.ended(sent)
    if state.status is not TaskStatus.CANCELLED:
        raise AssertionError(f"the task is {state.status.value} after a cancel, not CANCELLED")
    # What the handler has left running ends with its worker.
    await trial.stop(worker)
    if any(line.effect == "send" for line in trial.lines(sent)):
        raise AssertionError("'send' was made after a cancel")
    if await trial.client.pauses(sent.session_id):
        raise AssertionError("a pause of a cancelled task is open")


async def ids_are_any_text(trial: Trial) -> None:
    """Submit under odd ids: each task has its own effects, updates and result."""
    await _side_by_side(trial, ODD_IDS)


async def tasks_of_one_id_are_apart(trial: Trial) -> None:
    """Run tasks of the same id in two sessions, at the same time."""
    await _side_by_side(trial, (("one", "same"), ("two", "same")))


async def _side_by_side(trial: Trial, ids: tuple[tuple[str, str], ...]) -> None:
    async def run(session_id: str, task_id: str) -> None:
        sent = await trial.submit(session_id=session_id, task_id=task_id)
        marks.append(sent.mark)
        try:
            pause = await trial.paused(sent)
            all_paused.append(sent)
            # Each is decided while all are there.
            await trial.until(lambda: len(all_paused) == len(ids), "all tasks are paused")
            await trial.approve(sent, pause, f"ann says yes to {sent.mark}")
            result = await trial.completed(sent)
            trial.expect_once(sent, "tasks beside each other")
            trial.expect_result(sent, result, f"ann says yes to {sent.mark}")
            rows = await trial.updates(sent)
            _expect_published(sent, rows, EFFECTS)
            others = set(marks) - {sent.mark}
            _expect_own(others, [result, *(str(row.content) for row in rows)])
        except AssertionError as failed:
            named = f"session {session_id[:20]!r}, task {task_id[:20]!r}"
            raise AssertionError(f"{named}: {failed}") from None

    marks: list[str] = []
    all_paused: list[Sent] = []
    await trial.start()
    async with asyncio.TaskGroup() as group:
        for session_id, task_id in ids:
            group.create_task(run(session_id, task_id))


async def payloads_are_encrypted(trial: Trial) -> None:
    """Read every key under `payload_keys`: none has the mark in clear, in its name neither."""
    sent = await trial.submit()
    await trial.start()
    pause = await trial.paused(sent)
    clear = await trial.holding(sent.mark)
    await trial.approve(sent, pause, f"ann says yes to {sent.mark}")
    await trial.completed(sent)
    if clear := sorted({*clear, *await trial.holding(sent.mark)}):
        listed = ", ".join(key.replace(sent.mark, "<mark>") for key in clear[:3])
        raise AssertionError(f"{len(clear)} keys have a payload in clear: {listed}")


async def keys_expire(trial: Trial) -> None:
    """Look for keys without a lifetime, during the pause and at the end."""
    sent = await trial.submit()
    await trial.start()
    pause = await trial.paused(sent)
    leaked = await trial.permanent()
    await trial.approve(sent, pause, "ann says yes")
    await trial.completed(sent)
    if leaked := sorted({*leaked, *await trial.permanent()}):
        raise AssertionError(f"{len(leaked)} keys have no lifetime: {', '.join(leaked[:3])}")


CHECKS: Final[dict[str, Check]] = {
    **{f"kill-{effect}": partial(killed_in, effect=effect) for effect in EFFECTS},
    "deciders": one_decider_wins,
    "reject": a_rejection_is_obeyed,
    "elsewhere": resumes_elsewhere,
    "hand-off": is_handed_off,
    "replay": nothing_is_published_twice,
    "cancel": a_cancel_ends_it,
    "ids": ids_are_any_text,
    "same-id": tasks_of_one_id_are_apart,
    "encryption": payloads_are_encrypted,
    "lifetimes": keys_expire,
}

ENCRYPTED: Final = "encryption"


def missing_for(check: str) -> str | None:
    """Return why a check cannot run here, or None."""
    if check == ENCRYPTED and find_spec("cryptography") is None:
        return "needs the extra crypto"
    return None
