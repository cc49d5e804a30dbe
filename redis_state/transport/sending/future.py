"""A future whose waiter continues at once.

asyncio lets a waiter continue in the next turn of the loop. For a lone call whose reply has just
been read, that turn is an eighth of its time: it polls the system for events that nobody needs yet.
Here the first waiter continues within the callback that received the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, NoReturn, cast

Waiter = Callable[[Any], object]

_set_result: Callable[[Any, Any], None] = cast("Any", asyncio.Future).set_result


class EagerFuture(asyncio.Future[Any]):
    """A future like any other, but for `resolve`. Callers must set ``waiter`` to None."""

    __slots__ = ("context", "waiter")

    # What is to be called first when there is an outcome, as a rule the task that waits.
    waiter: Waiter | None
    context: Context

    def resolve(self, result: Any) -> None:
        """Set the result, and let the first waiter continue before this returns.

        Only from a callback of the loop: within a task it is `set_result`.
        """
        waiter = self.waiter
        if waiter is None or asyncio.current_task(self.get_loop()) is not None:
            self.set_result(result)
            return
        self.waiter = None
        _set_result(self, result)
        try:
            self.context.run(waiter, self)
        except (SystemExit, KeyboardInterrupt) as error:
            # Raised by the loop: raised here it would abort the parsing of replies.
            self.get_loop().call_soon(_raise, error)
        except BaseException as error:  # noqa: BLE001 - as the loop has it; a task's own stays in it
            reported = {"message": "a callback failed", "exception": error, "future": self}
            self.get_loop().call_exception_handler(reported)
        finally:
            # The frames of an error that has ended it refer back to this one.
            del waiter

    def set_result(self, result: Any, /) -> None:
        """Set the result. Waiters continue in the next turn."""
        _set_result(self, result)
        self._let_go()

    def set_exception(self, exception: type | BaseException, /) -> None:
        """Set an exception. Waiters continue in the next turn."""
        super().set_exception(exception)
        self._let_go()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it. Waiters continue in the next turn."""
        cancelled = super().cancel(msg)
        if cancelled:
            self._let_go()
        return cancelled

    def add_done_callback(self, fn: Waiter, /, *, context: Context | None = None) -> None:
        """Call ``fn`` when there is an outcome; the first that asks for it before all others."""
        if self.waiter is None and not self.done():
            self.waiter = fn
            self.context = copy_context() if context is None else context
        else:
            super().add_done_callback(fn, context=context)

    def add_late_callback(self, fn: Waiter) -> None:
        """Call ``fn`` when there is an outcome, behind its waiters, those of now and later ones."""
        super().add_done_callback(fn)

    def remove_done_callback(self, fn: Waiter, /) -> int:
        """Remove every callback ``fn``; return their number."""
        removed = super().remove_done_callback(fn)
        if self.waiter == fn:
            self.waiter = None
            removed += 1
        return removed

    def _let_go(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            self.get_loop().call_soon(waiter, self, context=self.context)


def _raise(error: BaseException) -> NoReturn:
    raise error
