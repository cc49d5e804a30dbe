"""A clock that tests move on: the server's own, and a shift that the server keeps.

Scripts and commands of a store with such a clock read the shift wherever they read the time. So all
processes of a test's namespace have one time, and it changes for all of them at once. The shift is
a key that scripts read without being given it, which a cluster refuses.

No other store can have it. Its scripts are other texts, and only `ClockSettings` in
`redis_state.testing` names them. No setting does, nor the environment.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from redis_state.errors import ConfigError
from redis_state.settings import Settings
from redis_state.transport.keys import Keys
from redis_state.transport.sending.sender import Sender
from redis_state.transport.wire.resp import Argument, PreparedScript, prepare
from redis_state.transport.wire.script import Script

TEST_CLOCK = "test-clock-"
"""How the names of namespaces begin that have such a clock, and of no others."""

_TIME = "redis.call('TIME')"
# In the first line, so that the lines of the script keep their numbers.
_SHIFTED = (
    "local function shifted_time() "
    "local time = redis.call('TIME') "
    "local us = time[1] * 1000000 + time[2] + (redis.call('GET', '%s') or 0) * 1000 "
    "return { string.format('%%.0f', math.floor(us / 1000000)), "
    "string.format('%%.0f', us %% 1000000) } end "
)


def shift_key_of(settings: Settings, *, in_cluster: bool) -> str | None:
    """Return the key of the shift, None for the server's own clock.

    Errors: ConfigError for a namespace whose clock tests move, unless the store has that clock;
    and where such a clock cannot be.
    """
    named = settings.namespace.startswith(TEST_CLOCK)
    if not settings.has_test_clock:
        if named:
            raise ConfigError(
                f"namespace: one that begins with {TEST_CLOCK} has a clock that tests move on; "
                "take the settings of its Pool"
            )
        return None
    if not named:
        raise ConfigError(f"namespace: one with a test clock begins with {TEST_CLOCK}")
    if in_cluster:
        raise ConfigError("url: a test clock needs one server, no cluster")
    if settings.queue_url is not None:
        raise ConfigError("queue_url: a test clock needs one server, for the queue too")
    return Keys(settings.namespace).test_clock()


def sender_with_clock(shift_key: str | None) -> Callable[..., Sender]:
    """Return what makes senders whose time is shifted by a key, or the plain ones for None."""
    return Sender if shift_key is None else partial(_ShiftedSender, shift_key=shift_key)


class _ShiftedSender(Sender):
    """Send every script that reads the time in a text that adds the shift to it."""

    def __init__(self, *arguments: Any, shift_key: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._prefix = _SHIFTED % shift_key.replace("\\", "\\\\").replace("'", "\\'")
        self._texts: dict[Script, Script] = {}
        self._shift_key = shift_key
        self._clock = self._shifted(Script("server_time", f"return {_TIME}\n", ""))

    def send(self, *command: Argument, repeatable: bool, **options: Any) -> asyncio.Future[Any]:
        if command == ("TIME",):
            return self.run(prepare(self._clock, (self._shift_key,)), ())
        return super().send(*command, repeatable=repeatable, **options)

    def run(
        self, prepared: PreparedScript, more: tuple[Argument, ...], **options: Any
    ) -> asyncio.Future[Any]:
        script = prepared.script
        shifted = self._texts.get(script) or self._shifted(script)
        return super().run(prepared._replace(script=shifted), more, **options)

    def _shifted(self, script: Script) -> Script:
        shifted = script
        if _TIME in script.text:
            text = self._prefix + script.text.replace(_TIME, "shifted_time()")
            digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            shifted = replace(script, text=text, digest=digest)
        # Neighbours share a command if their script is the same object; one is not shifted again.
        self._texts[script] = self._texts[shifted] = shifted
        return shifted
