from __future__ import annotations

import pytest

from redis_state.scripts import SCRIPTS, Scripts
from tests.support.scripts.replies import ask


@pytest.mark.role("any", why="it loads scripts")
async def test_the_server_compiles_each_script_under_our_digest(scripts: Scripts) -> None:
    wrong = [
        name
        for name, script in SCRIPTS.items()
        if (await ask(scripts, "SCRIPT", "LOAD", script.text)).decode() != script.digest
    ]
    assert wrong == []
