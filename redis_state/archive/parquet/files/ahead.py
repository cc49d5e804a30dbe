"""Read several things ahead, each in a thread: a bucket answers each call after the same delay."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

_AT_ONCE = 8


def ahead(work: Callable[[A], B], items: Sequence[A]) -> Iterator[tuple[A, B]]:
    """Yield each item with what is read of it, in their order. Eight are read at once.

    One at first, and one more with each that is taken: a caller may need few. What is read ahead is
    in memory. A caller that stops early leaves what is being read alone. Errors: those of the work,
    at the item.
    """
    if not items:
        return
    yield items[0], work(items[0])
    coming = iter(items[1:])
    reading = deque(_begin(work, islice(coming, 2)))
    while reading:
        item, future = reading.popleft()
        found = future.result()
        reading.extend(_begin(work, islice(coming, min(2, _AT_ONCE - len(reading)))))
        yield item, found


def _begin(work: Callable[[A], B], items: Iterable[A]) -> Iterator[tuple[A, Future[B]]]:
    for item in items:
        future: Future[B] = Future()
        # It keeps no process from ending.
        threading.Thread(
            target=_settle, args=[work, item, future], name="redis-state-archive", daemon=True
        ).start()
        yield item, future


def _settle(work: Callable[[A], B], item: A, future: Future[B]) -> None:
    try:
        future.set_result(work(item))
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is taken
        future.set_exception(error)
