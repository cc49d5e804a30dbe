from __future__ import annotations

import pytest

from redis_state.scripts import SCRIPTS, Scripts
from tests.support.scripts import ask


@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_server_compiles_it_under_our_digest(name: str, scripts: Scripts) -> None:
    digest = await ask(scripts, "SCRIPT", "LOAD", SCRIPTS[name].text)
    assert digest.decode() == SCRIPTS[name].digest
