from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from redis_state import ConfigError
from redis_state.integrations.loop_thread import LoopThread
from tests.support.processes import children

WITHIN_S = 30
ROOT = Path(__file__).resolve().parents[2]


async def nothing() -> None:
    pass


async def thread_name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


def running(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def call_again_and_again(one: LoopThread) -> None:
    for _ in range(100_000):
        one.run(nothing)


async def test_callers_of_every_thread_share_one_loop_and_may_have_their_own() -> None:
    one = LoopThread("shared loop")
    assert running("shared loop") == 0
    assert one.run(thread_name) == "shared loop"
    with ThreadPoolExecutor(8) as threads:
        names = [threads.submit(one.run, thread_name) for _ in range(50)]
        assert {name.result(WITHIN_S) for name in names} == {"shared loop"}
    assert running("shared loop") == 1
    one.close(nothing)


def test_what_nobody_waits_for_is_done_while_the_loop_runs_and_not_before_or_behind() -> None:
    one, done = LoopThread("is left"), list[str]()

    async def note(name: str) -> None:
        done.append(name)

    async def from_within() -> None:
        one.leave(lambda: note("from its own thread"))

    one.leave(lambda: note("before the first call"))
    one.run(nothing)
    one.leave(lambda: note("from another thread"))
    one.run(from_within)
    one.run(nothing)
    assert done == ["from another thread", "from its own thread"]
    one.close(nothing)
    one.leave(lambda: note("behind the end"))
    assert len(done) == 2


def test_a_call_from_within_its_own_thread_is_refused() -> None:
    one = LoopThread("calls itself")

    async def call_itself() -> None:
        one.run(nothing)

    with pytest.raises(ConfigError, match="calls itself is called from its own thread"):
        one.run(call_itself)
    assert one.run(thread_name) == "calls itself"
    one.close(nothing)


def test_an_error_is_its_callers_and_the_loop_goes_on() -> None:
    async def fail() -> None:
        raise LookupError("mine")

    one = LoopThread("fails")
    with pytest.raises(LookupError, match="mine"):
        one.run(fail)
    assert one.run(thread_name) == "fails"
    one.close(nothing)


def test_the_end_comes_after_the_calls_under_way_and_is_final() -> None:
    happened: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    async def slow() -> None:
        begun.set()
        await asyncio.to_thread(go_on.wait, WITHIN_S)
        happened.append("call")

    async def last() -> None:
        happened.append("last")

    one = LoopThread("ends")
    with ThreadPoolExecutor(2) as threads:
        call = threads.submit(one.run, slow)
        assert begun.wait(WITHIN_S)
        end = threads.submit(one.close, last)
        with pytest.raises(ConfigError, match="ends is closed"):
            call_again_and_again(one)
        go_on.set()
        call.result(WITHIN_S)
        end.result(WITHIN_S)
    assert happened == ["call", "last"]
    one.close(last)
    assert happened == ["call", "last"]
    assert running("ends") == 0


def test_one_that_was_never_used_has_no_end_to_wait_for() -> None:
    one = LoopThread("unused")
    one.close(nothing)
    with pytest.raises(ConfigError, match="unused is closed"):
        one.run(nothing)
    assert running("unused") == 0


def test_a_failing_end_ends_the_thread_all_the_same() -> None:
    async def fail() -> None:
        raise OSError("gone")

    one = LoopThread("fails at its end")
    one.run(nothing)
    one.close(fail)
    assert running("fails at its end") == 0


def test_the_thread_itself_only_begins_its_end() -> None:
    one = LoopThread("inside")

    async def close() -> None:
        one.close(nothing)

    one.run(nothing)
    (thread,) = [each for each in threading.enumerate() if each.name == "inside"]
    one.run(close)
    thread.join(WITHIN_S)
    assert not thread.is_alive()


def test_a_loop_that_nobody_knows_any_more_is_not_kept() -> None:
    one = LoopThread("forgotten")
    known = weakref.ref(one)
    one.run(nothing)
    one.close(nothing)
    del one
    gc.collect()
    assert known() is None


_FORKS = """
import os, threading
from redis_state.integrations.loop_thread import LoopThread
from tests.support.processes import children
from tests.unit.test_loop_thread import nothing, thread_name

one, other = LoopThread("before"), LoopThread("held")
one.run(nothing)
with other._lock:  # as a thread of the parent may hold it
    child = os.fork()
    if child == 0:
        assert one.run(thread_name) == other.run(thread_name).replace("held", "before")
        assert {each.name for each in threading.enumerate()} > {"before", "held"}
        one.close(nothing)
        os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert one.run(thread_name) == "before"
one.close(nothing)
"""


def test_a_forked_process_starts_a_thread_of_its_own() -> None:
    ran = children.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKS],
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )
    assert (ran.returncode, ran.stderr) == (0, "")
