"""Callers at once over TLS: each gets the reply to its own call."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from tests.chaos.support.trial import Trial
from tests.support.servers.faults import Proxy, certificate, tls_server_context

_CALLERS = 40
_CUT_EVERY = 20_000


async def test_callers_at_once_over_tls(trial: Trial, settings: Settings, tmp_path: Path) -> None:
    # In a reduced size there is one cut, however many replies come before it and after.
    wanted = trial.size.of(1_000_000 if trial.size.full else 200_000, least=_CALLERS)
    trial.parameters = {"replies": wanted, "callers": _CALLERS}
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    tls = tls_server_context(cert, key)
    wrong = heard = 0
    async with Proxy(settings.url.get_secret_value(), tls=tls) as proxy:
        # Many records for each read, and connections that are cut in the middle of one.
        proxy.dribble(1_500)
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        over_tls = settings.model_copy(update={"url": SecretStr(url)})
        async with RedisStateStore(over_tls) as store:
            for user in range(_CALLERS):
                pad = "x" * (250 if user % 10 else 20_000)
                await store.save_memory_state(f"user{user}", {"user": user, "pad": pad})

            async def read(user: int) -> None:
                nonlocal wrong, heard
                with trial.history.doing("read"):
                    found = await store.load_memory_state(f"user{user}")
                    wrong += found is None or found["user"] != user
                    heard += 1

            cut_at = min(_CUT_EVERY, wanted // 2)
            while heard < wanted:
                await asyncio.gather(*map(read, range(_CALLERS)))
                if heard >= cut_at:
                    cut_at += _CUT_EVERY
                    reading = asyncio.gather(*map(read, range(_CALLERS)))
                    await asyncio.sleep(0)
                    trial.faults += proxy.cut()
                    await reading
    trial.expect(not wrong, f"{wrong} replies were another caller's")
    trial.figures = {"replies": heard, "wrong": wrong}
    trial.conclude()
