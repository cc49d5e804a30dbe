"""Every script has its method and is given what its header asks for."""

from __future__ import annotations

import asyncio
import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest

from redis_state import Settings
from redis_state.errors import CommandRefused, CorruptState
from redis_state.scripts import (
    SCRIPTS,
    Reply,
    ReplyCode,
    Scripts,
    topic_bytes,
    topic_text,
)
from redis_state.transport.keys import Keys
from redis_state.transport.transport import Transport
from redis_state.transport.wire.resp import PreparedScript
from tests.support.script_calls import CALLS

_TAG = re.compile(r"\{(.*?)\}")


class Noting:
    """Stands where our own sender stands, and notes what it was given."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.commands: list[tuple[Any, ...]] = []

    def run(self, prepared: PreparedScript, more: Any, **_: Any) -> asyncio.Future[Any]:
        return self.send(*prepared.command(*more))

    def send(self, *command: Any, **_: Any) -> asyncio.Future[Any]:
        self.commands.append(command)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(self.reply, Exception):
            future.set_exception(self.reply)
        else:
            future.set_result(self.reply)
        return future


def noting(reply: Any) -> tuple[Noting, Scripts]:
    sender = Noting(reply)
    transport: Any = SimpleNamespace(sender=sender, settings=Settings())
    assert hasattr(Transport, "sender")
    return sender, Scripts(transport)


def test_each_script_has_a_method_and_each_method_a_script() -> None:
    methods = {
        name
        for name, _ in inspect.getmembers(Scripts, inspect.isfunction)
        if not name.startswith(("_", "begin_"))
    }
    # Reads run no script, and `run_once` has a method for each of its commands.
    methods -= {"read", "delete", "unlink", "hdel", "zrem"}
    assert methods == set(SCRIPTS) == set(CALLS)


async def test_each_call_is_of_its_script_and_has_its_keys_in_one_slot() -> None:
    """The server itself refuses keys of two slots: `servers/clusters/test_crossslot.py`."""
    for name, call in CALLS.items():
        sender, scripts = noting([b"OK"])
        assert await call(scripts, Keys()) == Reply(ReplyCode.OK, []), name
        command, digest, size, *rest = sender.commands[0]
        assert (command, digest) == ("EVALSHA", SCRIPTS[name].digest), name
        keys, arguments = rest[:size], rest[size:]
        assert all(len(_TAG.findall(key)) == 1 for key in keys), (name, keys)
        assert len({_TAG.findall(key)[0] for key in keys}) == 1, (name, keys)
        texts = [value for value in arguments if isinstance(value, str)]
        assert all(text.isascii() for text in texts), (name, texts)


@pytest.mark.parametrize("reply", [[], [b"NEW"], [1], None, 5])
async def test_an_unknown_reply_is_corrupt_state(reply: Any) -> None:
    with pytest.raises(CorruptState, match="claim_due"):
        await CALLS["claim_due"](noting(reply)[1], Keys())


async def test_a_refusal_keeps_its_kind() -> None:
    with pytest.raises(CommandRefused, match="NOPERM"):
        await CALLS["claim_due"](noting(CommandRefused("NOPERM no"))[1], Keys())


@pytest.mark.parametrize("topic", [None, "", "a", "\ud800", "\xff", "é"])
def test_a_topic_is_read_as_it_was_written(topic: str | None) -> None:
    assert topic_text(topic_bytes(topic)) == topic


def test_a_fact_is_read_as_text() -> None:
    assert Reply(ReplyCode.OK, [b"a", 5, b"\xed\xa0\x80"]).text(0) == "a"
    assert Reply(ReplyCode.OK, [b"a", 5, b"\xed\xa0\x80"]).text(1) == "5"
    assert Reply(ReplyCode.OK, [b"a", 5, b"\xed\xa0\x80"]).text(2) == "\ud800"
