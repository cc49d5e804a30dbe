"""Blocks of code on the pages of the docs that need something around them to run."""

from __future__ import annotations

import ast
import re
from inspect import isawaitable
from pathlib import Path
from typing import Any

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def block_of(page: str, holding: str) -> str:
    """Return the one block of Python on a guide's page that has a text."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (code,) = [block for block in blocks if holding in block]
    return str(code)


async def run_block(code: str, **names: Any) -> dict[str, Any]:
    """Run a block with some names; return all that it leaves."""
    compiled = compile(code, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ran = eval(compiled, names)  # noqa: S307 - our own page
    if isawaitable(ran):
        await ran
    return names
