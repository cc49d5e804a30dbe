"""Timers that share the moments at which they ring."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from redis_state.timers import SharedTimers

NAMED: ContextVar[str] = ContextVar("named", default="")


async def test_a_timer_rings_in_its_order_and_never_before_its_time() -> None:
    timers, loop = SharedTimers(), asyncio.get_running_loop()
    began, rung = loop.time(), list[tuple[str, float]]()
    done = asyncio.Event()

    def note(name: str) -> None:
        rung.append((name, loop.time() - began))

    for name, delay_s in (("late", 0.05), ("soon", 0.004), ("soon too", 0.004)):
        timers.after(delay_s, partial(note, name))
    timers.after(0.06, done.set)
    await done.wait()
    assert [name for name, _ in rung] == ["soon", "soon too", "late"]
    # The loop's clock has a grain of its own.
    assert all(
        at >= delay_s - 1e-6 for (_, at), delay_s in zip(rung, (0.004, 0.004, 0.05), strict=True)
    )


@pytest.mark.parametrize("delay_s", [0.001, 5.0, 300.0, 6 * 86_400.0])
async def test_a_timer_of_days_is_not_much_later_than_one_of_seconds(
    monkeypatch: pytest.MonkeyPatch, delay_s: float
) -> None:
    loop = asyncio.get_running_loop()
    made: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def noted(*arguments: Any, **options: Any) -> asyncio.TimerHandle:
        made.append(call_at(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(loop, "call_at", noted)
    began = loop.time()
    SharedTimers().after(delay_s, made.clear)
    late_s = made[0].when() - loop.time() - delay_s
    made[0].cancel()
    assert made[0].when() >= began + delay_s - 1e-6
    assert late_s <= 0.25


async def test_many_timers_of_one_moment_are_one_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers, loop = SharedTimers(), asyncio.get_running_loop()
    made: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def counted(*arguments: Any, **options: Any) -> asyncio.TimerHandle:
        made.append(call_at(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(loop, "call_at", counted)
    moment = loop.time() + 3600
    many = [timers.at(moment, made.clear, loop=loop) for _ in range(1000)]
    assert len(made) == 1
    for timer in many[1:]:
        timer.cancel()
        timer.cancel()
    assert not made[0].cancelled()
    many[0].cancel()
    # The last one that is stopped stops the loop's, and the next one is of a new moment.
    assert made[0].cancelled()
    timers.at(moment, made.clear, loop=loop).cancel()
    assert len(made) == 2


async def test_one_that_is_stopped_when_another_rings_does_not_ring() -> None:
    timers, loop = SharedTimers(), asyncio.get_running_loop()
    moment, rung = loop.time() + 0.01, list[str]()
    done = asyncio.Event()
    timers.at(moment, lambda: second.cancel(), loop=loop)  # noqa: PLW0108 - it is made below
    second = timers.at(moment, lambda: rung.append("second"), loop=loop)
    first = timers.at(moment, done.set, loop=loop)
    await done.wait()
    first.cancel()
    assert rung == []


async def test_one_that_raises_keeps_none_from_ringing() -> None:
    timers, loop = SharedTimers(), asyncio.get_running_loop()
    reported: list[str] = []
    loop.set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
    moment, done = loop.time() + 0.01, asyncio.Event()

    def fail() -> None:
        raise RuntimeError("not this one")

    timers.at(moment, fail, loop=loop)
    timers.at(moment, done.set, loop=loop)
    await done.wait()
    assert reported == ["not this one"]


async def test_each_rings_in_the_context_in_which_it_was_set() -> None:
    timers, loop = SharedTimers(), asyncio.get_running_loop()
    moment, found = loop.time() + 0.01, list[str]()
    done = asyncio.Event()

    async def set_one(name: str) -> None:
        NAMED.set(name)
        timers.at(moment, lambda: found.append(NAMED.get()), loop=loop)

    await asyncio.gather(set_one("a"), set_one("b"))
    timers.at(moment, done.set, loop=loop)
    await done.wait()
    assert found == ["a", "b"]


def test_timers_of_a_loop_that_has_ended_disturb_none_of_the_next() -> None:
    timers, rung = SharedTimers(), list[str]()

    async def leave() -> None:
        timers.after(3600, lambda: rung.append("of the first loop"))

    async def ring() -> None:
        done = asyncio.Event()
        timers.after(0.001, done.set)
        await done.wait()
        rung.append("of the second loop")

    asyncio.run(leave())
    asyncio.run(ring())
    assert rung == ["of the second loop"]
