"""The commands show payloads to who has the key, and say that they are encrypted to others."""

from __future__ import annotations

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from redis_state import Settings
from redis_state.models import TaskStatus
from redis_state.worker import TaskContext
from tests.support.commands import cli
from tests.support.payloads import KEYS, opened
from tests.support.processes.pools import SESSION, becomes, open_token, pool

MARK = "marker-of-what-nobody-may-read"


async def asking(ctx: TaskContext) -> str:
    """Ask, then return what was decided."""
    await ctx.progress(f"{MARK} progress")
    await ctx.step("s", lambda: f"{MARK} step")
    decision = await ctx.pause("go", {"q": f"{MARK} question"}, name="go")
    if decision.value == "fail":
        raise ValueError(f"{MARK} error")
    return f"{MARK} result"


async def test_who_has_no_key_reads_that_it_is_encrypted(settings: Settings) -> None:
    async with opened(settings, KEYS[0]) as store, pool(store, {"h": asking}) as client:
        for name, value in (("done", "go"), ("failed", "fail"), ("open", None)):
            await client.submit(
                "h", f"{MARK} input", session_id=SESSION, task_id=name, description=f"{MARK} about"
            )
            token = await open_token(store, name)
            if value is not None:
                await client.approve(token, value)
        await becomes(client, "done", TaskStatus.COMPLETE)
        await becomes(client, "failed", TaskStatus.FAILED)
    commands = {
        "show": ("show", SESSION, "done"),
        "error": ("show", SESSION, "failed"),
        "json": ("show", SESSION, "done", "--json"),
        "tree": ("tree", SESSION, "done"),
        "tasks": ("tasks",),
        "find": ("find",),
        "waiting": ("show", SESSION, "open", "--json"),
        "updates": ("tail", SESSION, "done", "--no-follow"),
        "history": ("history", SESSION, "done"),
        "replay": ("replay", "tests.integration.cli.tasks.test_cli_payloads:HANDLERS"),
    }
    for name, arguments in commands.items():
        blind = await cli(settings, *arguments)
        assert MARK not in blind.out + blind.err, name
        assert "Traceback" not in blind.err
        seeing = await cli(settings, *arguments, REDIS_STATE_PAYLOAD_KEYS=KEYS[0])
        assert seeing.status == 0, (name, seeing.err)
        if name in {"json", "waiting", "updates", "history", "error"}:
            assert MARK in seeing.out, name
            assert "encrypted" in blind.out + blind.err, name
    shown = await cli(settings, "show", SESSION, "failed")
    assert "<encrypted>" in shown.out


HANDLERS = {"h": asking}
