"""A future whose waiter goes on at once, and which is else a future like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from redis_state.transport.sending.future import EagerFuture

WHERE: ContextVar[str] = ContextVar("WHERE", default="nowhere")


def new_answer() -> EagerFuture:
    answer = EagerFuture(loop=asyncio.get_running_loop())
    answer.waiter = None
    return answer


async def in_a_callback(act: Callable[[], object]) -> None:
    """Do something where no task runs, as what the socket gives is heard."""
    done = asyncio.Event()

    def run() -> None:
        act()
        done.set()

    asyncio.get_running_loop().call_soon(run)
    await done.wait()


async def waiting(answer: EagerFuture, heard: list[Any], name: str = "first") -> None:
    try:
        heard.append((name, await answer))
    except Exception as error:  # noqa: BLE001 - whatever it is
        heard.append((name, type(error)))


async def begin(*tasks: Any) -> list[asyncio.Task[None]]:
    begun = [asyncio.create_task(task) for task in tasks]
    await asyncio.sleep(0)
    return begun


async def test_the_first_waiter_goes_on_before_telling_returns_and_the_others_after() -> None:
    answer, heard = new_answer(), list[Any]()
    tasks = await begin(waiting(answer, heard), waiting(answer, heard, "second"))

    def resolve() -> None:
        answer.resolve(1)
        heard.append("told")

    await in_a_callback(resolve)
    await asyncio.gather(*tasks)
    assert heard == [("first", 1), "told", ("second", 1)]


async def test_within_a_task_nobody_goes_on_before_it_waits() -> None:
    answer, heard = new_answer(), list[Any]()
    (task,) = await begin(waiting(answer, heard))
    answer.resolve(1)
    assert heard == []
    await task
    assert heard == [("first", 1)]


async def test_a_waiter_goes_on_in_its_own_context() -> None:
    answer, heard = new_answer(), list[str]()

    async def wait() -> None:
        WHERE.set("in the task")
        await answer
        heard.append(WHERE.get())

    (task,) = await begin(wait())
    await in_a_callback(lambda: answer.resolve(None))
    await task
    assert (heard, WHERE.get()) == (["in the task"], "nowhere")


async def test_a_waiter_may_wait_anew_tell_others_and_be_told_at_once() -> None:
    first, second, third, heard = new_answer(), new_answer(), new_answer(), list[Any]()

    async def wait() -> None:
        heard.append(await first)
        third.resolve("within a task")
        heard.append(await second)

    (task, other) = await begin(wait(), waiting(third, heard))

    def resolve() -> None:
        first.resolve(1)
        second.resolve(2)
        heard.append("told")

    await in_a_callback(resolve)
    await asyncio.gather(task, other)
    assert heard == [1, 2, "told", ("first", "within a task")]


@pytest.mark.parametrize(
    ("way", "given", "expected"),
    [
        ("set_result", 1, 1),
        ("set_exception", KeyError(), KeyError),
        ("set_exception", KeyError, KeyError),
    ],
)
async def test_any_other_outcome_comes_in_the_next_turn(
    way: str, given: object, expected: object
) -> None:
    answer, heard = new_answer(), list[Any]()
    (task,) = await begin(waiting(answer, heard))

    def act() -> None:
        getattr(answer, way)(given)
        heard.append("ended")

    await in_a_callback(act)
    await task
    assert heard == ["ended", ("first", expected)]


async def test_who_is_cancelled_takes_the_answer_along() -> None:
    answer = new_answer()
    (task,) = await begin(waiting(answer, []))
    assert task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answer.cancelled()
    assert not answer.cancel()


async def test_one_told_already_and_the_ways_to_wait_are_those_of_any_future() -> None:
    reported = new_answer()
    reported.resolve(1)
    with pytest.raises(asyncio.InvalidStateError):
        reported.resolve(2)
    answers = [new_answer() for _ in range(4)]
    loop = asyncio.get_running_loop()
    for answer in answers:
        loop.call_soon(answer.resolve, 1)
    assert [await reported, await asyncio.wait_for(answers[0], 60)] == [1, 1]
    assert list(await asyncio.gather(answers[1], asyncio.shield(answers[2]))) == [1, 1]
    done, pending = await asyncio.wait({answers[3]})
    assert (done, pending) == ({answers[3]}, set())
    late = new_answer()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(late, 0)
    assert late.cancelled()


async def test_callbacks_can_be_taken_back_and_what_they_raise_harms_nobody() -> None:
    answer, heard, trouble = new_answer(), list[Any](), list[dict[str, Any]]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, reported: trouble.append(reported))

    def unwanted(_: asyncio.Future[Any]) -> None:
        raise AssertionError("was taken back")

    def failing(_: asyncio.Future[Any]) -> None:
        raise asyncio.CancelledError

    answer.add_done_callback(unwanted)
    answer.add_done_callback(unwanted)
    assert (answer.remove_done_callback(unwanted), answer.remove_done_callback(unwanted)) == (2, 0)
    answer.add_done_callback(failing)
    (task,) = await begin(waiting(answer, heard))
    await in_a_callback(lambda: answer.resolve(1))
    await task
    assert heard == [("first", 1)]
    assert [type(reported["exception"]) for reported in trouble] == [asyncio.CancelledError]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_who_ends_the_program_does_not_end_what_is_being_heard(kind: type[BaseException]) -> None:
    heard: list[Any] = []

    async def end(answer: EagerFuture) -> None:
        await answer
        raise kind

    async def main() -> None:
        first, second = new_answer(), new_answer()
        tasks = await begin(end(first), waiting(second, heard))

        def hear() -> None:
            first.resolve(1)
            second.resolve(2)
            heard.append("told")

        asyncio.get_running_loop().call_soon(hear)
        await asyncio.gather(*tasks)

    with pytest.raises(kind):
        asyncio.run(main())
    assert heard == [("first", 2), "told"]
