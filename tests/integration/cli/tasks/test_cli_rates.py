"""The commands for rates."""

from __future__ import annotations

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import Settings
from tests.support.commands import begin, cli, end


async def test_a_rate_is_set_listed_and_taken_away(settings: Settings) -> None:
    assert "no rate was set" in (await cli(settings, "rates")).out
    ran = await cli(settings, "rates", "set", "my model\x1b[31m", "60/5m")
    assert ran.status == 0, ran.err
    assert "60/300s" in ran.out
    assert "\x1b[31m" not in ran.out
    process = await begin(settings, "rates", "--json")
    assert (await end(process)).document == [
        {"name": "my model\x1b[31m", "limit": 60, "per_s": 300.0}
    ]
    assert (
        await cli(settings, "rates", "set", "my model\x1b[31m", "none", "--json")
    ).document == []
    wrong = await cli(settings, "rates", "set", "model", "fast")
    assert (wrong.status, "rate" in wrong.err) == (2, True)
